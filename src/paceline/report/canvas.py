"""What all pictures share: colours for eyes that can't tell red from green and a second sign beside
each, panels and their axes, curves, bars and legends; and a picture as SVG inside a page, where
text stays text, colours are the page's, and ids are its own."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from paceline.bench.stats import Ratio
from paceline.errors import SettingError
from paceline.report.document import Plot, shown

HINT = "pip install 'paceline[report]', or write Markdown: -o report.md"

# Okabe and Ito's colours, without yellow, which is too faint on white.
STYLES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", (0, (1, 1)), "D"),
    ("#E69F00", (0, (5, 1)), "v"),
    ("#56B4E9", (0, (3, 1, 1, 1)), "P"),
    ("#000000", (0, (8, 2)), "X"),
)

# matplotlib writes colours as they are given. These are no one's, and become the page's variables.
INK, MUTED, GRID, PAPER, SHADE = (f"#0a0b{place:02x}" for place in range(5))
SERIES = tuple(f"#0a0b{0x10 + place:02x}" for place in range(len(STYLES) - 1))
"""One for each style but the last, black: the baseline has INK."""

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    SHADE: "var(--shade)",
    **{colour: f"var(--series-{place})" for place, colour in enumerate(SERIES)},
}
_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.5,
    "legend.fontsize": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.titley": 1.0,  # or else it is sought by measuring all labels
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "hatch.linewidth": 0.8,
}
_WIDTH = 7.2  # inches: 518 px, and a phone scrolls
_LETTER = 0.083  # inches of one, on average


def figure_class(hint: str) -> Any:
    """matplotlib's Figure, which draws into a file and needs neither pyplot nor a screen. Raises
    SettingError without matplotlib.

    hint    what to install, or to do without
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("A plot needs matplotlib, which is not installed.", hint) from None
    return Figure


def nth_style(place: int) -> dict[str, Any]:
    """How one series looks: through the colours, and past the last one with other markers."""
    turn, colour = divmod(place, len(SERIES))
    marker = STYLES[(colour + turn) % len(STYLES)][2]
    return {"color": SERIES[colour], "linestyle": STYLES[colour][1], "marker": marker}


def figure(body: float, *, left: float = 0.8, right: float = 0.25, top: float = 0.15) -> Any:
    """A figure with room for panels of `body` inches, and margins around them. They are said, as
    finding them would draw everything twice."""
    height, bottom = body + top + 0.6, 0.6
    made = figure_class(HINT)(figsize=(_WIDTH, height))
    made.subplots_adjust(
        left=left / _WIDTH,
        right=1 - right / _WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
    )
    return made


def row_panel(step: float, rows: Sequence[str], legend: Sequence[str]) -> Any:
    """A panel with a row for each word, from the top, each of so many inches, with lines between
    them and room for a legend."""
    left = _LETTER * max(map(len, rows)) + 0.25
    panel = figure(step * len(rows), left=left, top=legend_height(legend)).subplots()
    panel.set_yticks(range(len(rows)), rows)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    for border in range(1, len(rows)):
        panel.axhline(border - 0.5, color=GRID, linewidth=0.7)
    return panel


def labelled(panel: Any, x: str, y: str = "", handles: Sequence[Any] = (), lift: float = 0) -> Any:
    """Put words at the axes, and a legend of the handles above the panel, where it hides nothing;
    `lift` panel heights higher. Gives the panel's figure."""
    panel.set_xlabel(x)
    panel.set_ylabel(y)
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
    return panel.figure


_TICKS = (1, 2, 0.5, 1.5, 3, 5, 0.7, 10, 0.3, 20, 0.2, 0.1, 50, 0.05, 1.2, 0.8, 4, 0.9, 1.1)
"""The more wanted first."""


def ratio_axis(panel: Any, low: float, high: float) -> None:
    """A logarithmic axis, so that half and twice are equally far from 1; shaded below 1."""
    low, high = 0.95 * min(0.95, max(low, 0.02)), 1.05 * max(1.05, high)
    taken: list[float] = []
    apart = 0.07 * math.log(high / low)
    for tick in _TICKS:
        if low <= tick <= high and all(abs(math.log(tick / t)) >= apart for t in taken):
            taken.append(tick)
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    panel.set_xticks(taken, [f"{tick:g}×" for tick in taken])
    panel.set_xticks([], minor=True)
    panel.axvspan(low, 1, color=SHADE, linewidth=0, zorder=0)
    panel.axvline(1, color=INK, linewidth=1.3)
    panel.grid(axis="x")


