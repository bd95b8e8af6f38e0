"""The rules of one round, each written once: how far a draft may go, which round reads the prompt,
what is committed, what is recorded.

They are pure functions over what a stream shows of itself. `decode.step.Decoder`, the simulator's
server and the integrations call the same ones, each on streams of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from paceline.errors import SettingError
from paceline.types import Choice, Preview, Request, Round

NO_DRAFT = Choice(None, 0)
"""A round of ordinary decoding."""

T = TypeVar("T")


class HistoryView(Protocol):
    """Prompt and committed output."""

    @property
    def tokens(self) -> Sequence[int]:
        """All of them, the prompt first."""

    def __len__(self) -> int: ...


class StreamView(Protocol):
    """A request while it is decoded, as policies and the rules of a round see it. It is its own
    key, and can be weakly referenced."""

    @property
    def request(self) -> Request:
        """What was asked for."""

    @property
    def history(self) -> HistoryView:
        """Prompt and committed output."""

    @property
    def rounds(self) -> list[Round]:
        """Its rounds so far, the reading of the prompt first."""

    @property
    def remaining_tokens(self) -> int:
        """Most tokens that the answer can still take."""

    @property
    def prompt_is_read(self) -> bool:
        """Whether its prompt was read in an earlier round."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""

    def preview(self, name: str, most: int) -> Preview:
        """What a previewable draft would offer now, at most so many tokens. Changes nothing."""

    def pending_tokens(self, name: str) -> int:
        """Committed tokens that a draft has yet to read before its next proposal."""


S = TypeVar("S", bound=StreamView)

Policy: TypeAlias = Callable[[Sequence[StreamView]], list[Choice]]
"""Which draft to ask, and for how many tokens: one choice per stream about to take a round.

It may look at rounds, at committed tokens and at previews, never at what a draft is about to
sample. A policy that previews names the drafts in an attribute `looks_at`: they are opened, and
read the prompt, before it is asked.
"""


def looks_at(policy: Policy) -> Collection[str]:
    """Names of the drafts that a policy previews."""
    names: Collection[str] = getattr(policy, "looks_at", ())
    return names


def fixed(source: str | None, max_draft_tokens: int) -> Policy:
    """The same draft and limit in every round; limit 0, or no source, is ordinary decoding. Raises
    SettingError for a negative limit."""
    if max_draft_tokens < 0:
        raise SettingError(
            f"The limit is {max_draft_tokens}.", "It must be 0 (ordinary decoding) or more."
        )
    choice = Choice(source, max_draft_tokens) if source and max_draft_tokens else NO_DRAFT
    return lambda streams: [choice] * len(streams)


@dataclass(slots=True)
class Turn(Generic[S]):
    """What one stream does in one round.

    max_draft_tokens    most tokens that the draft may offer; 0 without one
    context             tokens committed before the round
    drafted             tokens that were offered and scored
    accepted            of these, those that the verifier accepted
    emitted             tokens that were committed
    path                of a tree, the indices of the accepted tokens
    """

    stream: S
    source: str | None = None
    max_draft_tokens: int = 0
    prefill: bool = False
    context: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    path: tuple[int, ...] | None = None
    draft_s: float = 0.0

    def begin(self, choice: Choice) -> None:
        """Take the policy's choice, within the rules."""
        self.prefill = reads_prompt(self.stream)
        allowed = limit(self.stream, choice)
        self.source, self.max_draft_tokens = allowed.source, allowed.max_draft_tokens
        self.context = len(self.stream.history)

    @property
    def asks(self) -> bool:
        """Whether a draft is asked for a proposal. It is not in the round that reads the prompt,
        which only tells it of the request."""
        return self.source is not None and not self.prefill


def limit(stream: StreamView, choice: Choice) -> Choice:
    """The policy's choice within what the request, the answer's end and the context allow."""
    request = stream.request
    source = choice.source if request.draft is None else request.draft
    # The round emits one token more than it accepts, so the last one needs no draft.
    most = min(choice.max_draft_tokens, stream.remaining_tokens - 1)
    if request.max_draft_tokens is not None:
        most = min(most, request.max_draft_tokens)
    if source is None or most <= 0:
        return NO_DRAFT
    unchanged = most == choice.max_draft_tokens and source == choice.source
    return choice if unchanged else Choice(source, most)


def reads_prompt(stream: StreamView) -> bool:
    """Whether the next round is the stream's prefill: it emits the first token without a draft,
    and is kept out of decode figures."""
    return not stream.prompt_is_read


def cut(tokens: Iterable[T], ended: Callable[[], bool]) -> Iterator[T]:
    """What is committed of the accepted tokens and the next one: up to and with the token that
    ends the answer. What follows a stop vanishes."""
    for token in tokens:
        yield token
        if ended():
            return


def record(turn: Turn[S], *, batch: int, verify_s: float, other_s: float) -> Round:
    """The finished turn as a `Round`, when its tokens are committed.

    batch       sequences that shared the forward
    verify_s    seconds of the forward, this stream's share; `other_s` likewise of all else
    """
    accepted = min(turn.accepted, turn.emitted)
    # A stop inside the block leaves the tokens behind it unverified.
    stopped = turn.stream.finished and turn.emitted < accepted + 1
    return Round(
        proposed=accepted if stopped else turn.drafted,
        accepted=accepted,
        emitted=turn.emitted,
        source=None if turn.prefill else turn.source,
        max_draft_tokens=0 if turn.prefill else turn.max_draft_tokens,
        width=turn.drafted + 1,
        batch=batch,
        context=turn.context,
        prefill=turn.prefill,
        draft_s=turn.draft_s,
        verify_s=verify_s,
        other_s=other_s,
        path=None if turn.path is None else turn.path[:accepted],
    )
