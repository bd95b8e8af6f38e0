"""What a server counted between two moments, how it spread over the scrapes in between, and a file
of such windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

from paceline.errors import DataError, PacelineError, SettingError
from paceline.monitor.counters import (
    Counters,
    Series,
    SeriesKey,
    ServerMetrics,
    between,
    reset_reason,
    restarted,
    series_name,
)
from paceline.monitor.scrape import Metrics
from paceline.monitor.spread import LEAST_PARTS, Interval, Sums, of_ratio, t
from paceline.storage import GrowingFile, Line, decode_struct, whole_lines


@dataclass(frozen=True, slots=True)
class Scrape:
    """A deployment's metrics, of one server or of each of its workers, at one moment.

    at_s       by a clock that never goes back
    clock_s    Unix time
    running    requests at work; `waiting` in the queue
    workers    how many servers count here: pages, and Dynamo's workers on one
    models     those whose counters these are, where names are told
    """

    at_s: float
    clock_s: float
    counters: Counters
    series: Series
    running: float | None = None
    waiting: float | None = None
    workers: int = 1
    models: tuple[str, ...] = ()


def scrape_of(
    pages: Sequence[Metrics],
    at_s: float,
    clock_s: float,
    model: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Scrape:
    """Several pages are several workers: their counters add up. Raises SettingError for pages of
    different servers, and as `ServerMetrics` does."""
    views = [ServerMetrics(metrics, model, labels) for metrics in pages]
    whole, *others = (view.counters() for view in views)
    workers = 0
    for other in others:
        if other.server != whole.server:
            raise SettingError(
                f"One page is of {whole.server}, another of {other.server}.",
                "Watch one deployment at a time.",
            )
        whole = whole + other
    series: dict[SeriesKey, float] = {}
    for place, view in enumerate(views):
        apart = (("page", str(place)),) if others else ()
        each = view.series()
        series |= {(name, (*apart, *labels)): value for (name, labels), value in each.items()}
        workers += len({v for _, labels in each for name, v in labels if name == "worker_id"}) or 1
    running, waiting = zip(*(view.load() for view in views), strict=True)
    return Scrape(
        at_s,
        clock_s,
        replace(whole, started_s=None),
        series,
        running=_sum(running),
        waiting=_sum(waiting),
        workers=workers,
        models=tuple(sorted({name for view in views for name in view.models})),
    )


@dataclass(frozen=True, slots=True)
class Window:
    """Some time of a server.

    seconds     its length
    parts       what was counted from scrape to scrape; together that is the window
    running     requests at work, mean over the scrapes; `waiting` in the queue
    workers     whose counters these are the sums of
    """

    started: float
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    total: Counters
    parts: tuple[Counters, ...]
    running: float | None = None
    waiting: float | None = None
    workers: Annotated[int, msgspec.Meta(ge=1)] = 1

    @property
    def server(self) -> str | None:
        """Which kind of server it is."""
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
        counted = total.rounds if total.steps is None else total.steps
        if counted is not None or total.timed_tokens is None or total.accepted is None:
            return counted
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
        return counts if counts and counts.width > spread.width else spread

    def of_counts(self) -> Interval | None:
        """The same by the counts alone, as if rounds were independent: what is accepted in a round
        has mean Σ s and second moment Σ (2i − 1) s over positions i with prefix acceptance s."""
        drafts, acceptance = self.total.drafts, self.total.accepted_at
        if not acceptance or not drafts:
            return None
        mean = sum(acceptance)
        variance = sum((2 * i - 1) * s for i, s in enumerate(acceptance, 1)) - mean**2
        half = t(drafts) * max(0.0, variance / drafts) ** 0.5
        return Interval(1 + mean, max(1.0, 1 + mean - half), 1 + mean + half)

    def _sums(self, top: str, bottom: str) -> Sums:
        pairs = [(getattr(part, top), getattr(part, bottom)) for part in self.parts]
        if any(value is None for pair in pairs for value in pair):
            return Sums((), ())
        return Sums(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))

    def as_json(self) -> dict[str, Any]:
        """A line of a file of windows. Parts hold only what spreads are taken of."""
        parts = [{name: getattr(part, name) for name in _KEPT} for part in self.parts]
        return {**msgspec.to_builtins(self), "parts": parts}


_KEPT = ("server", "timed_s", "timed_tokens", "accepted", "drafts", "generated", "steps")


def break_between(before: Scrape, after: Scrape, known: Collection[SeriesKey] = ()) -> str | None:
    """Why nothing can be said of the time between two scrapes; None if all is well.

    known    series of any scrape so far. One that comes back was only missing from a page, and
             what it counts is no growth
    """
    if before.counters.server not in (None, after.counters.server):
        return f"the page is of {after.counters.server or 'an unknown server'} now"
    if reason := reset_reason(before.series, after.series):
        return reason
    back = [key for key in after.series if key in known and key not in before.series]
    if back:
        return f"{series_name(back[0])} is back"
    return "they went back" if restarted(before.counters, after.counters) else None


def window_of(scrapes: Sequence[Scrape]) -> Window:
    """From two scrapes or more, with no break between them."""
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
    total, count = _sum(values), sum(value is not None for value in values)
    return None if total is None else total / count


# A file of windows: what a server without drafts took, for later comparison.

KIND, VERSION = "paceline watch windows", 2
_MAKE = "Make one with `paceline watch URL --record FILE` while drafts are off."


@dataclass(frozen=True, slots=True)
class WindowFileHeader:
    """The first line of a file: whose windows it holds.

    pages     addresses of the metrics
    models    by the names on them; empty where the server tells none (llama.cpp)
    labels    that its series were chosen by
    """

    pages: tuple[str, ...]
    server: str | None
    models: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What a file of windows begins with."""
        return {"kind": KIND, "version": VERSION, **msgspec.to_builtins(self)}

    def difference(self, other: WindowFileHeader) -> str | None:
        """What is not the same of another, in words; None if all is."""
        for name in ("server", "models", "labels", "pages"):
            mine, its = _words(getattr(self, name)), _words(getattr(other, name))
            if mine != its:
                return f"its {name} {mine}, and here {its}"
        return None


