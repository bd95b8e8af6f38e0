"""At temperature above 0: may texts with and without a draft come from one distribution?

Tokens within a text depend on each other, so that a chi-square test of all tokens finds
differences where there are none. Texts of different pairs don't. If both halves of a pair are
drawn from one distribution with independent random numbers, swapping them changes nothing about
the distribution of the data; so the statistic is compared with itself after such swaps, pair by
pair by the toss of a coin (a permutation test, Fisher 1935; exact at any number of pairs).

Statistic: Σ over kinds of token of (baseline - drafted)² / (baseline + drafted), counts over all
texts; it is the chi-square distance of two samples of one size. Kinds seen fewer than RARE times
count as one kind. It sees tokens, and how many there are; not their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RARE = 10
LEAST_PAIRS = 6
"""With fewer, even the most extreme of the 2ⁿ ways to swap comes up at random too often: swapping
all of them leaves the statistic as it is, so that no p-value is below 2 / 2ⁿ."""

LEVEL = 0.05
PERMUTATIONS = 1999
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
POWER = 0.8
SIMULATIONS = 40
SIMULATED_PERMUTATIONS = 99
"""Few, since only the level matters in a simulation; it makes the power look a little smaller."""

_CHUNK = 500  # swaps judged at once

_Floats = npt.NDArray[np.float32]
_Ints = npt.NDArray[np.int64]
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class TwoSample:
    """A test, and what it could have found.

    tokens         in all texts, both halves
    kinds          of tokens, rare ones being one kind
    p_value        chance of at least this statistic if both halves come from one distribution
    power_share    the smallest share of tokens of which it would have noticed, in at least POWER of
                   cases, that others stand in their place (any seen one, all alike); None: not even
                   the largest of SHARES
    """

    pairs: int
    tokens: int
    kinds: int
    statistic: float
    p_value: float
    level: float
    permutations: int
    power_share: float | None

    @property
    def differs(self) -> bool:
        """Whether the two samples differ at the test's level."""
        return self.p_value <= self.level

    def sentence(self) -> str:
        """The finding in words, for a card."""
        what = f"p = {self.p_value:.2g}, {self.tokens} tokens in {self.pairs} pairs of texts"
        if self.differs:
            return (
                f"tokens are counted differently often ({what}); where nothing differs, "
                f"{self.level:.0%} of tests say so"
            )
        if self.power_share is None:
            found = f"even a change of {max(SHARES):.0%} of the tokens might have been missed"
        else:
            found = (
                f"a change of {self.power_share * 100:g} % of the tokens would have been found in "
                f"{POWER:.0%} of cases"
            )
        return f"no difference in token counts seen ({what}); {found}"


def two_sample(
    pairs: Sequence[Pair],
    *,
    level: float = LEVEL,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
    shares: Sequence[float] = SHARES,
) -> TwoSample | None:
    """Compare the tokens without a draft (first of each pair) and with one (second).

    pairs     one per prompt and repeat; all texts drawn with independent random numbers
    shares    changes that might have been found, ascending; the search for the smallest takes most
              of the time, and none is made without them

    None if there are fewer than LEAST_PAIRS pairs, or no token at all.
    """
    tokens = sum(len(baseline) + len(drafted) for baseline, drafted in pairs)
    if len(pairs) < LEAST_PAIRS or not tokens:
        return None
    rng = np.random.default_rng(seed)
    data = _Data.of(pairs)
    signs = _signs(rng, permutations, len(pairs))
    statistic, p_value = _judge(data.differences(), data.totals, signs)
    return TwoSample(
        pairs=len(pairs),
        tokens=tokens,
        kinds=len(data.totals),
        statistic=statistic,
        p_value=p_value,
        level=level,
        permutations=permutations,
        power_share=_power_share(data, shares, level, rng),
    )


