"""The chance that drafted tokens 1…i are all accepted, by source, counted while decoding.

A source that says how much speaks for its proposal (`Preview.evidence`, for a lookup the length of
its match) is counted by that: after i accepted tokens a match of ℓ has become one of ℓ + i, so one
table of "is the next token right after ℓ?" serves every position (docs/log.md has the figures). A
source that weighs nothing is counted by position. What lies behind the first wrong token was never
judged, and is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from paceline.types import Preview

MOST = 32
"""Most tokens a policy looks ahead."""

_EDGES = (0, 1, 2, 3, 4, 5, 6, 8, 11, 16, 25)
_LAST = _EDGES[-1]
_ENDS = (*_EDGES[1:], _LAST + MOST)  # longer matches share the last cell
_CELLS = [max(c for c, edge in enumerate(_EDGES) if edge <= at) for at in range(_ENDS[-1])]

_REQUEST_KEEP, _SHARED_KEEP = 0.98, 0.995  # forgetting, per observation of a cell
_SHARED_WEIGHT, _PRIOR_WEIGHT = 4.0, 8.0
_CAUTION = 0.5  # standard errors


def prior_by_evidence() -> np.ndarray:
    """Chance that the next token is right after a match of ℓ tokens, before anything was counted:
    0.95 ℓ² / (ℓ² + 2.8), fitted to a model's answers to 14 prompts (docs/log.md)."""
    lengths = np.asarray([*((a + b - 1) / 2 for a, b in pairwise(_EDGES)), 32])
    return 0.95 * lengths**2 / (lengths**2 + 2.8)


def prior_by_position(chance: float = 0.7) -> np.ndarray:
    """The same chance everywhere: what is assumed of a model draft nobody has seen at work."""
    return np.full(len(_EDGES), chance)


class Shared:
    """What all requests together know of a source; each request starts from it.

    weighs    the source gives evidence; else it is counted by position
    prior     chance per cell before anything was counted
    """

    def __init__(self, *, weighs: bool, prior: np.ndarray | None = None) -> None:
        self.weighs = weighs
        if prior is None:
            prior = prior_by_evidence() if weighs else prior_by_position()
        self._right: list[float] = (_PRIOR_WEIGHT * prior).tolist()
        self._judged = [_PRIOR_WEIGHT] * len(_EDGES)
        self._start_right, self._start_judged = list(self._right), list(self._judged)

    def chance(self, cell: int) -> float:
        return self._right[cell] / self._judged[cell]

    @property
    def chances(self) -> list[float]:
        """Chance that the next token is right, per cell."""
        return [self.chance(cell) for cell in range(len(_EDGES))]

    def count(self, cell: int, right: float) -> None:
        """Forgets towards the prior, never beyond it."""
        prior_right, prior_judged = self._start_right[cell], self._start_judged[cell]
        self._right[cell] = prior_right + _SHARED_KEEP * (self._right[cell] - prior_right) + right
        self._judged[cell] = prior_judged + _SHARED_KEEP * (self._judged[cell] - prior_judged) + 1


class Survival:
    """One source's record in one request, on top of what all requests share."""

    __slots__ = ("_by_start", "_judged", "_right", "accepted", "judged", "shared")

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._right = [0.0] * len(_EDGES)
        self._judged = [0.0] * len(_EDGES)
        chances = [_cautious(chance, 0.0) for chance in shared.chances]
        self._by_start = [chances[cell] for cell in _CELLS]
        self.judged = 0  # tokens of this source judged in this request
        self.accepted = 0

    def steps(self, evidence: int, count: int = MOST) -> list[float]:
        """Entry i: chance that token i is right if those before it were; at most MOST of them."""
        start = (evidence if evidence < _LAST else _LAST) if self.shared.weighs else 0
        return self._by_start[start : start + count]

    def chances(self, evidence: int, count: int) -> np.ndarray:
        """Entry i: chance that tokens 0…i are all accepted; `count` of them, at most MOST."""
        return np.cumprod(self.steps(evidence, count))

    def learn(self, evidence: int, right: int, judged: int) -> None:
        """`judged` tokens of a proposal were judged, the first `right` of them accepted: all, or
        all but the last."""
        start = (evidence if evidence < _LAST else _LAST) if self.shared.weighs else 0
        for index in range(judged):
            self._count(_CELLS[start + index], 1.0 if index < right else 0.0)
        self.judged += judged
        self.accepted += right

    def miss(self, position: int) -> None:
        """The source was asked for a token at this position and had none. That is this request's
        affair: the next one may be within its context again."""
        self._count(_CELLS[min(position, _LAST)], 0.0, shared=False)

    def judge(self, preview: Preview, committed: Sequence[int]) -> None:
        """Learn from what a source would have offered before these tokens were committed, asked
        or not. The first wrong token is the last one judged."""
        tokens, evidence = preview
        right = 0
        judged = min(len(tokens), len(committed))
        while right < judged and tokens[right] == committed[right]:
            right += 1
        self.learn(evidence, right, min(judged, right + 1))

    def _count(self, cell: int, right: float, *, shared: bool = True) -> None:
        if shared:
            self.shared.count(cell, right)
        found = self._right[cell] = _REQUEST_KEEP * self._right[cell] + right
        judged = self._judged[cell] = _REQUEST_KEEP * self._judged[cell] + 1.0
        chance = (found + _SHARED_WEIGHT * self.shared.chance(cell)) / (judged + _SHARED_WEIGHT)
        start, end = _EDGES[cell], _ENDS[cell]
        self._by_start[start:end] = [_cautious(chance, judged)] * (end - start)


def _cautious(chance: float, judged: float) -> float:
    """A chance, less a part of its standard error in this request. A lookup is watched for nothing,
    so to wait for a little evidence costs little, and to be wrong costs a wide forward."""
    error = math.sqrt(chance * (1 - chance) / (judged + _SHARED_WEIGHT))
    return max(0.0, chance - _CAUTION * error)
