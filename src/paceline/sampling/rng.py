"""The one source of randomness: a request's own stream of uniform numbers.

Verifiers and drafts only ever ask two questions, so that a proof can answer them by enumeration
(`paceline.testing.enumerate_outcomes`) where decoding answers them by a generator.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from paceline.sampling.distribution import Distribution


class Rng(Protocol):
    """Answers the two questions that sampling asks."""

    def bernoulli(self, probability: Any) -> bool:
        """True with this probability. Certain answers (≤ 0, ≥ 1) use no random number."""
        ...

    def sample(self, distribution: Distribution) -> int:
        """A token of the distribution. A one-hot distribution uses no random number."""
        ...


class NumpyRng(Rng):
    """Answers from PCG64, seeded per request, so that a request's output does not depend on which
    others share its batch."""

    def __init__(self, seed: int | None = None) -> None:
        self._seeds = np.random.SeedSequence(seed)
        self._random = np.random.default_rng(self._seeds).random

    def bernoulli(self, probability: Any) -> bool:
        if probability <= 0 or probability >= 1:
            return bool(probability >= 1)
        return bool(self._random() < probability)

    def sample(self, distribution: Distribution) -> int:
        return (
            distribution.single
            if distribution.single is not None
            else distribution.draw(self._random())
        )

    def spawn(self) -> NumpyRng:
        """An independent stream, for a draft: its draws must not shift the target's."""
        child = NumpyRng.__new__(NumpyRng)
        child._seeds = self._seeds.spawn(1)[0]
        child._random = np.random.default_rng(child._seeds).random
        return child
