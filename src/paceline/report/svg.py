"""A plot as SVG inside a page: text stays text, colours are the page's, ids are its own."""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import Any

from paceline.report.document import Plot
from paceline.report.styles import STYLES, figure_class

HINT = "pip install 'paceline[report]', or write Markdown: -o report.md"

# matplotlib writes colours as they are given. These are no one's, and become the page's variables.
INK, MUTED, GRID, PAPER, SHADE = (f"#0a0b{place:02x}" for place in range(5))
SERIES = tuple(f"#0a0b{0x10 + place:02x}" for place in range(len(STYLES) - 1))
"""One for each style but the last, black: plain decoding has INK."""

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


def svg_of(plot: Plot, place: str) -> str:
    """The plot as an `svg` element.

    place    distinguishes its ids from those of the page's other plots

    Raises SettingError without matplotlib.
    """
    return _dressed(_drawn(plot), plot, place)


def _drawn(plot: Plot) -> str:
    figure_class(HINT)  # refuses where there is no matplotlib
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # Letters that matplotlib's font lacks are drawn by the reader's.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = plot.draw()
        _leave_unlabelled(figure)
        figure.savefig(
            stream,
            format="svg",
            bbox_inches=None,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    return stream.getvalue()


def _leave_unlabelled(figure: Any) -> None:
    """Say where labels stand that there are none of: seeking it measures all of an axis's ticks."""
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            if not axis.get_label_text():
                axis.set_label_coords(0, 0)


def _dressed(text: str, plot: Plot, place: str) -> str:
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


def _own_ids(text: str, place: str) -> str:
    """Ids that something refers to get the plot's name before them; the others go."""
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))

    def kept(found: Any) -> str:
        return f' id="{place}-{found[1]}"' if found[1] in used else ""

    text = re.sub(r' id="([^"]+)"', kept, text)
    text = re.sub(r"url\(#", f"url(#{place}-", text)
    return re.sub(r'(?:xlink:)?href="#', f'href="#{place}-', text)
