"""The probability that drafted tokens 1…i are all accepted, by source, counted while decoding.

A source that tells how much speaks for its proposal (`Preview.match_length`, for a lookup the
length of its match) is counted by that: after i accepted tokens a match of ℓ has become one of
ℓ + i, so one table of "is the next token right after ℓ?" serves every position (docs/log.md has
the figures). Any other source is counted by position. What lies behind the first wrong token was
never judged, and is not counted.
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

NEGLIGIBLE = 0.01
"""Tokens less likely than this to be accepted are not planned for."""


def prior_by_match_length() -> np.ndarray:
    """Probability that the next token is right after a match of ℓ tokens, at first:
    0.95 ℓ² / (ℓ² + 2.8), fitted to a model's answers to 14 prompts (docs/log.md)."""
    lengths = np.asarray([*((a + b - 1) / 2 for a, b in pairwise(_EDGES)), 32])
    return 0.95 * lengths**2 / (lengths**2 + 2.8)


def prior_by_position(probability: float = 0.7) -> np.ndarray:
    """The same probability everywhere: what is assumed of a model draft at first."""
    return np.full(len(_EDGES), probability)


def prior_by_place() -> np.ndarray:
    """What is assumed of the n-th token of a model's tree, whatever hangs above it: that 0.6 of the
    first ones are accepted, and ever fewer of those that its draft held less likely."""
    return np.asarray([0.6 * (1 + edge) ** -0.8 for edge in _EDGES])


def prior_of(probabilities: Sequence[float]) -> np.ndarray:
    """A draft's own: entry e is the probability at match length or
    confidence e, the last one holds beyond."""
    return np.asarray([probabilities[min(edge, len(probabilities) - 1)] for edge in _EDGES])


class Shared:
    """What all requests together know of a source; each request starts from it.

    has_confidence    the source tells match lengths or confidences; else it is counted by
                      position
    prior             probability per cell, shape (cells,), before anything was counted
    """

    def __init__(self, *, has_confidence: bool, prior: np.ndarray | None = None) -> None:
        self.has_confidence = has_confidence
        if prior is None:
            prior = prior_by_match_length() if has_confidence else prior_by_position()
        self._right: list[float] = (_PRIOR_WEIGHT * prior).tolist()
        self._judged = [_PRIOR_WEIGHT] * len(_EDGES)
        self._start_right, self._start_judged = list(self._right), list(self._judged)

    def probability(self, cell: int) -> float:
        """The probability that a token of a cell is right."""
        return self._right[cell] / self._judged[cell]

    @property
    def probabilities(self) -> list[float]:
        """Probability that the next token is right, per cell."""
        return [self.probability(cell) for cell in range(len(_EDGES))]

    def count(self, cell: int, right: float) -> None:
        """Forgets towards the prior, never beyond it."""
        prior_right, prior_judged = self._start_right[cell], self._start_judged[cell]
        self._right[cell] = prior_right + _SHARED_KEEP * (self._right[cell] - prior_right) + right
        self._judged[cell] = prior_judged + _SHARED_KEEP * (self._judged[cell] - prior_judged) + 1


