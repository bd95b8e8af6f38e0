"""Ratios with intervals. A ratio is one of sums, never a mean of ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

FEW_PROMPTS = 10
"""Below so many, percentile intervals of a bootstrap are too narrow."""

_MOST_PICKS = 1 << 18
"""Rows drawn at once: some megabytes."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Plain and drafted decoding of one prompt: seconds and tokens of each."""

    baseline_s: float
    baseline_tokens: int
    drafted_s: float
    drafted_tokens: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speedup: above 1 the draft is faster. `low` and `high` bound a 95 % interval; they are
    None for a single pair, which has no spread to show."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean per token. `low` and `high` bound a 95 % interval; they are None for a single prompt,
    which has no spread to show."""

    value: float
    low: float | None
    high: float | None


def speed_ratio(pairs: Sequence[Pair], *, resamples: int = 2000, seed: int = 0) -> Ratio | None:
    """Plain milliseconds per token over drafted ones, both pooled over the pairs, with a paired
    bootstrap over prompts (Efron 1979; percentile interval). None if nothing was decoded."""
    usable = [p for p in pairs if p.baseline_tokens and p.drafted_tokens and p.drafted_s > 0]
    if not usable:
        return None
    table = np.array(
        [(p.baseline_s, p.baseline_tokens, p.drafted_s, p.drafted_tokens) for p in usable]
    )
    return Ratio(float(_ratio(table.sum(axis=0))), *_interval(table, _ratio, resamples, seed))


def mean_per_token(
    sums: Sequence[tuple[float, int]], *, resamples: int = 2000, seed: int = 0
) -> Mean | None:
    """What prompts add up to over their tokens, with a bootstrap over prompts. None without any.

    sums    per prompt the sum of a figure over its tokens, and how many tokens it has
    """
    table = np.array([pair for pair in sums if pair[1]], dtype=np.float64).reshape(-1, 2)
    if not table.shape[0]:
        return None
    return Mean(float(_mean(table.sum(axis=0))), *_interval(table, _mean, resamples, seed))


def _interval(
    table: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    resamples: int,
    seed: int,
) -> tuple[float | None, float | None]:
    """Percentiles of a statistic of sums of rows drawn with replacement; None for a single row."""
    count = table.shape[0]
    if count < 2:
        return None, None
    generator = np.random.default_rng(seed)
    at_once = max(1, _MOST_PICKS // count)
    sums = np.concatenate(
        [
            table[generator.integers(0, count, (min(at_once, resamples - done), count))].sum(axis=1)
            for done in range(0, resamples, at_once)
        ]
    )
    low, high = np.quantile(statistic(sums.T), (0.025, 0.975))
    return float(low), float(high)


def _mean(sums: np.ndarray) -> np.ndarray:
    total, tokens = sums
    mean: np.ndarray = total / tokens
    return mean


def _ratio(sums: np.ndarray) -> np.ndarray:
    baseline_s, baseline_tokens, drafted_s, drafted_tokens = sums
    ratio: np.ndarray = (baseline_s / baseline_tokens) / (drafted_s / drafted_tokens)
    return ratio
