"""A next-token distribution: the distribution a token is drawn from, after all processing.

A distribution is sparse when few tokens are left (greedy, top-k, top-p, min-p) and dense
otherwise; greedy is a distribution with one token. The code works on any array of the array API
standard, and on object arrays of `fractions.Fraction`, which is how the verifiers are proved exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from paceline.errors import NumericError
from paceline.types import Array


class Distribution:
    """Probabilities of the next token, after penalties, masks, temperature and filters.

    tokens    ids in rising order, shape (n,); None is dense: entry i is token i
    probs     probabilities in that order, shape (n,), summing to 1 up to rounding
    single    the token of a one-hot distribution, else None
    """

    __slots__ = ("probs", "single", "tokens")

    def __init__(self, probs: Array, tokens: Array | None = None) -> None:
        self.tokens = tokens
        self.probs = probs
        self.single: int | None = None
        if tokens is not None and tokens.shape[0] == 1:
            self.single = int(tokens[0])

    @classmethod
    def one_hot(cls, token: int) -> Distribution:
        """All mass on one token: greedy, or a deterministic draft."""
        distribution = cls.__new__(cls)
        distribution.tokens = distribution.probs = None
        distribution.single = token
        return distribution

    def prob(self, token: int) -> Any:
        """The probability of one token; 0 outside the support."""
        if self.single is not None:
            return 1 if token == self.single else 0
        if self.tokens is None:
            return _item(self.probs[token]) if token < self.probs.shape[0] else 0
        index = _find(self.tokens, token)
        return 0 if index is None else _item(self.probs[index])

    def draw(self, uniform: float) -> int:
        """The token at `uniform` (0 ≤ u < 1) of the cumulative distribution. A token of
        probability 0 is never drawn."""
        if self.single is not None:
            return self.single
        index = _index_at(self.probs, uniform)
        return index if self.tokens is None else int(self.tokens[index])

    def items(self) -> list[tuple[int, Any]]:
        """Tokens and probabilities of the support, for tests and proofs."""
        if self.single is not None:
            return [(self.single, 1)]
        tokens = range(self.probs.shape[0]) if self.tokens is None else self.tokens
        pairs = zip(tokens, self.probs, strict=True)
        return [(int(token), _item(prob)) for token, prob in pairs if prob > 0]


def excess(
    target: Distribution, draft: Distribution, scale: Any = 1
) -> tuple[Distribution | None, Any]:
    """max(scale·p − q, 0): what the draft's distribution q leaves of the target's p.

    Returns the normalised distribution (None when nothing is left) and its mass before
    normalising. With scale 1 it is the residual of speculative sampling (Leviathan et al. 2023,
    equation 1 of appendix A.1; Chen et al. 2023, theorem 1); with a scale it is that of block
    verification (Sun et al. 2025, algorithm 2).
    """
    if target.single is not None:
        mass = max(scale - draft.prob(target.single), 0)
        return (target if mass > 0 else None), mass
    xp = array_namespace(target.probs)
    weights = target.probs * scale - aligned(draft, target)
    weights = xp.where(weights > 0, weights, xp.zeros_like(weights))
    mass = _item(xp.sum(weights))
    if not mass > 0:
        return None, 0 * mass
    return Distribution(weights / mass, target.tokens), mass


def mixed(first: Distribution, second: Distribution, weight: Any) -> Distribution:
    """The distribution weight·first + (1 − weight)·second: dense if one of them is, else over the
    tokens of both. Exact where weight and distributions are fractions.

    weight    from 0 to 1; at either end the answer is that distribution itself
    """
    if weight in (0, 1):
        return first if weight else second
    if first.single is not None and first.single == second.single:
        return first
    if _is_dense(second) and not _is_dense(first):
        first, second, weight = second, first, 1 - weight
    first, second = _spelt_out(first), _spelt_out(second)
    if first.tokens is not None:
        frame = _union(first, second)
        probs = aligned(first, frame) * weight + aligned(second, frame) * (1 - weight)
        return Distribution(probs, frame.tokens)
    size = second.probs.shape[0] if second.tokens is None else int(second.tokens[-1]) + 1
    probs = _padded(first.probs * weight, size)
    if second.tokens is None:
        return Distribution(probs + aligned(second, Distribution(probs)) * (1 - weight))
    tokens = _as_like(second.tokens, probs, integer=True)
    probs[tokens] += _as_like(second.probs, probs) * (1 - weight)
    return Distribution(probs)


def without(distribution: Distribution, tokens: Sequence[int]) -> Distribution:
    """A distribution given that it is none of these tokens, which can't be all it has."""
    if distribution.single is not None:
        return distribution
    xp = array_namespace(distribution.probs)
    if distribution.tokens is None:
        probs = xp.asarray(distribution.probs, copy=True)
        probs[list(tokens)] = 0
        return Distribution(probs / xp.sum(probs))
    gone = xp.asarray(
        list(tokens), dtype=distribution.tokens.dtype, device=device(distribution.tokens)
    )
    kept = xp.all(distribution.tokens[:, None] != gone[None, :], axis=1)
    probs = distribution.probs[kept]
    return Distribution(probs / xp.sum(probs), distribution.tokens[kept])


def _is_dense(distribution: Distribution) -> bool:
    return distribution.single is None and distribution.tokens is None


