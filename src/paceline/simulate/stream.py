"""One recorded request as a policy sees it while it is simulated: a `decode.stream.Stream` without
a model, whose next tokens are already known."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.errors import SettingError, unknown_name
from paceline.simulate.trace import Known, SourceTrace, Trace
from paceline.types import Preview, Request, Round, Sampling

_WRONG = -1  # a drafted token that is not the next one


@dataclass(slots=True)
class SimulatedHistory:
    """Committed tokens by number only: token i is i, so that the next right ones are known."""

    length: int

    def __len__(self) -> int:
        return self.length

    @property
    def tokens(self) -> range:
        """Places in the trace, standing for tokens."""
        return range(self.length)


@dataclass(eq=False, slots=True, weakref_slot=True)
class SimulatedStream:
    """A `decode.round.StreamView` over a recorded answer.

    read       prompt tokens read so far
    watched    drafts that a policy has previewed, which then offer what they offer when watched
    held       by priced draft, how many committed tokens its sequence holds
    """

    trace: Trace
    request: Request
    arrived_s: float = 0.0
    history: SimulatedHistory = field(init=False)
    rounds: list[Round] = field(default_factory=list)
    read: int = 0
    read_s: float = 0.0
    read_other_s: float = 0.0
    watched: set[str] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    first_s: float = 0.0
    ended_s: float = 0.0

    def __post_init__(self) -> None:
        self.history = SimulatedHistory(self.trace.prompt_tokens)

    @property
    def committed(self) -> int:
        """Output tokens that are committed."""
        return self.history.length - self.trace.prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens that the recorded answer still has."""
        return self.trace.output_tokens - self.committed

    @property
    def finished(self) -> bool:
        """Whether its trace has ended."""
        return self.remaining == 0

    @property
    def remaining_tokens(self) -> int:
        """Most tokens that the answer can still take."""
        return self.trace.most_tokens - self.committed

    @property
    def prompt_is_read(self) -> bool:
        """Whether its prompt was read in an earlier round."""
        return self.read >= self.trace.prompt_tokens

    def preview(self, name: str, most: int) -> Preview:
        """What the trace's draft offers now: places that are right, and then wrong ones."""
        self.watched.add(name)
        known = self.source(name)
        count = min(most, self._now(known.offered, name))
        right = min(count, self._now(known.right, name))
        start = self.history.length
        tokens = [*range(start, start + right), *[_WRONG] * (count - right)]
        return Preview(tokens, self._now(known.match_length, name))

    def pending_tokens(self, name: str) -> int:
        """Committed tokens that a draft has yet to read."""
        return self.history.length - self.held.get(name, 0)

    def proposed(self, name: str, max_draft_tokens: int) -> tuple[int, int]:
        """How many tokens the draft offers now, and how many of them are right."""
        known = self.source(name)
        offered = known.offered if name in self.watched else known.unwatched
        count = min(max_draft_tokens, self._now(offered, name))
        return count, min(count, self._now(known.right, name))

    def source(self, name: str) -> SourceTrace:
        """Raises SettingError for a draft that was not recorded."""
        if name not in self.trace.sources:
            raise unknown_name("recorded draft", name, self.trace.sources)
        return self.trace.sources[name]

    def _now(self, entries: Known, name: str) -> int:
        entry = entries[self.committed]
        if entry is None:
            raise SettingError(
                f"The recording never asked the draft {name!r}, so what it would have got right "
                "is unknown.",
                "Record a run that asks it.",
            )
        return entry


def stream_of(trace: Trace, temperature: float, arrived_s: float) -> SimulatedStream:
    """A stream for a recorded request that arrives at this second."""
    request = Request(prompt=(0,) * trace.prompt_tokens, sampling=Sampling(temperature=temperature))
    return SimulatedStream(trace, request, arrived_s)
