"""Lossy verifiers: they keep more drafted tokens than the target's distribution allows.

Both judge token by token, so the distribution o of the token emitted at a position, given those
before it, is known: a drafted x ~ q is kept with probability a(x), else a token of r is emitted,
and

    o(x) = q(x)·a(x) + (1 − Σ_y q(y)·a(y))·r(x).

How far o is from the target's p is told with every emitted token (`Divergence`). A one-hot p
(greedy) leaves nothing to relax: every other token has an infinite KL, and a probability below any
threshold. There both verifiers are exact.

`tolerance` emits the distribution nearest to the draft's within a bound. Whatever o is, a drafted
x ~ q can be kept with probability Σ min(q, o) and no more (maximal coupling). So the best o solves

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

Of a deterministic x (one-hot q) nothing but its mass m ≥ p(x) is open: all other tokens get
(1 − m)/(1 − p(x)) of theirs, and KL(o‖p) = m·ln(m/p(x)) + (1 − m)·ln((1 − m)/(1 − p(x))).
"""

from __future__ import annotations

import abc
import math
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.errors import SettingError
from paceline.sampling.distribution import Distribution, excess
from paceline.sampling.rng import Rng
from paceline.types import Array, Divergence, Proposal, Verdict
from paceline.verify.base import TargetDistributions, Verifier, draft_prob
from paceline.verify.chain import ChainVerifier

_NONE = Divergence(0.0, 0.0)

LEAST = 1e-6
"""Drafted tokens of a smaller q get B·p, whatever p is. The KL stays exact, and the kept mass falls
by no more than what such tokens have together; sorting a whole vocabulary would cost milliseconds
a row."""

_HALVINGS = 40


class RelaxedVerifier(Verifier):
    """Judges a chain token by token by a rule of its own."""

    lossy = True

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        divergences: list[Divergence] = []
        for index, token in enumerate(proposal.tokens):
            replacement, far = self._judge(token, proposal.distribution(index), target[index], rng)
            divergences.append(far)
            if replacement is not None:
                return Verdict(tuple(range(index)), replacement, tuple(divergences))
        count = len(proposal.tokens)
        bonus = rng.sample(target[count])
        return Verdict(tuple(range(count)), bonus, (*divergences, _NONE))

    def _judge(
        self, token: int, draft: Distribution | None, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]:
        """What to emit in place of a token (None accepts it), and how far the distribution of what
        is emitted there is from the target's."""
        if draft is not None:
            draft_prob(draft, token)
        if target.single is not None:
            return (None if token == target.single else target.single), _NONE
        if draft is None or draft.single is not None:
            return self._judge_one_hot(token, target, rng)
        return self._judge_sampled(token, draft, target, rng)

    @abc.abstractmethod
    def _judge_one_hot(
        self, token: int, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]: ...

    @abc.abstractmethod
    def _judge_sampled(
        self, token: int, draft: Distribution, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]: ...


class ToleranceVerifier(RelaxedVerifier):
    """Keeps as much of the draft's distribution as a bound allows: at every position KL(o‖p) is at
    most `budget` nats, and no verifier that judges token by token and holds to that accepts more
    (derived above). By the chain rule, the KL of a whole text of n tokens is at most
    n·budget.

    budget    nats per token, 0 or more; 0 is `chain`
    """

    name = "tolerance"
    summary = "accepts most within a KL bound per token (budget=0.1, in nats)"
    gives_up = (
        "the target's distribution: each token's distribution may be budget nats (KL) away from it"
    )
    options: ClassVar = {"budget": float}

    def __init__(self, budget: float = 0.1) -> None:
        if not 0 <= budget < math.inf:
            raise SettingError(f"budget is {budget}.", "It must be 0 or more, and finite.")
        self.budget = budget
        self.gives_up = (
            "the target's distribution: each token's distribution may be up to "
            f"{budget:g} nats (KL) away from it"
        )
        self._chain = ChainVerifier()

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        if self.budget:
            return super().verify(proposal, target, rng)
        verdict = self._chain.verify(proposal, target, rng)
        return replace(verdict, divergences=(_NONE,) * (len(verdict.accepted) + 1))

    def _judge_one_hot(
        self, token: int, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]:
        prob = float(target.prob(token))
        mass, far = tilt_one_hot(prob, self.budget)
        drawn = rng.sample(target)
        # The target's own draw stands, but the drafted token takes its share of all others.
        if drawn == token or rng.bernoulli((mass - prob) / (1 - prob) if prob < 1 else 0):
            return None, far
        return drawn, far

    def _judge_sampled(
        self, token: int, draft: Distribution, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]:
        found = tilt(target, draft, self.budget)
        if rng.bernoulli(found.keeps(float(target.prob(token)), float(draft.prob(token)))):
            return None, found.divergence
        residual, _ = excess(target, draft, found.low)
        return rng.sample(target if residual is None else residual), found.divergence


