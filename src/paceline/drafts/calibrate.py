"""A draft's temperature, or a mixture's weight, chosen by what the target said in earlier rounds.

With target distribution p and draft distribution q a drafted token is accepted with probability
Σ min(p, q) (Leviathan et al. 2023, theorem 3.5), and after a round both are known. So each judged
position says what every value would have been worth there, and the next round takes the value that
was worth most. Its distributions are fixed before anything is drawn from them, which is all that
exactness asks.

Positions count up to the first rejected one: those are the contexts that decoding comes to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from paceline.drafts.base import VerifiedRound
from paceline.sampling.distribution import Distribution, aligned
from paceline.types import Sampling

FACTORS = (0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.35)
"""Of the request's temperature, for a draft."""

WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 1.0)
"""Of the first draft of a mixture."""

_KEEP = 0.98  # forgetting, per judged position
_ENOUGH = 8  # judged positions before a value is changed
_NEGLIGIBLE = 1e-5  # of the largest probability: what is less likely is left out of the estimate


def is_greedy(sampling: Sampling) -> bool:
    """Whether every distribution of this request is one-hot: then there is nothing to calibrate."""
    return sampling.temperature == 0 or sampling.top_k == 1


@dataclass(slots=True)
class Calibration:
    """One request's choice among values, by what each would have been worth so far.

    values    to choose from
    value     the choice for the next round
    told      the draft's distributions since the last judged round, by the drafted tokens they
              stand behind
    """

    values: Sequence[float]
    value: float
    told: dict[tuple[int, ...], Any] = field(default_factory=dict)
    _worth: Any = 0.0
    _judged: int = 0

    def on_path(self, verified: VerifiedRound) -> Iterator[tuple[Distribution, Any]]:
        """The target's distribution and what was told, for each told position that decoding came
        to; what was told is forgotten."""
        told, self.told = self.told, {}
        path = tuple(verified.proposal.tokens[index] for index in verified.accepted)
        rows = (0, *(index + 1 for index in verified.accepted))
        for drafted, distributions in told.items():
            if path[: len(drafted)] == drafted:
                assert verified.distributions is not None, "no other engine calibrates"
                yield verified.distributions[rows[len(drafted)]], distributions

    def learn(self, worth: np.ndarray) -> None:
        """One judged position: Σ min(p, q) under each value."""
        self._worth = _KEEP * self._worth + worth
        self._judged += 1
        if self._judged >= _ENOUGH:
            self.value = self.values[int(np.argmax(self._worth))]


def worth_by_factor(target: Distribution, draft: Distribution, factor: float) -> np.ndarray:
    """Σ min(p, q′) for each of FACTORS, q′ being the draft's distribution at that factor of the
    request's temperature.

    draft     the distribution q at the given factor: q′ is a power of it. Tokens that a filter cut
              from it stay out
    """
    tokens, q = _likely(draft)
    p = aligned(target, Distribution(q, tokens))
    exponents = (factor / np.asarray(FACTORS)).astype(q.dtype)
    powers = np.exp(np.outer(exponents, np.log(q)))
    powers /= powers.sum(axis=1, keepdims=True)
    worth: np.ndarray = np.minimum(powers, p).sum(axis=1)
    return worth


def worth_by_weight(target: Distribution, first: Distribution, second: Distribution) -> np.ndarray:
    """Σ min(p, w·first + (1 − w)·second) for each w of WEIGHTS."""
    tokens, p = _likely(target)
    over = Distribution(p, tokens)
    weights = np.asarray(WEIGHTS, dtype=p.dtype)[:, np.newaxis]
    mixtures = weights * aligned(first, over) + (1 - weights) * aligned(second, over)
    worth: np.ndarray = np.minimum(mixtures, p).sum(axis=1)
    return worth


def _likely(distribution: Distribution) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and probabilities, less those next to impossible."""
    if distribution.single is not None:
        return np.asarray([distribution.single]), np.ones(1, dtype=np.float32)
    xp = array_namespace(distribution.probs)
    kept = xp.nonzero(distribution.probs > _NEGLIGIBLE * xp.max(distribution.probs))[0]
    tokens = kept if distribution.tokens is None else distribution.tokens[kept]
    return _on_host(tokens), _on_host(distribution.probs[kept])


def _on_host(array: Any) -> np.ndarray:
    host: np.ndarray = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return host
