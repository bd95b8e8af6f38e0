"""The draft counters of vLLM, SGLang, TensorRT-LLM and llama.cpp's server in one form.

`Dialect.says` puts into words what each counts. What a server doesn't count is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import msgspec

from paceline.errors import SettingError
from paceline.monitor.dialects import (
    BY_POSITION,
    STARTED,
    SUMS,
    UNKNOWN_SERVER,
    Dialect,
    Names,
    dialect_of,
)
from paceline.monitor.scrape import Metrics, MetricSample


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server has counted since it started, or between two moments.

    drafts … engine_steps   as `Dialect` has them
    by position    accepted (drafted) tokens at each position of a draft, from its first on; empty
                   where they aren't counted
    sequences      in forwards of the whole batch, over `engine_steps`
    started_s      when the server's process started, if it tells; Unix time
    """

    server: str | None = None
    drafts: float | None = None
    steps: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    generated: float | None = None
    firsts: float | None = None
    rounds: float | None = None
    timed_s: float | None = None
    timed_tokens: float | None = None
    engine_steps: float | None = None
    sequences: float | None = None
    drafted_by_position: tuple[float, ...] = ()
    accepted_by_position: tuple[float, ...] = ()
    recent: Mapping[str, float] = field(default_factory=dict)
    started_s: float | None = None

    @property
    def has_drafts(self) -> bool:
        """Whether the server counts its drafts at all."""
        return any(x is not None for x in (self.drafts, self.steps, self.drafted, self.accepted))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None if nothing was drafted or it isn't counted."""
        return _over(self.accepted, self.drafted)

    @property
    def tokens_per_drafted_round(self) -> float | None:
        """1 + accepted / drafts, over rounds that verified a draft."""
        accepted = _over(self.accepted, self.drafts)
        return None if accepted is None else 1 + accepted

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens over all rounds of a server with drafts, where all are counted; bonus included."""
        if self.steps and self.generated is not None:
            return self.generated / self.steps
        return None if self.drafts is None else _over(self.timed_tokens, self.rounds)

    @property
    def s_per_token(self) -> float | None:
        """Seconds between tokens of an answer over those tokens, without the prompt's where the
        server counts answers."""
        return _over(self.timed_s, self.timed_tokens)

    @property
    def batch(self) -> float | None:
        """Sequences in a forward, while there were any."""
        return _over(self.sequences, self.engine_steps)

    @property
    def accepted_at(self) -> tuple[float, ...]:
        """By position, the share of drafted rounds whose token there was accepted; empty if it
        isn't counted."""
        return tuple(n / self.drafts for n in self.accepted_by_position) if self.drafts else ()

    def __add__(self, other: Counters) -> Counters:
        """Two segments of one server together; a figure that either lacks is unknown."""
        return self._joined(other, 1)

    def _joined(self, other: Counters, sign: int) -> Counters:
        def joined(name: str) -> float | None:
            ours, theirs = getattr(self, name), getattr(other, name)
            return None if ours is None or theirs is None else ours + sign * theirs

        sums: dict[str, Any] = {name: joined(name) for name in _SUMS}
        sums |= {n: _add(getattr(self, n), getattr(other, n), sign) for n in BY_POSITION}
        return replace(self, **sums)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Counters:
        """Raises ValueError for a document that isn't one of counters."""
        return msgspec.convert(document, cls)


_SUMS = (*SUMS, "sequences")


