"""How sure a ratio of counted sums is: by the spread of its parts, which are never independent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEAST_PARTS = 5
"""Parts with tokens in them, below which a spread is a guess."""

_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
"""Student's t, 97.5 %, for 1, 2, … degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """From its lower to its upper end."""
        return self.high - self.low

    def over(self, divisor: float) -> Interval:
        """The same in units of `divisor`."""
        return Interval(self.value / divisor, self.low / divisor, self.high / divisor)


@dataclass(frozen=True, slots=True)
class Sums:
    """Two sums that a ratio is made of, in parts that follow each other in time.

    tops, bottoms    of each part
    """

    tops: tuple[float, ...]
    bottoms: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """All tops over all bottoms."""
        return sum(self.tops) / sum(self.bottoms)

    @property
    def filled(self) -> int:
        """Parts that have something in them."""
        return sum(bottom > 0 for bottom in self.bottoms)

    @property
    def usable(self) -> bool:
        """Whether a spread can be seen."""
        return self.filled >= LEAST_PARTS and sum(self.tops) > 0

    def errors(self) -> np.ndarray:
        """[parts]: what each part adds to the ratio's relative error, by Taylor linearisation
        (Cochran, Sampling Techniques, 1977, §6.4). They add up to 0."""
        tops, bottoms = np.array(self.tops), np.array(self.bottoms)
        errors: np.ndarray = tops / tops.sum() - bottoms / bottoms.sum()
        return errors


def of_ratio(sums: Sums) -> Interval:
    """A ratio of sums. `sums` must be usable."""
    variance, freedom = _variance(sums.errors(), sums.filled)
    return _around(sums.ratio, variance, freedom)


def of_quotient(over: Sums, under: Sums, *, together: bool) -> Interval:
    """One ratio over another; both must be usable.

    together    parts of both were counted at the same times, so that what disturbed one may have
                disturbed the other: errors are taken as pairs
    """
    value = over.ratio / under.ratio
    if together:
        filled = min(over.filled, under.filled)
        return _around(value, *_variance(over.errors() - under.errors(), filled))
    sides = [_variance(one.errors(), one.filled) for one in (over, under)]
    variance = sum(variance for variance, _ in sides)
    # Welch-Satterthwaite
    freedom = variance**2 / max(sum(v**2 / f for v, f in sides), 1e-300) if variance else 1.0
    return _around(value, variance, freedom)


def _variance(errors: np.ndarray, filled: int) -> tuple[float, float]:
    """Variance of the sum of errors, and its degrees of freedom. Parts that follow each other hold
    the same answers; so parts are also taken two by two, three by three, and the widest counts
    (batch means; Law, Simulation Modeling and Analysis, §9.5)."""
    found = []
    for size in range(1, max(1, filled // LEAST_PARTS) + 1):
        groups = np.add.reduceat(errors, np.arange(0, len(errors), size))
        count = max(2, filled // size)
        found.append((float((groups**2).sum()) * count / (count - 1), count - 1.0))
    return max(found, key=lambda one: math.sqrt(one[0]) * t(one[1]))


def _around(value: float, variance: float, freedom: float) -> Interval:
    factor = math.exp(t(freedom) * math.sqrt(variance))
    return Interval(value, value / factor, value * factor)


def t(freedom: float) -> float:
    """Student's t at 97.5 %."""
    if freedom <= len(_T):
        return _T[max(1, int(freedom)) - 1]
    return 1.96 + 2.4 / freedom + 3.2 / freedom**2  # within 0.004 of the table's values