def _spelt_out(distribution: Distribution) -> Distribution:
    """The same distribution with arrays, also where it is one-hot."""
    if distribution.probs is not None:
        return distribution
    return Distribution(np.asarray([1]), np.asarray([distribution.single]))


def _union(first: Distribution, second: Distribution) -> Distribution:
    """A distribution over the tokens of two sparse ones, of no mass yet."""
    assert first.tokens is not None
    one_hot = first.probs.shape[0] == 1
    like = (second if one_hot and second.probs.shape[0] > 1 else first).probs
    xp = array_namespace(like)
    both = [_as_like(distribution.tokens, like, integer=True) for distribution in (first, second)]
    tokens = xp.unique_values(xp.concat(both))
    return Distribution(xp.zeros(tokens.shape[0], dtype=like.dtype, device=device(like)), tokens)


def _padded(probs: Array, size: int) -> Array:
    """Probabilities of at least `size` tokens; those of a longer vocabulary have none."""
    short = size - probs.shape[0]
    if short <= 0:
        return probs
    xp = array_namespace(probs)
    return xp.concat([probs, xp.zeros(short, dtype=probs.dtype, device=device(probs))])


def aligned(draft: Distribution, target: Distribution) -> Array:
    """The draft's probabilities of the target's tokens, as an array like the target's, shape (n,).
    Where one vocabulary is padded further than the other, the missing tokens have probability 0.
    """
    like = target.probs
    xp = array_namespace(like)
    if draft.single is not None:
        draft = Distribution(np.asarray([1]), np.asarray([draft.single]))
    if draft.tokens is None and target.tokens is None:
        return _padded(_as_like(draft.probs, like), like.shape[0])[: like.shape[0]]
    dense = xp.zeros_like(like)
    if draft.tokens is None:
        assert target.tokens is not None
        inside = target.tokens < draft.probs.shape[0]
        probs = _as_like(draft.probs, like)
        dense[inside] = probs[target.tokens[inside]]
        return dense
    tokens = _as_like(draft.tokens, like, integer=True)
    probs = _as_like(draft.probs, like)
    if target.tokens is None:
        inside = tokens < like.shape[0]
        dense[tokens[inside]] = probs[inside]
        return dense
    index = xp.searchsorted(tokens, target.tokens)
    index = xp.where(index < tokens.shape[0], index, xp.zeros_like(index))
    found = tokens[index] == target.tokens
    dense[found] = probs[index[found]]
    return dense


def _as_like(array: Array, like: Array, *, integer: bool = False) -> Array:
    """The array where `like` is: two engines may keep theirs in different places."""
    xp = array_namespace(like)
    dtype = xp.int64 if integer else like.dtype
    if type(array) is type(like) and device(array) == device(like):
        return xp.astype(array, dtype, copy=False)
    host = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return xp.asarray(host, dtype=dtype, device=device(like))


def _index_at(probs: Array, uniform: float) -> int:
    """The entry where the cumulative sum first exceeds `uniform` of the total.

    In blocks, because one running sum over a whole vocabulary costs more than the distribution
    itself.
    """
    xp = array_namespace(probs)
    block = 512
    whole = probs.shape[0] // block * block
    sums = xp.sum(xp.reshape(probs[:whole], (-1, block)), axis=1, dtype=xp.float64)
    rest = xp.sum(probs[whole:], dtype=xp.float64)
    ends = xp.cumulative_sum(xp.concat([sums, xp.reshape(rest, (1,))]))
    goal = uniform * float(ends[-1])
    which = _first_above(ends, goal)
    start = which * block
    inside = xp.cumulative_sum(xp.astype(probs[start : start + block], xp.float64))
    index = start + _first_above(inside, goal - (float(ends[which - 1]) if which else 0.0))
    # Rounding may put the goal at the end of a block of which nothing is left: then the last entry
    # before it that has any mass.
    while index > 0 and not float(probs[index]) > 0:
        index -= 1
    return index


def _first_above(cumulative: Array, goal: float) -> int:
    xp = array_namespace(cumulative)
    wanted = xp.asarray([goal], dtype=xp.float64, device=device(cumulative))
    index = int(xp.searchsorted(cumulative, wanted, side="right")[0])
    return min(index, int(cumulative.shape[0]) - 1)


def _find(tokens: Array, token: int) -> int | None:
    if isinstance(tokens, np.ndarray):
        index = int(np.searchsorted(tokens, token))
    else:
        xp = array_namespace(tokens)
        goal = xp.asarray([token], dtype=tokens.dtype, device=device(tokens))
        index = int(xp.searchsorted(tokens, goal)[0])
    return index if index < tokens.shape[0] and int(tokens[index]) == token else None


def _item(value: Any) -> Any:
    """A plain number of a zero-dimensional array; a Fraction stays one."""
    return value.item() if hasattr(value, "item") else value


def checked_maximum(row: Array, where: str) -> float:
    """The largest logit of a row, shape (vocabulary_size,), raw or processed. Raises NumericError,
    which names it by `where`, if the row is no distribution."""
    largest = float(array_namespace(row).max(row))
    if -np.inf < largest < np.inf:
        return largest
    what = "NaN" if np.isnan(largest) else f"{largest} as its largest logit"
    raise NumericError(
        f"The model's row of logits {where} has {what}.",
        "The weights or the precision are at fault: run `paceline check`, or load with another "
        "dtype.",
    )