@dataclass(frozen=True, slots=True)
class _Data:
    """All tokens: the pair and the half (0 ordinary, 1 drafted) each stands in, and its kind.

    totals    count of each kind over everything
    of_seen   the kind of each different token that was seen
    """

    pair: _Ints
    half: _Ints
    kind: _Ints
    totals: _Floats
    of_seen: _Ints
    pairs: int

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> _Data:
        texts = [np.asarray(text, dtype=np.int64) for pair in pairs for text in pair]
        place = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        _, at, counts = np.unique(np.concatenate(texts), return_inverse=True, return_counts=True)
        rare = counts < RARE
        of_seen = np.where(rare, np.count_nonzero(~rare), np.cumsum(~rare) - 1)
        kind = of_seen[at.reshape(-1)]
        totals = np.bincount(kind).astype(np.float32)
        return cls(place // 2, place % 2, kind, totals, of_seen, len(pairs))

    def differences(self, half: _Ints | None = None, kind: _Ints | None = None) -> _Floats:
        """Plain less drafted counts, (pairs, kinds); with other halves or kinds than observed."""
        half, kind = self.half if half is None else half, self.kind if kind is None else kind
        kinds = len(self.totals)
        cells = np.bincount(
            self.pair * kinds + kind, weights=1.0 - 2.0 * half, minlength=self.pairs * kinds
        )
        return cells.reshape(self.pairs, kinds).astype(np.float32)


def _signs(rng: np.random.Generator, count: int, pairs: int) -> _Floats:
    """Which pairs are swapped (-1): `count` ways, behind the one that swaps none."""
    tossed = rng.integers(0, 2, (count, pairs), dtype=np.int8) * 2 - 1
    return np.concatenate([np.ones((1, pairs), np.float32), tossed.astype(np.float32)])


def _judge(differences: _Floats, totals: _Floats, signs: _Floats) -> tuple[float, float]:
    """The statistic, and the share of ways to swap, the observed one included, that reach it."""
    scaled = (differences / np.sqrt(np.maximum(totals, 1))).astype(np.float32)
    found = np.concatenate(list(_statistics(scaled, signs)))
    # Equal ones differ by rounding: the margin counts them as reached.
    return float(found[0]), float(np.mean(found >= found[0] * (1 - 1e-5)))


def _statistics(scaled: _Floats, signs: _Floats) -> Iterator[_Floats]:
    for begin in range(0, len(signs), _CHUNK):
        sums = signs[begin : begin + _CHUNK] @ scaled
        yield np.einsum("ij,ij->i", sums, sums)


def _power_share(
    data: _Data, shares: Sequence[float], level: float, rng: np.random.Generator
) -> float | None:
    """The smallest of the shares that is found; a larger one is easier to find, so that the first
    is looked for by halving."""
    low, high = 0, len(shares)
    while low < high:
        middle = (low + high) // 2
        if _is_found(data, shares[middle], level, rng):
            high = middle
        else:
            low = middle + 1
    return shares[low] if low < len(shares) else None


def _is_found(data: _Data, share: float, level: float, rng: np.random.Generator) -> bool:
    """Whether a change of a share of the drafted tokens is found in POWER of SIMULATIONS.

    Each of them swaps pairs at random, which makes data without a difference out of these, then
    replaces tokens of the second half. Rare kinds are those of the data as they are.
    """
    needed = int(np.ceil(POWER * SIMULATIONS))
    hits = misses = 0
    while hits < needed and misses <= SIMULATIONS - needed:
        half = data.half ^ rng.integers(0, 2, data.pairs)[data.pair]
        replaced = np.flatnonzero((half == 1) & (rng.random(len(half)) < share))
        kind = data.kind.copy()
        kind[replaced] = data.of_seen[rng.integers(0, len(data.of_seen), len(replaced))]
        totals = np.bincount(kind, minlength=len(data.totals)).astype(np.float32)
        signs = _signs(rng, SIMULATED_PERMUTATIONS, data.pairs)
        _, p_value = _judge(data.differences(half, kind), totals, signs)
        hits, misses = hits + (p_value <= level), misses + (p_value > level)
    return hits == needed
