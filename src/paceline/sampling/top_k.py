"""The few largest entries of a row as long as a vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.sampling.distribution import Distribution
from paceline.types import Array

_BLOCK = 64
_CANDIDATES = 512


def candidates(rows: Array, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Per row of (rows, vocabulary) the ids and values of a few hundred entries, in no order, among
    which are the `count` largest."""
    if not isinstance(rows, np.ndarray) and rows.device.type != "cpu":
        most = min(max(_CANDIDATES, count), rows.shape[1])
        values, ids = rows.topk(most, dim=1)  # where the rows are
        return zip(ids.cpu().numpy(), values.cpu().numpy(), strict=True)
    return (_candidates(row, count) for row in np.asarray(rows))


def _candidates(row: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A partial sort of a vocabulary takes longer than all else that is done with a row; the
    largest entries lie in the blocks with the largest maxima, and those are found in a tenth of
    that."""
    size = row.shape[0]
    width = size // _BLOCK
    if count >= width:
        return np.arange(size), row
    whole = width * _BLOCK
    maxima = row[:whole].reshape(_BLOCK, width).max(axis=0)
    best = np.argpartition(maxima, -count)[-count:]
    ids = (best[:, None] + width * np.arange(_BLOCK)).ravel()
    ids = np.concatenate((ids, np.arange(whole, size)))
    return ids, row[ids]


def likeliest(distribution: Distribution, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens of a distribution with their probabilities, likeliest first;
    fewer where it has fewer."""
    if distribution.single is not None:
        return [(distribution.single, 1.0)]
    [(ids, probs)] = candidates(distribution.probs[None, :], count)
    order = np.lexsort((ids, -probs))[:count]
    found = zip(ids[order].tolist(), probs[order].tolist(), strict=True)
    tokens = distribution.tokens
    return [(i if tokens is None else int(tokens[i]), p) for i, p in found if p > 0]
