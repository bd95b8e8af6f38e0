"""Pictures of when drafting pays: what width costs and break-even in a report, and what
`paceline break-even --plot` draws."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from paceline.bench.local.run import Described
from paceline.errors import DataError, SettingError
from paceline.plan.break_even import BreakEven, DraftPlan, price_words, target_words
from paceline.policy.costs import costs_of
from paceline.report import canvas
from paceline.report.document import (
    NONE,
    Plot,
    Row,
    number,
    percent,
    scope_words,
    table_of,
    times,
)
from paceline.report.plots import drawn_scopes, shares_of
from paceline.report.summary import BenchSummary, Group

_LEAST_SAMPLES = 5
_Quartiles = tuple[float, float, float, int]


# Width.

_COSTS_LABEL = "costs that the policy began with"
_RUN_LABEL = "this run: median and quartiles"


def width_cost(summary: BenchSummary, group: Group) -> Plot | None:
    """r(w) with its steps, and which widths were chosen. None if no pass of more than one row was
    measured, neither here nor for the policy, or nothing was drafted."""
    measured, (recorded, points) = _measured_widths(summary, group), _recorded(summary, group)
    chosen = {
        place: (one, shares_of([round.width for round in summary.rounds(one.name)]))
        for place, one in enumerate(group.drafted)
        if summary.rounds(one.name)
    }
    if not chosen or (not recorded and len(measured) < 2):
        return None
    widths = sorted({*measured, *(width for _, share in chosen.values() for width in share)})

    def draw() -> Any:
        labels = {place: canvas.label(one.title) for place, (one, _) in chosen.items()}
        told = [_COSTS_LABEL, _RUN_LABEL, *labels.values()]
        figure = canvas.figure(4.2, top=canvas.legend_height(told))
        upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        known = {width: r for width, r in recorded.items() if width <= widths[-1]}
        handles = []
        if known:
            at = [width for width in points if width in known]
            ys = list(known.values())
            handles += upper.plot(list(known), ys, color=canvas.INK, label=_COSTS_LABEL)
            upper.plot(at, [known[width] for width in at], ".", color=canvas.INK, markersize=7)
        if len(measured) > 1:
            middles = [one[1] for one in measured.values()]
            bars = [[abs(one[1] - one[end]) for one in measured.values()] for end in (0, 2)]
            look = {"fmt": "s", "color": canvas.MUTED, "markersize": 5, "capsize": 3}
            xs = list(measured)
            handles.append(upper.errorbar(xs, middles, yerr=bars, label=_RUN_LABEL, **look))
        upper.axhline(1, color=canvas.INK, linewidth=0.8, linestyle=":")
        upper.set_ylim(0, 1.05 * upper.get_ylim()[1])
        handles += [
            canvas.curve(lower, chosen[place][1], place, name) for place, name in labels.items()
        ]
        canvas.share_axis(lower)
        canvas.place_axis(lower, widths[-1])
        for panel in (upper, lower):
            panel.grid()
        canvas.labelled(lower, "width: rows scored in a pass, drafted tokens plus one", "of rounds")
        return canvas.labelled(upper, "", "r(w): times a pass of width 1", handles)

    names = {place: summary.cell(one) for place, (one, _) in chosen.items()}
    rows: list[Row] = [
        {
            "width": str(width),
            "r(w), costs": number(recorded.get(width)),
            "r(w), this run": _rounds_words(measured.get(width)),
            **{names[place]: percent(chosen[place][1].get(width, 0), 1) for place in chosen},
        }
        for width in widths
    ]
    return Plot(
        "What width costs, and which widths were chosen",
        "Above: seconds of a pass by its width, over those of width 1. Below: by configuration, "
        "the share of decoding rounds of each width.",
        draw,
        table_of(rows, "r(w), and the share of rounds of each width"),
    )


def _rounds_words(found: _Quartiles | None) -> str:
    return "{1:.2f} ({3:,} rounds)".format(*found) if found else NONE


def _measured_widths(summary: BenchSummary, group: Group) -> dict[int, _Quartiles]:
    """Quartiles of this run's passes by width over the median of width 1, and how many there were;
    from the rounds of all the group's configurations: they share an engine."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for one in group.every:
        for round in summary.rounds(one.name):
            if round.batch == 1:
                seconds[round.width].append(round.verify_s)
    base = float(np.median(seconds[1])) if seconds.get(1) else 0.0
    found = {}
    for width, some in sorted(seconds.items()):
        if base > 0 and len(some) >= _LEAST_SAMPLES:
            low, middle, high = (float(s) for s in np.quantile(some, (0.25, 0.5, 0.75)) / base)
            found[width] = (low, middle, high, len(some))
    return found


