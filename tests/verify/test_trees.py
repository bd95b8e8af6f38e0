"""Trees are judged exactly: enumeration over shapes, distributions and ways of making siblings, in
rational arithmetic. A verifier that understands trees is proved by being registered."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pytest
from test_exactness import VERIFIERS, mean_accepted, random_distributions, sampled, variation

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
from paceline.verify.tree import TreeVerifier

TREES = [verifier for verifier in VERIFIERS if verifier.trees]

Stage: TypeAlias = Callable[[Distribution, list[int], Rng], tuple[int, Distribution | None] | None]
"""How the next child of a token comes about: from the draft's distribution there and the siblings
so far to a token and the distribution it was drawn from, None if it was chosen. None where there
is no further."""


def drawn(distribution: Distribution, siblings: list[int], rng: Rng) -> tuple[int, Distribution]:
    """Independently of its siblings; it may be the same token again."""
    return rng.sample(distribution), distribution


def drawn_among_the_rest(
    distribution: Distribution, siblings: list[int], rng: Rng
) -> tuple[int, Distribution | None] | None:
    """Without replacement, as Sequoia does."""
    rest = {token: prob for token, prob in distribution.items() if token not in siblings}
    if not rest:
        return None
    left = rational_distribution(rest)
    return rng.sample(left), None if left.single is not None else left


def likeliest(distribution: Distribution, siblings: list[int], _: Rng) -> tuple[int, None] | None:
    """Deterministic, as EAGLE-2 does."""
    rest = [(prob, token) for token, prob in distribution.items() if token not in siblings]
    return (max(rest)[1], None) if rest else None


def tree(
    distributions: DistributionOf, parents: tuple[int, ...], stages: list[Stage]
) -> Callable[[Rng], Proposal]:
    """A draft of this shape; the n-th child of each token comes from the n-th stage. A child that
    can't be had leaves out what stands behind it."""

    def draft(rng: Rng) -> Proposal:
        tokens: list[int] = []
        told: list[Distribution | None] = []
        kept: list[int] = []
        where: dict[int, int] = {-1: -1}
        contexts: dict[int, tuple[int, ...]] = {-1: ()}
        for index, parent in enumerate(parents):
            if parent not in where:
                continue
            siblings = [tokens[i] for i, p in enumerate(kept) if p == where[parent]]
            made = stages[len(siblings) % len(stages)](
                distributions(contexts[parent]), siblings, rng
            )
            if made is None:
                continue
            where[index] = len(tokens)
            contexts[index] = (*contexts[parent], made[0])
            tokens.append(made[0])
            told.append(made[1])
            kept.append(where[parent])
        return Proposal(tuple(tokens), "tree", tuple(told), tuple(kept))

    return draft


WAYS: dict[str, list[Stage]] = {
    "drawn": [drawn],
    "without replacement": [drawn_among_the_rest],
    "chosen": [likeliest],
    "chosen, then drawn": [likeliest, drawn_among_the_rest],
    "drawn, then chosen": [drawn, likeliest],
}
SHAPES = {
    "two": (-1, -1),
    "three": (-1, -1, -1),
    "two, each with two": (-1, -1, 0, 0, 1, 1),
    "a chain with a side branch": (-1, 0, 1, -1, 3),
    "side branch first": (-1, -1, 1, 2),
    "three, then one": (-1, -1, -1, 1, 3),
}
# vocabulary, target's support, draft's support
DISTRIBUTIONS = [(3, 3, 3), (3, 1, 3), (4, 2, 3), (4, 4, 2), (3, 3, 1)]


