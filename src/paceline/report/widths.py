"""What width costs, and which widths were chosen: r(w) with its steps, over a histogram."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.bench.local.run import Described
from paceline.policy.costs import Costs, costs_of
from paceline.policy.stats import PolicyStats
from paceline.report.canvas import (
    Strip,
    canvas,
    draw_strips,
    first_of,
    label,
    legend,
    legend_height,
    shares_of,
    stacked,
    style,
)
from paceline.report.document import Paragraph, Plot, Table
from paceline.report.summary import Group, Summary
from paceline.report.svg import INK, SERIES
from paceline.report.words import name_cell, number, percent, title

_LEAST_SAMPLES = 5
_MOST_STRIPS = 6
_COSTS_LABEL = "costs that the policy began with"
_RUN_LABEL = "this run: median and quartiles"


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of this run's passes of one width, over the median of width 1."""

    r: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """r(w) of the costs that the policy went by: at every width, and which were measured."""

    by_width: Mapping[int, float]
    points: tuple[int, ...]
    context: int


def width_cost(summary: Summary, group: Group) -> Plot | None:
    """None if no pass of more than one row was measured, neither here nor for the policy, or
    nothing was drafted."""
    measured, recorded = measured_widths(summary, group), _recorded(summary, group)
    chosen = {
        one.name: (one, shares_of([round.width for round in summary.rounds(one.name)]))
        for one in sorted(group.drafted, key=lambda one: one.max_draft_tokens is not None)
        if summary.rounds(one.name)
    }
    if not chosen or (recorded is None and len(measured) < 2):
        return None
    strips = list(chosen.values())[:_MOST_STRIPS]
    widest = max([*measured, *(w for _, share in chosen.values() for w in share)])

    def draw() -> Any:
        height, gap = 0.42, 0.28
        below = (height + gap) * len(strips) - gap
        told = legend_height(_labels(measured, recorded))
        figure = canvas(2.3 + gap + below, top=told)
        above, beneath = stacked(figure, [2.3, below], gap)
        _draw_cost(above, measured, recorded, widest)
        drawn = [
            Strip(label(title(one), 60), share, style(group, one).color) for one, share in strips
        ]
        draw_strips(beneath, drawn, widest, {0: "0", 1: "100 %"}, gap / height)
        beneath.tick_params(labelbottom=True)
        beneath.set_xlabel("width: rows scored in a pass, drafted tokens plus one")
        return figure

    return Plot(
        "What width costs, and which widths were chosen",
        "Above: seconds of a pass by its width, over those of width 1. Below: by configuration, "
        f"the share of decoding rounds of each width.{first_of(len(strips), len(chosen))}",
        draw,
        _table(measured, recorded, chosen),
    )


def policies(summary: Summary, group: Group) -> list[Paragraph]:
    """What the policy did and saved by its own costs, a sentence a configuration."""
    found = []
    for one in group.drafted:
        all_policy_stats = [
            run.policy_stats for run in summary.runs(one.name) if run.policy_stats is not None
        ]
        if all_policy_stats:
            whole = sum(all_policy_stats, PolicyStats()).sentence()
            found.append(Paragraph(f"The policy of {one.name}: {whole} by its costs."))
    return found


def measured_widths(summary: Summary, group: Group) -> dict[int, Measured]:
    """By width, from the rounds of all the group's configurations: they share an engine."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for one in group.every:
        for round in summary.rounds(one.name):
            if round.batch == 1:
                seconds[round.width].append(round.verify_s)
    if not seconds.get(1):
        return {}
    base = float(np.median(seconds[1]))
    found = {}
    for width, some in sorted(seconds.items()):
        if base > 0 and len(some) >= _LEAST_SAMPLES:
            low, middle, high = np.quantile(some, (0.25, 0.5, 0.75)) / base
            found[width] = Measured(float(middle), float(low), float(high), len(some))
    return found


def _recorded(summary: Summary, group: Group) -> Recorded | None:
    for one in group.drafted:
        if one.costs is not None:
            costs = costs_of(one.costs, f"the costs of {one.name}")
            rounds = summary.rounds(one.name)
            context = int(np.median([round.context for round in rounds])) if rounds else 0
            return _at(costs, context)
    return None


def _at(costs: Costs, context: int) -> Recorded:
    table = costs.table(1, context)
    known = {width: float(s / table[1]) for width, s in enumerate(table) if np.isfinite(s)}
    points = {point.rows for point in costs.points if point.sequences == 1}
    return Recorded(known, tuple(sorted(points & set(known))), context)


def _labels(measured: Mapping[int, Measured], recorded: Recorded | None) -> list[str]:
    costs = [_COSTS_LABEL] if recorded is not None else []
    return costs + ([_RUN_LABEL] if len(measured) > 1 else [])


def _draw_cost(
    panel: Any, measured: Mapping[int, Measured], recorded: Recorded | None, widest: int
) -> None:
    handles = []
    if recorded is not None:
        shown = {w: r for w, r in recorded.by_width.items() if w <= widest}
        [line] = panel.plot(
            list(shown),
            list(shown.values()),
            color=INK,
            linewidth=1.5,
            label=_COSTS_LABEL,
        )
        points = [width for width in recorded.points if width <= widest]
        panel.plot(points, [shown[width] for width in points], ".", color=INK, markersize=7)
        handles.append(line)
    if len(measured) > 1:
        reach = [(one.r - one.low, one.high - one.r) for one in measured.values()]
        handles.append(
            panel.errorbar(
                list(measured),
                [one.r for one in measured.values()],
                yerr=list(zip(*reach, strict=True)),
                color=SERIES[1],
                marker="s",
                markersize=5,
                linestyle="none",
                capsize=3,
                label=_RUN_LABEL,
            )
        )
    panel.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
    panel.grid()
    panel.set_ylabel("r(w): times a pass of width 1")
    legend(panel, handles)


def _table(
    measured: Mapping[int, Measured],
    recorded: Recorded | None,
    chosen: Mapping[str, tuple[Described, Mapping[int, float]]],
) -> Table:
    by_costs = {} if recorded is None else recorded.by_width
    widths = sorted({*measured, *(w for _, share in chosen.values() for w in share)})
    rows = tuple(
        (
            str(width),
            number(by_costs.get(width)),
            _measured_words(measured.get(width)),
            *(percent(share.get(width, 0.0), 1) for _, share in chosen.values()),
        )
        for width in widths
    )
    head = ("width", "r(w), costs", "r(w), this run", *_names(chosen))
    return Table(head, rows, "r(w), and the share of rounds of each width")


def _names(chosen: Mapping[str, tuple[Described, Mapping[int, float]]]) -> Sequence[Any]:
    return [name_cell(one) for one, _ in chosen.values()]


def _measured_words(one: Measured | None) -> str:
    return number(None) if one is None else f"{one.r:.2f} ({one.rounds:,} rounds)"
