"""Drafts made of drafts: the first that has something to offer, and one going on behind another.

Each part is told everything, so that any of them may be asked at any time; and each combination is
a draft again.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from contextlib import ExitStack
from typing import Any

from paceline.drafts.base import Context, Draft, VerifiedRound
from paceline.drafts.options import read_options
from paceline.drafts.stepwise import draw_on
from paceline.engines.base import Engine
from paceline.errors import DraftError, SettingError
from paceline.types import Preview, Proposal


class CombinedDraft(Draft):
    """What all drafts made of drafts share: their parts live, learn and end together.

    parts    two or more, which are this draft's to release
    """

    takes = "drafts"

    def __init__(self, parts: AbstractSequence[Draft]) -> None:
        if len(parts) < 2:
            raise SettingError(
                f"The draft {self.name!r} is made of {len(parts)} part.",
                f"Name two or more: {self.name}:DRAFT+DRAFT. A combination can't be part of one.",
            )
        self.parts = list(parts)
        self.observes_logits = any(part.observes_logits for part in parts)
        dear = [part for part in parts if not part.previewable]
        if len(dear) == 1:  # the whole can be priced by the only one that isn't free
            self.engine, self.forwards = dear[0].engine, dear[0].forwards

    @classmethod
    def create(cls, target: Engine, **options: Any) -> CombinedDraft:  # noqa: ARG003
        parts = options.pop("drafts")
        read_options(cls.name, options, {})
        return cls(parts)

    @property
    def remembers(self) -> bool:
        return any(part.remembers for part in self.parts)

    def pending_tokens(self, context: Context) -> int:
        return max(part.pending_tokens(context) for part in self.parts)

    def open(self, context: Context) -> None:
        with ExitStack() as opened:
            for part in self.parts:
                part.open(context)
                opened.callback(part.close, context)
            opened.pop_all()

    def prefill(self, contexts: AbstractSequence[Context]) -> None:
        for part in self.parts:
            part.prefill(contexts)

    def observe(self, context: Context, committed: AbstractSequence[int]) -> None:
        for part in self.parts:
            part.observe(context, committed)

    def observe_logits(self, context: Context, verified: VerifiedRound) -> None:
        for part in self.parts:
            if part.observes_logits:
                part.observe_logits(context, verified)

    def close(self, context: Context) -> None:
        with ExitStack() as every:
            for part in reversed(self.parts):
                every.callback(part.close, context)

    def release(self) -> None:
        with ExitStack() as every:
            for part in reversed(self.parts):
                every.callback(part.release)

    def metadata(self) -> dict[str, Any]:
        return {"draft": self.name, "parts": [part.metadata() for part in self.parts]}


class FirstDraft(CombinedDraft):
    """For each sequence the proposal of the first part that has any; the parts behind it are not
    asked for that sequence."""

    name = "first"
    summary = "the first of several drafts that has anything to offer; DRAFT+DRAFT"

    def __init__(self, parts: AbstractSequence[Draft]) -> None:
        super().__init__(parts)
        # Evidence of different drafts is not told in the same measure: then the whole has to be
        # asked to be known.
        self.previewable = all(p.previewable for p in parts) and len({p.name for p in parts}) == 1
        self.has_confidence = self.previewable and all(part.has_confidence for part in parts)
        self.prior = parts[0].prior if self.previewable else None
        self.branches = any(part.branches for part in parts)

    def preview(self, context: Context, most: int) -> Preview:
        found = Preview((), 0)
        for part in self.parts:
            found = part.preview(context, most)
            if found.tokens:
                break
        return found

    def propose(
        self, contexts: AbstractSequence[Context], limits: AbstractSequence[int]
    ) -> list[Proposal]:
        found = [Proposal((), self.name)] * len(contexts)
        for part in self.parts:
            waiting = [i for i, proposal in enumerate(found) if not proposal.tokens]
            if not waiting:
                break
            offered = part.propose([contexts[i] for i in waiting], [limits[i] for i in waiting])
            for i, proposal in zip(waiting, offered, strict=True):
                found[i] = proposal
        return found


class CascadeDraft(CombinedDraft):
    """The first part proposes, and each part behind it goes on where those before it ended, up to
    the limit (the vertical half of Cascade Speculative Drafting, Chen et al. 2024).

    Raises SettingError for parts that can't go on behind another's tokens, and for a first one that
    offers trees.
    """

    name = "cascade"
    summary = "one draft proposes, the next goes on behind it; DRAFT+DRAFT, as in lookup+model"

    def __init__(self, parts: AbstractSequence[Draft]) -> None:
        super().__init__(parts)
        if parts[0].branches:
            raise SettingError(
                f"The draft {parts[0].name!r} offers trees, and a cascade goes on behind a chain.",
                "Let it offer chains, or put another one first.",
            )
        check_can_continue(self.name, parts[1:])

    def propose(
        self, contexts: AbstractSequence[Context], limits: AbstractSequence[int]
    ) -> list[Proposal]:
        found = self.parts[0].propose(contexts, limits)
        if any(proposal.parents is not None for proposal in found):
            raise DraftError(
                f"The draft {self.parts[0].name!r} offered a tree and had said it never does.",
                "Tell its author.",
            )
        for part in self.parts[1:]:
            left = [n - len(p.tokens) for n, p in zip(limits, found, strict=True)]
            more = draw_on(part, contexts, left, [proposal.tokens for proposal in found])
            found = [self._joined(*both) for both in zip(found, more, strict=True)]
        return found

    def _joined(self, first: Proposal, more: Proposal) -> Proposal:
        distributions = [
            proposal.distribution(index)
            for proposal in (first, more)
            for index in range(len(proposal.tokens))
        ]
        return Proposal(first.tokens + more.tokens, self.name, tuple(distributions))


def check_can_continue(whole: str, parts: AbstractSequence[Draft]) -> None:
    """Refuse parts that can't go on behind drafted tokens."""
    for part in parts:
        if not part.can_continue:
            raise SettingError(
                f"The draft {part.name!r} can't go on behind drafted tokens, as {whole!r} needs.",
                "Drafts that can: lookup, and models.",
            )
