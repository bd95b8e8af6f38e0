"""Drafted decoding against ordinary decoding on the toy engine, where they must agree to the
bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, fixed, generate
from paceline.decode.generate import Generation, decode
from paceline.decode.step import Decoder
from paceline.drafts.base import Context, Draft, NoDraft
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.testing import enumerate_outcomes
from paceline.types import Choice, Proposal
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier

PROMPT = [1, 2, 3, 1, 2]


class HalfRight(Draft):
    """Deterministic: the target's own next token every other time, else another."""

    name = summary = "half-right"

    def __init__(self, target: ToyEngine) -> None:
        self.target, self.random = target, random.Random(3)

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Proposal]:
        return [
            Proposal(self.tokens(c, n), self.name) for c, n in zip(contexts, limits, strict=True)
        ]

    def tokens(self, context: Context, max_draft_tokens: int) -> tuple[int, ...]:
        tokens: list[int] = []
        for _ in range(self.random.randint(0, max_draft_tokens)):
            right = int(self.target.logits([*context.history.tokens, *tokens]).argmax())
            wrong = (right + 1) % self.target.vocabulary_size
            tokens.append(right if self.random.random() < 0.5 else wrong)
        return tuple(tokens)


def target(**options) -> ToyEngine:
    """Ends its answers, but seldom, so that there is text to compare."""
    model = ToyEngine(10, seed=34, order=3)
    rare_end = np.array([0] * 9 + [-2.5], dtype=np.float32)
    return ToyEngine(
        10,
        table=lambda context: model.logits(context) + rare_end,
        end_tokens=(9,),
        context_size=80,
        **options,
    )


DRAFTS = {
    "none": lambda t: NoDraft(),
    "lookup": lambda t: LookupDraft(),
    "half-right": HalfRight,
    "itself": lambda t: ModelDraft(target(), t),
    "another": lambda t: ModelDraft(ToyEngine(10, seed=8, end_tokens=(9,), context_size=80), t),
}
# Everything that could be dropped on the drafted path; each must change plain text, or the test
# would not bite (see test_each_setting_changes_plain_text).
SETTINGS = {
    "greedy": {},
    "repetition": {"repetition_penalty": 1.8},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.2},
    "bias": {"logit_bias": {4: 3.0}},
    "banned": {"banned_tokens": (0, 5)},
    "allowed": {"allowed_tokens": (1, 2, 3, 6, 9)},
    "sequences": {"banned_sequences": ((5, 2), (0, 7), (4,))},
    "minimum": {"min_tokens": 32},
    "sampled": {"temperature": 0.9, "seed": 4},
    "top-k": {"temperature": 1.4, "top_k": 3, "seed": 4},
    "top-p": {"temperature": 1.4, "top_p": 0.7, "seed": 4},
    "min-p": {"temperature": 1.4, "min_p": 0.3, "seed": 4},
    "seed": {"temperature": 0.9, "seed": 5},
    "all": {
        "temperature": 0.9,
        "top_k": 6,
        "top_p": 0.95,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.3,
        "logit_bias": {2: 1.0},
        "banned_tokens": (7,),
        "min_tokens": 12,
        "seed": 9,
    },
}


def run(
    draft: str,
    max_draft_tokens: int,
    *,
    settings: str = "greedy",
    verifier=ChainVerifier,
    prompt=PROMPT,
    **stop,
) -> Generation:
    engine = target()
    generation = generate(
        engine,
        prompt,
        draft=DRAFTS[draft](engine),
        max_draft_tokens=max_draft_tokens,
        verifier=verifier(),
        sampling=Sampling(**SETTINGS[settings]),
        stop=StopConditions(**{"max_tokens": 40, **stop}),
        logprobs=True,
    )
    assert engine.sequences_open == 0
    return generation


def assert_same(drafted: Generation, baseline: Generation) -> None:
    assert drafted.tokens == baseline.tokens
    assert drafted.text == baseline.text
    assert drafted.finish_reason == baseline.finish_reason
    assert drafted.log_probs == baseline.log_probs
    assert sum(round.emitted for round in drafted.rounds) == len(drafted.tokens)
    for round in drafted.rounds:
        assert 0 <= round.accepted <= round.proposed <= round.width - 1
        assert round.emitted in (round.accepted, round.accepted + 1)


@pytest.mark.parametrize("max_draft_tokens", range(9))
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_text_is_plain_text(draft: str, max_draft_tokens: int) -> None:
    baseline = run("none", 0)
    assert len(baseline.log_probs) == len(baseline.tokens) > 20
    assert_same(run(draft, max_draft_tokens), baseline)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("draft", ["lookup", "half-right"])
@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
def test_every_setting_is_honoured_in_every_row(draft: str, settings: str, verifier) -> None:
    """Chosen drafts draw once per emitted token, so even sampled text is plain text."""
    baseline = run("none", 0, settings=settings)
    for max_draft_tokens in (1, 4):
        assert_same(run(draft, max_draft_tokens, settings=settings, verifier=verifier), baseline)


