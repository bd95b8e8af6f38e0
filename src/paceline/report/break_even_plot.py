"""When drafting pays, drawn: `paceline plan --plot`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import DataError, SettingError
from paceline.plan.break_even import BreakEven, DraftPlan, price_words, target_words
from paceline.report.styles import STYLES, bare, figure_class

SUFFIXES = (".svg", ".png", ".pdf")

_HINT = "pip install 'paceline[plot]'"
_COLUMNS = 2
_LABEL_GAP = 0.045  # least distance of two labels, as a share of the axis


def check_plot(path: Path) -> Path:
    """The path, if a plot can be drawn and written there. Raises SettingError for an unknown
    suffix or without matplotlib, DataError where nothing can be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError(
            f"The plot {path} ends in {path.suffix!r}.", f"It can end in {', '.join(SUFFIXES)}."
        )
    figure_class(_HINT)
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise DataError(f"{path} can't be written.", "Choose another file with --plot.")
    return path


def plot_speed_up(plan: BreakEven, path: Path) -> None:
    """Times plain by limit: a panel for each draft, a curve for each acceptance, and the break-even
    line. Raises as `check_plot` does."""
    check_plot(path)
    count = len(plan.drafts)
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = figure_class(_HINT)(
        figsize=(6.4 * columns, 0.7 + 4.5 * rows), facecolor="white", layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    figure.suptitle(f"When does drafting pay?\n{target_words(plan.costs)}", fontsize=13)
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
    most = draft.priced.most
    ends = []
    for index, acceptance in enumerate(acceptances):
        color, line, marker = STYLES[index % len(STYLES)]
        gains = draft.speedup(acceptance)
        panel.plot(range(most + 1), gains, color=color, linestyle=line, linewidth=1.6)
        panel.plot(range(1, most + 1), gains[1:], ".", color=color, markersize=3.5)
        max_draft_tokens = draft.best[acceptance].max_draft_tokens
        if max_draft_tokens:
            mark = {"marker": marker, "markersize": 9, "markeredgecolor": "white"}
            panel.plot(
                [max_draft_tokens],
                [gains[max_draft_tokens]],
                color=color,
                clip_on=False,
                zorder=3,
                **mark,
            )
        ends.append((gains[-1], f"{acceptance:g}", color))
    panel.axhline(1.0, color="black", linewidth=1.2)
    top = 1.08 * max(1.0, *(max(draft.speedup(a)) for a in acceptances))
    panel.set_xlim(0, most)
    panel.set_ylim(0, max(1.6, top))
    _label_ends(panel, most, ends)
    _dress(panel, draft)


def _label_ends(panel: Any, at: int, ends: Sequence[tuple[float, str, str]]) -> None:
    """Each curve's acceptance at its end, and break-even at its own, moved apart where they would
    overlap."""
    labels = sorted([*ends, (1.0, "break-even", "black")])
    height = panel.get_ylim()[1]
    for wanted, (value, text, color) in zip(
        _apart([value / height for value, _, _ in labels]), labels, strict=True
    ):
        panel.annotate(
            text,
            xy=(at, value),
            xytext=(1.05, wanted),
            textcoords="axes fraction",
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 1},
        )
    panel.text(1.05, 1.0, "acceptance", transform=panel.transAxes, fontsize=9, va="bottom")


def _apart(heights: Sequence[float]) -> list[float]:
    """Rising heights, moved as little as need be so that neighbours keep their distance.

    >>> _apart([0.2, 0.2, 0.9])
    [0.1775, 0.2225, 0.9]
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _span(groups[-1])[0] - _span(groups[-2])[1] < _LABEL_GAP:
            last = groups.pop()
            groups[-1] += last
    return [
        round(_span(group)[0] + index * _LABEL_GAP, 4)
        for group in groups
        for index in range(len(group))
    ]


def _span(group: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest label of a group that keeps its mean and its distances, on the axis."""
    reach = (len(group) - 1) * _LABEL_GAP
    low = min(max(sum(group) / len(group) - reach / 2, 0.0), max(0.0, 1 - reach))
    return low, low + reach


def _dress(panel: Any, draft: DraftPlan) -> None:
    panel.set_title(f"{draft.title}\n{price_words(draft)}", fontsize=10)
    panel.set_xlabel("limit: most tokens drafted in a round")
    panel.set_ylabel("speedup (marked: the best limit)")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.grid(color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    bare(panel)
