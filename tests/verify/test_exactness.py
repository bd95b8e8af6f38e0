"""The proof by enumeration, over every registered verifier that doesn't say it is lossy: total
variation exactly 0, in rational arithmetic. A new verifier is proved by being registered; wrong
ones are shown to be caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pytest

from paceline import plugins
from paceline.sampling.distribution import Distribution, excess
from paceline.sampling.rng import Rng
from paceline.testing import (
    DistributionOf,
    baseline_distribution,
    enumerate_outcomes,
    rational_distribution,
    verified_distribution,
)
from paceline.types import Proposal, Verdict
from paceline.verify.base import TargetDistributions, Verifier

Draft = Callable[[Rng], Proposal]
REGISTERED = [plugins.find("verifier", name)() for name in plugins.names("verifier")]
VERIFIERS = [verifier for verifier in REGISTERED if not verifier.lossy]


def random_distributions(seed: int, vocabulary: int, support: int) -> DistributionOf:
    """A distribution per context: `support` tokens of the vocabulary with small random integer
    weights; with a support of 1 a greedy model, below the vocabulary's size one filtered by
    top-k."""

    @cache
    def distribution(context: tuple[int, ...]) -> Distribution:
        source = random.Random(f"{seed} {context}")
        tokens = source.sample(range(vocabulary), support)
        if support == vocabulary:
            return rational_distribution([source.randint(1, 6) for _ in range(vocabulary)])
        return rational_distribution({token: source.randint(1, 6) for token in tokens})

    return distribution


def sampled(distributions: DistributionOf, length: int) -> Draft:
    def draft(rng: Rng) -> Proposal:
        tokens: tuple[int, ...] = ()
        for _ in range(length):
            tokens = (*tokens, rng.sample(distributions(tokens)))
        return Proposal(tokens, "sampled", tuple(distributions(tokens[:i]) for i in range(length)))

    return draft


def chosen(distributions: DistributionOf, length: int) -> Draft:
    """The draft's most likely token at each step, told as deterministic."""

    def draft(_: Rng) -> Proposal:
        tokens: tuple[int, ...] = ()
        for _ in range(length):
            tokens = (*tokens, max(distributions(tokens).items(), key=lambda item: item[1])[0])
        return Proposal(tokens, "chosen")

    return draft


def mixed(distributions: DistributionOf, length: int) -> Draft:
    """Even positions deterministic, odd ones sampled."""

    def draft(rng: Rng) -> Proposal:
        tokens: tuple[int, ...] = ()
        told: tuple[Distribution | None, ...] = ()
        for position in range(length):
            distribution = distributions(tokens)
            if position % 2:
                tokens, told = (*tokens, rng.sample(distribution)), (*told, distribution)
            else:
                tokens, told = (*tokens, distribution.items()[0][0]), (*told, None)
        return Proposal(tokens, "mixed", told)

    return draft