@pytest.mark.parametrize("settings", [name for name in SETTINGS if name != "greedy"])
def test_each_setting_changes_plain_text(settings: str) -> None:
    base = {"seed": "sampled", "top-k": "sampled", "top-p": "sampled", "min-p": "sampled"}
    assert (
        run("none", 0, settings=settings).tokens
        != run("none", 0, settings=base.get(settings, "greedy")).tokens
    )


@pytest.mark.parametrize(
    "settings", [name for name in SETTINGS if "temp" not in str(SETTINGS[name])]
)
def test_the_target_accepts_itself_entirely(settings: str) -> None:
    drafted = run("itself", 4, settings=settings)
    assert_same(drafted, run("none", 0, settings=settings))
    assert drafted.stats.acceptance_rate == 1.0


def test_the_target_accepts_itself_entirely_when_sampled() -> None:
    for settings in ("sampled", "all"):
        for verifier in (ChainVerifier, BlockVerifier):
            stats = run("itself", 4, settings=settings, verifier=verifier).stats
            assert stats.acceptance_rate == 1.0


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_batch_gives_each_request_what_it_gets_alone(draft: str) -> None:
    """Uneven prompts, other settings each, more requests than sequences."""

    def requests() -> list[Request]:
        return [
            Request(
                prompt=tuple(PROMPT * (1 + i % 3))[: 3 + 2 * i],
                sampling=Sampling(**(SETTINGS[name] | {"seed": 20 + i})),
                stop=StopConditions(max_tokens=5 + 4 * i),
                max_draft_tokens=[None, 0, 2][i % 3],
            )
            for i, name in enumerate(["greedy", "sampled", "all", "greedy", "top-p", "repetition"])
        ]

    engine = target(max_sequences=4)
    decoder = Decoder(engine, {"d": DRAFTS[draft](engine)}, ChainVerifier(), fixed("d", 3))
    together = decode(decoder, requests())
    assert engine.sequences_open == 0
    for request, generation in zip(requests(), together, strict=True):
        engine = target()
        alone = Decoder(engine, {"d": DRAFTS[draft](engine)}, ChainVerifier(), fixed("d", 3))
        [single] = decode(alone, [request])
        assert_same(generation, single)
        if request.max_draft_tokens is not None:
            assert max(round.width for round in generation.rounds) <= request.max_draft_tokens + 1


def test_a_policy_may_change_its_mind_every_round() -> None:
    baseline = run("none", 0)
    source = random.Random(1)
    for _ in range(10):
        engine = target()
        drafts = {"lookup": LookupDraft(), "model": DRAFTS["another"](engine)}

        def policy(streams) -> list[Choice]:
            return [
                Choice(source.choice(["lookup", "model", None]), source.randint(0, 6))
                for _ in streams
            ]

        decoder = Decoder(engine, drafts, ChainVerifier(), policy)
        request = Request(prompt=tuple(PROMPT), stop=StopConditions(max_tokens=40))
        [generation] = decode(decoder, [request])
        assert generation.tokens == baseline.tokens


@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
@pytest.mark.parametrize("draft", ["model", "lookup"])
def test_the_whole_loop_is_exact_by_enumeration(draft: str, verifier) -> None:
    """Every path of every random choice, draft and target, through the real loop: the output
    distribution is ordinary decoding's, up to the rounding of float32 distributions."""
    sampling = Sampling(temperature=0.9, repetition_penalty=1.2)

    def outcome(max_draft_tokens: int, rng) -> tuple[int, ...]:
        engine = ToyEngine(3, seed=2, order=2, end_tokens=(2,))
        drafts = {
            "model": ModelDraft(ToyEngine(3, seed=9, end_tokens=(2,)), engine),
            "lookup": LookupDraft(),
        }
        decoder = Decoder(engine, drafts, verifier(), fixed(draft, max_draft_tokens))
        request = Request(prompt=(0, 1, 0), sampling=sampling, stop=StopConditions(max_tokens=4))
        stream = decoder.open(request)
        stream.rng = stream.context.rng = rng
        while not stream.finished:
            decoder.step([stream])
        return tuple(stream.history.output)

    baseline = enumerate_outcomes(lambda rng: outcome(0, rng))
    drafted = enumerate_outcomes(lambda rng: outcome(2, rng))
    keys = baseline.keys() | drafted.keys()
    assert sum(baseline.values()) == pytest.approx(1, abs=1e-6)
    assert sum(abs(baseline.get(k, 0) - drafted.get(k, 0)) for k in keys) / 2 < 1e-6


class Liar(ModelDraft):
    """Offers the likeliest token, told as drawn from its distribution."""

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Proposal]:
        told = super().propose(contexts, [1] * len(limits))
        return [
            Proposal(
                (max(distribution.items(), key=lambda item: item[1])[0],), "model", (distribution,)
            )
            for proposal in told
            for distribution in proposal.distributions
        ]


def test_a_draft_that_lies_about_its_distribution_fails_the_enumeration(monkeypatch) -> None:
    monkeypatch.setitem(globals(), "ModelDraft", Liar)
    with pytest.raises(AssertionError):
        test_the_whole_loop_is_exact_by_enumeration("model", ChainVerifier)