def _recorded(summary: BenchSummary, group: Group) -> tuple[dict[int, float], list[int]]:
    """r(w) of the costs that the policy went by, at the median context: at every width, and which
    were measured."""
    for one in group.drafted:
        if one.costs is not None:
            costs = costs_of(one.costs, f"the costs of {one.name}")
            rounds = summary.rounds(one.name)
            context = int(np.median([round.context for round in rounds])) if rounds else 0
            table = costs.table(1, context)
            known = {width: float(s / table[1]) for width, s in enumerate(table) if np.isfinite(s)}
            return known, sorted({point.rows for point in costs.points if point.sequences == 1})
    return {}, []


# Break-even.


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a configuration stands: what a round costs, in baseline tokens, and what it gives."""

    place: int
    one: Described
    category: str | None
    cost: float
    tokens: float


def break_even(summary: BenchSummary, group: Group) -> Plot | None:
    """What a round costs over what it gives, a mark for each configuration and category."""
    drawn, more = drawn_scopes(summary, group)
    places, scopes = range(len(group.drafted)), summary.scopes(group)
    found = [_spot(summary, group, place, scope) for place in places for scope in scopes]
    spots = [spot for spot in found if spot is not None]
    if not spots:
        return None

    def draw() -> Any:
        body, room = 3.6, 0.2  # above the panel, for labels of lines that leave it there
        names = {spot.place: canvas.label(spot.one.title) for spot in spots}
        told = canvas.legend_height(list(names.values()))
        panel = canvas.figure(body, right=0.85, top=told + room).subplots()
        across = max(1.6, 1.06 * max(spot.cost for spot in spots))
        up = max(1.6, 1.08 * max(spot.tokens for spot in spots))
        left = min(0.8, 0.94 * min(spot.cost for spot in spots))
        reach = [left, max(across, up)]
        panel.fill_between(reach, 0, reach, color=canvas.SHADE, linewidth=0, zorder=0)
        panel.plot(reach, reach, color=canvas.INK, linewidth=1.4)
        gains = [gain for gain in (1, 1.5, 2, 3) if gain * left < 0.95 * up]
        for gain in gains[1:]:
            line = [gain * end for end in reach]
            panel.plot(reach, line, color=canvas.MUTED, linewidth=0.7, linestyle=":")
        _label_gains(panel, gains, across, up)
        seen = [spot for spot in spots if spot.category in drawn]
        handles = [_draw_spots(panel, place, name, seen) for place, name in names.items()]
        panel.set_xlim(left, across)
        panel.set_ylim(min(0.8, 0.94 * min(spot.tokens for spot in spots)), up)
        panel.grid()
        x = "cost of a round, in baseline tokens (shaded: drafting loses time)"
        return canvas.labelled(panel, x, "tokens per round", handles, room / body)

    rows: list[Row] = [
        {
            "configuration": summary.cell(spot.one),
            "category": scope_words(spot.category),
            "cost of a round": f"{spot.cost:.2f}",
            "tokens per round": f"{spot.tokens:.2f}",
            "speedup": times(summary.ratio(spot.one, spot.category)),
        }
        for spot in spots
    ]
    return Plot(
        "Break-even",
        "Tokens per round over what a round costs, in baseline tokens. On the line both are equal; "
        "above it drafting pays. Large filled marks are all prompts, small hollow ones categories."
        f"{more}",
        draw,
        table_of(rows, "What a round costs and gives", words=2),
    )


def _spot(summary: BenchSummary, group: Group, place: int, category: str | None) -> _Spot | None:
    one = group.drafted[place]
    baseline = summary.stats(one.baseline, category).ms_per_token
    stats = summary.stats(one.name, category)
    if not baseline or stats.tokens_per_round is None:
        return None
    cost = 1e3 * stats.decode_s / stats.rounds / baseline
    return _Spot(place, one, category, cost, stats.tokens_per_round)


def _draw_spots(panel: Any, place: int, name: str, spots: Sequence[_Spot]) -> Any:
    mine = [spot for spot in spots if spot.place == place]
    whole = [spot for spot in mine if spot.category is None] or mine
    parts = [spot for spot in mine if spot not in whole]
    common = {**canvas.nth_style(place), "linestyle": "none", "zorder": 3}
    for some, marks in (
        (parts, {"markersize": 6, "markerfacecolor": "none"}),
        (whole, {"markersize": 10, "markeredgecolor": canvas.PAPER, "label": name}),
    ):
        xs, ys = [spot.cost for spot in some], [spot.tokens for spot in some]
        [handle] = panel.plot(xs, ys, **common, **marks)
    return handle


def _label_gains(panel: Any, gains: Sequence[float], across: float, up: float) -> None:
    """Each line's speedup where it leaves the panel."""
    for gain in gains:
        if gain * across <= up:
            place = {"xy": (across, gain * across), "xytext": (4, 0), "va": "center", "ha": "left"}
        else:
            place = {"xy": (up / gain, up), "xytext": (0, 2), "va": "bottom", "ha": "center"}
        panel.annotate(
            "break-even" if gain == 1 else f"{gain:g}×",
            textcoords="offset points",
            fontsize=9.5,
            color=canvas.INK if gain == 1 else canvas.MUTED,
            annotation_clip=False,
            **place,
        )


