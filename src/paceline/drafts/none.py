"""No draft: every round is a plain one. Also the smallest draft there can be."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence

from paceline.drafts.base import Context, Draft
from paceline.types import Proposal


class NoDraft(Draft):
    name = "none"
    summary = "ordinary decoding; needs nothing"

    def propose(
        self,
        contexts: AbstractSequence[Context],
        limits: AbstractSequence[int],  # noqa: ARG002
    ) -> list[Proposal]:
        return [Proposal((), self.name) for _ in contexts]
