"""A batch server that runs recorded requests without a model, one step after another.

A step is what `decode.step.Decoder` would do with the same choices, by the same rules
(`decode.round`): the proposal is the recorded one, and what is accepted is what was right. Only its
seconds come from costs. So a policy sees the same history, round by round, as in real decoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.decode import round as rules
from paceline.decode.round import Policy, Turn
from paceline.errors import SettingError, unknown_name
from paceline.policy.costs import Costs
from paceline.simulate.trace import Known, SourceTrace, Trace
from paceline.types import Choice, Preview, Request, Round, Sampling

_WRONG = -1  # a drafted token that is not the next one
_CONTEXT_STEP = 64  # contexts are priced to the nearest multiple: a table takes long to make


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
    first_s    when its first token came, and `ended_s` its last, on the server's clock
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
    def decoding(self) -> list[Round]:
        """Its rounds, without the one that read the prompt."""
        return [round for round in self.rounds if not round.prefill]

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


class _Prices:
    """Seconds of one model's forwards; refuses what was not measured."""

    def __init__(self, costs: Costs, name: str) -> None:
        self._costs, self._name = costs, name
        self._tables: dict[tuple[int, int], np.ndarray] = {}
        self._feeds: dict[int, float] = {}

    def forward_s(self, rows: int, sequences: int, context: float) -> float:
        key = sequences, _CONTEXT_STEP * round(context / _CONTEXT_STEP)
        if key not in self._tables:
            self._tables[key] = self._costs.table(*key)
        table = self._tables[key]
        if rows >= len(table) or table[rows] == np.inf:
            raise SettingError(
                f"A batch of {sequences} came to {rows} rows in one forward, for which the costs "
                f"of the {self._name} have no figure.",
                "Measure wider with `paceline profile`, or use a smaller batch, budget or limit.",
            )
        return float(table[rows])

    def feed_s(self, tokens: int) -> float:
        if tokens not in self._feeds:
            self._feeds[tokens] = self._costs.feed_s(tokens)
        return self._feeds[tokens]


SimulatedTurn = Turn[SimulatedStream]


