"""The protocol of a verifier: from a proposal and the target's distributions to a verdict.

A verifier sees distributions and random numbers, never an engine. Every verifier registered
under the entry points `paceline.verifiers` is proved exact by `tests/verify/test_exactness.py`,
unless it says that it is lossy.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from paceline.plugins import read_options
from paceline.sampling.distribution import Distribution
from paceline.sampling.rng import Rng
from paceline.types import Proposal, Verdict


class TargetDistributions(Protocol):
    """The target's distributions: entry 0 is the distribution before any drafted token, entry i +
    1 that after token i of a proposal and those before it on its path. Asking for an entry may
    cost time; one that is never asked for costs nothing."""

    def __getitem__(self, row: int) -> Distribution: ...


class Verifier(abc.ABC):
    """An accept rule: exact, unless `lossy`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    trees: ClassVar[bool] = False
    """Whether proposals with parents are understood."""

    lossy: ClassVar[bool] = False
    """Whether the target's distribution is given up. Whatever comes of such a verifier is marked
    so, and the command line takes it only with --lossy."""

    gives_up: str = ""
    """Of a lossy verifier: what is given up, and how far, in a few words."""

    options: ClassVar[Mapping[str, Callable[[str], Any]]] = {}
    """What reads each option that the constructor takes: int, float, str, `plugins.yes_or_no`."""

    @classmethod
    def create(cls, **written: str) -> Verifier:
        """A verifier from the options of the command line's `--verifier name:key=value,…`. Raises
        SettingError for one it doesn't have."""
        return cls(**read_options("verifier", cls.name, written, cls.options))

    @abc.abstractmethod
    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        """Judge a proposal so that accepted tokens and next token are distributed as the target
        alone would have emitted them. Only a lossy verifier may do otherwise; it tells how far in
        `Verdict.divergences`.

        Raises ValueError if a drafted token has probability 0 under the distribution it claims to
        be drawn from: such a draft breaks the proof.
        """


def draft_prob(distribution: Distribution, token: int) -> Any:
    """q(x) of a drafted token, which can't be 0."""
    prob = distribution.prob(token)
    if not prob > 0:
        raise ValueError(f"drafted token {token} has probability {prob} under its own distribution")
    return prob


def ratio(target: Distribution, draft: Distribution, token: int) -> Any:
    """p(x)/q(x) of a drafted token."""
    q = draft_prob(draft, token)
    return target.prob(token) if q == 1 else target.prob(token) / q
