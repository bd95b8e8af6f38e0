"""Token-by-token verification of a chain.

Leviathan et al. 2023 (algorithm 1), Chen et al. 2023 (algorithm 2): keep a drafted token x with
probability min(1, p(x)/q(x)), else emit a token of the normalised max(p − q, 0) and stop.
"""

from __future__ import annotations

from paceline.sampling.distribution import Distribution, excess
from paceline.sampling.rng import Rng
from paceline.types import Proposal, Verdict
from paceline.verify.base import TargetDistributions, Verifier, draft_prob


class ChainVerifier(Verifier):
    """Exact for every draft and every target distribution.

    A deterministic token (one-hot q) is judged by drawing from p and comparing: the same
    distribution as the general rule, and one draw per emitted token, so that with the same seed a
    deterministic draft gives, to the token, what ordinary decoding gives.
    """

    name = "chain"
    summary = "token by token; exact"

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        for index, token in enumerate(proposal.tokens):
            replacement = _judge(token, proposal.distribution(index), target[index], rng)
            if replacement is not None:
                return Verdict(tuple(range(index)), replacement)
        count = len(proposal.tokens)
        return Verdict(tuple(range(count)), rng.sample(target[count]))


def _judge(token: int, draft: Distribution | None, target: Distribution, rng: Rng) -> int | None:
    """None accepts the token; otherwise what to emit in its place."""
    if draft is None:
        drawn = rng.sample(target)
        return None if drawn == token else drawn
    if rng.bernoulli(target.prob(token) / draft_prob(draft, token)):
        return None
    residual, _ = excess(target, draft)
    # A rejection with nothing left means p = q up to rounding: then p itself is the residual.
    return rng.sample(target if residual is None else residual)
