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

Draft = Callable[[Chance], Proposal]
REGISTERED = [plugins.find("verifier", name)() for name in plugins.names("verifier")]
VERIFIERS = [verifier for verifier in REGISTERED if not verifier.lossy]


def random_laws(seed: int, vocabulary: int, support: int) -> LawOf:
    """A law per context: `support` tokens of the vocabulary with small random integer weights;
    with a support of 1 a greedy model, below the vocabulary's size one filtered by top-k."""

    @cache
    def law(context: tuple[int, ...]) -> Law:
        source = random.Random(f"{seed} {context}")
        tokens = source.sample(range(vocabulary), support)
        if support == vocabulary:
            return rational_law([source.randint(1, 6) for _ in range(vocabulary)])
        return rational_law({token: source.randint(1, 6) for token in tokens})

    return law


def sampled(laws: LawOf, length: int) -> Draft:
    def draft(chance: Chance) -> Proposal:
        tokens: tuple[int, ...] = ()
        for _ in range(length):
            tokens = (*tokens, chance.draw(laws(tokens)))
        return Proposal(tokens, "sampled", tuple(laws(tokens[:i]) for i in range(length)))

    return draft


def chosen(laws: LawOf, length: int) -> Draft:
    """The draft's most likely token at each step, told as chosen outright."""

    def draft(_: Chance) -> Proposal:
        tokens: tuple[int, ...] = ()
        for _ in range(length):
            tokens = (*tokens, max(laws(tokens).items(), key=lambda item: item[1])[0])
        return Proposal(tokens, "chosen")

    return draft


def mixed(laws: LawOf, length: int) -> Draft:
    """Even positions chosen outright, odd ones sampled."""

    def draft(chance: Chance) -> Proposal:
        tokens: tuple[int, ...] = ()
        told: tuple[Law | None, ...] = ()
        for position in range(length):
            law = laws(tokens)
            if position % 2:
                tokens, told = (*tokens, chance.draw(law)), (*told, law)
            else:
                tokens, told = (*tokens, law.items()[0][0]), (*told, None)
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
        target = random_laws(seed, vocabulary, target_support)
        draft = KINDS[kind](random_laws(seed + 100, vocabulary, draft_support), length)
        ours = verified_distribution(verifier, target, draft, length + 1)
        plain = plain_distribution(target, length + 1)
        assert variation(ours, plain) == 0


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_the_target_as_its_own_draft_is_always_accepted(verifier: Verifier) -> None:
    laws = random_laws(7, 4, 4)
    assert mean_accepted(verifier, laws, sampled(laws, 3)) == 3


def test_block_never_accepts_less_than_chain_and_often_more() -> None:
    chain, block = (plugins.find("verifier", name)() for name in ("chain", "block"))
    gains = []
    for seed in range(12):
        target, draft = random_laws(seed, 3, 3), sampled(random_laws(seed + 50, 3, 3), 3)
        gains.append(mean_accepted(block, target, draft) - mean_accepted(chain, target, draft))
    assert min(gains) >= 0
    assert max(gains) > Fraction(1, 100)


def variation(ours: dict[tuple[int, ...], Fraction], plain: dict[tuple[int, ...], Fraction]):
    keys = ours.keys() | plain.keys()
    distance = sum(abs(ours.get(key, 0) - plain.get(key, 0)) for key in keys) / 2
    assert isinstance(distance, Fraction | int), "a float crept into the proof"
    return distance


def mean_accepted(verifier: Verifier, target: LawOf, draft: Draft) -> Fraction:
    def accepted(chance: Chance) -> int:
        proposal = draft(chance)
        tokens = proposal.tokens
        rows = [target(tokens[:count]) for count in range(len(tokens) + 1)]
        return len(verifier.verify(proposal, rows, chance).accepted)

    outcomes = enumerate_outcomes(accepted)
    return sum(count * weight for count, weight in outcomes.items())


# ------------------------------------------------------------------ verifiers known to be wrong


class ResamplesFromTarget(Verifier):
    """After a rejection draws from p instead of from what q left of it."""

    name = summary = "wrong"

    def verify(self, proposal: Proposal, target: TargetLaws, chance: Chance) -> Verdict:
        for index, token in enumerate(proposal.tokens):
            law = proposal.law(index) or Law.one_hot(token)
            if not chance.happens(target[index].prob(token) / Fraction(law.prob(token))):
                return Verdict(tuple(range(index)), self.replace(target[index], law, chance))
        count = len(proposal.tokens)
        return Verdict(tuple(range(count)), chance.draw(target[count]))

    def replace(self, target: Law, draft: Law, chance: Chance) -> int:
        return chance.draw(target)


class SkipsTheResidual(ResamplesFromTarget):
    """After a rejection emits the target's most likely token."""

    def replace(self, target: Law, draft: Law, chance: Chance) -> int:
        return max(target.items(), key=lambda item: item[1])[0]


class StopsAtTheFirstFailure(Verifier):
    """Block verification with the `break` that reviewers like to add."""

    name = summary = "wrong"

    def verify(self, proposal: Proposal, target: TargetLaws, chance: Chance) -> Verdict:
        laws, count = proposal.laws or (), len(proposal.tokens)
        kept, kept_mass, mass = 0, Fraction(1), Fraction(1)
        for i, token in enumerate(proposal.tokens, start=1):
            mass = min(mass * target[i - 1].prob(token) / laws[i - 1].prob(token), 1)
            left = excess(target[i], laws[i], mass)[1] if i < count else mass
            whole = left + 1 - mass if i < count else 1
            if not chance.happens(left / whole if whole else 1):
                break
            kept, kept_mass = i, mass
        law = target[kept]
        if kept < count:
            law = excess(law, laws[kept], kept_mass)[0] or law
        return Verdict(tuple(range(kept)), chance.draw(law))


@pytest.mark.parametrize("wrong", [ResamplesFromTarget, SkipsTheResidual, StopsAtTheFirstFailure])
def test_wrong_verifiers_are_caught(wrong: type[Verifier]) -> None:
    target, draft = random_laws(1, 3, 3), sampled(random_laws(101, 3, 3), 2)
    ours = verified_distribution(wrong(), target, draft, 3)
    assert variation(ours, plain_distribution(target, 3)) > Fraction(1, 100)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_a_draft_that_misreports_its_law_is_caught(verifier: Verifier) -> None:
    """The argmax of a law told as sampled from it: the fault of many published decoders."""
    target, laws = random_laws(3, 3, 3), random_laws(103, 3, 3)

    def draft(chance: Chance) -> Proposal:
        tokens = chosen(laws, 2)(chance).tokens
        return Proposal(tokens, "liar", tuple(laws(tokens[:i]) for i in range(2)))

    ours = verified_distribution(verifier, target, draft, 3)
    assert variation(ours, plain_distribution(target, 3)) > Fraction(1, 100)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_a_token_impossible_under_its_own_law_is_refused(verifier: Verifier) -> None:
    laws = random_laws(3, 3, 3)
    lie = Proposal((0,), "liar", (rational_law({1: 1, 2: 1}),))
    with pytest.raises(ValueError, match="probability 0"):
        verified_distribution(verifier, laws, lambda _: lie, 2)