KINDS = {"sampled": sampled, "chosen": chosen, "mixed": mixed}
# vocabulary, target's support, draft's support, drafted tokens
SHAPES = [
    (3, 3, 3, 0),
    (3, 3, 3, 1),
    (3, 3, 3, 2),
    (3, 3, 3, 4),
    (4, 4, 4, 3),
    (4, 4, 4, 4),
    (4, 1, 4, 3),
    (4, 4, 1, 3),
    (4, 1, 1, 4),
    (4, 2, 4, 3),
    (4, 4, 2, 3),
    (4, 2, 2, 4),
    (4, 2, 3, 4),
    (4, 3, 2, 4),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_emitted_tokens_are_distributed_as_the_target(
    verifier: Verifier, kind: str, shape: tuple[int, int, int, int]
) -> None:
    vocabulary, target_support, draft_support, length = shape
    for seed in range(2):
        target = random_distributions(seed, vocabulary, target_support)
        draft = KINDS[kind](random_distributions(seed + 100, vocabulary, draft_support), length)
        ours = verified_distribution(verifier, target, draft, length + 1)
        baseline = baseline_distribution(target, length + 1)
        assert variation(ours, baseline) == 0


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_the_target_as_its_own_draft_is_always_accepted(verifier: Verifier) -> None:
    distributions = random_distributions(7, 4, 4)
    assert mean_accepted(verifier, distributions, sampled(distributions, 3)) == 3


def test_block_never_accepts_less_than_chain_and_often_more() -> None:
    chain, block = (plugins.find("verifier", name)() for name in ("chain", "block"))
    gains = []
    for seed in range(12):
        target, draft = (
            random_distributions(seed, 3, 3),
            sampled(random_distributions(seed + 50, 3, 3), 3),
        )
        gains.append(mean_accepted(block, target, draft) - mean_accepted(chain, target, draft))
    assert min(gains) >= 0
    assert max(gains) > Fraction(1, 100)


def variation(ours: dict[tuple[int, ...], Fraction], baseline: dict[tuple[int, ...], Fraction]):
    keys = ours.keys() | baseline.keys()
    distance = sum(abs(ours.get(key, 0) - baseline.get(key, 0)) for key in keys) / 2
    assert isinstance(distance, Fraction | int), "a float crept into the proof"
    return distance


def mean_accepted(verifier: Verifier, target: DistributionOf, draft: Draft) -> Fraction:
    def accepted(rng: Rng) -> int:
        proposal = draft(rng)
        tokens = proposal.tokens
        rows = [target(tokens[:count]) for count in range(len(tokens) + 1)]
        return len(verifier.verify(proposal, rows, rng).accepted)

    outcomes = enumerate_outcomes(accepted)
    return sum(count * weight for count, weight in outcomes.items())


# ------------------------------------------------------------------ verifiers known to be wrong


class ResamplesFromTarget(Verifier):
    """After a rejection draws from p instead of from what q left of it."""

    name = summary = "wrong"

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        for index, token in enumerate(proposal.tokens):
            distribution = proposal.distribution(index) or Distribution.one_hot(token)
            if not rng.bernoulli(target[index].prob(token) / Fraction(distribution.prob(token))):
                return Verdict(tuple(range(index)), self.replace(target[index], distribution, rng))
        count = len(proposal.tokens)
        return Verdict(tuple(range(count)), rng.sample(target[count]))

    def replace(self, target: Distribution, draft: Distribution, rng: Rng) -> int:
        return rng.sample(target)


class SkipsTheResidual(ResamplesFromTarget):
    """After a rejection emits the target's most likely token."""

    def replace(self, target: Distribution, draft: Distribution, rng: Rng) -> int:
        return max(target.items(), key=lambda item: item[1])[0]


class StopsAtTheFirstFailure(Verifier):
    """Block verification with the `break` that reviewers like to add."""

    name = summary = "wrong"

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        distributions, count = proposal.distributions or (), len(proposal.tokens)
        kept, kept_mass, mass = 0, Fraction(1), Fraction(1)
        for i, token in enumerate(proposal.tokens, start=1):
            mass = min(mass * target[i - 1].prob(token) / distributions[i - 1].prob(token), 1)
            left = excess(target[i], distributions[i], mass)[1] if i < count else mass
            whole = left + 1 - mass if i < count else 1
            if not rng.bernoulli(left / whole if whole else 1):
                break
            kept, kept_mass = i, mass
        distribution = target[kept]
        if kept < count:
            distribution = excess(distribution, distributions[kept], kept_mass)[0] or distribution
        return Verdict(tuple(range(kept)), rng.sample(distribution))


@pytest.mark.parametrize("wrong", [ResamplesFromTarget, SkipsTheResidual, StopsAtTheFirstFailure])
def test_wrong_verifiers_are_caught(wrong: type[Verifier]) -> None:
    target, draft = random_distributions(1, 3, 3), sampled(random_distributions(101, 3, 3), 2)
    ours = verified_distribution(wrong(), target, draft, 3)
    assert variation(ours, baseline_distribution(target, 3)) > Fraction(1, 100)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_a_draft_that_misreports_its_distribution_is_caught(verifier: Verifier) -> None:
    """The argmax of a distribution told as sampled from it: the fault of many published
    decoders."""
    target, distributions = random_distributions(3, 3, 3), random_distributions(103, 3, 3)

    def draft(rng: Rng) -> Proposal:
        tokens = chosen(distributions, 2)(rng).tokens
        return Proposal(tokens, "liar", tuple(distributions(tokens[:i]) for i in range(2)))

    ours = verified_distribution(verifier, target, draft, 3)
    assert variation(ours, baseline_distribution(target, 3)) > Fraction(1, 100)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_a_token_impossible_under_its_own_distribution_is_refused(verifier: Verifier) -> None:
    distributions = random_distributions(3, 3, 3)
    lie = Proposal((0,), "liar", (rational_distribution({1: 1, 2: 1}),))
    with pytest.raises(ValueError, match="probability 0"):
        verified_distribution(verifier, distributions, lambda _: lie, 2)
