"""Lossy verifiers: by enumeration they really aren't exact, they keep to what they say of
themselves, and what they tell of their divergence from the target is so."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
from test_exactness import (
    KINDS,
    REGISTERED,
    SHAPES,
    VERIFIERS,
    Draft,
    chosen,
    mean_accepted,
    mixed,
    random_distributions,
    sampled,
    variation,
)

from paceline import Sampling, StopConditions, fixed, generate
from paceline.drafts.lookup import LookupDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import SettingError
from paceline.sampling.distribution import Distribution
from paceline.sampling.rng import NumpyRng, Rng
from paceline.testing import (
    DistributionOf,
    baseline_distribution,
    enumerate_outcomes,
    rational_distribution,
    verified_distribution,
)
from paceline.types import Proposal, Verdict
from paceline.verify import lossy as tilting
from paceline.verify.base import TargetDistributions, Verifier
from paceline.verify.chain import ChainVerifier
from paceline.verify.lossy import ToleranceVerifier, TypicalVerifier, tilt

LOSSY = [verifier for verifier in REGISTERED if verifier.lossy]
BUDGETS = (0.01, 0.1, 0.5)
DRAWN_OR_CHOSEN = {"drawn": sampled, "chosen": chosen}
CHAIN = ChainVerifier()


def distribution_at(
    verifier: Verifier, target: DistributionOf, draft: Draft, before: tuple[int, ...] = ()
) -> dict:
    """The distribution of the token emitted in a round after these accepted ones, by
    enumeration."""

    def emitted(rng: Rng) -> int | None:
        proposal = draft(rng)
        rows = [target(proposal.tokens[:count]) for count in range(len(proposal.tokens) + 1)]
        verdict = verifier.verify(proposal, rows, rng)
        tokens = [*(proposal.tokens[index] for index in verdict.accepted), verdict.next_token]
        there = len(verdict.accepted) >= len(before) and tuple(tokens[: len(before)]) == before
        return tokens[len(before)] if there else None

    outcomes = enumerate_outcomes(emitted)
    outcomes.pop(None, None)
    total = sum(outcomes.values())
    return {token: float(weight / total) for token, weight in outcomes.items()}


def distances(emitted: dict, distribution: Distribution) -> tuple[float, float]:
    """KL(o‖p) in nats, and total variation."""
    baseline = {token: float(prob) for token, prob in distribution.items()}
    kl = sum(o * math.log(o / baseline[token]) for token, o in emitted.items() if o > 0)
    keys = emitted.keys() | baseline.keys()
    return kl, sum(abs(emitted.get(t, 0) - baseline.get(t, 0)) for t in keys) / 2


def text_kl(ours: dict, baseline: dict) -> float:
    return sum(float(o) * math.log(float(o) / float(baseline[t])) for t, o in ours.items() if o > 0)


def told(verifier: Verifier, target: DistributionOf, draft: Draft) -> list:
    """The divergences told of the first position in each possible course of a round."""
    found = []

    def one(rng: Rng) -> int:
        proposal = draft(rng)
        rows = [target(proposal.tokens[:count]) for count in range(len(proposal.tokens) + 1)]
        verdict = verifier.verify(proposal, rows, rng)
        assert len(verdict.divergences) == len(verdict.accepted) + 1
        found.append(verdict.divergences[0])
        return verdict.next_token

    enumerate_outcomes(one)
    return found


# ------------------------------------------------------------------ lossy, and named so


@pytest.mark.parametrize("verifier", LOSSY, ids=lambda verifier: verifier.name)
def test_a_lossy_verifier_is_not_exact_and_would_be_caught_if_it_were_registered_so(
    verifier: Verifier,
) -> None:
    for kind in (sampled, chosen):
        found = []
        for seed in range(4):
            target, draft = (
                random_distributions(seed, 4, 4),
                kind(random_distributions(seed + 100, 4, 4), 2),
            )
            ours = verified_distribution(verifier, target, draft, 3)
            baseline = baseline_distribution(target, 3)
            found.append(sum(abs(ours.get(t, 0) - baseline[t]) for t in baseline) / 2)
        assert max(found) > 0.01
    assert verifier.gives_up
    assert not verifier.trees
    assert verifier not in VERIFIERS


def test_both_are_registered_and_the_exact_ones_are_still_proved() -> None:
    assert {verifier.name for verifier in LOSSY} >= {"tolerance", "typical"}
    assert {verifier.name for verifier in VERIFIERS} >= {"chain", "block", "tree"}
    assert not any(verifier.gives_up for verifier in VERIFIERS)


@pytest.mark.parametrize("verifier", LOSSY, ids=lambda verifier: verifier.name)
@pytest.mark.parametrize("kind", KINDS)
def test_under_a_greedy_target_both_are_exact(verifier: Verifier, kind: str) -> None:
    for seed in range(3):
        target = random_distributions(seed, 4, 1)
        draft = KINDS[kind](random_distributions(seed + 100, 4, 4), 3)
        ours = verified_distribution(verifier, target, draft, 4)
        assert variation(ours, baseline_distribution(target, 4)) == 0
        assert mean_accepted(verifier, target, draft) == mean_accepted(CHAIN, target, draft)
        assert all(far == (0, 0) for far in told(verifier, target, draft))


@pytest.mark.parametrize("verifier", LOSSY, ids=lambda verifier: verifier.name)
def test_a_token_impossible_under_its_own_distribution_is_refused(verifier: Verifier) -> None:
    lie = Proposal((0,), "liar", (rational_distribution({1: 1, 2: 1}),))
    with pytest.raises(ValueError, match="probability 0"):
        verified_distribution(verifier, random_distributions(3, 3, 3), lambda _: lie, 2)


@pytest.mark.parametrize("verifier", LOSSY, ids=lambda verifier: verifier.name)
@pytest.mark.parametrize("kind", DRAWN_OR_CHOSEN)
@pytest.mark.parametrize("support", [(4, 4), (3, 4), (4, 3), (2, 3)], ids=str)
def test_what_is_told_of_the_divergence_is_so(
    verifier: Verifier, kind: str, support: tuple[int, int]
) -> None:
    some = 0
    for seed in range(6):
        target = random_distributions(seed, 4, support[0])
        draft = DRAWN_OR_CHOSEN[kind](random_distributions(seed + 100, 4, support[1]), 1)
        kl, moved = distances(distribution_at(verifier, target, draft), target(()))
        for far in told(verifier, target, draft):
            assert far == pytest.approx((kl, moved), abs=1e-9)
        some += kl > 1e-3
    assert some


# ------------------------------------------------------------------ tolerance


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_budget_tolerance_is_chain(kind: str, shape: tuple[int, int, int, int]) -> None:
    vocabulary, target_support, draft_support, length = shape
    target = random_distributions(1, vocabulary, target_support)
    draft = KINDS[kind](random_distributions(101, vocabulary, draft_support), length)
    ours = verified_distribution(ToleranceVerifier(0), target, draft, length + 1)
    assert variation(ours, baseline_distribution(target, length + 1)) == 0
    accepted = mean_accepted(ToleranceVerifier(0), target, draft)
    assert accepted == mean_accepted(CHAIN, target, draft)
    for seed in range(50):
        proposal = draft(NumpyRng(seed))
        rows = [target(proposal.tokens[:count]) for count in range(length + 1)]
        ours, chain = (
            verifier.verify(proposal, rows, NumpyRng(seed + 1000))
            for verifier in (ToleranceVerifier(0), CHAIN)
        )
        assert (ours.accepted, ours.next_token) == (chain.accepted, chain.next_token)


def kept_at(verifier: Verifier, target: Distribution, draft: Distribution, kind: str) -> float:
    """The chance that a token of this distribution is accepted."""
    one = DRAWN_OR_CHOSEN[kind](lambda _: draft, 1)
    return float(mean_accepted(verifier, lambda _: target, one))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", DRAWN_OR_CHOSEN)
def test_the_emitted_distribution_keeps_to_the_budget_and_uses_it(kind: str, budget: float) -> None:
    verifier, bound = ToleranceVerifier(budget), 0
    for seed in range(8):
        target, distributions = (
            random_distributions(seed, 4, 4),
            random_distributions(seed + 100, 4, 4),
        )
        draft = DRAWN_OR_CHOSEN[kind](distributions, 2)
        firsts = {draft(NumpyRng(s)).tokens[0] for s in range(40)}
        for before in [(), *((token,) for token in firsts)]:
            kl, _ = distances(distribution_at(verifier, target, draft, before), target(before))
            assert kl <= budget + 1e-9
            if kept_at(verifier, target(before), distributions(before), kind) < 1 - 1e-9:
                assert kl == pytest.approx(budget, abs=1e-6), "more could have been accepted"
                bound += 1
    assert bound >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_is_chain_s_or_more_and_never_falls_with_the_budget(kind: str) -> None:
    gains = []
    for seed in range(6):
        target, draft = (
            random_distributions(seed, 4, 4),
            KINDS[kind](random_distributions(seed + 100, 4, 4), 2),
        )
        verifiers = [CHAIN, *map(ToleranceVerifier, (0, 1e-4, *BUDGETS, 5.0))]
        rising = [float(mean_accepted(verifier, target, draft)) for verifier in verifiers]
        assert all(more >= less - 1e-9 for less, more in pairwise(rising))
        gains.append(rising[3] - rising[0])
        assert rising[-1] == pytest.approx(2), "5 nats pay for any token of these distributions"
    assert min(gains) > 0


def test_no_distribution_within_the_budget_keeps_more_of_a_drawn_token() -> None:
    """Against every distribution on a fine grid of the simplex of three tokens."""
    steps = 120
    grid = np.array(
        [(i, j, steps - i - j) for i, j in product(range(steps + 1), repeat=2) if i + j <= steps]
    )
    distributions = grid / steps
    for seed in range(6):
        p, q = (random_distributions(s, 3, 3)(()) for s in (seed, seed + 100))
        baseline, drafted = (
            np.array([float(x) for x in distribution.probs]) for distribution in (p, q)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            kl = np.where(
                distributions > 0, distributions * np.log(distributions / baseline), 0
            ).sum(axis=1)
        for budget in BUDGETS:
            best = np.minimum(distributions, drafted).sum(axis=1)[kl <= budget].max()
            kept = sum(
                float(prob * tilt(p, q, budget).keeps(float(p.prob(token)), float(prob)))
                for token, prob in q.items()
            )
            assert best - 1e-9 <= kept <= best + 3 / steps


def test_the_whole_text_is_as_far_as_is_told() -> None:
    """Chain rule: the told KL of a course, averaged over courses, is that of the distribution of
    texts; where a text can come about in two ways, at least that."""
    verifier = ToleranceVerifier(0.2)
    for kind, seed in product((chosen, sampled, mixed), range(3)):
        target, draft = (
            random_distributions(seed, 3, 3),
            kind(random_distributions(seed + 100, 3, 3), 3),
        )
        sums: dict[int, float] = {}

        def course(rng: Rng, target=target, draft=draft, sums=sums) -> int:
            proposal = draft(rng)
            rows = [target(proposal.tokens[:count]) for count in range(4)]
            verdict = verifier.verify(proposal, rows, rng)
            sums[len(sums)] = sum(far.kl_nats for far in verdict.divergences)
            return len(sums) - 1

        weights = enumerate_outcomes(course)
        mean = sum(float(weight) * sums[number] for number, weight in weights.items())
        ours = verified_distribution(verifier, target, draft, 4)
        exact = text_kl(ours, baseline_distribution(target, 4))
        assert exact <= 3 * 0.2
        if kind is chosen:
            assert mean == pytest.approx(exact, abs=1e-9)
        else:
            assert mean >= exact - 1e-9


@pytest.mark.parametrize("least", [1e-6, 0.15, 0.3, 1.0])
def test_seldom_drafted_tokens_are_judged_together_and_the_kl_stays_true(
    least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tilting, "LEAST", least)
    verifier = ToleranceVerifier(0.1)
    for seed in range(8):
        target, draft = (
            random_distributions(seed, 4, 4),
            sampled(random_distributions(seed + 100, 4, 4), 1),
        )
        kl, moved = distances(distribution_at(verifier, target, draft), target(()))
        assert kl <= 0.1 + 1e-9
        for far in told(verifier, target, draft):
            assert far == pytest.approx((kl, moved), abs=1e-9)


def test_a_tilt_is_the_same_for_sparse_padded_and_torch_distributions() -> None:
    source = np.random.default_rng(3)
    p, q = source.dirichlet(np.ones(50)), source.dirichlet(np.ones(50))
    q[30:] = 0
    q /= q.sum()
    expected = tilt(Distribution(p), Distribution(q), 0.1)
    assert expected.high > 1.01
    assert expected.low < 0.99
    some = np.arange(30)
    distributions = [
        (Distribution(p), Distribution(q[:30], some)),
        (Distribution(p, np.arange(50)), Distribution(q)),
        (Distribution(p, np.arange(50)), Distribution(q[:30], some)),
        (Distribution(p), Distribution(q[:40])),
        (Distribution(p), Distribution(np.append(q, [0.0, 0.0]))),
    ]
    torch = pytest.importorskip("torch")
    tensors = [torch.asarray(each) for each in (p, q)]
    distributions += [
        (Distribution(tensors[0]), Distribution(tensors[1])),
        (Distribution(p), Distribution(tensors[1])),
    ]
    for target, draft in distributions:
        found = tilt(target, draft, 0.1)
        assert found[:2] == pytest.approx(expected[:2], rel=1e-9)
        assert found.divergence == pytest.approx(expected.divergence, rel=1e-9)


def test_the_bound_holds_over_a_whole_vocabulary_in_single_precision() -> None:
    source = np.random.default_rng(5)
    logits = 3 * source.normal(size=50_000).astype(np.float32)
    near = logits + source.normal(size=50_000).astype(np.float32)
    p, q = (np.exp(each) / np.exp(each).sum() for each in (logits, near))
    for budget in (0.02, 0.1):
        found = tilt(Distribution(p), Distribution(q), budget)
        wide_p, wide_q = p.astype(np.float64), q.astype(np.float64)
        high = np.where(wide_q >= tilting.LEAST, found.high, found.low)
        kept = np.minimum(wide_q, high * wide_p)
        lifted = np.maximum(found.low * wide_p - wide_q, 0)
        emitted = kept + (1 - kept.sum()) * lifted / lifted.sum()
        kl = float(np.sum(emitted * np.log(emitted / wide_p)))
        assert kl == pytest.approx(found.divergence.kl_nats, abs=1e-5)
        assert kl == pytest.approx(budget, abs=1e-5)
        # Judging the seldom drafted together costs less than all of them are drafted.
        assert wide_q[wide_q < tilting.LEAST].sum() < 0.02


# ------------------------------------------------------------------ typical


def test_typical_keeps_what_is_likelier_than_its_threshold() -> None:
    distribution = rational_distribution([70, 15, 10, 5])
    entropy = -sum(float(p) * math.log(p) for _, p in distribution.items())
    for epsilon, delta, stand in [
        (0.3, 0.09, {0, 1, 2, 3}),
        (0.3, 0.4, {0}),
        (0.12, 10.0, {0, 1}),
        (0.8, 10.0, set()),
        (0.0, 1.0, {0, 1, 2, 3}),
        (0.3, 0.0, {0, 1, 2, 3}),
    ]:
        max_draft_tokens = min(epsilon, delta * math.exp(-entropy))
        assert {token for token, p in distribution.items() if p > max_draft_tokens} == stand
        verifier = TypicalVerifier(epsilon, delta)
        for token in range(4):
            proposal = Proposal((token,), "chosen")
            seen = enumerate_outcomes(
                lambda rng, p=proposal, v=verifier: (
                    v.verify(p, [distribution, distribution], rng).accepted
                )
            )
            assert seen == {(0,) if token in stand else (): 1}


def test_a_token_that_is_not_typical_is_replaced_by_the_target_s_own_draw() -> None:
    distribution = rational_distribution([70, 15, 10, 5])
    verifier = TypicalVerifier(0.12, 10.0)
    drafted = distribution_at(verifier, lambda _: distribution, lambda _: Proposal((3,), "chosen"))
    assert drafted == {token: pytest.approx(float(p)) for token, p in distribution.items()}


def test_typical_may_keep_less_than_chain_would() -> None:
    """It is another rule, not a laxer one: here the target is its own draft."""
    distributions = random_distributions(7, 4, 4)
    own = sampled(distributions, 3)
    assert mean_accepted(CHAIN, distributions, own) == 3
    assert mean_accepted(TypicalVerifier(0.3, 1.0), distributions, own) < 3


# ------------------------------------------------------------------ options, and what is made of it


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ToleranceVerifier, {"bugdet": "1"}, "named 'bugdet'. Did you mean 'budget'"),
        (ToleranceVerifier, {"budget": "some"}, "budget is 'some'. It must be a number"),
        (ToleranceVerifier, {"budget": "-1"}, "budget is -1.0. It must be 0 or more"),
        (ToleranceVerifier, {"budget": "nan"}, "budget is nan"),
        (ToleranceVerifier, {"budget": "inf"}, "budget is inf"),
        (TypicalVerifier, {"epsilon": "1"}, "epsilon is 1.0"),
        (TypicalVerifier, {"delta": "-0.1"}, "delta is -0.1"),
        (TypicalVerifier, {"budget": "1"}, "no option of the verifier 'typical' named 'budget'"),
        (ChainVerifier, {"budget": "1"}, "The verifier 'chain' has no option 'budget'"),
    ],
)
def test_options_are_checked_by_name(kind, options, message) -> None:
    with pytest.raises(SettingError, match=message):
        kind.create(**options)


def test_options_reach_the_verifier() -> None:
    assert ToleranceVerifier.create(budget="0.25").budget == 0.25
    typical = TypicalVerifier.create(delta="0.2")
    assert (typical.epsilon, typical.delta) == (0.3, 0.2)


class Silent(Verifier):
    """Accepts everything and tells nothing."""

    name, summary, lossy, gives_up = "silent", "lossy", True, "everything"

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        count = len(proposal.tokens)
        return Verdict(tuple(range(count)), rng.sample(target[count]))


def decoded(verifier: Verifier | None, **sampling):
    return generate(
        ToyEngine(4, seed=5, order=1),
        [1, 2, 3, 1, 2],
        draft=LookupDraft(min_match=1),
        policy=fixed("lookup", 4),
        verifier=verifier,
        sampling=Sampling(seed=3, **sampling),
        stop=StopConditions(max_tokens=21),
    )


def test_a_generation_says_what_was_given_up_and_how_much() -> None:
    lossy = decoded(ToleranceVerifier(0.3), temperature=1.0)
    assert not lossy.exact
    assert lossy.lossy == "tolerance"
    assert "up to 0.3 nats" in lossy.gives_up
    assert len(lossy.divergences) == len(lossy.tokens) == 21
    far = lossy.divergence
    assert far is not None
    assert 0 < far.kl_nats_per_token <= far.largest_kl_nats <= 0.3
    assert far.largest_kl_nats == pytest.approx(0.3)
    assert 0 < far.variation_per_token < 1
    assert "LOSSY (tolerance): " in lossy.summary
    assert f"{far.kl_nats_per_token:.3g} nats per token from the target" in lossy.summary


def test_an_exact_generation_is_not_marked() -> None:
    exact = decoded(None, temperature=1.0)
    assert exact.exact
    assert exact.divergence is None
    assert "LOSSY" not in exact.summary


def test_what_is_not_measured_is_not_told_as_0() -> None:
    silent = decoded(Silent(), temperature=1.0)
    assert not silent.exact
    assert silent.divergence is None
    assert "LOSSY (silent): how far from the target is not measured" in silent.summary


def test_a_lossy_greedy_run_is_baseline_s_text_and_marked_all_the_same() -> None:
    baseline = decoded(None)
    for verifier in (ToleranceVerifier(1.0), TypicalVerifier()):
        ours = decoded(verifier)
        assert ours.tokens == baseline.tokens
        assert ours.divergence is not None
        assert ours.divergence.largest_kl_nats == 0
        assert "LOSSY" in ours.summary
