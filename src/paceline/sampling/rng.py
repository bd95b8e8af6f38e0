"""The one source of randomness: a request's own stream of uniform numbers.

Verifiers and drafts only ever ask two questions, so that a proof can answer them by enumeration
(`paceline.testing.enumerate_outcomes`) where decoding answers them by a generator.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from paceline.sampling.distribution import Law


class Chance(Protocol):
    def happens(self, probability: Any) -> bool:
        """True with this probability. Certain answers (≤ 0, ≥ 1) use no random number."""
        ...

    def draw(self, law: Law) -> int:
        """A token of the law. A one-hot law uses no random number."""
        ...


class RandomChance:
    """Answers from PCG64, seeded per request, so that a request's output does not depend on which
    others share its batch."""

    def __init__(self, seed: int | None = None) -> None:
        self._seeds = np.random.SeedSequence(seed)
        self._random = np.random.default_rng(self._seeds).random

    def happens(self, probability: Any) -> bool:
        if probability <= 0 or probability >= 1:
            return bool(probability >= 1)
        return bool(self._random() < probability)

    def draw(self, law: Law) -> int:
        return law.single if law.single is not None else law.draw(self._random())

    def spawn(self) -> RandomChance:
        """An independent stream, for a draft: its draws must not shift the target's."""
        child = RandomChance.__new__(RandomChance)
        child._seeds = self._seeds.spawn(1)[0]
        child._random = np.random.default_rng(child._seeds).random
        return child
