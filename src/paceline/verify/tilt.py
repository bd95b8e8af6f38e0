"""The distribution nearest to a draft's within a bound: as much of q as possible, at most so far
from p.

Whatever distribution o is to be emitted, a drafted x ~ q can be kept with probability Σ min(q, o)
and no more (maximal coupling). So the best o solves

    maximise Σ_x min(q(x), o(x))   subject to   KL(o‖p) = Σ_x o(x)·ln(o(x)/p(x)) ≤ budget.

This is a concave problem. Its Lagrangian has the slope 1 − λ(ln(o/p) + 1) − μ where o < q and
−λ(ln(o/p) + 1) − μ where o > q, so o/p is one constant A where o < q, a smaller one B where o > q,
and o = q between them:

    o(x) = min(max(q(x), B·p(x)), A·p(x)),   B ≤ 1 ≤ A.

That o sums to 1 fixes B for every A; KL and kept mass rise with A, so the largest A within the
budget is found by bisection. In terms of tokens: keep x with probability min(1, A·p(x)/q(x)), and
replace it by a draw from the normalised max(B·p − q, 0). A = B = 1 is speculative sampling. This is
the problem, and the solution, of mentored decoding (Tran-Thien 2023, An Optimal Lossy Variant of
Speculative Decoding).

Of a chosen x (one-hot q) nothing but its mass m ≥ p(x) is open: all other tokens get
(1 − m)/(1 − p(x)) of theirs, and KL(o‖p) = m·ln(m/p(x)) + (1 − m)·ln((1 − m)/(1 − p(x))).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from paceline.sampling.distribution import Distribution
from paceline.types import Array, Divergence

LEAST = 1e-6
"""Drafted tokens of a smaller q get B·p, whatever p is. The KL stays exact, and the kept mass falls
by no more than what such tokens have together; sorting a whole vocabulary would cost milliseconds
a row."""

_HALVINGS = 40


class Tilt(NamedTuple):
    """The solution for one position.

    high         A, and low B, of the docstring above
    divergence    how far the emitted distribution is from p
    """

    high: float
    low: float
    divergence: Divergence

    def keeps(self, p: float, q: float) -> float:
        """The probability of keeping a drafted token of these probabilities."""
        return min(1.0, (self.high if q >= LEAST else self.low) * p / q)


def tilt(target: Distribution, draft: Distribution, budget: float) -> Tilt:
    """The solution for a token drawn from a distribution, in double precision. Neither
    distribution is one-hot; budget is in nats."""
    q = probs_of(draft)
    large = np.nonzero(q >= LEAST)[0]
    q = q[large]
    p = probs_of(target, large if draft.tokens is None else host(draft.tokens)[large])
    family = _Family(p[p > 0], q[p > 0])
    high = family.largest(budget)
    return Tilt(high, family.low(high), family.divergence(high))


class _Family:
    """The distributions min(max(q, B·p), A·p), by A. Sums over tokens in the order of q/p, so that
    each member costs a search and not a pass.

    p, q    of the tokens with p > 0 and q ≥ LEAST; all others together count as one token that is
            never drafted
    """

    def __init__(self, p: np.ndarray, q: np.ndarray) -> None:
        p, q = np.append(p, max(0.0, 1 - p.sum())), np.append(q, 0.0)
        p, q = p[p > 0], q[p > 0]
        order = np.argsort(q / p)
        p, q = p[order], q[order]
        self._ratios = q / p
        logs = np.log(np.where(q > 0, self._ratios, 1))
        # Entry i: of all tokens before the i-th.
        self._p, self._q, self._kl = (
            np.concatenate(([0.0], np.cumsum(each))) for each in (p, q, q * logs)
        )
        # What max(B·p − q, 0) adds up to when B is a token's ratio.
        self._lifted = self._ratios * self._p[1:] - self._q[1:]

    def low(self, high: float) -> float:
        """B: what the tokens above A lose goes to those below B."""
        lost = 1 - self._capped(high)
        below = max(1, int(np.searchsorted(self._lifted, lost, side="right")))
        return min(1.0, max(0.0, float((lost + self._q[below]) / self._p[below])))

    def _capped(self, high: float) -> float:
        """Σ min(q, A·p): the kept mass."""
        under = self._under(high)
        return float(self._q[under] + high * (self._p[-1] - self._p[under]))

    def _under(self, ratio: float) -> int:
        """How many tokens have at most this q/p."""
        return int(np.searchsorted(self._ratios, ratio, side="right"))

    def divergence(self, high: float) -> Divergence:
        low = self.low(high)
        start, end, one = self._under(low), self._under(high), self._under(1.0)
        over = self._p[-1] - self._p[end]
        kl = high * math.log(high) * over + self._kl[end] - self._kl[start]
        if low > 0:
            kl += low * math.log(low) * self._p[start]
        moved = self._q[end] - self._q[one] - self._p[end] + self._p[one] + (high - 1) * over
        return Divergence(max(0.0, float(kl)), max(0.0, float(moved)))

    def largest(self, budget: float) -> float:
        """The largest A within the budget; from the largest q/p on, all A are the same
        distribution."""
        most = max(1.0, float(self._ratios[-1]))
        if self.divergence(most).kl_nats <= budget:
            return most
        within, beyond = 0.0, math.log(most)
        for _ in range(_HALVINGS):
            middle = (within + beyond) / 2
            if self.divergence(math.exp(middle)).kl_nats <= budget:
                within = middle
            else:
                beyond = middle
        return math.exp(within)


def tilt_chosen(prob: float, budget: float) -> tuple[float, Divergence]:
    """The largest mass of a chosen token within the budget, and how far that is from the target's.

    prob    its probability p(x); nothing can be given to a token of probability 0
    """
    if prob <= 0 or prob >= 1:
        return prob, Divergence(0.0, 0.0)
    if -math.log(prob) <= budget:
        return 1.0, Divergence(-math.log(prob), 1 - prob)
    within, beyond = prob, 1.0
    for _ in range(_HALVINGS):
        middle = (within + beyond) / 2
        if _binary_kl(middle, prob) <= budget:
            within = middle
        else:
            beyond = middle
    return within, Divergence(_binary_kl(within, prob), within - prob)


def _binary_kl(mass: float, prob: float) -> float:
    if mass >= 1:
        return -math.log(prob)
    rest = (1 - mass) * math.log((1 - mass) / (1 - prob))
    return max(0.0, mass * math.log(mass / prob) + rest)


def divergence(emitted: np.ndarray, target: np.ndarray) -> Divergence:
    """How far a distribution is from the target's, both as probabilities of the same tokens, shape
    (n,). Nothing may be emitted that the target couldn't have."""
    some = emitted > 0
    kl = float(np.sum(emitted[some] * np.log(emitted[some] / target[some])))
    moved = float(np.sum(np.maximum(emitted - target, 0)))
    return Divergence(max(0.0, kl), moved)


def probs_of(distribution: Distribution, tokens: np.ndarray | None = None) -> np.ndarray:
    """Probabilities of a distribution that is not one-hot, in its own order or of these tokens (0
    outside its support), shape (n,), on the host in double precision."""
    probs = host(distribution.probs).astype(np.float64)
    if tokens is None:
        return probs
    if distribution.tokens is None:
        inside = tokens < probs.shape[0]
        places = np.where(inside, tokens, 0)
    else:
        own = host(distribution.tokens)
        places = np.minimum(np.searchsorted(own, tokens), own.shape[0] - 1)
        inside = own[places] == tokens
    return np.where(inside, probs[places], 0.0)


def host(array: Array) -> np.ndarray:
    """The array as NumPy's, wherever its engine keeps it."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.cpu())