def _words(value: str | Sequence[str] | Mapping[str, str] | None) -> str:
    if isinstance(value, str):
        return f"is {value}"
    if isinstance(value, Mapping):
        value = [f"{name}={each}" for name, each in value.items()]
    return f"are {', '.join(value or ()) or 'none'}"


def _header(line: str, path: Path) -> WindowFileHeader:
    return decode_struct(line, WindowFileHeader, str(path), _MAKE, kind=KIND, version=VERSION)


def read_windows(path: Path) -> tuple[WindowFileHeader, tuple[Window, ...]]:
    """Raises DataError for a file that holds no windows, or those of another version."""
    first, *others = whole_lines(path) or [Line(1, 0, "{}")]
    header = _header(first.text, path)
    if not others:
        raise DataError(f"{path} holds no window yet.", _MAKE)
    return header, tuple(
        decode_struct(line.text, Window, f"{path} line {line.number}", _MAKE) for line in others
    )


def _refuse_foreign(path: Path) -> None:
    """A file without one whole line is new, or a header that was cut off."""
    start = path.read_bytes()[: len(KIND) + 10] if path.is_file() else b""
    if not f'{{"kind":"{KIND}"'.encode().startswith(start):
        raise DataError(f"{path} is not a {KIND} file.")


def record_windows(path: Path, header: WindowFileHeader) -> GrowingFile:
    """A new file of windows, or one of the same server's windows that goes on."""
    file = GrowingFile.open(path)
    try:
        lines = file.lines()
        if not lines:
            _refuse_foreign(path)
            file.keep(0)
            file.write(header.as_json())
        elif other := _header(lines[0].text, path).difference(header):
            raise DataError(f"{path} holds windows of another server: {other}.")
        else:
            file.keep(lines[-1].start + len(lines[-1].text.encode()) + 1)  # a line cut off
    except PacelineError as error:
        file.close()
        raise DataError(error.fact, "Choose another file.") from None
    return file
