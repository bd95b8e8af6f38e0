"""What a server counted between two moments, and how it spread over the readings in between."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from paceline.errors import SettingError
from paceline.monitor.counters import (
    Counters,
    Series,
    SeriesKey,
    between,
    fell,
    load_of,
    models_of,
    named,
    number,
    number_or_none,
    read_counters,
    restarted,
    series_of,
)
from paceline.monitor.prometheus import Metrics
from paceline.monitor.spread import LEAST_PARTS, Interval, Sums, of_ratio, t


@dataclass(frozen=True, slots=True)
class Scrape:
    """A page, or the pages of a deployment's workers, at one moment.

    at_s       by a clock that never goes back
    clock_s    Unix time
    workers    how many servers count here: pages, and Dynamo's workers on one
    models     those whose counters these are, where the pages tell names
    """

    at_s: float
    clock_s: float
    counters: Counters
    series: Series
    running: float | None = None
    waiting: float | None = None
    workers: int = 1
    models: tuple[str, ...] = ()


def reading_of(
    pages: Sequence[Metrics],
    at_s: float,
    clock_s: float,
    model: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Scrape:
    """Several pages are several workers: their counters add up. Raises SettingError for pages of
    different servers, and as `read_counters` does."""
    whole: Counters | None = None
    workers, models = 0, set[str]()
    series: dict[SeriesKey, float] = {}
    loads: list[tuple[float | None, float | None]] = []
    for place, metrics in enumerate(pages):
        counters = read_counters(metrics, model, labels)
        if whole is not None and counters.server != whole.server:
            raise SettingError(
                f"One page is of {whole.server}, another of {counters.server}.",
                "Watch one deployment at a time.",
            )
        whole = counters if whole is None else whole + counters
        apart = (("metrics", str(place)),) if len(pages) > 1 else ()
        each = series_of(metrics, model, labels)
        series |= {(name, (*apart, *which)): v for (name, which), v in each.items()}
        loads.append(load_of(metrics, model, labels))
        workers += len({value for key in each for name, value in key[1] if name == _WORKER}) or 1
        models |= models_of(metrics, model)
    assert whole is not None, "no page"
    running, waiting = (_sum(side) for side in zip(*loads, strict=True))
    return Scrape(
        at_s,
        clock_s,
        replace(whole, started_s=None),
        series,
        running,
        waiting,
        workers,
        tuple(sorted(models)),
    )


_WORKER = "worker_id"


@dataclass(frozen=True, slots=True)
class Window:
    """Some time of a server.

    seconds     its length
    parts       what was counted from reading to reading; together that is the window
    running     requests at work, mean over the readings; `waiting` in the queue
    workers     whose counters these are the sums of
    """

    started: float
    seconds: float
    total: Counters
    parts: tuple[Counters, ...]
    running: float | None = None
    waiting: float | None = None
    workers: int = 1

    @property
    def server(self) -> str | None:
        return self.total.server

    @property
    def tokens(self) -> float | None:
        """Tokens of answers, those of prompts' ends included."""
        return self.total.generated

    @property
    def load(self) -> float | None:
        """Sequences decoded together on a worker: mean over forwards where the server counts them,
        else seconds of all answers together over those of the window. At least 1; None if
        unknown."""
        if self.total.batch is not None:
            return max(1.0, self.total.batch)
        if self.total.timed_s is not None and self.seconds:
            return max(1.0, self.total.timed_s / self.seconds / self.workers)
        return None if self.running is None else max(1.0, self.running / self.workers)

    @property
    def rounds(self) -> float | None:
        """All rounds after first tokens, drafted or not. Where a server counts only drafted ones,
        each of the others gave one token: tokens = rounds + accepted."""
        total = self.total
        if total.steps is not None:
            return total.steps
        if total.rounds is not None:
            return total.rounds
        if total.timed_tokens is None or total.accepted is None:
            return None
        return max(total.timed_tokens - total.accepted, total.drafts or 0.0)

    @property
    def tokens_per_round(self) -> float | None:
        """Over all rounds, bonus included; `rounds` says how they are known."""
        known = self.total.tokens_per_round
        if known is not None or not self.rounds or not self.total.timed_tokens:
            return known
        return self.total.timed_tokens / self.rounds

    @property
    def time(self) -> Sums:
        """Seconds between tokens over those tokens."""
        return self._sums("timed_s", "timed_tokens")

    @property
    def drafting(self) -> Sums:
        """Accepted tokens over rounds with a draft; else tokens over all verified rounds."""
        if self.total.drafts is None:
            return self._sums("generated", "steps")
        return self._sums("accepted", "drafts")

    @property
    def tokens_a_drafted_round(self) -> Interval | None:
        """Emitted tokens over rounds with a draft, bonus included; over all verified rounds of a
        server that counts only those. None if it can't be had, or its spread can't."""
        if self.total.drafts is None:
            return of_ratio(self.drafting) if self.drafting.usable else None
        accepted = self.drafting
        if accepted.filled < LEAST_PARTS:
            return None
        if not accepted.usable:
            return self.of_counts()  # none accepted: no spread to see
        more = of_ratio(accepted)
        spread = Interval(1 + more.value, 1 + more.low, 1 + more.high)
        counts = self.of_counts()
        return counts if counts and counts.high - counts.low > spread.high - spread.low else spread

    def of_counts(self) -> Interval | None:
        """The same by the counts alone, as if rounds were independent: what is accepted in a round
        has mean Σ s and second moment Σ (2i − 1) s over positions i with acceptance s."""
        total = self.total
        acceptance = [n / total.drafts for n in total.accepted_by_position] if total.drafts else []
        if not acceptance or not total.drafts:
            return None
        mean = sum(acceptance)
        variance = sum((2 * i - 1) * s for i, s in enumerate(acceptance, 1)) - mean**2
        half = t(total.drafts) * max(0.0, variance / total.drafts) ** 0.5
        return Interval(1 + mean, max(1.0, 1 + mean - half), 1 + mean + half)

    def _sums(self, top: str, bottom: str) -> Sums:
        pairs = [(getattr(part, top), getattr(part, bottom)) for part in self.parts]
        if any(value is None for pair in pairs for value in pair):
            return Sums((), ())
        return Sums(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))

    def as_json(self) -> dict[str, Any]:
        """What `window_from_json` reads."""
        return {
            "started": self.started,
            "seconds": self.seconds,
            "running": self.running,
            "waiting": self.waiting,
            "workers": self.workers,
            "total": self.total.as_json(),
            "parts": [{name: getattr(part, name) for name in _KEPT} for part in self.parts],
        }


