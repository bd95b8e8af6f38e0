"""From a row of logits to a distribution, in one stated order, with a draft and without.

On the logits: repetition penalty → presence and frequency penalties → logit bias → banned and
allowed tokens → banned sequences → minimum tokens. Masks come last, so that nothing brings a
forbidden token back. Then the distribution: temperature → top-k → top-p → min-p, each on what the
one before left, renormalised. Ties are broken towards the lower token id.

A row's history is what really stands before it: prompt, output, and the drafted tokens between.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from paceline.errors import SettingError
from paceline.sampling.distribution import Distribution, checked_maximum
from paceline.sampling.history import History
from paceline.types import Array, Sampling


def is_plain(sampling: Sampling) -> bool:
    """Whether the logits reach the distribution untouched: no penalty, bias or mask."""
    return not (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or sampling.banned_tokens
        or sampling.allowed_tokens is not None
        or sampling.banned_sequences
        or sampling.min_tokens
    )


def process_logits(
    logits: Array,
    sampling: Sampling,
    history: History,
    drafted: Sequence[int] = (),
    stop_tokens: Collection[int] = (),
) -> Array:
    """Penalties, biases and masks of one row: its logits before temperature.

    logits         raw, float, shape (vocabulary_size,); not changed
    history        what is committed
    drafted        the drafted tokens between history and this row
    stop_tokens    tokens that `min_tokens` holds back
    """
    if is_plain(sampling):
        return logits
    xp = array_namespace(logits)
    logits = xp.asarray(logits, copy=True)
    _penalise(logits, sampling, history, drafted)
    for token, bias in sampling.logit_bias.items():
        if 0 <= token < logits.shape[0]:
            logits[token] += bias
    return _mask(logits, _forbidden(sampling, history, drafted, stop_tokens), sampling)


def _penalise(logits: Array, sampling: Sampling, history: History, drafted: Sequence[int]) -> None:
    xp = array_namespace(logits)
    if sampling.repetition_penalty != 1:
        tokens = xp.asarray(history.seen(drafted), device=device(logits))
        values = logits[tokens]
        penalty = sampling.repetition_penalty
        logits[tokens] = xp.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        seen, counts = history.counts(drafted)
        tokens = xp.asarray(seen, device=device(logits))
        cost = sampling.presence_penalty + sampling.frequency_penalty * counts
        logits[tokens] -= xp.asarray(cost, dtype=logits.dtype, device=device(logits))


def _forbidden(
    sampling: Sampling, history: History, drafted: Sequence[int], stop_tokens: Collection[int]
) -> set[int]:
    forbidden = set(sampling.banned_tokens)
    for sequence in sampling.banned_sequences:
        if history.ends_with(sequence[:-1], drafted):
            forbidden.add(sequence[-1])
    if history.output_length + len(drafted) < sampling.min_tokens:
        forbidden.update(stop_tokens)
    return forbidden


def _mask(logits: Array, forbidden: set[int], sampling: Sampling) -> Array:
    xp = array_namespace(logits)
    size = logits.shape[0]
    if sampling.allowed_tokens is not None:
        allowed = [token for token in sampling.allowed_tokens if 0 <= token < size]
        index = xp.asarray(np.asarray(allowed, dtype=np.int64), device=device(logits))
        kept = xp.full_like(logits, -math.inf)
        kept[index] = logits[index]
        logits = kept
    inside = sorted(token for token in forbidden if 0 <= token < size)
    if inside:
        logits[xp.asarray(np.asarray(inside, dtype=np.int64), device=device(logits))] = -math.inf
    return logits


def greedy_tokens(rows: Array) -> list[int | None]:
    """The most likely token of each untouched row, shape (rows, vocabulary_size); None for a row
    that is no distribution."""
    xp = array_namespace(rows)
    best = xp.argmax(rows, axis=-1).tolist()
    # The maximum of a row with a NaN is NaN, so one look at the maxima sees every bad row.
    sound = xp.isfinite(xp.max(rows, axis=-1)).tolist()
    return [token if fine else None for token, fine in zip(best, sound, strict=True)]


def distribution_of(logits: Array, sampling: Sampling, where: str = "") -> Distribution:
    """The distribution of one processed row: temperature, then top-k, top-p and min-p.

    logits    float, shape (vocabulary_size,), after `process_logits`
    where     names the row in an error

    Raises NumericError if the row holds no finite maximum.
    """
    largest = checked_maximum(logits, where)
    xp = array_namespace(logits)
    if sampling.temperature == 0 or sampling.top_k == 1:
        return Distribution.one_hot(int(xp.argmax(logits)))
    weights, tokens = _kept(logits, largest, sampling)
    return Distribution(weights / xp.sum(weights), tokens)


def _kept(logits: Array, largest: float, sampling: Sampling) -> tuple[Array, Array | None]:
    """Unnormalised weights, and their tokens in rising order (None: all), after every filter."""
    xp = array_namespace(logits)
    tokens: Array | None = None
    if 0 < sampling.top_k < logits.shape[0]:
        tokens = _top_k(logits, largest, sampling.top_k)
        logits = logits[tokens]
    if sampling.top_p < 1:
        weights, kept = _top_p(logits, largest, sampling)
        tokens = kept if tokens is None else tokens[kept]
    else:
        weights = _weights(logits, largest, sampling.temperature)
    if sampling.min_p > 0:
        kept = xp.nonzero(weights >= sampling.min_p)[0]  # the largest weight is 1
        weights, tokens = weights[kept], kept if tokens is None else tokens[kept]
    return weights, tokens


def _weights(logits: Array, largest: float, temperature: float) -> Array:
    return array_namespace(logits).exp((logits - largest) * (1 / temperature))


def _top_k(logits: Array, largest: float, top_k: int) -> Array:
    """The k tokens of the largest logits, in rising order of id."""
    xp = array_namespace(logits)
    # Sorting a whole vocabulary costs more than all else here. Nearly always the winners lie
    # within a few units of the maximum, so look there first.
    for depth in (4.0, 8.0, 16.0, math.inf):
        near = xp.nonzero(logits >= largest - depth)[0]
        if near.shape[0] >= top_k:
            break
    order = _descending(logits[near])
    return xp.sort(near[order[:top_k]])


def _top_p(logits: Array, largest: float, sampling: Sampling) -> tuple[Array, Array]:
    """Weights and indices, rising, of the smallest set of largest weights that holds top_p of the
    whole mass.

    Exponentials of a whole vocabulary cost most here, so those far below the maximum are bounded
    first: each is at most exp(-depth). If the set is the same whether they weigh nothing or that
    much, it is the right one; if not, they are worked out.
    """
    xp = array_namespace(logits)
    for depth in (24.0, math.inf):
        near = xp.nonzero(logits >= largest - depth * sampling.temperature)[0]
        weights = _weights(logits[near], largest, sampling.temperature)
        mass = float(xp.sum(weights, dtype=xp.float64))
        far = (logits.shape[0] - near.shape[0]) * math.exp(-depth)
        goals = (sampling.top_p * mass, sampling.top_p * (mass + far))
        first, cumulative = _largest_first(weights, goals[1])
        counts = {int(xp.sum(xp.astype(cumulative < goal, xp.int64))) + 1 for goal in goals}
        if len(counts) == 1:
            break
    kept = xp.sort(first[: counts.pop()])
    return weights[kept], near[kept]


def _largest_first(weights: Array, goal: float) -> tuple[Array, Array]:
    """Indices of the largest weights in falling order, as many as reach the goal or more, and
    their cumulative sums."""
    xp = array_namespace(weights)
    for floor in (1e-2, 1e-4, 1e-6, 0.0):
        large = xp.nonzero(weights >= floor)[0]
        if float(xp.sum(weights[large], dtype=xp.float64)) >= goal:
            break
    order = large[_descending(weights[large])]
    return order, xp.cumulative_sum(xp.astype(weights[order], xp.float64))


def _descending(values: Array) -> Any:
    """Indices from the largest value to the smallest, equal ones in their order."""
    return array_namespace(values).argsort(-values, stable=True)


def log_prob(logits: Array, token: int) -> float:
    """Log-probability (nats) of a token under a raw row of logits, shape (vocabulary_size,): before
    penalties and temperature."""
    xp = array_namespace(logits)
    row = xp.astype(logits, xp.float64)
    largest = xp.max(row)
    return float(row[token] - largest - xp.log(xp.sum(xp.exp(row - largest))))


def check_tokens(sampling: Sampling, vocabulary_size: int) -> None:
    """Refuse settings that name tokens the model doesn't have."""
    named = {
        "logit_bias": sampling.logit_bias,
        "banned_tokens": sampling.banned_tokens,
        "allowed_tokens": sampling.allowed_tokens or (),
        "banned_sequences": [token for part in sampling.banned_sequences for token in part],
    }
    for setting, tokens in named.items():
        for token in tokens:
            if not 0 <= token < vocabulary_size:
                raise SettingError(
                    f"{setting} names token {token}.",
                    f"This model's tokens run from 0 to {vocabulary_size - 1}.",
                )
