"""Ratios with intervals. A ratio is one of sums, never a mean of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Pair:
    """Plain and drafted decoding of one prompt: seconds and tokens of each."""

    plain_s: float
    plain_tokens: int
    drafted_s: float
    drafted_tokens: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """Times plain: above 1 the draft is faster. `low` and `high` bound a 95 % interval; they are
    None for a single pair, which has no spread to show."""

    value: float
    low: float | None
    high: float | None


def speed_ratio(pairs: Sequence[Pair], *, resamples: int = 2000, seed: int = 0) -> Ratio | None:
    """Plain milliseconds per token over drafted ones, both pooled over the pairs, with a paired
    bootstrap over prompts (Efron 1979; percentile interval). None if nothing was decoded."""
    usable = [p for p in pairs if p.plain_tokens and p.drafted_tokens and p.drafted_s > 0]
    if not usable:
        return None
    table = np.array([(p.plain_s, p.plain_tokens, p.drafted_s, p.drafted_tokens) for p in usable])
    value = float(_ratio(table.sum(axis=0)))
    if len(usable) < 2:
        return Ratio(value, None, None)
    picks = np.random.default_rng(seed).integers(0, len(usable), (resamples, len(usable)))
    low, high = np.quantile(_ratio(table[picks].sum(axis=1).T), (0.025, 0.975))
    return Ratio(value, float(low), float(high))


def _ratio(sums: np.ndarray) -> np.ndarray:
    plain_s, plain_tokens, drafted_s, drafted_tokens = sums
    ratio: np.ndarray = (plain_s / plain_tokens) / (drafted_s / drafted_tokens)
    return ratio
