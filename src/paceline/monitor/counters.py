"""The draft counters of vLLM, SGLang, TensorRT-LLM and llama.cpp's server in one form.

Each server counts something a little different under a similar name; `Dialect.says` puts into words
what. A figure that a server doesn't count is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from paceline.errors import SettingError
from paceline.monitor.dialects import STARTED, SUMS, Dialect, Names, dialect_of, says
from paceline.monitor.prometheus import Metrics, Sample

__all__ = ["Counters", "between", "dialect_of", "read_counters", "restarted", "says"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server has counted since it started, or between two moments.

    drafts … engine_steps   as `Dialect` has them
    by position    accepted (drafted) tokens at each position of a draft, from its first on; empty
                   where the server doesn't tell
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
        if not self.drafted or self.accepted is None:
            return None
        return self.accepted / self.drafted

    @property
    def tokens_per_drafted_round(self) -> float | None:
        """1 + accepted / drafts, over rounds that verified a draft."""
        if not self.drafts or self.accepted is None:
            return None
        return 1 + self.accepted / self.drafts

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens over all rounds of a server with drafts, where all are counted; bonus included."""
        if self.steps and self.generated is not None:
            return self.generated / self.steps
        if self.drafts is not None and self.rounds and self.timed_tokens is not None:
            return self.timed_tokens / self.rounds
        return None

    @property
    def s_per_token(self) -> float | None:
        """Seconds between tokens of an answer over those tokens; the prompt's is left out where the
        server counts answers."""
        if self.timed_s is None or not self.timed_tokens:
            return None
        return self.timed_s / self.timed_tokens

    @property
    def batch(self) -> float | None:
        """Sequences in a forward, while there were any."""
        if not self.engine_steps or self.sequences is None:
            return None
        return self.sequences / self.engine_steps

    @property
    def accepted_at(self) -> tuple[float, ...]:
        """By position, the share of drafted rounds whose token there was accepted. Empty if the
        server doesn't tell."""
        if not self.drafts:
            return ()
        return tuple(accepted / self.drafts for accepted in self.accepted_by_position)

    def __add__(self, other: Counters) -> Counters:
        """Two stretches of one server together; a figure that either lacks is unknown."""
        return self._joined(other, 1)

    def _joined(self, other: Counters, sign: int) -> Counters:
        def sums(name: str) -> float | None:
            ours, theirs = getattr(self, name), getattr(other, name)
            return None if ours is None or theirs is None else ours + sign * theirs

        return Counters(
            self.server,
            **{name: sums(name) for name in _SUMS},
            drafted_by_position=_add(self.drafted_by_position, other.drafted_by_position, sign),
            accepted_by_position=_add(self.accepted_by_position, other.accepted_by_position, sign),
            recent=self.recent,
            started_s=self.started_s,
        )

    def as_json(self) -> dict[str, Any]:
        document = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**document, "recent": dict(self.recent)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Counters:
        values = {one.name: document[one.name] for one in fields(cls) if one.name in document}
        for name in (*_SUMS, "started_s"):
            values[name] = number_or_none(values.get(name))
        for name in _BY_POSITION:
            values[name] = tuple(map(number, values.get(name, ())))
        values["recent"] = {key: number(each) for key, each in values.get("recent", {}).items()}
        if not isinstance(values.get("server"), str | None):
            raise TypeError(f"{values['server']!r:.40} is no server")
        return cls(**values)


