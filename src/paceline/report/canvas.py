"""What the pictures of a report share: where panels stand, how configurations look, legends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.local.run import Described
from paceline.report.styles import STYLES, figure_class
from paceline.report.summary import Group
from paceline.report.svg import GRID, HINT, INK, MUTED, SERIES
from paceline.report.words import shown, title

_WIDTH = 7.2  # inches: 518 px, and a phone scrolls
_LETTER = 0.083  # inches of one, on average


@dataclass(frozen=True, slots=True)
class Style:
    color: str
    line: Any
    marker: str


def style(group: Group, one: Described) -> Style:
    """Of a drafted configuration: through the colours, and past the last one with other markers."""
    place = [c.name for c in group.drafted].index(one.name)
    return nth_style(place)


def nth_style(place: int) -> Style:
    turn, colour = divmod(place, len(SERIES))
    marker = STYLES[(colour + turn) % len(STYLES)][2]
    return Style(SERIES[colour], STYLES[colour][1], marker)


def canvas(
    body: float, *, left: float = 0.8, right: float = 0.25, top: float = 0.15, bottom: float = 0.6
) -> Any:
    """A figure with room for panels of `body` inches, and margins around them. They are said, as
    finding them would draw everything twice."""
    height = body + top + bottom
    figure = figure_class(HINT)(figsize=(_WIDTH, height))
    figure.subplots_adjust(
        left=left / _WIDTH,
        right=1 - right / _WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
    )
    return figure


def stacked(figure: Any, heights: Sequence[float], gap: float) -> list[Any]:
    """Panels beneath one another over one axis, of so many inches, with a gap before each but the
    first; only the last needs labels there (`tick_params`)."""
    place, whole = figure.subplotpars, figure.get_figheight()
    top, panels = place.top * whole, list[Any]()
    for height in heights:
        bottom = top - height
        box = (place.left, bottom / whole, place.right - place.left, height / whole)
        panels.append(figure.add_axes(box, sharex=panels[0] if panels else None))
        panels[-1].tick_params(labelbottom=False)
        top = bottom - gap
    return panels


@dataclass(frozen=True, slots=True)
class Strip:
    """Bars of one configuration: a title above, and `heights` by place, at most 1. `line` is a
    place to be marked by an upright."""

    title: str
    heights: Mapping[int, float]
    color: str
    line: float | None = None


def draw_strips(
    panel: Any, strips: Sequence[Strip], last: int, ticks: Mapping[float, str], gap: float
) -> None:
    """Each on a line of its own, in one panel: a panel for each takes far longer to draw.

    last     highest place of the axis, from 1
    ticks    words by height, told in each strip
    gap      between two, in heights of a strip
    """
    left, right = 0.4, last + 0.6
    feet = [(len(strips) - 1 - place) * (1 + gap) for place in range(len(strips))]
    heights = [foot + tick for foot in feet for tick in ticks]
    panel.hlines(heights, left, right, color=GRID, linewidth=0.7, zorder=0)
    panel.hlines(feet, left, right, color=MUTED, linewidth=0.8)
    panel.vlines([left] * len(feet), feet, [foot + 1 for foot in feet], color=MUTED, linewidth=0.8)
    for foot, strip in zip(feet, strips, strict=True):
        panel.bar(
            list(strip.heights), list(strip.heights.values()), 0.8, bottom=foot, color=strip.color
        )
        if strip.line is not None:
            dashes = (0, (4, 2))
            panel.vlines(strip.line, foot, foot + 1, color=INK, linewidth=1.2, linestyle=dashes)
        panel.annotate(strip.title, (left, foot + 1), (0, 4), textcoords="offset points")
    panel.set_xlim(left, right)
    panel.set_xticks(whole_ticks(1, last))
    panel.set_ylim(0, feet[0] + 1)
    panel.set_yticks(heights, list(ticks.values()) * len(feet), fontsize=9)
    panel.spines[["left", "bottom"]].set_visible(False)


def width_of(labels: Sequence[str]) -> float:
    """Inches that the longest takes."""
    return _LETTER * max(map(len, labels), default=0)


def label(text: str, most: int = 30) -> str:
    """A name as an axis can hold it: printable, on one line, not too long."""
    text = " ".join(shown(text).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def names_of(some: Sequence[Described]) -> list[str]:
    """As a legend has them."""
    return [label(title(one), 44) for one in some]


def legend_height(labels: Sequence[str]) -> float:
    """Inches above a panel."""
    return 0.22 * -(-len(labels) // _columns(labels)) + 0.12


def _columns(labels: Sequence[str]) -> int:
    return max(1, min(4, len(labels), int(6.4 // (width_of(labels) + 0.6))))


def legend(panel: Any, handles: Sequence[Any], lift: float = 0.0) -> None:
    """Above the panel, where nothing is hidden by it; `lift` panel heights above."""
    if handles:
        panel.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0, 1 + lift),
            ncols=_columns([handle.get_label() for handle in handles]),
            borderaxespad=0.3,
            handlelength=2.4,
            columnspacing=1.6,
        )


def whole_ticks(first: int, last: int) -> list[int]:
    step = max(1, -(-(last - first) // 12))
    return [first, *(tick for tick in range(step, last + 1, step) if tick > first)]


def first_of(drawn: int, known: int) -> str:
    """What a description adds where a picture has not room for all."""
    return "" if drawn >= known else f" The first {drawn} of {known} are shown."


def shares_of(values: Sequence[int]) -> dict[int, float]:
    counts = Counter(values)
    return {value: counts[value] / len(values) for value in sorted(counts)}
