"""Which draft to ask, and for how many tokens: whatever brings the most expected tokens per second,
ordinary decoding included.

It looks at measured costs, at rounds, at committed tokens, and at what previewable drafts would
offer; never at a token that was sampled. So it may choose as it likes without touching the output
distribution (docs/exactness.md, non-anticipation).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

from paceline.decode.round import NO_DRAFT, StreamView
from paceline.policy.acceptance import (
    MOST,
    Acceptance,
    Shared,
    falling,
    prefix_acceptance,
    prior_by_place,
    prior_of,
)
from paceline.policy.allocate import baseline, for_batch, for_drafted_batch, for_one
from paceline.policy.break_even import Warnings
from paceline.policy.costs import Costs
from paceline.policy.live import LiveCosts, RoundCosts, Running
from paceline.policy.stats import PolicyStats
from paceline.types import Choice, Preview, Round

log = logging.getLogger("paceline")

LEAST_GAIN = 1.05  # below this no draft: wide forwards cost more in use than in a profile
_PROBE_SHARE = 0.01  # of decoding time may go into finding out whether a priced draft pays now
_HORIZON = 64  # tokens over which catching up is written off


@dataclass(slots=True)
class Source:
    """A draft on offer, as the policy sees it.

    previewable    `Draft.previewable`: free, and judged in every round whether asked or not
    has_confidence    `Draft.has_confidence`: it tells match lengths or confidences
    prior          `Draft.prior`
    branches       `Draft.branches`
    forwards       `Draft.forwards`
    costs          of the model that drafts; None for a draft without one, whose price is then
                   learned from the rounds it takes
    """

    name: str
    previewable: bool = False
    has_confidence: bool = False
    costs: Costs | None = None
    prior: Sequence[float] | None = None
    branches: bool = False
    forwards: int | None = None


@dataclass(slots=True)
class _Priced:
    """A source that has to be asked to be known, and what asking costs.

    live     its costs now; None without
    ask_s    seconds of one sequence's proposal, learned where it has no costs
    """

    source: Source
    live: LiveCosts | None
    ask_s: Running = field(default_factory=Running)
    credit_s: float = 0.0  # saved up for the next probe

    def seconds(self, sequences: int, max_draft_tokens: int, pending_tokens: int) -> float:
        """Of proposing `max_draft_tokens` tokens for `sequences` that together have
        `pending_tokens` to read."""
        if self.live is None:
            return self.ask_s.value * sequences
        forwards = min(max_draft_tokens, self.source.forwards or max_draft_tokens)
        step = self.live.steps_s(sequences)[sequences]
        return self.live.feed_s(max(1, pending_tokens)) + (forwards - 1) * step


@dataclass(slots=True)
class _Notes:
    """What the policy keeps of one stream."""

    acceptances: dict[str, Acceptance]
    length: int = 0  # committed tokens when the choice was made
    rounds: int = 0
    previews: list[tuple[Acceptance, Preview]] = field(default_factory=list)


_Option: TypeAlias = tuple[str, list[float]]
"""A source for one stream, and its acceptance by position, as far as it may be asked."""


class MeasuredPolicy:
    """The default policy: measured costs, counted acceptance, and 0 as one of the limits.

    costs      of the target: `LiveCosts`, or `LearnedCosts` where it can't be profiled
    sources    the drafts on offer
    most       most tokens of a proposal
    say        takes a warning
    looks_at   names of the sources that it previews before every choice

    One policy may serve many requests, one after another or together; what it has counted in one
    is where the next begins.
    """

    def __init__(
        self,
        costs: RoundCosts,
        sources: Sequence[Source],
        *,
        most: int = MOST,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self.costs = costs
        self.policy_stats = PolicyStats()
        self._most = min(most, MOST)
        self.looks_at = [source.name for source in sources if source.previewable]
        self._sources = {source.name: source for source in sources}
        self._shared: dict[tuple[str, float], Shared] = {}
        self._last: list[StreamView] = []
        self._kept: WeakKeyDictionary[StreamView, _Notes] = WeakKeyDictionary()
        self._expected_s: dict[str, float] = {}
        self._warnings = Warnings(say)
        self._priced: dict[str, _Priced] = {}
        for source in sources:
            # What can't pay even if always right is not on offer.
            if not source.previewable and not (
                costs.profiled is not None
                and self._warnings.cannot_pay(costs.profiled, source.name, source.costs)
            ):
                theirs = source.costs
                live = None if theirs is None else LiveCosts(theirs, frozen=costs.frozen)
                self._priced[source.name] = _Priced(source, live)

    def fresh(self) -> MeasuredPolicy:
        """A policy that has counted nothing yet, with the same live costs and learned prices."""
        fork = copy(self)
        fork.policy_stats, fork._shared, fork._last = PolicyStats(), {}, []
        fork._kept = WeakKeyDictionary()
        fork._priced = {name: replace(p, credit_s=0.0) for name, p in self._priced.items()}
        return fork

    def __call__(self, streams: Sequence[StreamView]) -> list[Choice]:
        """One choice per stream. Raises SettingError for a source that is none of its drafts."""
        self.learn_from_rounds()
        notes = [self._notes(stream) for stream in streams]
        options = [self._options(s, n) for s, n in zip(streams, notes, strict=True)]
        choices = self._choose(streams, options)
        for stream, note in zip(streams, notes, strict=True):
            note.length, note.rounds = len(stream.history), len(stream.rounds)
        self._expected_s = {
            name: self._expected(name, streams, choices)
            for name, priced in self._priced.items()
            if priced.live is not None
        }
        self._last = list(streams)
        return choices

    def _expected(
        self, name: str, streams: Sequence[StreamView], choices: Sequence[Choice]
    ) -> float:
        """Seconds that a source's proposals of this round should take."""
        asked = [
            (stream.pending_tokens(name), choice.max_draft_tokens)
            for stream, choice in zip(streams, choices, strict=True)
            if choice.source == name and stream.prompt_is_read
        ]
        if not asked:
            return 0.0
        pending, limits = sum(b for b, _ in asked), [limit for _, limit in asked]
        return self._priced[name].seconds(len(asked), max(limits), pending)

    # What the last rounds taught.

    def learn_from_rounds(self) -> None:
        """Learn from the rounds since the last choice. The next choice does it by itself; call it
        to bring `policy_stats` up to date after the last round."""
        streams = [s for s in self._last if len(s.rounds) > self._kept[s].rounds]
        self._last = []
        for stream in streams:
            self._learn(stream, self._kept[stream])
        decoding = [stream.rounds[-1] for stream in streams if not stream.rounds[-1].prefill]
        if not decoding or len(decoding) < decoding[0].batch:
            return  # the forward also read prompts, whose rows cost otherwise
        self._learn_prices(decoding)
        rows = sum(round.width for round in decoding)
        context = sum(round.context for round in decoding) // len(decoding)
        self.costs.observe(rows, len(decoding), context, sum(r.verify_s for r in decoding))
        self.costs.observe_overhead(rows, sum(round.other_s for round in decoding))
        count = len(decoding)
        round_s = self.costs.round_s(count, context)
        if count < len(round_s):
            for round in decoding:
                self.policy_stats.add(round, round_s[count] * self.costs.drift / count)

    def _learn_prices(self, decoding: Sequence[Round]) -> None:
        """What drafting took, against what was due."""
        for name, priced in self._priced.items():
            rounds = [round for round in decoding if round.source == name]
            seconds = sum(round.draft_s for round in rounds)
            if not rounds or self.costs.frozen:
                continue
            if priced.live is None:
                priced.ask_s.move(seconds / len(rounds), speed=0.2)
            elif all(round.proposed == round.max_draft_tokens for round in rounds):
                priced.live.observe_whole(self._expected_s.get(name, 0.0), seconds)

    def _learn(self, stream: StreamView, notes: _Notes) -> None:
        new = stream.history.tokens[notes.length :]
        for acceptance, preview in notes.previews:
            acceptance.judge(preview, new)
        notes.previews = []
        round = stream.rounds[-1]
        if round.prefill:
            return
        for name, priced in self._priced.items():
            if round.source != name:
                priced.credit_s += _PROBE_SHARE * self._share_s(round)
                continue
            acceptance = notes.acceptances[name]
            if priced.source.branches:
                path = range(round.accepted) if round.path is None else round.path
                acceptance.learn_places(path, round.proposed)
                short = round.proposed < round.max_draft_tokens
            else:
                acceptance.learn(0, round.accepted, min(round.proposed, round.accepted + 1))
                short = round.accepted == round.proposed < round.max_draft_tokens
            if short and not stream.finished:
                acceptance.miss(round.proposed)
            self._warnings.collapsed(name, priced.source.costs, acceptance, stream.request.sampling)

    def _share_s(self, round: Round) -> float:
        """What a round took, in one sequence's share; by the costs where only they may decide."""
        if not self.costs.frozen:
            return round.draft_s + round.verify_s + round.other_s
        table = self.costs.round_s(round.batch, round.context)
        rows = min(round.batch * round.width, len(table) - 1)
        return table[rows] / round.batch if round.batch <= rows else 0.0

    # What can be asked now.

    def _notes(self, stream: StreamView) -> _Notes:
        notes = self._kept.get(stream)
        if notes is None:
            temperature = round(stream.request.sampling.temperature, 1)
            names = [*self.looks_at, *self._priced]
            if stream.request.draft is not None:
                names = [name for name in names if name == stream.request.draft]
            notes = _Notes({name: Acceptance(self._prior(name, temperature)) for name in names})
            self._kept[stream] = notes
        return notes

    def _prior(self, name: str, temperature: float) -> Shared:
        key = name, temperature
        if key not in self._shared:
            source = self._sources[name]
            prior = None if source.prior is None else prior_of(source.prior)
            if prior is None and source.branches and not source.previewable:
                prior = prior_by_place()
            self._shared[key] = Shared(has_confidence=source.has_confidence, prior=prior)
        return self._shared[key]

    def _options(self, stream: StreamView, notes: _Notes) -> list[_Option]:
        most, limit = min(self._most, stream.remaining_tokens - 1), stream.request.max_draft_tokens
        most = most if limit is None else min(most, limit)
        options: list[_Option] = []
        for name, acceptance in notes.acceptances.items():
            priced = self._priced.get(name)
            if priced is not None:
                if most > 0:
                    by_place = priced.source.branches
                    steps = acceptance.steps(0, most)
                    options.append((name, falling(steps) if by_place else prefix_acceptance(steps)))
                continue
            preview = stream.preview(name, self._most)
            if preview.tokens:
                notes.previews.append((acceptance, preview))
                if most > 0:
                    options.append((name, acceptance.ahead(preview, most)))
        return options

    # What is worth asking.

    def _choose(self, streams: Sequence[StreamView], options: list[list[_Option]]) -> list[Choice]:
        count = len(streams)
        if not count:
            return []
        context = sum(len(stream.history) for stream in streams) // count
        round_s = self.costs.round_s(count, context)
        least = LEAST_GAIN * baseline(round_s, count)
        if count == 1:
            choices = [self._for_one(streams[0], options[0], round_s, least)]
        else:
            choices = self._for_batch(streams, options, round_s, least)
        return self._probe(streams, options, round_s, choices) if self._priced else choices

    def _for_one(
        self, stream: StreamView, options: list[_Option], round_s: list[float], least: float
    ) -> Choice:
        best_rate, best = least, NO_DRAFT
        for name, acceptance in options:
            first_s, step_s = self._draft_s(name, [stream], 1)
            priced = self._priced.get(name)
            most = None if priced is None else priced.source.forwards
            rate, limit = for_one(acceptance, round_s, first_s[1], step_s[1], most)
            if rate > best_rate:
                best_rate, best = rate, Choice(name, limit)
        return best

    def _for_batch(
        self,
        streams: Sequence[StreamView],
        options: list[list[_Option]],
        round_s: list[float],
        least: float,
    ) -> list[Choice]:
        free, names = _likeliest(options, self.looks_at)
        best_rate, choices = least, [NO_DRAFT] * len(streams)
        plan = for_batch(free, round_s)
        if plan.rate > best_rate:
            best_rate, choices = plan.rate, _choices(names, plan.limits)
        for name in self._priced:
            # Free sources come along where they are likelier.
            mixed, named = _likeliest(options, [*self.looks_at, name])
            asked = [s for s, chosen in zip(streams, named, strict=True) if chosen == name]
            if asked:
                first_s, step_s = self._draft_s(name, asked, len(streams))
                forwards = self._priced[name].source.forwards
                plan = for_drafted_batch(mixed, round_s, first_s, step_s, forwards)
                if plan.rate > best_rate:
                    best_rate, choices = plan.rate, _choices(named, plan.limits)
        return choices

    def _draft_s(
        self, name: str, asked: Sequence[StreamView], most: int
    ) -> tuple[list[float], list[float]]:
        """Seconds of drafting anything at all, and of each step, by number of sequences up to
        `most`; in the target's profiled time."""
        priced = self._priced.get(name)
        if priced is None:
            nothing = [0.0] * (most + 1)
            return nothing, nothing
        drift = self.costs.drift
        if priced.live is None:
            ask_s = priced.ask_s.value / drift
            return [n * ask_s for n in range(most + 1)], [0.0] * (most + 1)
        live = priced.live
        owed = (
            sum(_owed_s(live, s.pending_tokens(name), s.remaining_tokens) for s in asked)
            / len(asked)
            / drift
        )
        return [n * owed for n in range(most + 1)], [step / drift for step in live.steps_s(most)]

    def _probe(
        self,
        streams: Sequence[StreamView],
        options: list[list[_Option]],
        round_s: list[float],
        choices: list[Choice],
    ) -> list[Choice]:
        """Where no priced source was chosen, ask one for one token in place of an ordinary round
        now and then: as often as a small share of the time pays for, the reading of what it has
        missed included."""
        if any(choice.source in self._priced for choice in choices):
            return choices
        wider = len(streams) + 1
        if wider >= len(round_s):
            return choices
        wider_s = (round_s[wider] - round_s[wider - 1]) * self.costs.drift
        for number, (stream, offered) in enumerate(zip(streams, options, strict=True)):
            may = stream.prompt_is_read and choices[number] is NO_DRAFT
            for name, _ in offered if may else ():
                priced = self._priced.get(name)
                if priced is None:
                    continue
                price_s = priced.seconds(1, 1, stream.pending_tokens(name)) + max(0.0, wider_s)
                if priced.credit_s >= price_s:
                    priced.credit_s = 0.0
                    return [*choices[:number], Choice(name, 1), *choices[number + 1 :]]
        return choices


def _owed_s(live: LiveCosts, pending_tokens: int, remaining_tokens: int) -> float:
    """What the first drafted token costs beyond a step: what lies far behind is read once, and
    serves many rounds."""
    if pending_tokens <= 1:
        return 0.0
    usual = live.feed_s(2)
    spread = max(1.0, min(remaining_tokens, _HORIZON) / 2)
    return usual - live.feed_s(1) + (live.feed_s(pending_tokens) - usual) / spread


def _likeliest(
    options: list[list[_Option]], sources: Sequence[str]
) -> tuple[list[list[float]], list[str | None]]:
    """Per sequence the acceptance of the source with the most expected tokens, and its name."""
    acceptance: list[list[float]] = []
    names: list[str | None] = []
    for offered in options:
        best, best_name, most = list[float](), None, 0.0
        for name, probabilities in offered:
            if name in sources and (total := sum(probabilities)) > most:
                best, best_name, most = probabilities, name, total
        acceptance.append(best)
        names.append(best_name)
    return acceptance, names


def _choices(names: Sequence[str | None], limits: Sequence[int]) -> list[Choice]:
    return [
        Choice(name, limit) if limit and name is not None else NO_DRAFT
        for name, limit in zip(names, limits, strict=True)
    ]