class Acceptance:
    """One source's record in one request, on top of what all requests share."""

    __slots__ = ("_by_start", "_judged", "_right", "accepted", "judged", "shared")

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._right = [0.0] * len(_EDGES)
        self._judged = [0.0] * len(_EDGES)
        probabilities = [_cautious(probability, 0.0) for probability in shared.probabilities]
        self._by_start = [probabilities[cell] for cell in _CELLS]
        self.judged = 0  # tokens of this source judged in this request
        self.accepted = 0

    def _start(self, match_length: int) -> int:
        return min(match_length, _LAST) if self.shared.has_confidence else 0

    def steps(self, match_length: int, count: int = MOST) -> list[float]:
        """Entry i: probability that token i is right if those before it were; at most MOST."""
        start = self._start(match_length)
        return self._by_start[start : start + count]

    def ahead(self, preview: Preview, most: int) -> list[float]:
        """Entry i: probability that token i of a preview and all before it on its path are
        accepted. It never rises: of a tree's tokens the first ones are meant to be the likeliest,
        and where counting says otherwise the later ones are taken for no likelier."""
        count = min(most, len(preview.tokens), MOST)
        if preview.confidences is None and preview.parents is None:
            return prefix_acceptance(self.steps(preview.match_length, count))
        steps = [self._by_start[start] for start in _starts(preview)[:count]]
        if preview.parents is None:
            return prefix_acceptance(steps)
        reached: list[float] = []
        for step, parent in zip(steps, preview.parents, strict=False):
            reached.append(step * (reached[parent] if parent >= 0 else 1.0))
        return falling(reached)

    def probabilities(self, match_length: int, count: int) -> np.ndarray:
        """Entry i: probability that tokens 0…i are all accepted; `count` of them, at most MOST."""
        return np.cumprod(self.steps(match_length, count))

    def learn(self, match_length: int, right: int, judged: int) -> None:
        """`judged` tokens of a proposal were judged, the first `right` of them accepted: all, or
        all but the last."""
        start = self._start(match_length)
        for index in range(judged):
            self._count(_CELLS[start + index], 1.0 if index < right else 0.0)
        self.judged += judged
        self.accepted += right

    def learn_places(self, path: Sequence[int], count: int) -> None:
        """A tree of `count` tokens was judged, and those at the places of `path` were accepted. For
        drafts that offer trees and have to be asked: entry i of `steps` is then the probability
        that token i is accepted at all."""
        accepted = set(path)
        for place in range(min(count, MOST)):
            self._count(_CELLS[place], 1.0 if place in accepted else 0.0)
        self.judged += count
        self.accepted += len(accepted)

    def miss(self, position: int) -> None:
        """The source was asked for a token at this position and had none. Only this request counts
        it: the next one may be within the draft's context again."""
        self._count(_CELLS[min(position, _LAST)], 0.0, shared=False)

    def judge(self, preview: Preview, committed: Sequence[int]) -> None:
        """Learn from what a source would have offered before these tokens were committed, asked
        or not. The first wrong token is the last one judged."""
        if preview.confidences is not None or preview.parents is not None:
            self._judge_each(preview, committed)
            return
        tokens, match_length = preview.tokens, preview.match_length
        right = 0
        judged = min(len(tokens), len(committed))
        while right < judged and tokens[right] == committed[right]:
            right += 1
        self.learn(match_length, right, min(judged, right + 1))

    def _judge_each(self, preview: Preview, committed: Sequence[int]) -> None:
        """The same where every token has its own confidence, or there are branches: all children
        of a right token were judged, and at most one of them is right."""
        tokens, starts = preview.tokens, _starts(preview)
        parents = preview.parents or range(-1, len(tokens) - 1)
        node: int | None = -1
        for true in committed:
            children = [index for index, parent in enumerate(parents) if parent == node]
            node = next((index for index in children if tokens[index] == true), None)
            for index in children:
                self._count(_CELLS[starts[index]], 1.0 if index == node else 0.0)
            self.judged += len(children)
            if node is None:
                return
            self.accepted += 1

    def _count(self, cell: int, right: float, *, shared: bool = True) -> None:
        if shared:
            self.shared.count(cell, right)
        found = self._right[cell] = _REQUEST_KEEP * self._right[cell] + right
        judged = self._judged[cell] = _REQUEST_KEEP * self._judged[cell] + 1.0
        probability = (found + _SHARED_WEIGHT * self.shared.probability(cell)) / (
            judged + _SHARED_WEIGHT
        )
        start, end = _EDGES[cell], _ENDS[cell]
        self._by_start[start:end] = [_cautious(probability, judged)] * (end - start)


def falling(probabilities: Sequence[float]) -> list[float]:
    """The same, rising nowhere: later entries are taken for no likelier than earlier ones."""
    found: list[float] = []
    for probability in probabilities:
        if probability < NEGLIGIBLE:
            break
        found.append(min(probability, found[-1]) if found else probability)
    return found


def prefix_acceptance(steps: Sequence[float]) -> list[float]:
    """From the probability of each token, given those before it, to that of all up to it."""
    found, probability = [], 1.0
    for step in steps:
        probability *= step
        if probability < NEGLIGIBLE:
            break
        found.append(probability)
    return found


def _starts(preview: Preview) -> list[int]:
    """Where in the table each token of a preview stands."""
    if preview.confidences is not None:
        return [min(match_length, _LAST) for match_length in preview.confidences]
    return [min(preview.match_length + depth, _LAST) for depth in _depths(preview.parents or ())]


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def _cautious(probability: float, judged: float) -> float:
    """A probability, less a part of its standard error in this request: to wait for a little
    evidence costs little, and to be wrong costs a wide forward."""
    error = math.sqrt(probability * (1 - probability) / (judged + _SHARED_WEIGHT))
    return max(0.0, probability - _CAUTION * error)
