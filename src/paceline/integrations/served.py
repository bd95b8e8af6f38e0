"""Our drafts and our policy for sequences that another engine decodes.

The engine tells which tokens each sequence has come to and how long its step took, and is given
tokens to try. Verifying, sampling and stopping are its own: a deterministic proposal changes no
distribution (docs/exactness.md), so whatever is offered here is safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from paceline import plugins
from paceline.decode import round as rules
from paceline.decode.round import Turn
from paceline.drafts.base import Context, Draft, VerifiedRound
from paceline.drafts.create import create_draft, is_model, kinds_of, models_of
from paceline.engines.base import TokenizerOnly
from paceline.engines.tokenizer import Tokenizer
from paceline.errors import SettingError, unknown_name
from paceline.policy.acceptance import MOST
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.live import LearnedCosts
from paceline.sampling.history import History
from paceline.types import Array, Choice, Preview, Proposal, Request, Round

_NO_PROMPT = (0,)


@dataclass(eq=False, slots=True, weakref_slot=True)
class ServedStream:
    """One sequence of another engine, as a `decode.round.StreamView`.

    context             its tokens, prompt and output, and what drafts see of it
    remaining_tokens    most tokens that a proposal may lead to
    proposed            what it was given to try last
    """

    drafts: Mapping[str, Draft]
    context: Context
    remaining_tokens: int = MOST
    proposed: tuple[int, ...] = ()
    rounds: list[Round] = field(default_factory=list)
    request: Request = field(default_factory=lambda: Request(prompt=_NO_PROMPT))
    finished: bool = False
    prompt_is_read: bool = True
    turn: Turn[ServedStream] = field(init=False)

    def __post_init__(self) -> None:
        self.turn = Turn(self)

    @property
    def history(self) -> History:
        """Prompt and output."""
        return self.context.history

    def preview(self, name: str, most: int) -> Preview:
        """What a draft would offer now."""
        return self.drafts[name].preview(self.context, most)

    def pending_tokens(self, name: str) -> int:
        """How many tokens a draft has yet to read."""
        return self.drafts[name].pending_tokens(self.context)


class DraftServer:
    """Drafts and policy over all sequences of one engine.

    drafts    by name; they must be previewable: others need the target's forwards, or their own
    max_draft_tokens     most tokens a proposal holds; the policy chooses up to it
    costs     None learns them from the steps

    Only counts pass between sequences: what steps take, and how often matches of a length were
    right.
    """

    def __init__(
        self,
        drafts: Mapping[str, Draft],
        *,
        max_draft_tokens: int,
        costs: LearnedCosts | None = None,
    ) -> None:
        for name, draft in drafts.items():
            _check_free(name, draft)
        self.drafts = dict(drafts)
        self.costs = LearnedCosts() if costs is None else costs
        sources = [
            Source(name, previewable=True, has_confidence=draft.has_confidence, prior=draft.prior)
            for name, draft in drafts.items()
        ]
        self.policy = MeasuredPolicy(self.costs, sources, most=max_draft_tokens)

    def open(self) -> ServedStream:
        """A sequence without tokens yet."""
        served = ServedStream(self.drafts, Context(History(())))
        for draft in self.drafts.values():
            draft.open(served.context)
        return served

    def close(self, served: ServedStream) -> None:
        """End a stream."""
        served.finished = True
        for draft in self.drafts.values():
            draft.close(served.context)

    def commit(self, served: ServedStream, tokens: Sequence[int]) -> None:
        """The sequence has come to these tokens behind those it had."""
        # Not `commit`: what that counts is for penalties, and those are the engine's affair.
        served.history.tokens.extend(tokens)
        for draft in self.drafts.values():
            draft.observe(served.context, tokens)

    def observe_logits(self, served: ServedStream, proposed: Sequence[int], logits: Array) -> None:
        """The target's raw logits, shape (1 + proposed, vocabulary): behind what is committed, and
        behind each token it was given to try."""
        proposal = Proposal(tuple(proposed), served.turn.source or "none")
        verified = VerifiedRound(proposal, (), served.history.tokens[-1], logits)
        for draft in self.drafts.values():
            if draft.observes_logits:
                draft.observe_logits(served.context, verified)

    def record(
        self,
        served: ServedStream,
        emitted: Sequence[int],
        *,
        batch: int,
        step_s: float,
        draft_s: float,
    ) -> None:
        """A step has judged what this sequence was given to try. Before `commit`.

        batch      sequences that were in it
        step_s     seconds of the step outside drafting, this sequence's share
        draft_s    likewise of drafting
        """
        proposed, turn = served.proposed, served.turn
        right = 0
        while right < min(len(proposed), len(emitted)) and proposed[right] == emitted[right]:
            right += 1
        turn.context, turn.drafted, turn.draft_s = len(served.history), len(proposed), draft_s
        # The engine may have verified less than it was given: its last token is its own.
        turn.accepted, turn.emitted = min(right, len(emitted) - 1), len(emitted)
        served.rounds.append(rules.record(turn, batch=batch, verify_s=step_s, other_s=0.0))

    def propose(self, sequences: Sequence[ServedStream]) -> list[tuple[int, ...]]:
        """What each is to try next, as the policy has it; empty is ordinary decoding."""
        choices = self.policy(sequences)
        if self.costs.needs_baseline(len(sequences)):
            choices = [rules.NO_DRAFT] * len(sequences)
        found = [self.offer(s, choice) for s, choice in zip(sequences, choices, strict=True)]
        for served in sequences:
            served.turn.max_draft_tokens = len(served.proposed)
        return found

    def offer(self, served: ServedStream, choice: Choice) -> tuple[int, ...]:
        """What a sequence is to try next by a given choice, within the rules."""
        turn = served.turn = Turn(served)
        turn.begin(choice)
        served.proposed = ()
        if turn.source is not None and turn.asks:
            limits = [turn.max_draft_tokens]
            [proposal] = self.drafts[turn.source].propose([served.context], limits)
            served.proposed = proposal.tokens
        if not served.proposed:
            turn.source, turn.max_draft_tokens = None, 0
        return served.proposed


def free_drafts(specs: Sequence[str]) -> dict[str, Draft]:
    """Drafts by their specifications, for a target that another engine runs. Raises SettingError
    for one that is unknown, needs forwards, offers trees, or remembers text between requests."""
    if not specs:
        raise SettingError("No draft is named.", "Name lookup, recycle, or both.")
    nothing = TokenizerOnly("another engine", "", cast(Tokenizer, None), vocabulary_size=0)
    found: dict[str, Draft] = {}
    for spec in specs:
        if is_model(spec):
            raise unknown_name("draft without a model", spec, plugins.names("draft"))
        asked = any(not kind.takes and not kind.previewable for kind in kinds_of(spec))
        draft = _check_free(spec, None if models_of(spec) or asked else create_draft(spec, nothing))
        if draft.remembers:
            raise SettingError(
                f"The draft {spec!r} remembers text from one request to the next.",
                "Leave that option out: here nothing of a request's text outlives it.",
            )
        found[spec] = draft
    return found


def _check_free(spec: str, draft: Draft | None) -> Draft:
    if draft is None or not draft.previewable or draft.branches:
        raise SettingError(
            f"The draft {spec!r} can't draft for another engine: it needs forwards, offers trees, "
            "or can't be previewed.",
            "Use lookup, or recycle:branches=1.",
        )
    return draft