def number(value: object) -> float:
    """As a file may hold it. Raises TypeError for what is none, and ValueError for one that nobody
    counts."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    if not math.isfinite(value):
        raise ValueError(f"{value} is no count")
    return float(value)


def number_or_none(value: object) -> float | None:
    return None if value is None else number(value)


_SUMS = (*SUMS, "sequences")
_BY_POSITION = ("drafted_by_position", "accepted_by_position")


def read_counters(
    metrics: Metrics, model: str | None = None, labels: Mapping[str, str] | None = None
) -> Counters:
    """What a page says, summed over its series (engines, ranks, workers).

    model     whose counters, where the page has those of several
    labels    only series with these labels, such as one of a deployment's components

    Raises SettingError if it has several models and not this one.
    """
    dialect = dialect_of(metrics)
    if dialect is None:
        return Counters()
    look = _Look(metrics, dialect, {**(labels or {}), **_only(metrics, dialect, model)})
    sums: dict[str, float | None] = {n: look.total(getattr(dialect, n)) for n in SUMS}
    drafted_there = look.by_position(dialect.drafted_by_position)
    accepted_there = look.by_position(dialect.accepted_by_position)
    if drafted_there:
        # All three of the same answers: other sums may be of some that these don't count yet.
        sums["drafts"] = drafted_there[0]  # each draft has a first token
        sums["drafted"], sums["accepted"] = sum(drafted_there), sum(accepted_there)
        accepted_there = _add(accepted_there, (0.0,) * len(drafted_there), 1)
    if not dialect.timed_tokens:
        sums["timed_tokens"] = _less(sums["generated"], sums["firsts"])
    return Counters(
        server=dialect.server,
        **sums,
        sequences=_sequences(sums, look.mean(dialect.busy)),
        drafted_by_position=drafted_there,
        accepted_by_position=accepted_there,
        recent={
            ours: value
            for ours, name in dialect.recent.items()
            if (value := look.mean((name,))) is not None
        },
        started_s=metrics.total(STARTED),
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """A page's series of one model, by any of a counter's names."""

    metrics: Metrics
    dialect: Dialect
    only: Mapping[str, str]

    def found(self, names: Names) -> list[Sample]:
        """Of the first name that is there, with `_total` or without. What is no number counts
        nothing."""
        for name in names:
            for spelt in (name, name.removesuffix("_total")):
                samples = self.metrics.named(spelt, **self.only)
                if finite := [one for one in samples if math.isfinite(one.value)]:
                    return finite
        return []

    def total(self, names: Names) -> float | None:
        values = [sample.value for sample in self.found(names)]
        return sum(values, 0.0) if values else None

    def mean(self, names: Names) -> float | None:
        values = [sample.value for sample in self.found(names)]
        return sum(values) / len(values) if values else None

    def by_position(self, names: Names) -> tuple[float, ...]:
        places: dict[int, float] = {}
        for sample in self.found(names):
            place = sample.labels.get(self.dialect.position, "")
            if place.isdecimal():
                places[int(place)] = places.get(int(place), 0.0) + sample.value
        return tuple(places.get(i, 0.0) for i in range(max(places, default=-1) + 1))


def load_of(
    metrics: Metrics, model: str | None = None, labels: Mapping[str, str] | None = None
) -> tuple[float | None, float | None]:
    """Requests at work and in the queue, at this moment."""
    dialect = dialect_of(metrics)
    if dialect is None:
        return None, None
    look = _Look(metrics, dialect, {**(labels or {}), **_only(metrics, dialect, model)})
    return look.total(dialect.running), look.total(dialect.waiting)


def models_of(metrics: Metrics, model: str | None = None) -> set[str]:
    """The models that a page counts for, by name; of several the chosen one."""
    dialect = dialect_of(metrics)
    names = set[str]() if dialect is None else metrics.values_of("model_name", dialect.prefixes)
    return {model} if model in names else names


SeriesKey = tuple[str, tuple[tuple[str, str], ...]]
"""A name with its labels."""

Series = Mapping[SeriesKey, float]
"""Counters one by one."""


def series_of(
    metrics: Metrics, model: str | None = None, labels: Mapping[str, str] | None = None
) -> Series:
    """Each counter by itself: a sum over workers hides that one of them began anew."""
    dialect = dialect_of(metrics)
    if dialect is None:
        return {}
    only = {**(labels or {}), **_only(metrics, dialect, model)}
    names = {*dialect.counters, *(name.removesuffix("_total") for name in dialect.counters)}
    found = [sample for name in names for sample in metrics.named(name, **only)]
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for sample in (*found, *metrics.named(STARTED))
        if math.isfinite(sample.value)
    }


def fell(before: Series, after: Series) -> str | None:
    """What shows that a server began anew in between, so that a difference would mean nothing; None
    if nothing does."""
    for key, old in before.items():
        new = after.get(key)
        if new is None:
            return f"{named(key)} is gone"
        if key[0] == STARTED and new != old:
            return f"the server's process started anew{_where(key)}"
        if new < old:
            return f"{named(key)} went back from {old:g} to {new:g}"
    return None


def named(key: SeriesKey) -> str:
    """A series in words."""
    return f"{key[0]}{_where(key)}"


def _where(key: SeriesKey) -> str:
    told = [f"{name} {value}" for name, value in key[1] if name in _TELLING]
    return f" ({', '.join(told)})" if told else ""


_TELLING = ("engine", "worker_id", "dp_rank", "metrics", "position", "token_position")


def _less(generated: float | None, firsts: float | None) -> float | None:
    return None if generated is None or firsts is None else generated - firsts


def _sequences(sums: Mapping[str, float | None], busy: float | None) -> float | None:
    """Sequences over all forwards: each round is one in one, and so is the forward that gives an
    answer's first token."""
    steps, rounds, firsts = (sums[name] for name in ("engine_steps", "rounds", "firsts"))
    if steps is None:
        return None
    if busy is not None:
        return busy * steps  # a mean since the start, not a gauge of now
    return None if rounds is None or firsts is None else rounds + firsts