class TypicalVerifier(RelaxedVerifier):
    """Typical acceptance (Cai et al. 2024, Medusa, section 3.3.1).

    A drafted token stands if p(x) > min(epsilon, delta·exp(−H(p))), where H is the entropy of p in
    nats; the first that doesn't is replaced by a draw from p. Chance has no part in what stands,
    and nothing bounds the change: a deterministic token that stands is −ln p(x) nats away.

    epsilon    from 0 to below 1
    delta      0 or more; with either 0, whatever the target could have emitted stands
    """

    name = "typical"
    summary = "keeps what the target finds likely enough (epsilon=0.3, delta=0.09)"
    gives_up = (
        "the target's distribution, without a bound: any drafted token that is likely enough stands"
    )
    options: ClassVar = {"epsilon": float, "delta": float}

    def __init__(self, epsilon: float = 0.3, delta: float = 0.09) -> None:
        if not 0 <= epsilon < 1:
            raise SettingError(f"epsilon is {epsilon}.", "It must be from 0 to below 1.")
        if not 0 <= delta < math.inf:
            raise SettingError(f"delta is {delta}.", "It must be 0 or more, and finite.")
        self.epsilon, self.delta = epsilon, delta
        self.gives_up = (
            "the target's distribution, without a bound: any drafted token likelier than "
            f"min({epsilon:g}, {delta:g}·exp(−entropy)) stands"
        )

    def _threshold(self, probs: np.ndarray) -> float:
        support = probs[probs > 0]
        entropy = -float(np.sum(support * np.log(support)))
        return min(self.epsilon, self.delta * math.exp(-entropy))

    def _judge_one_hot(
        self, token: int, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]:
        prob = float(target.prob(token))
        if prob > self._threshold(probs_of(target)):
            return None, Divergence(max(0.0, -math.log(prob)), max(0.0, 1 - prob))
        return rng.sample(target), _NONE

    def _judge_sampled(
        self, token: int, draft: Distribution, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]:
        probs = probs_of(target)
        threshold = self._threshold(probs)
        far = _typical_divergence(target, draft, probs, threshold)
        if float(target.prob(token)) > threshold:
            return None, far
        return rng.sample(target), far


def _typical_divergence(
    target: Distribution, draft: Distribution, probs: np.ndarray, threshold: float
) -> Divergence:
    """Of a sampled token: q where it stands, and p in the share of what doesn't."""
    stands = np.nonzero(probs > threshold)[0]
    tokens = stands if target.tokens is None else host(target.tokens)[stands]
    p, q = probs[stands], probs_of(draft, tokens)
    redrawn = max(0.0, 1 - float(q.sum()))
    rest = max(0.0, 1 - float(p.sum()))  # all other tokens are emitted as redrawn · p
    return divergence(np.append(q + redrawn * p, redrawn * rest), np.append(p, rest))


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


def tilt_one_hot(prob: float, budget: float) -> tuple[float, Divergence]:
    """The largest mass of a deterministic token within the budget, and how far that is from p.

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
    """An array of any shape, such as (n,), as NumPy's, wherever its engine keeps it."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.cpu())
