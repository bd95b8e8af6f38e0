"""Drafts made of drafts: the first that has something to offer, one going on behind another, two
mixed, and the first branches of another's trees.

Each part is told everything, so that any of them may be asked at any time; and each combination is
a draft again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as AbstractSequence
from contextlib import ExitStack
from typing import Any, ClassVar

from paceline.drafts.base import Context, Contexts, Draft, Drafted, Limits, VerifiedRound, draw_on
from paceline.drafts.calibrate import WEIGHTS, Calibration, is_greedy, worth_by_weight
from paceline.errors import DraftError, SettingError
from paceline.plugins import yes_or_no
from paceline.sampling.distribution import Distribution, mixed
from paceline.types import Preview, Proposal

log = logging.getLogger("paceline")


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

    def prefill(self, contexts: Contexts) -> None:
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

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
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

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
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


class MixtureDraft(CombinedDraft):
    """Each token is drawn from weight·q_A + (1 − weight)·q_B, both behind the same drafted tokens,
    and that mixture is the distribution it is told with; where one has none, the other's
    distribution. Of a drafted token Σ min(p, q) is accepted: a lookup (one-hot) gives what it is
    sure of, a model covers the rest.

    Where the request is greedy, so is the target, and mixing could only lose: the heavier draft's
    token is taken as it is (the first one's at 0.5), the lighter is asked where that has none.

    parts        two drafts that can go on behind drafted tokens
    weight       of the first, from 0 to 1
    calibrate    begin with that weight, and choose it by what the target said in earlier rounds of
                 the request

    Raises SettingError for other parts, and for a weight outside.
    """

    name = "mixture"
    summary = (
        "two drafts' distributions mixed at each position; weight=W (of the first), DRAFT+DRAFT"
    )

    options: ClassVar = {"weight": float, "calibrate": yes_or_no}
    can_continue = True

    def __init__(
        self, parts: AbstractSequence[Draft], weight: Any = 0.5, *, calibrate: bool = False
    ) -> None:
        super().__init__(parts)
        if len(parts) > 2:
            raise SettingError(
                f"A mixture of {len(parts)} drafts was asked for.", "Name two of them."
            )
        if not 0 <= weight <= 1:
            raise SettingError(f"weight is {weight}.", "It must be from 0 to 1.")
        check_can_continue(self.name, parts)
        self.weight, self.calibrate = weight, calibrate
        self.observes_logits = self.observes_logits or calibrate
        self._calibrations: dict[Context, Calibration] = {}

    def open(self, context: Context) -> None:
        super().open(context)
        if self.calibrate and not is_greedy(context.sampling):
            self._calibrations[context] = Calibration(WEIGHTS, self.weight)

    def close(self, context: Context) -> None:
        self._calibrations.pop(context, None)
        super().close(context)

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        return draw_on(self, contexts, limits)

    def next_distributions(self, contexts: Contexts, drafted: Drafted) -> list[Distribution | None]:
        heavier, lighter = self.parts if self.weight >= 0.5 else reversed(self.parts)
        distributions = dict(enumerate(heavier.next_distributions(contexts, drafted)))
        asked = [
            index
            for index, context in enumerate(contexts)
            if distributions[index] is None or not is_greedy(context.sampling)
        ]
        others = lighter.next_distributions(
            [contexts[i] for i in asked], [drafted[i] for i in asked]
        )
        for i, other in zip(asked, others, strict=True):
            both = (
                (distributions[i], other) if heavier is self.parts[0] else (other, distributions[i])
            )
            distributions[i] = self._mixed(contexts[i], drafted[i], *both)
        return list(distributions.values())

    def _mixed(
        self,
        context: Context,
        drafted: AbstractSequence[int],
        first: Distribution | None,
        second: Distribution | None,
    ) -> Distribution | None:
        if first is None or second is None:
            return second if first is None else first
        calibration = self._calibrations.get(context)
        if calibration is None:
            return mixed(first, second, self.weight)
        calibration.told[tuple(drafted)] = first, second
        return mixed(first, second, calibration.value)

    def observe_logits(self, context: Context, verified: VerifiedRound) -> None:
        super().observe_logits(context, verified)
        calibration = self._calibrations.get(context)
        if calibration is not None:
            for target, (first, second) in calibration.on_path(verified):
                calibration.learn(worth_by_weight(target, first, second))

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "weight": self.weight, "calibrate": self.calibrate}


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

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
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


def check_can_continue(whole: str, parts: AbstractSequence[Draft]) -> None:
    """Refuse parts that can't go on behind drafted tokens."""
    for part in parts:
        if not part.can_continue:
            raise SettingError(
                f"The draft {part.name!r} can't go on behind drafted tokens, as {whole!r} needs.",
                "Drafts that can: lookup, and models.",
            )
