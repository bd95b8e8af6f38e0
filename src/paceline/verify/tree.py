"""Verification of a tree: all its branches judged together.

Traversal Verification (2025, arXiv 2505.12398). Every token has a mass: 1 at the root, and
min(1, mass · p(x)/q(x)) of its parent's for a child. A branch is judged from its leaf up: a token
whose children all failed is kept with its mass. When a child fails, its parent goes on with
p ← max(mass · p − q, 0), normalised, and mass ← S / (S + 1 − mass) where S is what was left before
normalising; the next child is judged by that. Children may mix deterministic tokens (one-hot
q) and sampled ones: all that counts is that each child's distribution is fixed before it is drawn.
"""

from __future__ import annotations

from typing import Any

from paceline.sampling.distribution import Distribution, excess
from paceline.sampling.rng import Rng
from paceline.types import Proposal, Verdict
from paceline.verify.base import TargetDistributions, Verifier, ratio
from paceline.verify.block import BlockVerifier


class TreeVerifier(Verifier):
    """Exact for every tree, target distribution and mix of deterministic and sampled tokens.

    On a chain it is `block`, which is what the rule comes to there. Where all tokens are
    deterministic it follows the target's own draw as far as the tree goes: one draw per emitted
    token, so that with the same seed the text is, to the token, that of ordinary decoding.
    """

    name = "tree"
    summary = "trees too, all branches jointly; exact, on chains the same as block"
    trees = True

    def __init__(self) -> None:
        self._block = BlockVerifier()

    def verify(self, proposal: Proposal, target: TargetDistributions, rng: Rng) -> Verdict:
        if proposal.parents is None:
            return self._block.verify(proposal, target, rng)
        children = _children(proposal.parents)
        if proposal.distributions is None or all(
            distribution is None for distribution in proposal.distributions
        ):
            return _follow(proposal, children, target, rng)
        verdict = _Traversal(proposal, children, target, rng).judge(-1, 1)
        assert verdict is not None, "the root has mass 1"
        return verdict


def _children(parents: tuple[int, ...]) -> dict[int, list[int]]:
    """Children by parent, the root being -1, in the order in which they were proposed."""
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(parents):
        children.setdefault(parent, []).append(index)
    return children


def _follow(
    proposal: Proposal, children: dict[int, list[int]], target: TargetDistributions, rng: Rng
) -> Verdict:
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        drawn = rng.sample(target[node + 1])
        for child in children.get(node, ()):
            if proposal.tokens[child] == drawn:
                path.append(child)
                break
        else:
            return Verdict(tuple(path), drawn)


class _Traversal:
    """One proposal's judgement."""

    def __init__(
        self,
        proposal: Proposal,
        children: dict[int, list[int]],
        target: TargetDistributions,
        rng: Rng,
    ) -> None:
        self.proposal, self.children = proposal, children
        self.target, self.rng = target, rng

    def judge(self, node: int, mass: Any) -> Verdict | None:
        """The verdict if this token or one behind it is kept, else None."""
        distribution = self.target[node + 1]
        for child in self.children.get(node, ()):
            token = self.proposal.tokens[child]
            draft = self.proposal.distribution(child) or Distribution.one_hot(token)
            inner = min(mass * ratio(distribution, draft, token), 1)
            verdict = self.judge(child, inner) if inner > 0 else None
            if verdict is not None:
                return verdict
            residual, left = excess(distribution, draft, mass)
            if residual is not None:
                distribution = residual
                # The root's mass stays 1 to the bit, however little is left.
                mass = left / (left + 1 - mass) if mass < 1 else 1
            elif mass < 1:
                return None  # nothing is left of this token
            # Else p = q up to rounding: then p itself is the residual.
        if not self.rng.bernoulli(mass):
            return None
        return Verdict(tuple(self.proposal.path(node)), self.rng.sample(distribution))