def restarted(before: Counters, after: Counters) -> bool:
    """Whether the server began anew in between, so that a difference would mean nothing: its
    process is another, or a counter fell or vanished."""
    if before.started_s != after.started_s or before.server not in (None, after.server):
        return True  # a page may have no names of a server that was never asked
    before = _as_counted(before, after)

    def less(old: float | None, new: float | None) -> bool:
        return old is not None and (new is None or new < old)

    by_position = any(
        less(old, new)
        for name in _BY_POSITION
        for old, new in zip(getattr(before, name), getattr(after, name), strict=False)
    )
    return by_position or any(less(getattr(before, n), getattr(after, n)) for n in SUMS)


def between(before: Counters, after: Counters) -> Counters | None:
    """What was counted between two readings; None if the server restarted in between. A counter
    that appears with its first count began at 0."""
    if restarted(before, after):
        return None
    before = _as_counted(before, after)
    started = {
        name: 0.0
        for name in _SUMS
        if getattr(before, name) is None and getattr(after, name) is not None
    }
    zero = {one.name: getattr(before, one.name) for one in fields(before)} | started
    return after._joined(Counters(**zero), -1)


def _as_counted(before: Counters, after: Counters) -> Counters:
    """Where drafts are counted by position since the later reading only, the sums of the earlier
    one are of other answers: these counts began at 0."""
    if after.drafted_by_position and not before.drafted_by_position:
        return replace(before, drafts=0.0, drafted=0.0, accepted=0.0)
    return before


def _add(ours: tuple[float, ...], theirs: tuple[float, ...], sign: int) -> tuple[float, ...]:
    length = max(len(ours), len(theirs))
    return tuple(
        (ours[i] if i < len(ours) else 0.0) + sign * (theirs[i] if i < len(theirs) else 0.0)
        for i in range(length)
    )


def _only(metrics: Metrics, dialect: Dialect, model: str | None) -> dict[str, str]:
    names = metrics.values_of("model_name", dialect.prefixes)
    if len(names) < 2:
        return {}
    if model not in names:
        raise SettingError(
            f"The page counts for {', '.join(sorted(names))}, not for {model}.",
            "Name one of them with --model.",
        )
    return {"model_name": model}
