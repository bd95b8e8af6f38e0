"""Block verification: a chain judged as a whole.

Sun et al. 2025 (Block Verification Accelerates Speculative Decoding, algorithm 2). With
P_0 = 1, P_i = min(P_{i-1} · p_i(x_i)/q_i(x_i), 1) and
S_i = Σ_x max(P_i · p_{i+1}(x) − q_{i+1}(x), 0), position i < k passes with probability
S_i / (S_i + 1 − P_i) and position k with P_k. The longest passing prefix is kept, also when a
shorter one failed.
"""

from __future__ import annotations

from typing import Any

from paceline.sampling.distribution import Distribution, excess
from paceline.sampling.rng import Rng
from paceline.types import Proposal, Verdict
from paceline.verify.base import TargetDistributions, Verifier, ratio
from paceline.verify.chain import ChainVerifier


class BlockVerifier(Verifier):
    """Exact, and never accepts fewer tokens on average than `chain`; better for sampled drafts.

    It needs every row's distribution, so it works more than `chain` when most tokens are rejected.
    Where all tokens are deterministic it has nothing to gain and is `chain`.
    """

    name = "block"
    summary = "jointly over the block; exact, accepts more of sampled drafts"

    def __init__(self) -> None:
        self._chain = ChainVerifier()

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        if proposal.distributions is None or all(
            distribution is None for distribution in proposal.distributions
        ):
            return self._chain.verify(proposal, target, rng)
        count = len(proposal.tokens)
        drafts = [
            proposal.distribution(i) or Distribution.one_hot(t)
            for i, t in enumerate(proposal.tokens)
        ]
        kept, kept_mass = 0, 1
        mass: Any = 1
        for position in range(1, count + 1):
            token, draft = proposal.tokens[position - 1], drafts[position - 1]
            mass = min(mass * ratio(target[position - 1], draft, token), 1)
            if mass == 0:
                break  # no longer prefix can pass either
            if rng.bernoulli(_pass_probability(mass, position, target, drafts)):
                kept, kept_mass = position, mass
        distribution = target[kept]
        if kept < count:
            residual, _ = excess(distribution, drafts[kept], kept_mass)
            distribution = residual or distribution
        return Verdict(tuple(range(kept)), rng.sample(distribution))


def _pass_probability(
    mass: Any, position: int, target: TargetDistributions, drafts: list[Distribution]
) -> Any:
    if position == len(drafts):
        return mass
    _, left = excess(target[position], drafts[position], mass)
    whole = left + 1 - mass
    return left / whole if whole > 0 else 1