class SimulatedServer:
    """Requests in the order they arrive, at most `batch` of them at once.

    free      drafts whose proposals take no time
    budget    most rows of a forward, None for no bound. Rows of committed tokens come first,
              then prompts in order, cut into parts where they don't fit, then drafted tokens:
              every sequence keeps its first few.
    """

    def __init__(
        self,
        costs: Costs,
        policy: Policy,
        *,
        free: Collection[str] = (),
        batch: int = 1,
        budget: int | None = None,
    ) -> None:
        self.policy, self.batch, self.budget, self._free = policy, batch, budget, free
        self.overhead_s = costs.overhead_s
        self._target = _Prices(costs, "target")
        self._drafts = {n: _Prices(c, f"draft {n!r}") for n, c in costs.drafts.items()}

    def run(self, streams: Sequence[SimulatedStream]) -> float:
        """Serve them all; gives the seconds when the last one ends."""
        waiting = deque(streams)
        running: list[SimulatedStream] = []
        clock = 0.0
        while waiting or running:
            if not running:
                clock = max(clock, waiting[0].arrived_s)
            while waiting and len(running) < self.batch and waiting[0].arrived_s <= clock:
                running.append(waiting.popleft())
            clock += self._step(running)
            for stream in running:
                if len(stream.rounds) == 1:  # the prompt's: it is followed by another at once
                    stream.first_s = clock
                if not stream.remaining:
                    stream.ended_s = clock
            running = [stream for stream in running if stream.remaining]
        return clock

    def _step(self, running: Sequence[SimulatedStream]) -> float:
        """One forward; gives its seconds, overhead and drafting included."""
        parts, left = self._parts(running)
        ready = [s for s in running if s.prompt_is_read or s.read + parts.get(s, 0) >= _prompt(s)]
        choices = self.policy(ready) if ready else []
        turns = [_turn(s, choice) for s, choice in zip(ready, choices, strict=True)]
        _cut(turns, left)
        draft_s = sum(self._propose(turns, name) for name in _sources(turns))
        decoding = [turn for turn in turns if not turn.prefill]
        rows = sum(1 + turn.drafted for turn in decoding)
        verify_s = 0.0
        if decoding:
            context = sum(len(turn.stream.history) for turn in decoding) / len(decoding)
            verify_s = self._target.forward_s(rows, len(decoding), context)
        sharing = len(decoding) + len(parts)
        for stream, count in parts.items():
            stream.read += count
            stream.read_s += self._target.feed_s(count)
            stream.read_other_s += self.overhead_s / sharing
        for turn in turns:
            share_s = 0.0 if turn.prefill else verify_s * (1 + turn.drafted) / rows
            _commit(turn, share_s, self.overhead_s / sharing, sharing)
        return draft_s + verify_s + sum(map(self._target.feed_s, parts.values())) + self.overhead_s

    def _parts(
        self, running: Sequence[SimulatedStream]
    ) -> tuple[dict[SimulatedStream, int], int | None]:
        """Prompt tokens to read now by stream, and the rows left for drafted tokens."""
        left = None if self.budget is None else self.budget - sum(s.prompt_is_read for s in running)
        parts: dict[SimulatedStream, int] = {}
        for stream in running:
            missing = _prompt(stream) - stream.read
            count = missing if left is None else min(left, missing)
            if count > 0:
                parts[stream] = count
                left = None if left is None else left - count
        return parts, left

    def _propose(self, turns: Sequence[SimulatedTurn], name: str) -> float:
        """Seconds of one draft for all that chose it: those new to it have their prompts read, all
        others catch up in one forward, and the rest is a forward a token."""
        if name in self._free:
            return 0.0
        if name not in self._drafts:
            raise SettingError(
                f"The costs have no figures of the draft {name!r}.",
                "Measure it with `paceline profile`, or simulate policies that leave it out.",
            )
        mine = [turn for turn in turns if turn.source == name]
        prices, seconds, read = self._drafts[name], 0.0, 0
        for turn in mine:
            if name not in turn.stream.held:
                held = len(turn.stream.history) - 1
                turn.stream.held[name] = held
                read += held
        asked = [turn for turn in mine if turn.drafted]
        seconds += prices.feed_s(read)
        seconds += prices.feed_s(sum(turn.stream.pending_tokens(name) for turn in asked))
        for step in range(1, max((turn.drafted for turn in asked), default=0)):
            active = [len(turn.stream.history) for turn in asked if turn.drafted > step]
            count = len(active)
            seconds += prices.forward_s(count, count, sum(active) / count)
        for turn in mine:
            turn.draft_s = seconds / len(mine)
        return seconds


def _prompt(stream: SimulatedStream) -> int:
    return stream.trace.prompt_tokens


def _sources(turns: Sequence[SimulatedTurn]) -> list[str]:
    return list(dict.fromkeys(turn.source for turn in turns if turn.source is not None))


def _turn(stream: SimulatedStream, choice: Choice) -> SimulatedTurn:
    turn = Turn(stream)
    turn.begin(choice)
    if turn.source is not None:
        stream.source(turn.source)
        if turn.asks:
            turn.drafted, turn.accepted = stream.proposed(turn.source, turn.max_draft_tokens)
    return turn


def _cut(turns: Sequence[SimulatedTurn], left: int | None) -> None:
    """Keep drafted tokens within the rows left: the longest proposals lose their last ones."""
    total = sum(turn.drafted for turn in turns)
    while left is not None and total > left:
        longest = max(turns, key=lambda turn: turn.drafted)
        longest.drafted -= 1
        longest.max_draft_tokens = longest.drafted
        longest.accepted = min(longest.accepted, longest.drafted)
        longest.source = longest.source if longest.max_draft_tokens else None
        total -= 1


def _commit(turn: SimulatedTurn, verify_s: float, other_s: float, batch: int) -> None:
    stream = turn.stream
    if turn.prefill:
        verify_s, other_s = stream.read_s, stream.read_other_s
    for _ in rules.cut(range(turn.accepted + 1), lambda: stream.finished):
        stream.history.length += 1
        turn.emitted += 1
    if turn.source in stream.held and turn.drafted:
        # The last drafted token was never fed to the draft.
        stream.held[turn.source] = turn.context + min(turn.accepted, turn.drafted - 1)
    stream.rounds.append(rules.record(turn, batch=batch, verify_s=verify_s, other_s=other_s))