# `paceline break-even --plot`.

SUFFIXES = (".svg", ".png", ".pdf")

_PLOT_HINT = "pip install 'paceline[plot]'"
_COLUMNS = 2


def check_plot(path: Path) -> Path:
    """The path, if a plot can be drawn and written there. Raises SettingError for an unknown
    suffix or without matplotlib, DataError where nothing can be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError(
            f"The plot {path} ends in {path.suffix!r}.", f"It can end in {', '.join(SUFFIXES)}."
        )
    canvas.figure_class(_PLOT_HINT)
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise DataError(f"{path} can't be written.", "Choose another file with --plot.")
    return path


def plot_speed_up(plan: BreakEven, path: Path) -> None:
    """Speedup by max_draft_tokens: a panel for each draft, a curve for each acceptance, and the
    break-even line. Raises as `check_plot` does."""
    check_plot(path)
    count = len(plan.drafts)
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = canvas.figure_class(_PLOT_HINT)(
        figsize=(6.4 * columns, 0.7 + 4.5 * rows), facecolor="white", layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    target = fill(target_words(plan.costs), 64 * columns)
    figure.suptitle(f"When does drafting pay?\n{target}", fontsize=13)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, draft in zip(panels, plan.drafts, strict=False):
        _draw(panel, draft, plan.acceptances)
    for panel in panels[count:]:
        panel.set_axis_off()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}.", "Make room there.") from None


def _draw(panel: Any, draft: DraftPlan, acceptances: Sequence[float]) -> None:
    most, highest = draft.priced.most, 1.5
    for index, acceptance in enumerate(acceptances):
        color, line, marker = canvas.STYLES[index % len(canvas.STYLES)]
        gains, best = draft.speedup(acceptance), draft.best[acceptance].max_draft_tokens
        highest = max(highest, *gains)
        panel.plot(
            range(most + 1),
            gains,
            color=color,
            linestyle=line,
            marker=marker,
            markevery=[best] if best else [],
            markersize=9,
            markeredgecolor="white",
            clip_on=False,
            label=f"{acceptance:g}",
        )
    panel.axhline(1.0, color="black", linewidth=1.2, label="break-even")
    panel.set_xlim(0, most)
    panel.set_ylim(0, 1.08 * highest)
    panel.set_title(f"{draft.title}\n{price_words(draft)}", fontsize=10)
    panel.set_xlabel("max_draft_tokens")
    panel.set_ylabel("speedup (marked: the best)")
    panel.legend(title="acceptance", loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.grid(color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
