"""Drafting one token after another from a draft's own distributions, for several sequences at
once."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field

from paceline.drafts.base import Context, Draft
from paceline.sampling.distribution import Distribution
from paceline.types import Proposal


@dataclass(slots=True)
class _StepwiseTurn:
    """One context's proposal in the making."""

    context: Context
    max_draft_tokens: int
    before: AbstractSequence[int]
    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution | None] = field(default_factory=list)

    @property
    def drafted(self) -> list[int]:
        return [*self.before, *self.tokens]

    def take(self, distribution: Distribution | None) -> bool:
        """One more token, with its distribution; False if the proposal ends here.

        Ending before a draw is exact: nothing has been drawn that could be dropped. A token that
        was drawn is kept before stopping: to drop it for what it is would break exactness.
        """
        if distribution is None:
            return False
        self.tokens.append(self.context.rng.sample(distribution))
        self.distributions.append(None if distribution.single is not None else distribution)
        return self.may_go_on

    @property
    def may_go_on(self) -> bool:
        if len(self.tokens) >= self.max_draft_tokens:
            return False
        last = self.tokens or self.before
        return not last or last[-1] not in self.context.stop_tokens


def draw_on(
    draft: Draft,
    contexts: AbstractSequence[Context],
    limits: AbstractSequence[int],
    before: AbstractSequence[AbstractSequence[int]] | None = None,
) -> list[Proposal]:
    """A proposal per context, drawn token by token from `draft.next_distributions`, up to its
    limit, a stop token, or where the draft has nothing to offer.

    before    per context the drafted tokens behind which it begins; they are no part of what is
              returned
    """
    starts = before if before is not None else [()] * len(contexts)
    turns = [_StepwiseTurn(*turn) for turn in zip(contexts, limits, starts, strict=True)]
    active = [turn for turn in turns if turn.may_go_on]
    while active:
        distributions = draft.next_distributions(
            [t.context for t in active], [t.drafted for t in active]
        )
        active = [
            turn
            for turn, distribution in zip(active, distributions, strict=True)
            if turn.take(distribution)
        ]
    return [Proposal(tuple(t.tokens), draft.name, tuple(t.distributions)) for t in turns]