@pytest.mark.parametrize("distributions", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verifier", TREES, ids=lambda verifier: verifier.name)
def test_emitted_tokens_are_distributed_as_the_target(
    verifier: Verifier, way: str, shape: str, distributions: tuple[int, int, int]
) -> None:
    vocabulary, target_support, draft_support = distributions
    target = random_distributions(1, vocabulary, target_support)
    draft = tree(random_distributions(101, vocabulary, draft_support), SHAPES[shape], WAYS[way])
    length = 3
    ours = verified_distribution(verifier, target, draft, length)
    assert variation(ours, baseline_distribution(target, length)) == 0


def test_the_target_as_its_own_tree_is_accepted_to_a_leaf() -> None:
    distributions = random_distributions(7, 4, 4)
    for way in ("drawn", "drawn, then chosen"):
        draft = tree(distributions, SHAPES["two, each with two"], WAYS[way])
        assert mean_accepted(TreeVerifier(), distributions, draft) == 2


def test_a_tree_accepts_more_than_its_first_branch() -> None:
    for seed in range(6):
        target, distributions = (
            random_distributions(seed, 3, 3),
            random_distributions(seed + 50, 3, 3),
        )
        both = tree(distributions, SHAPES["two, each with two"], WAYS["without replacement"])
        gain = mean_accepted(TreeVerifier(), target, both) - mean_accepted(
            TreeVerifier(), target, sampled(distributions, 2)
        )
        assert gain > 0


def test_traversal_accepts_at_least_what_judging_from_the_root_does() -> None:
    gains = []
    for seed in range(6):
        target, distributions = (
            random_distributions(seed, 3, 3),
            random_distributions(seed + 50, 3, 3),
        )
        draft = tree(distributions, SHAPES["two, each with two"], WAYS["without replacement"])
        top_down = mean_accepted(FromTheRoot(), target, draft)
        gains.append(mean_accepted(TreeVerifier(), target, draft) - top_down)
    assert min(gains) >= 0
    assert max(gains) > 0


def test_on_chains_it_is_block_verification() -> None:
    [block] = [verifier for verifier in VERIFIERS if verifier.name == "block"]
    target, draft = random_distributions(1, 3, 3), sampled(random_distributions(51, 3, 3), 3)
    assert mean_accepted(TreeVerifier(), target, draft) == mean_accepted(block, target, draft)


def test_chosen_trees_take_one_draw_for_each_emitted_token() -> None:
    """So with a seed the text is that of ordinary decoding."""
    target = random_distributions(1, 3, 3)
    draft = tree(random_distributions(51, 3, 3), SHAPES["two, each with two"], WAYS["chosen"])
    counts = []

    class Counting:
        def __init__(self, rng: Rng) -> None:
            self.rng = rng
            self.draws = 0

        def sample(self, distribution: Distribution) -> int:
            self.draws += 1
            return self.rng.sample(distribution)

        def bernoulli(self, probability: object) -> bool:
            raise AssertionError("nothing but draws")

    def experiment(rng: Rng) -> int:
        proposal, counting = draft(rng), Counting(rng)
        paths = [proposal.path(index) for index in range(-1, len(proposal.tokens))]
        rows = [target(tuple(proposal.tokens[i] for i in path)) for path in paths]
        verdict = TreeVerifier().verify(proposal, rows, counting)
        counts.append(counting.draws == len(verdict.accepted) + 1)
        return len(verdict.accepted)

    enumerate_outcomes(experiment)
    assert all(counts)
    assert len(counts) > 3


def test_next_to_nothing_left_at_the_root_is_no_fault() -> None:
    """Distributions that agree up to rounding: what is left may be too little to divide by."""
    p = Distribution(np.asarray([1 - 1e-7, 1e-17, 1e-17]))
    q = Distribution(np.asarray([1.0, 1e-30, 1e-30]))

    class Unlucky:
        def bernoulli(self, probability: float) -> bool:
            return probability >= 1

        def sample(self, distribution: Distribution) -> int:
            return 0

    proposal = Proposal((0, 0), "close", (q, q), (-1, -1))
    verdict = TreeVerifier().verify(proposal, [p, p, p], Unlucky())
    assert len(verdict.accepted) <= 1


# ------------------------------------------------------------------ verifiers known to be wrong


class FromTheRoot(Verifier):
    """Exact, but each token is judged alone and for good (SpecInfer; Sequoia): the yardstick."""

    name = summary = "from the root"
    trees = True

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        parents = proposal.parents or tuple(range(-1, len(proposal.tokens) - 1))
        node, path = -1, []
        while True:
            distribution = target[node + 1]
            for child in [i for i, parent in enumerate(parents) if parent == node]:
                token = proposal.tokens[child]
                draft = proposal.distribution(child) or Distribution.one_hot(token)
                if rng.bernoulli(distribution.prob(token) / Fraction(draft.prob(token))):
                    path.append(child)
                    node = child
                    break
                distribution = self.after_rejection(distribution, draft)
            else:
                return Verdict(tuple(path), rng.sample(distribution))

    def after_rejection(self, distribution: Distribution, draft: Distribution) -> Distribution:
        return excess(distribution, draft)[0] or distribution


class KeepsTheDistribution(FromTheRoot):
    """Judges each sibling by the target's own distribution: the rule called NAIVE in the
    literature."""

    def after_rejection(self, distribution: Distribution, draft: Distribution) -> Distribution:
        return distribution


class MassOfWhatIsLeft(TreeVerifier):
    """Goes on with S in place of S / (S + 1 − mass), much as a published implementation does."""

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        from paceline.verify.tree import _children

        children = _children(proposal.parents or ())

        def judge(node: int, mass: Fraction) -> Verdict | None:
            distribution = target[node + 1]
            for child in children.get(node, ()):
                token = proposal.tokens[child]
                draft = proposal.distribution(child) or Distribution.one_hot(token)
                inner = min(mass * distribution.prob(token) / Fraction(draft.prob(token)), 1)
                verdict = judge(child, inner) if inner > 0 else None
                if verdict is not None:
                    return verdict
                residual, left = excess(distribution, draft, mass)
                if residual is None:
                    return None
                distribution, mass = residual, left if node >= 0 else 1
            if not rng.bernoulli(mass):
                return None
            return Verdict(tuple(proposal.path(node)), rng.sample(distribution))

        verdict = judge(-1, Fraction(1))
        assert verdict is not None
        return verdict


def test_judging_from_the_root_is_exact_too() -> None:
    target, distributions = random_distributions(1, 3, 3), random_distributions(101, 3, 3)
    for way in WAYS:
        draft = tree(distributions, SHAPES["two, each with two"], WAYS[way])
        ours = verified_distribution(FromTheRoot(), target, draft, 3)
        assert variation(ours, baseline_distribution(target, 3)) == 0


@pytest.mark.parametrize("wrong", [KeepsTheDistribution, MassOfWhatIsLeft])
def test_wrong_tree_verifiers_are_caught(wrong: type[Verifier]) -> None:
    target, distributions = random_distributions(1, 3, 3), random_distributions(101, 3, 3)
    draft = tree(distributions, SHAPES["two, each with two"], WAYS["drawn"])
    ours = verified_distribution(wrong(), target, draft, 3)
    assert variation(ours, baseline_distribution(target, 3)) > Fraction(1, 1000)


def test_dropping_a_drawn_sibling_for_its_rng_is_caught() -> None:
    """Reranking drawn tokens and keeping the best, as may be done with chosen ones only."""
    target, distributions = random_distributions(1, 3, 3), random_distributions(101, 3, 3)
    whole = tree(distributions, SHAPES["three"], WAYS["drawn"])

    def reranked(rng: Rng) -> Proposal:
        proposal = whole(rng)
        kept = sorted(range(3), key=lambda i: -distributions(()).prob(proposal.tokens[i]))[:2]
        return Proposal(
            tuple(proposal.tokens[i] for i in kept),
            "liar",
            tuple(proposal.distribution(i) for i in kept),
            (-1, -1),
        )

    ours = verified_distribution(TreeVerifier(), target, reranked, 2)
    assert variation(ours, baseline_distribution(target, 2)) > Fraction(1, 1000)
