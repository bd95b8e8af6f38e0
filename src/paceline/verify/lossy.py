"""Lossy verifiers: they keep more drafted tokens than the target's distribution allows.

Both judge token by token, so the distribution o of the token emitted at a position, given those
before it, is known: a drafted x ~ q is kept with probability a(x), else a token of r is emitted,
and

    o(x) = q(x)·a(x) + (1 − Σ_y q(y)·a(y))·r(x).

How far o is from the target's p is told with every emitted token (`Divergence`). A one-hot p
(greedy) leaves nothing to relax: every other token has an infinite KL, and a probability below any
threshold. There both verifiers are exact.
"""

from __future__ import annotations

import abc
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from paceline.errors import SettingError, unknown_name
from paceline.sampling.distribution import Distribution, excess
from paceline.sampling.rng import Rng
from paceline.types import Divergence, Proposal, Verdict
from paceline.verify.base import TargetDistributions, Verifier, draft_prob
from paceline.verify.chain import ChainVerifier
from paceline.verify.tilt import divergence, host, probs_of, tilt, tilt_chosen

_NONE = Divergence(0.0, 0.0)


class RelaxedVerifier(Verifier):
    """Judges a chain token by token by a rule of its own."""

    lossy = True
    options: ClassVar[tuple[str, ...]]
    """The numbers that its constructor takes."""

    @classmethod
    def create(cls, **options: str) -> RelaxedVerifier:
        numbers: dict[str, float] = {}
        for name, value in options.items():
            if name not in cls.options:
                raise unknown_name(f"option of the verifier {cls.name!r}", name, cls.options)
            try:
                numbers[name] = float(value)
            except ValueError:
                raise SettingError(f"{name} is {value!r}.", "It must be a number.") from None
        return cls(**numbers)

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
            return self._judge_chosen(token, target, rng)
        return self._judge_drawn(token, draft, target, rng)

    @abc.abstractmethod
    def _judge_chosen(
        self, token: int, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]: ...

    @abc.abstractmethod
    def _judge_drawn(
        self, token: int, draft: Distribution, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]: ...


class ToleranceVerifier(RelaxedVerifier):
    """Keeps as much of the draft's distribution as a bound allows: at every position KL(o‖p) is at
    most `budget` nats, and no verifier that judges token by token and holds to that accepts more
    (`tilt` has the derivation). By the chain rule, the KL of a whole text of n tokens is at most
    n·budget.

    budget    nats per token, 0 or more; 0 is `chain`
    """

    name = "tolerance"
    summary = "accepts most within a KL bound per token (budget=0.1, in nats)"
    gives_up = (
        "the target's distribution: each token's distribution may be budget nats (KL) away from it"
    )
    options = ("budget",)

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

    def _judge_chosen(
        self, token: int, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]:
        prob = float(target.prob(token))
        mass, far = tilt_chosen(prob, self.budget)
        drawn = rng.sample(target)
        # The target's own draw stands, but the chosen token takes its share of all others.
        if drawn == token or rng.bernoulli((mass - prob) / (1 - prob) if prob < 1 else 0):
            return None, far
        return drawn, far

    def _judge_drawn(
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
    and nothing bounds the change: a chosen token that stands is −ln p(x) nats away.

    epsilon    from 0 to below 1
    delta      0 or more; with either 0, whatever the target could have emitted stands
    """

    name = "typical"
    summary = "keeps what the target finds likely enough (epsilon=0.3, delta=0.09)"
    gives_up = (
        "the target's distribution, without a bound: any drafted token that is likely enough stands"
    )
    options = ("epsilon", "delta")

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

    def _judge_chosen(
        self, token: int, target: Distribution, rng: Rng
    ) -> tuple[int | None, Divergence]:
        prob = float(target.prob(token))
        if prob > self._threshold(probs_of(target)):
            return None, Divergence(max(0.0, -math.log(prob)), max(0.0, 1 - prob))
        return rng.sample(target), _NONE

    def _judge_drawn(
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
    """Of a drawn token: q where it stands, and p in the share of what doesn't."""
    stands = np.nonzero(probs > threshold)[0]
    tokens = stands if target.tokens is None else host(target.tokens)[stands]
    p, q = probs[stands], probs_of(draft, tokens)
    redrawn = max(0.0, 1 - float(q.sum()))
    rest = max(0.0, 1 - float(p.sum()))  # all other tokens are emitted as redrawn · p
    return divergence(np.append(q + redrawn * p, redrawn * rest), np.append(p, rest))