_KEPT = ("timed_s", "timed_tokens", "accepted", "drafts", "generated", "steps")


def window_from_json(document: Mapping[str, Any]) -> Window:
    """Raises KeyError, TypeError, AttributeError or ValueError for what is none."""
    total = Counters.from_json(document["total"])
    seconds, workers = number(document["seconds"]), int(number(document["workers"]))
    if seconds <= 0 or workers < 1:
        raise ValueError(f"{seconds:g} seconds of {workers} workers")
    return Window(
        started=number(document["started"]),
        seconds=seconds,
        total=total,
        parts=tuple(
            Counters.from_json({"server": total.server, **{name: part[name] for name in _KEPT}})
            for part in document["parts"]
        ),
        running=number_or_none(document["running"]),
        waiting=number_or_none(document["waiting"]),
        workers=workers,
    )


def break_between(before: Scrape, after: Scrape, known: Collection[SeriesKey] = ()) -> str | None:
    """Why nothing can be said of the time between two readings; None if all is well.

    known    series of any reading so far. One that comes back was only missing from a page, and
             what it counts is no growth
    """
    if before.counters.server not in (None, after.counters.server):
        return f"the page is of {after.counters.server or 'no server known'} now"
    if reason := fell(before.series, after.series):
        return reason
    back = [key for key in after.series if key in known and key not in before.series]
    if back:
        return f"{named(back[0])} is back"
    return "they went back" if restarted(before.counters, after.counters) else None


def window_of(scrapes: Sequence[Scrape]) -> Window:
    """From two readings or more, with no break between them."""
    parts = tuple(
        part
        for before, after in pairwise(scrapes)
        if (part := between(before.counters, after.counters)) is not None
    )
    first, last = scrapes[0], scrapes[-1]
    total = between(first.counters, last.counters)
    assert total is not None, "a break within a window"
    return Window(
        started=first.clock_s,
        seconds=last.at_s - first.at_s,
        total=total,
        parts=parts,
        running=_mean([one.running for one in scrapes]),
        waiting=_mean([one.waiting for one in scrapes]),
        workers=last.workers,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
