"""Trees as chains, for engines and verifiers that take no trees."""

from __future__ import annotations

import logging
from collections.abc import Sequence as AbstractSequence
from typing import Any

from paceline.drafts.base import Context, Draft
from paceline.drafts.combine import CombinedDraft
from paceline.types import Preview, Proposal

log = logging.getLogger("paceline")


class FirstBranch(CombinedDraft):
    """Another draft, of whose trees the first branch is offered. It warns once.

    draft     releases with this one
    unable    what takes no trees: "verifier chain"
    """

    name = "first-branch"
    summary = "the first branch of another draft's trees"

    def __init__(self, draft: Draft, unable: str) -> None:
        self.parts, self._unable = [draft], unable
        self.engine, self.forwards = draft.engine, draft.forwards
        self.previewable, self.has_confidence, self.prior = (
            draft.previewable,
            draft.has_confidence,
            draft.prior,
        )
        self.observes_logits = draft.observes_logits

    def preview(self, context: Context, most: int) -> Preview:
        """The first branch of what the other one previews."""
        found = self.parts[0].preview(context, most)
        if found.parents is None:
            return found
        path = _first_children(found.parents)
        confidences = (
            None if found.confidences is None else [found.confidences[index] for index in path]
        )
        return Preview([found.tokens[index] for index in path], found.match_length, confidences)

    def propose(
        self, contexts: AbstractSequence[Context], limits: AbstractSequence[int]
    ) -> list[Proposal]:
        """The first branch of each of the other one's proposals."""
        return [self._chain(proposal) for proposal in self.parts[0].propose(contexts, limits)]

    def metadata(self) -> dict[str, Any]:
        """The other draft's."""
        return self.parts[0].metadata()

    def _chain(self, proposal: Proposal) -> Proposal:
        if proposal.parents is not None and self._unable:
            log.warning(
                "The draft %s offers trees, and the %s takes chains: the first branch of each goes "
                "instead.",
                proposal.source,
                self._unable,
            )
            self._unable = ""
        return first_branch(proposal)


def first_branch(proposal: Proposal) -> Proposal:
    """The chain of first children; a chain is its own.

    Which tokens stay is told by their places, not by what was sampled, and a first child's
    distribution looks at no sibling: so decoding stays exact.
    """
    if proposal.parents is None:
        return proposal
    path = _first_children(proposal.parents)
    distributions = proposal.distributions
    return Proposal(
        tuple(proposal.tokens[index] for index in path),
        proposal.source,
        None if distributions is None else tuple(distributions[index] for index in path),
    )


def _first_children(parents: AbstractSequence[int]) -> list[int]:
    path: list[int] = []
    for index, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):
            path.append(index)
    return path