def _over(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if bottom and top is not None else None


def _add(ours: tuple[float, ...], theirs: tuple[float, ...], sign: int) -> tuple[float, ...]:
    return tuple(a + sign * b for a, b in zip_longest(ours, theirs, fillvalue=0.0))


SeriesKey = tuple[str, tuple[tuple[str, str], ...]]
"""A name with its labels."""
Series = Mapping[SeriesKey, float]
"""Counters one by one."""


class ServerMetrics:
    """One scrape's series of one model, in the server's dialect.

    model     whose counters, where the server has those of several
    labels    only series with these labels, such as one of a deployment's components

    Raises SettingError if the server has several models and not this one.
    """

    def __init__(
        self, metrics: Metrics, model: str | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        self.metrics = metrics
        self.dialect: Dialect = dialect_of(metrics) or UNKNOWN_SERVER
        self._only = dict(labels or {})
        models = metrics.values_of("model_name", self.dialect.prefixes)
        if len(models) > 1:
            if model is None or model not in models:
                raise SettingError(
                    f"The page counts for {', '.join(sorted(models))}, not for {model}.",
                    "Name one of them with --model.",
                )
            self._only["model_name"] = model
        self.models = {model} if model in models else models
        """Whose counters these are, where names are told."""

    def counters(self) -> Counters:
        """The sums over all series (engines, ranks, workers)."""
        dialect = self.dialect
        sums: dict[str, float | None] = {n: self._total(getattr(dialect, n)) for n in SUMS}
        drafted_there, accepted_there = (self._at(getattr(dialect, n)) for n in BY_POSITION)
        if drafted_there:
            # All three of the same answers: other sums may be of some that these don't count yet.
            sums["drafts"] = drafted_there[0]  # each draft has a first token
            sums["drafted"], sums["accepted"] = sum(drafted_there), sum(accepted_there)
            accepted_there = _add(accepted_there, (0.0,) * len(drafted_there), 1)
        generated, firsts = sums["generated"], sums["firsts"]
        if not dialect.timed_tokens and generated is not None and firsts is not None:
            sums["timed_tokens"] = generated - firsts
        recent = {ours: self._mean((name,)) for ours, name in dialect.recent.items()}
        return Counters(
            server=dialect.server or None,
            **sums,
            sequences=self._sequences(sums),
            drafted_by_position=drafted_there,
            accepted_by_position=accepted_there,
            recent={ours: value for ours, value in recent.items() if value is not None},
            started_s=self.metrics.total(STARTED) if dialect.server else None,
        )

    def load(self) -> tuple[float | None, float | None]:
        """Requests at work and in the queue, at this moment."""
        return self._total(self.dialect.running), self._total(self.dialect.waiting)

    def series(self) -> Series:
        """Each counter by itself: a sum over workers hides that one of them restarted."""
        names = {spelt for name in self.dialect.counters for spelt in _spelt(name)}
        found = [sample for name in names for sample in self.metrics.named(name, **self._only)]
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for sample in (*found, *self.metrics.named(STARTED))
            if math.isfinite(sample.value)
        }

    def _found(self, names: Names) -> list[MetricSample]:
        """Of the first name that is there. What isn't a number counts nothing."""
        for spelt in (spelt for name in names for spelt in _spelt(name)):
            samples = self.metrics.named(spelt, **self._only)
            if finite := [one for one in samples if math.isfinite(one.value)]:
                return finite
        return []

    def _total(self, names: Names) -> float | None:
        found = self._found(names)
        return sum((sample.value for sample in found), 0.0) if found else None

    def _mean(self, names: Names) -> float | None:
        found = self._found(names)
        return sum(sample.value for sample in found) / len(found) if found else None

    def _at(self, names: Names) -> tuple[float, ...]:
        places: dict[int, float] = {}
        for sample in self._found(names):
            place = sample.labels.get(self.dialect.position, "")
            if place.isdecimal():
                places[int(place)] = places.get(int(place), 0.0) + sample.value
        return tuple(places.get(i, 0.0) for i in range(max(places, default=-1) + 1))

    def _sequences(self, sums: Mapping[str, float | None]) -> float | None:
        """Sequences over all forwards: each round is one in one, and so is the forward that gives
        an answer's first token."""
        steps, rounds, firsts = (sums[name] for name in ("engine_steps", "rounds", "firsts"))
        busy = self._mean(self.dialect.busy)
        if steps is not None and busy is not None:
            return busy * steps  # a mean since the start, not a gauge of now
        return None if steps is None or rounds is None or firsts is None else rounds + firsts


def _spelt(name: str) -> Names:
    """With `_total` and without, as versions differ."""
    return (name, name.removesuffix("_total"))


def read_counters(
    metrics: Metrics, model: str | None = None, labels: Mapping[str, str] | None = None
) -> Counters:
    """A scrape's counters; the arguments and errors are those of `ServerMetrics`."""
    return ServerMetrics(metrics, model, labels).counters()


def reset_reason(before: Series, after: Series) -> str | None:
    """What shows that a server restarted in between, so that a difference would mean nothing; None
    if nothing does."""
    for key, old in before.items():
        new = after.get(key)
        if new is None:
            return f"{series_name(key)} is gone"
        if key[0] == STARTED and new != old:
            return f"the server's process restarted{_where(key)}"
        if new < old:
            return f"{series_name(key)} went back from {old:g} to {new:g}"
    return None


def series_name(key: SeriesKey) -> str:
    """A series in words."""
    return f"{key[0]}{_where(key)}"


def _where(key: SeriesKey) -> str:
    told = [f"{name} {value}" for name, value in key[1] if name in _TELLING]
    return f" ({', '.join(told)})" if told else ""


_TELLING = ("engine", "worker_id", "dp_rank", "page", "position", "token_position")


def restarted(before: Counters, after: Counters) -> bool:
    """Whether the server restarted in between: its process is another, or a counter fell or
    vanished."""
    if before.started_s != after.started_s or before.server not in (None, after.server):
        return True  # a page may have no names of a server that was never asked
    before = _as_counted(before, after)
    pairs = [(getattr(before, name), getattr(after, name)) for name in SUMS]
    for name in BY_POSITION:
        pairs += zip(getattr(before, name), getattr(after, name), strict=False)
    return any(old is not None and (new is None or new < old) for old, new in pairs)


def between(before: Counters, after: Counters) -> Counters | None:
    """What was counted between two scrapes; None if the server restarted in between. A counter
    that appears with its first count began at 0."""
    if restarted(before, after):
        return None
    before = _as_counted(before, after)
    new: dict[str, Any] = {name: 0.0 for name in _SUMS if getattr(before, name) is None}
    return after._joined(replace(before, **new), -1)


def _as_counted(before: Counters, after: Counters) -> Counters:
    """Where drafts are counted by position since the later scrape only, the sums of the earlier
    one are of other answers: these counts began at 0."""
    if after.drafted_by_position and not before.drafted_by_position:
        return replace(before, drafts=0.0, drafted=0.0, accepted=0.0)
    return before
