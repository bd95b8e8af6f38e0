"""Pictures of speed: speedup with intervals, break-even, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.local.run import Described
from paceline.bench.stats import Ratio
from paceline.report.canvas import (
    canvas,
    first_of,
    label,
    legend,
    legend_height,
    names_of,
    style,
    width_of,
)
from paceline.report.document import Cell, Plot, Table
from paceline.report.summary import Group, Summary
from paceline.report.svg import GRID, INK, MUTED, PAPER, SERIES, SHADE
from paceline.report.words import name_cell, scope_words, times, title

_MOST_SCOPES = 24
_HATCHES = ("", "////", "....")


def speed_up(summary: Summary, group: Group) -> Plot | None:
    rated = [one for one, _ in summary.rated(group)]
    drafted = [one for one in group.drafted if one in rated]
    if not drafted:
        return None
    scopes = _scopes(summary)

    def draw() -> Any:
        step = 0.17 * len(drafted) + 0.22
        rows = [label(scope_words(scope)) for scope in scopes]
        figure = canvas(
            step * len(scopes), left=width_of(rows) + 0.25, top=legend_height(names_of(drafted))
        )
        panel = figure.subplots()
        handles = [
            _draw_ratios(panel, summary, group, one, place, len(drafted), scopes)
            for place, one in enumerate(drafted)
        ]
        panel.set_yticks(range(len(scopes)), rows)
        panel.set_ylim(len(scopes) - 0.5, -0.5)
        for border in range(1, len(scopes)):
            panel.axhline(border - 0.5, color=GRID, linewidth=0.7)
        ends = [
            end
            for one in drafted
            for scope in scopes
            if (ratio := summary.ratio(one.name, scope)) is not None
            for end in _ends(ratio)
        ]
        ratio_axis(panel, min(ends), max(ends))
        legend(panel, handles)
        return figure

    return Plot(
        "Times plain by category",
        f"Times plain of {len(drafted)} configurations in {len(scopes)} rows, with 95 % intervals; "
        "at 1 a draft takes as long as plain decoding, left of it it is slower."
        f"{_room(summary)}",
        draw,
    )


def _room(summary: Summary) -> str:
    known = len(summary.categories)
    return first_of(min(known, _MOST_SCOPES), known)


def _scopes(summary: Summary) -> list[str | None]:
    """Rows of a plot: the first categories, and all prompts."""
    if len(summary.categories) <= _MOST_SCOPES:
        return summary.scopes
    return [*summary.categories[:_MOST_SCOPES], None]


def _ends(ratio: Ratio) -> tuple[float, float]:
    """Of its interval; without one, itself."""
    if ratio.low is None or ratio.high is None:
        return ratio.value, ratio.value
    return ratio.low, ratio.high


def _draw_ratios(
    panel: Any,
    summary: Summary,
    group: Group,
    one: Described,
    place: int,
    count: int,
    scopes: Sequence[str | None],
) -> Any:
    look = style(group, one)
    offset = (place - (count - 1) / 2) * 0.72 / count
    xs, ys, reach = [], [], []
    for row, scope in enumerate(scopes):
        ratio = summary.ratio(one.name, scope)
        if ratio is not None:
            low, high = _ends(ratio)
            xs.append(ratio.value)
            ys.append(row + offset)
            reach.append((ratio.value - low, high - ratio.value))
    return panel.errorbar(
        xs,
        ys,
        xerr=list(zip(*reach, strict=True)),
        color=look.color,
        marker=look.marker,
        linestyle="none",
        elinewidth=1.6,
        capsize=3,
        markersize=6,
        label=label(title(one), 44),
    )


_TICKS = (1, 2, 0.5, 1.5, 3, 5, 0.7, 10, 0.3, 20, 0.2, 0.1, 50, 0.05, 1.2, 0.8, 4, 0.9, 1.1)
"""The more wanted first."""


def ratio_axis(panel: Any, low: float, high: float) -> None:
    """A logarithmic axis, so that half and twice are equally far from 1; shaded below 1."""
    low, high = 0.95 * min(0.95, max(low, 0.02)), 1.05 * max(1.05, high)
    shown: list[float] = []
    apart = 0.07 * math.log(high / low)
    for tick in _TICKS:
        if low <= tick <= high and all(abs(math.log(tick / t)) >= apart for t in shown):
            shown.append(tick)
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    panel.set_xticks(shown, [f"{tick:g}×" for tick in shown])
    panel.set_xticks([], minor=True)
    panel.axvspan(low, 1, color=SHADE, linewidth=0, zorder=0)
    panel.axvline(1, color=INK, linewidth=1.3)
    panel.grid(axis="x")
    panel.set_xlabel("speedup (shaded: slower than plain decoding)")


# Break-even.


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a configuration stands: what a round costs, in plain tokens, and what it gives."""

    one: Described
    category: str | None
    cost: float
    tokens: float


