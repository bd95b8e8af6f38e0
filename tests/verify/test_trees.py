"""Trees are judged exactly: enumeration over shapes, laws and ways of making siblings, in rational
arithmetic. A verifier that understands trees is proved by being registered."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pytest
from test_exactness import VERIFIERS, mean_accepted, random_laws, sampled, variation

from paceline.sampling.distribution import Law, excess
from paceline.sampling.rng import Chance
from paceline.testing import (
    LawOf,
    enumerate_outcomes,
    plain_distribution,
    rational_law,
    verified_distribution,
)
from paceline.types import Proposal, Verdict
from paceline.verify.base import TargetLaws, Verifier
from paceline.verify.tree import TreeVerifier

TREES = [verifier for verifier in VERIFIERS if verifier.trees]

Stage: TypeAlias = Callable[[Law, list[int], Chance], tuple[int, Law | None] | None]
"""How the next child of a token comes about: from the draft's law there and the siblings so far to
a token and the law it was drawn from, None if it was chosen. None where there is no further."""


def drawn(law: Law, siblings: list[int], chance: Chance) -> tuple[int, Law]:
    """Independently of its siblings; it may be the same token again."""
    return chance.draw(law), law


def drawn_among_the_rest(
    law: Law, siblings: list[int], chance: Chance
) -> tuple[int, Law | None] | None:
    """Without replacement, as Sequoia does."""
    rest = {token: prob for token, prob in law.items() if token not in siblings}
    if not rest:
        return None
    left = rational_law(rest)
    return chance.draw(left), None if left.single is not None else left


def likeliest(law: Law, siblings: list[int], _: Chance) -> tuple[int, None] | None:
    """Chosen outright, as EAGLE-2 does."""
    rest = [(prob, token) for token, prob in law.items() if token not in siblings]
    return (max(rest)[1], None) if rest else None


def tree(
    laws: LawOf, parents: tuple[int, ...], stages: list[Stage]
) -> Callable[[Chance], Proposal]:
    """A draft of this shape; the n-th child of each token comes from the n-th stage. A child that
    can't be had leaves out what stands behind it."""

    def draft(chance: Chance) -> Proposal:
        tokens: list[int] = []
        told: list[Law | None] = []
        kept: list[int] = []
        where: dict[int, int] = {-1: -1}
        contexts: dict[int, tuple[int, ...]] = {-1: ()}
        for index, parent in enumerate(parents):
            if parent not in where:
                continue
            siblings = [tokens[i] for i, p in enumerate(kept) if p == where[parent]]
            made = stages[len(siblings) % len(stages)](laws(contexts[parent]), siblings, chance)
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
LAWS = [(3, 3, 3), (3, 1, 3), (4, 2, 3), (4, 4, 2), (3, 3, 1)]


