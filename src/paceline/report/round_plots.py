"""Pictures of rounds: acceptance by position, and tokens per round."""

from __future__ import annotations

from typing import Any

from paceline.decode.figures import Figures
from paceline.report.canvas import (
    canvas,
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
from paceline.report.svg import INK, PAPER
from paceline.report.words import name_cell, number, percent, title

_LEAST_ROUNDS = 20  # fewer are drawn hollow
_LONGEST, _LONGEST_OF_TWO = 60, 22  # letters of a name above one panel, or above two in a row


def acceptance(summary: Summary, group: Group) -> Plot | None:
    found = {
        one.name: (one, figures)
        for one in group.drafted
        if (figures := summary.figures(one.name)).survival
    }
    if not found:
        return None
    most = max(len(figures.survival) for _, figures in found.values())

    def draw() -> Any:
        figure = canvas(2.7, top=legend_height(names_of([one for one, _ in found.values()])))
        panel = figure.subplots()
        handles = []
        for one, figures in found.values():
            look = style(group, one)
            xs = range(1, len(figures.survival) + 1)
            [line] = panel.plot(
                xs,
                figures.survival,
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=5,
                linewidth=1.6,
                label=label(title(one), 44),
            )
            thin = [i for i, rounds in enumerate(figures.offered) if rounds < _LEAST_ROUNDS]
            panel.plot(
                [xs[i] for i in thin],
                [figures.survival[i] for i in thin],
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
        (str(place + 1), *(_survival_cell(figures, place) for _, figures in found.values()))
        for place in range(most)
    )
    return Plot(
        "Acceptance by position",
        "By position i, the share of the rounds that offered i drafted tokens or more in which "
        "tokens 1 to i were all accepted.",
        draw,
        Table(head, rows, "Share accepted up to a position, of the rounds that offered so many"),
    )


def _survival_cell(figures: Figures, place: int) -> str:
    if place >= len(figures.survival):
        return number(None)
    return f"{percent(figures.survival[place])} of {figures.offered[place]:,}"


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
        rows = -(-len(shares) // columns)
        figure = canvas(1.6 * rows, top=0.3)
        panels = figure.subplots(
            rows,
            columns,
            squeeze=False,
            sharex=True,
            sharey=True,
            gridspec_kw={"hspace": 0.35, "wspace": 0.08},
        )
        several = zip(panels.ravel(), names, shares.values(), strict=False)
        for panel, name, (one, share) in several:
            look = style(group, one)
            panel.bar(list(share), list(share.values()), width=0.8, color=look.color)
            mean = summary.figures(one.name).tokens_per_round
            panel.axvline(mean, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
            panel.set_title(f"{name}: mean {mean:.2f}", loc="left")
            panel.grid(axis="y")
            panel.set_xlim(0.4, most + 0.6)
            panel.set_xticks(whole_ticks(1, most))
            panel.yaxis.set_major_formatter(lambda share, _: percent(share))
        for panel in panels.ravel()[len(shares) :]:
            panel.set_axis_off()
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