def break_even(summary: Summary, group: Group) -> Plot | None:
    spots = [
        spot
        for one in group.drafted
        for category in summary.scopes
        if (spot := _spot(summary, group, one, category)) is not None
    ]
    if not spots:
        return None

    def draw() -> Any:
        shown = {spot.one.name: spot.one for spot in spots}
        body, room = 3.6, 0.2  # above the panel, for labels of lines that leave it there
        top = legend_height(names_of(list(shown.values()))) + room
        figure = canvas(body, right=0.85, top=top)
        panel = figure.subplots()
        across = max(1.6, 1.06 * max(spot.cost for spot in spots))
        up = max(1.6, 1.08 * max(spot.tokens for spot in spots))
        left = min(0.8, 0.94 * min(spot.cost for spot in spots))
        ends = [left, max(across, up)]
        panel.fill_between(ends, 0, ends, color=SHADE, linewidth=0, zorder=0)
        panel.plot(ends, ends, color=INK, linewidth=1.4)
        gains = [gain for gain in (1, 1.5, 2, 3) if gain * left < 0.95 * up]
        for gain in gains[1:]:
            panel.plot(
                ends, [gain * end for end in ends], color=MUTED, linewidth=0.7, linestyle=":"
            )
        _label_lines(panel, gains, across, up)
        drawn = [spot for spot in spots if spot.category in _scopes(summary)]
        handles = [_draw_spots(panel, group, one, drawn) for one in shown.values()]
        panel.set_xlim(left, across)
        panel.set_ylim(min(0.8, 0.94 * min(spot.tokens for spot in spots)), up)
        panel.grid()
        panel.set_xlabel("cost of a round, in plain tokens (shaded: drafting loses time)")
        panel.set_ylabel("tokens per round")
        legend(panel, handles, room / body)
        return figure

    rows = tuple(
        (
            name_cell(spot.one),
            scope_words(spot.category),
            f"{spot.cost:.2f}",
            f"{spot.tokens:.2f}",
            times(summary.ratio(spot.one.name, spot.category)),
        )
        for spot in spots
    )
    return Plot(
        "Break-even",
        "Tokens per round over what a round costs, in plain tokens. On the line both are equal; "
        "above it drafting pays. Large filled marks are all prompts, small hollow ones categories."
        f"{_room(summary)}",
        draw,
        Table(
            ("configuration", "category", "cost of a round", "tokens per round", "speedup"),
            rows,
            "What a round costs and gives",
            words=2,
        ),
    )


def _spot(summary: Summary, group: Group, one: Described, category: str | None) -> Spot | None:
    baseline = summary.stats(group.baseline.name, category).ms_per_token
    stats = summary.stats(one.name, category)
    if not baseline or stats.tokens_per_round is None:
        return None
    return Spot(
        one, category, 1e3 * stats.decode_s / stats.rounds / baseline, stats.tokens_per_round
    )


def _draw_spots(panel: Any, group: Group, one: Described, spots: Sequence[Spot]) -> Any:
    look = style(group, one)
    mine = [spot for spot in spots if spot.one.name == one.name]
    whole = [spot for spot in mine if spot.category is None] or mine
    parts = [spot for spot in mine if spot not in whole]
    common = {"color": look.color, "marker": look.marker, "linestyle": "none", "zorder": 3}
    panel.plot(
        [spot.cost for spot in parts],
        [spot.tokens for spot in parts],
        markersize=6,
        markerfacecolor="none",
        **common,
    )
    [handle] = panel.plot(
        [spot.cost for spot in whole],
        [spot.tokens for spot in whole],
        markersize=10,
        markeredgecolor=PAPER,
        label=label(title(one), 44),
        **common,
    )
    return handle


def _label_lines(panel: Any, gains: Sequence[float], across: float, up: float) -> None:
    """Each line's speedup where it leaves the panel."""
    for gain in gains:
        words = "break-even" if gain == 1 else f"{gain:g}×"
        if gain * across <= up:
            place = {"xy": (across, gain * across), "xytext": (4, 0), "va": "center", "ha": "left"}
        else:
            place = {"xy": (up / gain, up), "xytext": (0, 2), "va": "bottom", "ha": "center"}
        panel.annotate(
            words,
            textcoords="offset points",
            fontsize=9.5,
            color=INK if gain == 1 else MUTED,
            annotation_clip=False,
            **place,
        )


# Where the time goes.


def time_split(summary: Summary, group: Group) -> Plot | None:
    known = [one for one in group.every if summary.stats(one.name).ms_per_token is not None]
    if not known:
        return None
    parts = ("verify_s", "draft_s", "other_s")
    names = ("target's passes", "draft", "all else")
    shares = {
        one.name: [
            1e3 * getattr(summary.stats(one.name), part) / summary.stats(one.name).tokens
            for part in parts
        ]
        for one in known
    }

    def draw() -> Any:
        rows = [label(title(one)) for one in known]
        figure = canvas(0.38 * len(known), left=width_of(rows) + 0.25, top=legend_height(names))
        panel = figure.subplots()
        colors = (SERIES[0], SERIES[1], MUTED)
        lefts = [0.0] * len(known)
        handles = []
        for part, (name, color, hatch) in enumerate(zip(names, colors, _HATCHES, strict=True)):
            widths = [shares[one.name][part] for one in known]
            handles.append(
                panel.barh(
                    range(len(known)),
                    widths,
                    left=lefts,
                    height=0.62,
                    facecolor=color,
                    edgecolor=PAPER,
                    hatch=hatch,
                    label=name,
                )
            )
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        for row, total in enumerate(lefts):
            panel.annotate(
                f"{total:.1f}", (total, row), (4, 0), textcoords="offset points", va="center"
            )
        panel.set_xlim(0, 1.1 * max(lefts))
        panel.set_yticks(range(len(known)), rows)
        panel.set_ylim(len(known) - 0.5, -0.5)
        panel.grid(axis="x")
        panel.set_xlabel("milliseconds per token")
        legend(panel, handles)
        return figure

    rows: tuple[tuple[str | Cell, ...], ...] = tuple(
        (name_cell(one), *(f"{ms:.2f}" for ms in shares[one.name]), f"{sum(shares[one.name]):.2f}")
        for one in known
    )
    return Plot(
        "Where the time goes",
        "Milliseconds per token by configuration, split into the target's passes, the draft, and "
        "all else.",
        draw,
        Table(("configuration", *names, "together"), rows, "Milliseconds per token"),
    )
