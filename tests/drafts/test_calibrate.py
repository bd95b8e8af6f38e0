"""Calibration: what a value would have been worth, which positions count, and that it helps."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, fixed
from paceline.decode.generate import Generation, decode
from paceline.decode.step import Decoder
from paceline.drafts import calibrate
from paceline.drafts.base import Draft, VerifiedRound
from paceline.drafts.calibrate import (
    FACTORS,
    WEIGHTS,
    Calibration,
    worth_by_factor,
    worth_by_weight,
)
from paceline.drafts.combine import MixtureDraft
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.sampling.distribution import Distribution, mixed
from paceline.sampling.history import History
from paceline.sampling.processors import distribution_of
from paceline.sampling.rows import RowDistributions
from paceline.types import Proposal
from paceline.verify.chain import ChainVerifier


def logits(seed: int, size: int = 50) -> np.ndarray:
    return (2 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def overlap(p: Distribution, q: Distribution) -> float:
    other = dict(q.items())
    return sum(min(prob, other.get(token, 0)) for token, prob in p.items())


@pytest.mark.parametrize("filters", [{}, {"top_k": 7}])
@pytest.mark.parametrize("before", [1.0, 0.6])
def test_a_factor_s_worth_is_the_rng_of_acceptance_under_it(before: float, filters) -> None:
    target = distribution_of(logits(1), Sampling(temperature=0.8))
    draft = {
        factor: distribution_of(logits(2), Sampling(temperature=0.8 * factor, **filters))
        for factor in (*FACTORS, before)
    }
    expected = [overlap(target, draft[factor]) for factor in FACTORS]
    # What is next to impossible is left out, which tells a little where the draft gets warmer.
    assert worth_by_factor(target, draft[before], before) == pytest.approx(expected, abs=5e-3)


def test_a_weight_s_worth_is_the_rng_of_acceptance_under_it() -> None:
    target, model = (distribution_of(logits(seed), Sampling(temperature=0.8)) for seed in (1, 2))
    for first in (
        Distribution.one_hot(3),
        distribution_of(logits(3), Sampling(temperature=1, top_k=4)),
    ):
        expected = [overlap(target, mixed(first, model, weight)) for weight in WEIGHTS]
        assert worth_by_weight(target, first, model) == pytest.approx(expected, abs=1e-4)
        assert worth_by_weight(Distribution.one_hot(3), first, model)[-1] == pytest.approx(
            first.prob(3)
        )


def verified(tokens: tuple[int, ...], accepted: int, parents=None) -> VerifiedRound:
    history, rows = History([1]), np.stack([logits(i, 9) for i in range(len(tokens) + 1)])
    distributions = RowDistributions(
        rows, Sampling(temperature=1), history, tokens, parents=parents
    )
    path = tuple(range(accepted)) if parents is None else (accepted,)
    return VerifiedRound(
        Proposal(tokens, "x", parents=parents), path, 1, distributions.logits, distributions
    )


def test_positions_count_up_to_the_first_rejected_one() -> None:
    calibration = Calibration(WEIGHTS, 0.5)
    calibration.told = {(): "a", (4,): "b", (4, 5): "c", (4, 5, 6): "d", (7,): "e"}
    seen = verified((4, 5, 6), 1)
    found = list(calibration.on_path(seen))
    assert [told for _, told in found] == ["a", "b"]
    assert [distribution.items() for distribution, _ in found] == [
        seen.distributions[row].items() for row in (0, 1)
    ]
    assert calibration.told == {}, "it is looked at once"


def test_in_a_tree_the_accepted_branch_counts() -> None:
    calibration = Calibration(WEIGHTS, 0.5)
    calibration.told = {(): "a", (4,): "b", (5,): "c"}
    seen = verified((4, 5), 1, parents=(-1, -1))
    found = list(calibration.on_path(seen))
    assert [told for _, told in found] == ["a", "c"]
    assert found[1][0].items() == seen.distributions[2].items()


def test_a_value_changes_only_after_enough_was_judged_and_follows_the_text() -> None:
    calibration = Calibration(WEIGHTS, 0.5)
    heavy, light = np.asarray(WEIGHTS), 1 - np.asarray(WEIGHTS)
    for _ in range(7):
        calibration.learn(heavy)
        assert calibration.value == 0.5
    calibration.learn(heavy)
    assert calibration.value == 1.0
    for _ in range(100):
        calibration.learn(heavy)
    for _ in range(60):
        calibration.learn(light)
    assert calibration.value == 0.0, "what was long ago counts less"


def run(draft: Draft, target: ToyEngine, *, seed: int = 1, batch: int = 1) -> list[Generation]:
    requests = [
        Request(
            prompt=(1, 2, 3 + i),
            sampling=Sampling(temperature=0.9, seed=seed + i),
            stop=StopConditions(max_tokens=400),
        )
        for i in range(batch)
    ]
    return decode(Decoder(target, {"d": draft}, ChainVerifier(), fixed("d", 3)), requests)


def rate(draft: Draft, target: ToyEngine) -> float:
    return run(draft, target)[0].stats.acceptance_rate


def blurred() -> tuple[ToyEngine, ToyEngine]:
    """A target, and a draft that is it at twice the temperature."""
    target = ToyEngine(16, seed=3, order=1, context_size=600)
    return target, ToyEngine(16, table=lambda context: target.logits(context) / 2, context_size=600)


def test_a_draft_that_is_too_hot_is_cooled() -> None:
    target, engine = blurred()
    baseline = rate(ModelDraft(engine, target), target)
    calibrated = ModelDraft(engine, target, calibrate=True)
    assert rate(calibrated, target) > baseline + 0.1
    assert ModelDraft(engine, target).observes_logits is False


def test_a_mixture_finds_which_part_is_worth_more() -> None:
    target, engine = ToyEngine(16, seed=3, order=1, context_size=600), ToyEngine(16, seed=8)
    engine.capabilities = target.capabilities

    def mixture(good_first: bool, **options) -> MixtureDraft:
        parts = [ModelDraft(e, target) for e in (target, engine)]
        return MixtureDraft(parts if good_first else parts[::-1], 0.5, **options)

    for good_first in (True, False):
        baseline, calibrated = (
            rate(mixture(good_first, calibrate=c), target) for c in (False, True)
        )
        assert calibrated > 0.93 > 0.8 > baseline


def test_the_model_in_a_mixture_learns_from_its_own_distributions() -> None:
    target, engine = blurred()
    model = ModelDraft(engine, target, calibrate=True)
    draft = MixtureDraft([LookupDraft(), model], 0.1)
    assert draft.observes_logits
    chosen: list[float] = []
    close = model.close

    def noted(context) -> None:
        chosen.append(model._states[context].calibration.value)
        close(context)

    model.close = noted
    run(draft, target)
    assert chosen == [0.5]


def test_nothing_passes_from_one_request_to_another() -> None:
    """The same seeds give the same texts, alone, together, and after others."""
    target, engine = blurred()

    def draft() -> Draft:
        model = ModelDraft(engine, target, calibrate=True)
        return MixtureDraft([LookupDraft(), model], 0.3, calibrate=True)

    together, used = run(draft(), target, batch=3), draft()
    assert not used.remembers
    for index, generation in enumerate(together):
        request = Request(
            prompt=(1, 2, 3 + index),
            sampling=Sampling(temperature=0.9, seed=1 + index),
            stop=StopConditions(max_tokens=400),
        )
        decoder = Decoder(target, {"d": used}, ChainVerifier(), fixed("d", 3))
        [alone] = decode(decoder, [request])
        assert alone.tokens == generation.tokens
    assert not used._calibrations


def test_there_is_nothing_to_calibrate_in_a_greedy_request(monkeypatch) -> None:
    def never(*_) -> None:
        raise AssertionError

    monkeypatch.setattr(calibrate.Calibration, "learn", never)
    target, engine = blurred()
    draft = MixtureDraft(
        [LookupDraft(), ModelDraft(engine, target, calibrate=True)], calibrate=True
    )
    for sampling in (Sampling(), Sampling(temperature=1.0, top_k=1, seed=1)):
        request = Request(prompt=(1, 2), sampling=sampling, stop=StopConditions(max_tokens=30))
        decoder = Decoder(target, {"d": draft}, ChainVerifier(), fixed("d", 3))
        [generation] = decode(decoder, [request])
        assert generation.error is None


def test_the_coldest_request_can_be_calibrated() -> None:
    target, engine = blurred()
    draft = ModelDraft(engine, target, calibrate=True)
    sampling = Sampling(temperature=1e-6, seed=1)
    request = Request(prompt=(1, 2), sampling=sampling, stop=StopConditions(max_tokens=40))
    [generation] = decode(Decoder(target, {"d": draft}, ChainVerifier(), fixed("d", 3)), [request])
    assert generation.error is None
