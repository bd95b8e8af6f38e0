"""The protocol of a verifier: from a proposal and the target's laws to a verdict.

A verifier sees laws and a source of chance, never an engine. Every verifier registered under the
entry points `paceline.verifiers` is proved exact by `tests/verify/test_exactness.py`.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Protocol

from paceline.sampling.chance import Chance
from paceline.sampling.law import Law
from paceline.types import Proposal, Verdict


class TargetLaws(Protocol):
    """The target's laws: entry i is the law after the first i tokens of a chain. Asking for an
    entry may cost time; one that is never asked for costs nothing."""

    def __getitem__(self, row: int) -> Law: ...


class Verifier(abc.ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    trees: ClassVar[bool] = False
    """Whether proposals with parents are understood."""

    @abc.abstractmethod
    def verify(self, proposal: Proposal, target: TargetLaws, chance: Chance) -> Verdict:
        """Judge a proposal so that accepted tokens and next token are distributed as the target
        alone would have emitted them.

        Raises ValueError if a drafted token has probability 0 under the law it claims to be drawn
        from: such a draft breaks the proof.
        """


def draft_prob(law: Law, token: int) -> Any:
    """q(x) of a drafted token, which can't be 0."""
    prob = law.prob(token)
    if not prob > 0:
        raise ValueError(f"drafted token {token} has probability {prob} under its own law")
    return prob