def share_axis(panel: Any, most: float = 1.0) -> None:
    """Shares upwards from 0, of which `most` is the highest."""
    most = most or 1.0
    step = next(step for step in (0.05, 0.1, 0.25) if step == 0.25 or 5 * step >= most)
    ticks = [step * i for i in range(int(most / step + 1e-9) + 1)]
    panel.set_ylim(0, 1.05 * most)
    panel.set_yticks(ticks, [f"{100 * tick:.0f} %" for tick in ticks])


def place_axis(panel: Any, last: int) -> None:
    """Whole numbers from 1, a dozen of them told at most."""
    step = max(1, -(-(last - 1) // 12))
    panel.set_xlim(0.5, last + 0.5)
    panel.set_xticks([1, *(tick for tick in range(step, last + 1, step) if tick > 1)])


def ends(ratio: Ratio) -> tuple[float, float]:
    """Of its interval; without one, itself."""
    if ratio.low is None or ratio.high is None:
        return ratio.value, ratio.value
    return ratio.low, ratio.high


def curve(panel: Any, points: Mapping[int, float], place: int, name: str, **look: Any) -> Any:
    """A line with markers, in the style of its place but for `look`; its handle for a legend."""
    look = {"markersize": 5, "linewidth": 1.6, "label": name, **nth_style(place), **look}
    [line] = panel.plot(list(points), list(points.values()), **look)
    return line


def label(text: str, most: int = 44) -> str:
    """A name as a legend or an axis can hold it: printable, on one line, not too long."""
    text = " ".join(shown(text).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def legend_height(labels: Sequence[str]) -> float:
    """Inches that a legend takes above a panel."""
    return 0.22 * -(-len(labels) // _columns(labels)) + 0.12


def _columns(labels: Sequence[str]) -> int:
    letters = max(map(len, labels), default=0)
    return max(1, min(4, len(labels), int(6.4 // (_LETTER * letters + 0.6))))


# SVG.


def svg_of(plot: Plot, place: str) -> str:
    """The plot as an `svg` element with a title and a description.

    place    distinguishes its ids from those of the page's other plots

    Raises SettingError without matplotlib.
    """
    text = _drawn(plot)
    text = text[text.index("<svg") :]
    text = re.sub(r"<style type=\"text/css\">.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub("|".join(_VARIABLES), lambda found: _VARIABLES[found[0]], text)
    text = _own_ids(text, place)
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', text)
    assert size is not None, "matplotlib writes a viewBox"
    head = (
        f'<svg class="plot" viewBox="0 0 {size[1]} {size[2]}" role="img" '
        f'style="--width: {float(size[1]):.0f}px" '
        f'aria-labelledby="{place}-title {place}-desc">'
        f'<title id="{place}-title">{escape(plot.title)}</title>'
        f'<desc id="{place}-desc">{escape(plot.description)}</desc>'
    )
    return head + text[text.index(">", text.index("<svg")) + 1 :]


def _drawn(plot: Plot) -> str:
    figure_class(HINT)  # refuses where there is no matplotlib
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # Letters that matplotlib's font lacks are drawn by the reader's.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = plot.draw()
        for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
            if not axis.get_label_text():  # seeking its place measures all of the axis's ticks
                axis.set_label_coords(0, 0)
        figure.savefig(
            stream,
            format="svg",
            bbox_inches=None,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    return stream.getvalue()


def _own_ids(text: str, place: str) -> str:
    """Ids that something refers to get the plot's name before them; the others go."""
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))

    def kept(found: Any) -> str:
        return f' id="{place}-{found[1]}"' if found[1] in used else ""

    text = re.sub(r' id="([^"]+)"', kept, text)
    text = re.sub(r"url\(#", f"url(#{place}-", text)
    return re.sub(r'(?:xlink:)?href="#', f'href="#{place}-', text)