@pytest.mark.parametrize("laws", LAWS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verifier", TREES, ids=lambda verifier: verifier.name)
def test_emitted_tokens_are_distributed_as_the_target(
    verifier: Verifier, way: str, shape: str, laws: tuple[int, int, int]
) -> None:
    vocabulary, target_support, draft_support = laws
    target = random_laws(1, vocabulary, target_support)
    draft = tree(random_laws(101, vocabulary, draft_support), SHAPES[shape], WAYS[way])
    length = 3
    ours = verified_distribution(verifier, target, draft, length)
    assert variation(ours, plain_distribution(target, length)) == 0


def test_the_target_as_its_own_tree_is_accepted_to_a_leaf() -> None:
    laws = random_laws(7, 4, 4)
    for way in ("drawn", "drawn, then chosen"):
        draft = tree(laws, SHAPES["two, each with two"], WAYS[way])
        assert mean_accepted(TreeVerifier(), laws, draft) == 2


def test_a_tree_accepts_more_than_its_first_branch() -> None:
    for seed in range(6):
        target, laws = random_laws(seed, 3, 3), random_laws(seed + 50, 3, 3)
        both = tree(laws, SHAPES["two, each with two"], WAYS["without replacement"])
        gain = mean_accepted(TreeVerifier(), target, both) - mean_accepted(
            TreeVerifier(), target, sampled(laws, 2)
        )
        assert gain > 0


def test_traversal_accepts_at_least_what_judging_from_the_root_does() -> None:
    gains = []
    for seed in range(6):
        target, laws = random_laws(seed, 3, 3), random_laws(seed + 50, 3, 3)
        draft = tree(laws, SHAPES["two, each with two"], WAYS["without replacement"])
        top_down = mean_accepted(FromTheRoot(), target, draft)
        gains.append(mean_accepted(TreeVerifier(), target, draft) - top_down)
    assert min(gains) >= 0
    assert max(gains) > 0


def test_on_chains_it_is_block_verification() -> None:
    [block] = [verifier for verifier in VERIFIERS if verifier.name == "block"]
    target, draft = random_laws(1, 3, 3), sampled(random_laws(51, 3, 3), 3)
    assert mean_accepted(TreeVerifier(), target, draft) == mean_accepted(block, target, draft)


def test_chosen_trees_take_one_draw_for_each_emitted_token() -> None:
    """So with a seed the text is that of plain decoding."""
    target = random_laws(1, 3, 3)
    draft = tree(random_laws(51, 3, 3), SHAPES["two, each with two"], WAYS["chosen"])
    counts = []

    class Counting:
        def __init__(self, chance: Chance) -> None:
            self.chance = chance
            self.draws = 0

        def draw(self, law: Law) -> int:
            self.draws += 1
            return self.chance.draw(law)

        def happens(self, probability: object) -> bool:
            raise AssertionError("nothing but draws")

    def experiment(chance: Chance) -> int:
        proposal, counting = draft(chance), Counting(chance)
        paths = [proposal.path(index) for index in range(-1, len(proposal.tokens))]
        rows = [target(tuple(proposal.tokens[i] for i in path)) for path in paths]
        verdict = TreeVerifier().verify(proposal, rows, counting)
        counts.append(counting.draws == len(verdict.accepted) + 1)
        return len(verdict.accepted)

    enumerate_outcomes(experiment)
    assert all(counts)
    assert len(counts) > 3


def test_next_to_nothing_left_at_the_root_is_no_fault() -> None:
    """Laws that agree up to rounding: what is left may be too little to divide by."""
    p = Law(np.asarray([1 - 1e-7, 1e-17, 1e-17]))
    q = Law(np.asarray([1.0, 1e-30, 1e-30]))

    class Unlucky:
        def happens(self, probability: float) -> bool:
            return probability >= 1

        def draw(self, law: Law) -> int:
            return 0

    proposal = Proposal((0, 0), "close", (q, q), (-1, -1))
    verdict = TreeVerifier().verify(proposal, [p, p, p], Unlucky())
    assert len(verdict.accepted) <= 1


# ------------------------------------------------------------------ verifiers known to be wrong


class FromTheRoot(Verifier):
    """Exact, but each token is judged alone and for good (SpecInfer; Sequoia): the yardstick."""

    name = summary = "from the root"
    trees = True

    def verify(self, proposal: Proposal, target: TargetLaws, chance: Chance) -> Verdict:
        parents = proposal.parents or tuple(range(-1, len(proposal.tokens) - 1))
        node, path = -1, []
        while True:
            law = target[node + 1]
            for child in [i for i, parent in enumerate(parents) if parent == node]:
                token = proposal.tokens[child]
                draft = proposal.law(child) or Law.one_hot(token)
                if chance.happens(law.prob(token) / Fraction(draft.prob(token))):
                    path.append(child)
                    node = child
                    break
                law = self.after_rejection(law, draft)
            else:
                return Verdict(tuple(path), chance.draw(law))

    def after_rejection(self, law: Law, draft: Law) -> Law:
        return excess(law, draft)[0] or law


class KeepsTheLaw(FromTheRoot):
    """Judges each sibling by the target's own law: the rule called NAIVE in the literature."""

    def after_rejection(self, law: Law, draft: Law) -> Law:
        return law


class MassOfWhatIsLeft(TreeVerifier):
    """Goes on with S in place of S / (S + 1 − mass), much as a published implementation does."""

    def verify(self, proposal: Proposal, target: TargetLaws, chance: Chance) -> Verdict:
        from paceline.verify.tree import _children

        children = _children(proposal.parents or ())

        def judge(node: int, mass: Fraction) -> Verdict | None:
            law = target[node + 1]
            for child in children.get(node, ()):
                token = proposal.tokens[child]
                draft = proposal.law(child) or Law.one_hot(token)
                inner = min(mass * law.prob(token) / Fraction(draft.prob(token)), 1)
                verdict = judge(child, inner) if inner > 0 else None
                if verdict is not None:
                    return verdict
                residual, left = excess(law, draft, mass)
                if residual is None:
                    return None
                law, mass = residual, left if node >= 0 else 1
            if not chance.happens(mass):
                return None
            return Verdict(tuple(proposal.path(node)), chance.draw(law))

        verdict = judge(-1, Fraction(1))
        assert verdict is not None
        return verdict


def test_judging_from_the_root_is_exact_too() -> None:
    target, laws = random_laws(1, 3, 3), random_laws(101, 3, 3)
    for way in WAYS:
        draft = tree(laws, SHAPES["two, each with two"], WAYS[way])
        ours = verified_distribution(FromTheRoot(), target, draft, 3)
        assert variation(ours, plain_distribution(target, 3)) == 0


@pytest.mark.parametrize("wrong", [KeepsTheLaw, MassOfWhatIsLeft])
def test_wrong_tree_verifiers_are_caught(wrong: type[Verifier]) -> None:
    target, laws = random_laws(1, 3, 3), random_laws(101, 3, 3)
    draft = tree(laws, SHAPES["two, each with two"], WAYS["drawn"])
    ours = verified_distribution(wrong(), target, draft, 3)
    assert variation(ours, plain_distribution(target, 3)) > Fraction(1, 1000)


def test_dropping_a_drawn_sibling_for_its_chance_is_caught() -> None:
    """Reranking drawn tokens and keeping the best, as may be done with chosen ones only."""
    target, laws = random_laws(1, 3, 3), random_laws(101, 3, 3)
    whole = tree(laws, SHAPES["three"], WAYS["drawn"])

    def reranked(chance: Chance) -> Proposal:
        proposal = whole(chance)
        kept = sorted(range(3), key=lambda i: -laws(()).prob(proposal.tokens[i]))[:2]
        return Proposal(
            tuple(proposal.tokens[i] for i in kept),
            "liar",
            tuple(proposal.law(i) for i in kept),
            (-1, -1),
        )

    ours = verified_distribution(TreeVerifier(), target, reranked, 2)
    assert variation(ours, plain_distribution(target, 2)) > Fraction(1, 1000)
