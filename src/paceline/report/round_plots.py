"""Pictures of rounds: acceptance by position, and tokens per round."""

from __future__ import annotations

from typing import Any

from paceline.decode.stats import Stats
from paceline.report.canvas import (
    Strip,
    canvas,
    draw_strips,
    label,
    legend,
    legend_height,
    names_of,
    shares_of,
    style,
    whole_ticks,
)
from paceline.report.document import Cell, Plot, Table
from paceline.report.summary import Group, Summary
from paceline.report.svg import PAPER
from paceline.report.words import name_cell, number, percent, title

_LEAST_ROUNDS = 20  # fewer are drawn hollow
_STRIP, _GAP = 1.2, 0.35  # inches of a strip, and the gap between two in strips
_LONGEST, _LONGEST_OF_TWO = 60, 22  # letters of a name above one panel, or above two in a row


def acceptance(summary: Summary, group: Group) -> Plot | None:
    found = {
        one.name: (one, stats)
        for one in group.drafted
        if (stats := summary.stats(one.name)).acceptance
    }
    if not found:
        return None
    most = max(len(stats.acceptance) for _, stats in found.values())

    def draw() -> Any:
        figure = canvas(2.7, top=legend_height(names_of([one for one, _ in found.values()])))
        panel = figure.subplots()
        handles = []
        for one, stats in found.values():
            look = style(group, one)
            xs = range(1, len(stats.acceptance) + 1)
            [line] = panel.plot(
                xs,
                stats.acceptance,
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=5,
                linewidth=1.6,
                label=label(title(one), 44),
            )
            thin = [i for i, rounds in enumerate(stats.offered) if rounds < _LEAST_ROUNDS]
            panel.plot(
                [xs[i] for i in thin],
                [stats.acceptance[i] for i in thin],
                color=look.color,
                linestyle="none",
                marker=look.marker,
                markersize=5,
                markerfacecolor=PAPER,
            )
            handles.append(line)
        panel.set_ylim(0, 1.03)
        panel.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        panel.set_xlim(0.5, most + 0.5)
        panel.set_xticks(whole_ticks(1, most))
        panel.grid()
        panel.set_xlabel(f"position (hollow: fewer than {_LEAST_ROUNDS} rounds offered so many)")
        panel.set_ylabel("this and all before accepted")
        legend(panel, handles)
        return figure

    head: tuple[str | Cell, ...] = ("position", *(name_cell(one) for one, _ in found.values()))
    rows = tuple(
        (str(place + 1), *(_acceptance_cell(stats, place) for _, stats in found.values()))
        for place in range(most)
    )
    return Plot(
        "Acceptance by position",
        "By position i, the share of the rounds that offered i drafted tokens or more in which "
        "tokens 1 to i were all accepted.",
        draw,
        Table(head, rows, "Share accepted up to a position, of the rounds that offered so many"),
    )


def _acceptance_cell(stats: Stats, place: int) -> str:
    if place >= len(stats.acceptance):
        return number(None)
    return f"{percent(stats.acceptance[place])} of {stats.offered[place]:,}"


def _height(strips: int) -> float:
    return _STRIP * (strips + _GAP * (strips - 1))


def _column(figure: Any, column: int, columns: int, strips: int) -> Any:
    """A panel that has room for so many strips, from the top."""
    place, whole = figure.subplotpars, figure.get_figheight()
    width = (place.right - place.left - 0.04 * (columns - 1)) / columns
    height = _height(strips) / whole
    left = place.left + column * (width + 0.04)
    return figure.add_axes((left, place.top - height, width, height))


def tokens_per_round(summary: Summary, group: Group) -> Plot | None:
    shares = {
        one.name: (one, share)
        for one in group.drafted
        if (share := shares_of([round.emitted for round in summary.rounds(one.name)]))
    }
    if not shares:
        return None
    most = max(max(share) for _, share in shares.values())
    names = [label(title(one), _LONGEST) for one, _ in shares.values()]
    columns = 1 if max(map(len, names)) > _LONGEST_OF_TWO else min(2, len(shares))

    def draw() -> Any:
        top = 1.05 * max(max(share.values()) for _, share in shares.values())
        strips = []
        for name, (one, share) in zip(names, shares.values(), strict=True):
            mean = summary.stats(one.name).tokens_per_round
            heights = {tokens: part / top for tokens, part in share.items()}
            color = style(group, one).color
            strips.append(Strip(f"{name}: mean {mean:.2f}", heights, color, mean))
        step = next(step for step in (0.05, 0.1, 0.25, 0.5) if 4 * step > top)
        ticks = {i * step / top: percent(i * step) for i in range(int(top / step) + 1)}
        figure = canvas(_height(-(-len(strips) // columns)), top=0.3)
        for column in range(columns):
            mine = strips[column::columns]
            draw_strips(_column(figure, column, columns, len(mine)), mine, most, ticks, _GAP)
        for panel in figure.axes[1:]:
            panel.tick_params(labelleft=False)
        figure.supxlabel("tokens emitted in a round (dashed: the mean)", fontsize=10.5, y=0.01)
        figure.supylabel("share of rounds", fontsize=10.5, x=0.005)
        return figure

    emitted = sorted({tokens for _, share in shares.values() for tokens in share})
    rows = tuple(
        (str(tokens), *(percent(share.get(tokens, 0.0), 1) for _, share in shares.values()))
        for tokens in emitted
    )
    return Plot(
        "Tokens per round",
        "Share of the decoding rounds by how many tokens they emitted, bonus or replacement "
        "included; a plain round emits one.",
        draw,
        Table(("tokens", *(name_cell(one) for one, _ in shares.values())), rows, "Share of rounds"),
    )
