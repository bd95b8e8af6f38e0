"""What forwards cost: seconds by rows, sequences and context, measured once and kept with their
steps.

A curve is only interpolated between measured widths, never smoothed and never extended: on real
kernels four rows can be cheaper than three, and sixteen than twelve.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError, SettingError, unknown_name
from paceline.storage import decode_struct

KIND, VERSION = "paceline costs", 1


class _Timed:
    """Seconds with quartiles: `seconds` is the median.

    Other work on the machine can only slow a forward down, so decisions go by the lower quartile,
    `least_s`, where there is one: it is what the forward takes on an idle machine.
    """

    __slots__ = ()
    seconds: float
    low: float | None
    high: float | None

    @property
    def least_s(self) -> float:
        """What decisions go by."""
        return self.seconds if self.low is None else min(self.low, self.seconds)

    def check(self, what: str) -> None:
        """Raises DataError for seconds that are not above 0."""
        for seconds in (self.seconds, self.low, self.high):
            if seconds is not None and not 0 < seconds < math.inf:
                raise DataError(f"The cost of {what} is {seconds} seconds.", "It must be above 0.")


@dataclass(frozen=True, slots=True)
class Point(_Timed):
    """Measured seconds of one kind of forward.

    rows         rows scored, of all sequences together
    sequences    sequences that shared the forward, with as many rows each
    context      tokens that each sequence held before
    seconds      median; `low` and `high` are quartiles
    samples      how often it was measured; 0 for a published figure
    """

    rows: int
    sequences: int
    context: int
    seconds: float
    low: float | None = None
    high: float | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Feed(_Timed):
    """Seconds of feeding so many tokens when only the last one's row is wanted, as a draft does
    that has fallen behind. Median and quartiles, as of a `Point`."""

    tokens: int
    seconds: float
    low: float | None = None
    high: float | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCosts:
    """A published straight line: base_s + rows · row_s + held tokens · context_token_s."""

    base_s: float
    row_s: float
    most_rows: int
    context_token_s: float = 0.0
    longest_context: int = 0

    def points(self) -> Iterator[Point]:
        """Its corners."""
        for sequences in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            for context in dict.fromkeys((0, self.longest_context)):
                for rows in dict.fromkeys((sequences, self.most_rows)):
                    if sequences <= rows:
                        held_s = sequences * context * self.context_token_s
                        seconds = self.base_s + rows * self.row_s + held_s
                        yield Point(rows, sequences, context, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What one model's forwards cost on one machine; also the document of `paceline profile`, whose
    fields docs/costs-file.md explains.

    key           what the figures hold for: model, engine, device, threads, dtype, machine
    points        at least one with a single row of a single sequence
    linear        a line whose corners join the points
    feeds         for catching up; without them, a token costs what a row costs
    overhead_s    seconds a round takes outside forwards
    drafts        costs of models that may draft for this one, by name
    source        where the figures come from
    complete      false if measuring was interrupted: what there is was measured all the same
    """

    kind: str = KIND
    version: int = VERSION
    source: str = "unknown"
    complete: bool = True
    key: Mapping[str, Any] = field(default_factory=dict)
    overhead_s: float = 0.0
    points: tuple[Point, ...] = ()
    linear: LinearCosts | None = None
    feeds: tuple[Feed, ...] = ()
    drafts: Mapping[str, Costs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.linear is not None:
            object.__setattr__(self, "points", (*self.points, *self.linear.points()))
            object.__setattr__(self, "linear", None)
        for point in self.points:
            point.check(f"{point.rows} rows of {point.sequences} sequences")
            if not 1 <= point.sequences <= point.rows or point.context < 0:
                raise DataError(
                    f"The costs have a point of {point.rows} rows, {point.sequences} sequences "
                    f"and context {point.context}.",
                    "Each sequence has 1 row or more, and a context of 0 or more.",
                )
        for feed in self.feeds:
            feed.check(f"feeding {feed.tokens} tokens")
            if feed.tokens < 1:
                raise DataError(
                    f"The costs have feeding {feed.tokens} tokens.", "It must be 1 token or more."
                )
        if not 0 <= self.overhead_s < math.inf:
            raise DataError(f"overhead_s is {self.overhead_s}.", "It must be 0 or more.")
        alone = [point for point in self.points if point.sequences == 1]
        least = min((point.context for point in alone), default=0)
        if not any(point.rows == 1 and point.context == least for point in alone):
            raise DataError(
                "The costs have no point for one row of one sequence at the shortest context.",
                "Without it nothing can be compared: measure again with `paceline profile`.",
            )

    @property
    def sequences(self) -> list[int]:
        """Numbers of sequences that were measured, smallest first."""
        return sorted({point.sequences for point in self.points})

    @property
    def contexts(self) -> list[int]:
        """Context lengths that were measured, shortest first."""
        return sorted({point.context for point in self.points})

    def table(self, sequences: int = 1, context: int = 0) -> np.ndarray:
        """Seconds of a forward by its rows, as an array: entry r for r rows, infinite where that
        was not measured (below `sequences`, and beyond the widest).

        Between measured numbers of sequences and context lengths it is interpolated; beyond them
        the nearest measured one holds.
        """
        table = _between(self.sequences, sequences, lambda n: self._at(n, context))
        table[:sequences] = np.inf
        return table

    def _at(self, sequences: int, context: int) -> np.ndarray:
        curves = {
            length: curve
            for length in self.contexts
            if (curve := self._curve(sequences, length)) is not None
        }
        base = curves[min(curves)]
        # Longer contexts are measured at fewer widths: what they add is interpolated instead.
        added = _between(sorted(curves), context, lambda length: curves[length][1])
        reach = max(rows for rows, _ in base[0])
        table = np.full(reach + 1, np.inf)
        rows = np.arange(base[0][0][0], reach + 1)
        xs, ys = zip(*base[0], strict=True)
        table[rows] = np.interp(rows, xs, ys)
        table += added[: reach + 1]
        return table

    def _curve(
        self, sequences: int, context: int
    ) -> tuple[list[tuple[int, float]], np.ndarray] | None:
        """Measured (rows, seconds) at one context, and what each row count costs more there than
        at the shortest context."""
        mine = [point for point in self.points if point.sequences == sequences]
        found = sorted((point.rows, point.least_s) for point in mine if point.context == context)
        if not found:
            return None
        least = min(point.context for point in mine)
        shortest = {point.rows: point.least_s for point in mine if point.context == least}
        both = [(rows, seconds - shortest[rows]) for rows, seconds in found if rows in shortest]
        everything = np.arange(max(max(shortest), found[-1][0]) + 1)
        if not both:
            return found, np.zeros(len(everything))
        xs, ys = zip(*both, strict=True)
        return found, np.interp(everything, xs, ys)

    def forward_s(self, rows: int, sequences: int = 1, context: int = 0) -> float:
        """Seconds of one forward; infinite if so many rows were not measured."""
        table = self.table(sequences, context)
        return float(table[rows]) if 0 <= rows < len(table) else math.inf

    def r(self, width: int, context: int = 0) -> float:
        """Seconds for a width over seconds for width 1, one sequence."""
        return self.forward_s(width, 1, context) / self.forward_s(1, 1, context)

    def feed_s(self, tokens: int) -> float:
        """Seconds to feed tokens and score the last: between measured counts interpolated, beyond
        the largest in proportion to it, because long texts are fed in equal parts."""
        return float(self._feeds_s(np.asarray(tokens)))

    def feeds_s(self, most: int) -> np.ndarray:
        """`feed_s` of 0 to `most` tokens."""
        return self._feeds_s(np.arange(most + 1))

    def _feeds_s(self, tokens: np.ndarray) -> np.ndarray:
        known, seconds = self._feed_curve()
        beyond = seconds[-1] * tokens / known[-1]
        found = np.where(tokens > known[-1], beyond, np.interp(tokens, known, seconds))
        return np.where(tokens > 0, found, 0.0)

    def _feed_curve(self) -> tuple[list[int], list[float]]:
        if self.feeds:
            measured = {1: self.forward_s(1)} | {feed.tokens: feed.least_s for feed in self.feeds}
        else:  # then a token costs what a row costs
            measured = {rows: float(s) for rows, s in enumerate(self.table()) if s < np.inf}
        known = sorted(measured)
        return known, [measured[tokens] for tokens in known]

    def as_document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def _between(known: Sequence[int], wanted: int, curve: Callable[[int], np.ndarray]) -> np.ndarray:
    """A curve between the two of `known` around `wanted`; beyond them the nearest one. Rows that
    only one of the two has are that one's."""
    at = bisect_left(known, wanted)
    if at == len(known) or known[at] == wanted or at == 0:
        return curve(known[min(at, len(known) - 1)]).copy()
    low, high = known[at - 1], known[at]
    share = (wanted - low) / (high - low)
    curves = [curve(low), curve(high)]
    length = max(map(len, curves))
    first, second = (np.append(c, np.full(length - len(c), np.inf)) for c in curves)
    both = np.isfinite(first) & np.isfinite(second)
    nearest: np.ndarray = np.minimum(first, second)  # the finite one, where there is but one
    nearest[both] = (1 - share) * first[both] + share * second[both]
    return nearest


_HINT = "`paceline profile … -o FILE` writes such a file."


def costs_of(document: Any, name: str) -> Costs:
    """Costs from JSON, text or parsed. Raises DataError, naming it, for a document that is none or
    of another version."""
    costs = decode_struct(document, Costs, name, _HINT, kind=KIND, version=VERSION)
    parsed = json.loads(document) if isinstance(document, str | bytes) else document
    _refuse_unknown_figures(parsed, name)
    return costs


def _refuse_unknown_figures(document: Mapping[str, Any], name: str) -> None:
    """A misspelt optional figure would change decisions unseen. Of every draft's costs too."""
    for place, kind in (("points", Point), ("feeds", Feed)):
        known = {one.name for one in fields(kind)}
        for at, row in enumerate(document.get(place) or ()):
            for unknown in sorted(row.keys() - known):
                raise DataError(f"{name} can't be read: {place}[{at}] has {unknown!r}.", _HINT)
    for draft, costs in (document.get("drafts") or {}).items():
        found = (costs.get("kind", KIND), costs.get("version", VERSION))
        if found != (KIND, VERSION):
            raise DataError(
                f"{name} can't be read: the draft {draft!r} is a {found[0]!r} of version "
                f"{found[1]!r}.",
                _HINT,
            )
        _refuse_unknown_figures(costs, name)


def read_costs(name: str) -> Costs:
    """Costs from a JSON file, or shipped ones by name (`shipped_costs`)."""
    if name in shipped_costs():
        return costs_of(_shipped(name).read_text(encoding="utf-8"), name)
    if not Path(name).exists() and "/" not in name and not name.endswith(".json"):
        raise unknown_name("file or shipped costs", name, shipped_costs())
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name} can't be read: {error}.", "Give a file of costs.") from None
    return costs_of(text, name)


def _shipped(name: str) -> Any:
    return files("paceline.policy").joinpath(f"shipped_costs/{name}.json")


def shipped_costs() -> list[str]:
    """Names of the costs that come with Paceline: published ones, and some of its authors'."""
    place = files("paceline.policy").joinpath("shipped_costs")
    return sorted(entry.name.removesuffix(".json") for entry in place.iterdir())


def check_key(costs: Costs, key: Mapping[str, Any], name: str) -> None:
    """Refuse costs of another model or machine. Raises SettingError naming what differs."""
    for part, here in key.items():
        there = costs.key.get(part)
        if there != here:
            raise SettingError(
                f"The costs in {name} are for {part} {there!r}; here it is {here!r}.",
                "Measure this pair with `paceline profile`.",
            )
