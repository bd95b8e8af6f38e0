"""Combined drafts through the whole loop: plain text where promised, the plain distribution
always."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import test_equality
from test_equality import SETTINGS, assert_same, run, target

from paceline import Request, Sampling, StopConditions, fixed
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts import calibrate
from paceline.drafts.base import Draft
from paceline.drafts.combine import CascadeDraft, FirstDraft, MixtureDraft
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.testing import enumerate_outcomes
from paceline.types import Proposal
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier
from paceline.verify.tree import TreeVerifier


def another(engine: ToyEngine) -> ModelDraft:
    return ModelDraft(ToyEngine(10, seed=8, end_tokens=(9,), context_size=80), engine)


def itself(engine: ToyEngine) -> ModelDraft:
    return ModelDraft(target(), engine)


COMBINED: dict[str, Callable[[ToyEngine], Draft]] = {
    "first": lambda t: FirstDraft([LookupDraft(), another(t)]),
    "first of lookups": lambda t: FirstDraft([LookupDraft(min_match=3), LookupDraft(min_match=1)]),
    "cascade": lambda t: CascadeDraft([LookupDraft(min_match=1, reach=1.0), itself(t)]),
    "cascade of models": lambda t: CascadeDraft([itself(t), LookupDraft(), another(t)]),
    "mixture": lambda t: MixtureDraft([LookupDraft(), another(t)], 0.3, calibrate=True),
    "lookup leads": lambda t: MixtureDraft([LookupDraft(min_match=1), itself(t)], 0.8),
    "calibrated": lambda t: ModelDraft(
        ToyEngine(10, seed=8, end_tokens=(9,), context_size=80), t, calibrate=True
    ),
}
UNSAMPLED = [name for name, settings in SETTINGS.items() if "temperature" not in settings]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_equality, "DRAFTS", test_equality.DRAFTS | COMBINED)
    monkeypatch.setattr(calibrate, "_ENOUGH", 1)


@pytest.mark.parametrize("settings", UNSAMPLED)
@pytest.mark.parametrize("draft", COMBINED)
def test_greedy_text_is_plain_text(draft: str, settings: str) -> None:
    baseline = run("none", 0, settings=settings)
    offered = 0
    for max_draft_tokens in range(1, 5):
        for verifier in (ChainVerifier, TreeVerifier):
            drafted = run(draft, max_draft_tokens, settings=settings, verifier=verifier)
            assert_same(drafted, baseline)
            offered += drafted.stats.proposed
    assert offered > 20


@pytest.mark.parametrize("draft", COMBINED)
def test_a_batch_gives_each_request_what_it_gets_alone(draft: str) -> None:
    test_equality.test_a_batch_gives_each_request_what_it_gets_alone(draft)


PENALISED = Sampling(temperature=1.0, repetition_penalty=1.2, presence_penalty=0.3)


def pair(engine: ToyEngine, seed: int = 9, **options) -> ModelDraft:
    return ModelDraft(ToyEngine(3, seed=seed, end_tokens=(2,)), engine, **options)


def lookup() -> LookupDraft:
    return LookupDraft(min_match=1)


class UsesTheRowItJudges(ModelDraft):
    """Draws a token, and then tells the distribution at the factor that its own row would have
    wanted."""

    def propose(self, contexts, limits):
        return [
            Proposal(p.tokens, p.source, tuple(map(self.sharpened, p.distributions, p.tokens)))
            for p in super().propose(contexts, limits)
        ]

    def sharpened(self, distribution, token):
        probs = max(
            (distribution.probs**power for power in (0.5, 2.0)), key=lambda w: (w / w.sum())[token]
        )
        return type(distribution)(probs / probs.sum())


SMALL: dict[str, Callable[[ToyEngine], Draft]] = {
    "first": lambda t: FirstDraft([lookup(), pair(t)]),
    "cascade": lambda t: CascadeDraft([lookup(), pair(t)]),
    "mixture": lambda t: MixtureDraft([lookup(), pair(t)], 0.4),
    "calibrated mixture": lambda t: MixtureDraft([lookup(), pair(t)], 0.4, calibrate=True),
    "calibrated model": lambda t: pair(t, 6, calibrate=True),
}


def distance(
    draft: Callable[[ToyEngine], Draft], verifier, max_draft_tokens: int, tokens: int
) -> float:
    """Total variation between the texts of the real loop and ordinary decoding's, all choices of
    draft and target enumerated."""

    def outcome(max_draft_tokens: int, rng) -> tuple[int, ...]:
        engine = ToyEngine(3, seed=2, order=2, end_tokens=(2,))
        decoder = Decoder(engine, {"d": draft(engine)}, verifier(), fixed("d", max_draft_tokens))
        request = Request(
            prompt=(0, 1, 0), sampling=PENALISED, stop=StopConditions(max_tokens=tokens)
        )
        stream = decoder.open(request)
        stream.rng = stream.context.rng = rng
        while not stream.finished:
            decoder.step([stream])
        return tuple(stream.history.output)

    baseline = enumerate_outcomes(lambda rng: outcome(0, rng))
    drafted = enumerate_outcomes(lambda rng: outcome(max_draft_tokens, rng))
    assert sum(baseline.values()) == pytest.approx(1, abs=1e-6)
    return (
        sum(abs(baseline.get(k, 0) - drafted.get(k, 0)) for k in baseline.keys() | drafted.keys())
        / 2
    )


@pytest.mark.parametrize(("max_draft_tokens", "tokens"), [(1, 4), (2, 4), (4, 5)])
@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
@pytest.mark.parametrize("draft", SMALL)
def test_the_whole_loop_is_exact_by_enumeration(
    draft: str, verifier, max_draft_tokens: int, tokens: int
) -> None:
    assert distance(SMALL[draft], verifier, max_draft_tokens, tokens) < 1e-6


@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
def test_a_draft_calibrated_by_the_row_it_is_judged_by_fails(verifier) -> None:
    wrong = lambda t: UsesTheRowItJudges(ToyEngine(3, seed=9, end_tokens=(2,)), t)  # noqa: E731
    assert distance(wrong, verifier, 2, 4) > 1e-3


def test_a_calibrated_enumeration_does_change_its_values(monkeypatch) -> None:
    """Or the proof of calibrated drafts would be one of others."""
    values: set[float] = set()
    learn = calibrate.Calibration.learn

    def noted(self, worth) -> None:
        learn(self, worth)
        values.add(self.value)

    monkeypatch.setattr(calibrate.Calibration, "learn", noted)
    for name in ("calibrated mixture", "calibrated model"):
        values.clear()
        distance(SMALL[name], ChainVerifier, 1, 4)
        assert len(values) > 1


def test_combined_drafts_sample_the_same_text_from_the_same_seed() -> None:
    def once(name: str) -> tuple[int, ...]:
        engine = target()
        request = Request(
            prompt=tuple(test_equality.PROMPT),
            sampling=Sampling(temperature=0.9, seed=3),
            stop=StopConditions(max_tokens=40),
        )
        decoder = Decoder(engine, {"d": COMBINED[name](engine)}, ChainVerifier(), fixed("d", 3))
        return decode(decoder, [request])[0].tokens

    for name in COMBINED:
        assert once(name) == once(name)
