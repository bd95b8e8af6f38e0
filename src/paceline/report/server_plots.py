"""Pictures of a run on live servers: times as fast by category, tokens per second by the number of
clients, and acceptance by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.bench.server.result import clients_words
from paceline.bench.stats import Ratio
from paceline.report.canvas import (
    Style,
    canvas,
    first_of,
    label,
    legend,
    legend_height,
    nth_style,
    whole_ticks,
    width_of,
)
from paceline.report.document import Plot, Table
from paceline.report.server_summary import ServerSummary
from paceline.report.speed_plots import ratio_axis
from paceline.report.svg import GRID
from paceline.report.words import number, percent, scope_words

_MOST_SCOPES = 24
_MOST_POSITIONS = 16


def speed_up(summary: ServerSummary) -> Plot | None:
    """Times as fast as the other, with intervals: a row a category, a mark a number of clients."""
    categories = summary.worst_first[:_MOST_SCOPES]
    scopes = [*categories, None] if len(summary.categories) > 1 else [None]
    clients = [n for n in summary.clients if summary.ratio(n) is not None]
    if not clients:
        return None

    def draw() -> Any:
        names = [clients_words(n) for n in clients]
        rows = [label(scope_words(scope)) for scope in scopes]
        step = 0.17 * len(clients) + 0.22
        figure = canvas(step * len(scopes), left=width_of(rows) + 0.25, top=legend_height(names))
        panel = figure.subplots()
        handles, ends = [], list[float]()
        for place, (n, name) in enumerate(zip(clients, names, strict=True)):
            offset = (place - (len(clients) - 1) / 2) * 0.72 / len(clients)
            known = [
                (row + offset, ratio)
                for row, scope in enumerate(scopes)
                if (ratio := summary.ratio(n, scope)) is not None
            ]
            handles.append(_ratios(panel, known, nth_style(place), name))
            ends += [end for _, ratio in known for end in _ends(ratio)]
        panel.set_yticks(range(len(scopes)), rows)
        panel.set_ylim(len(scopes) - 0.5, -0.5)
        for border in range(1, len(scopes)):
            panel.axhline(border - 0.5, color=GRID, linewidth=0.7)
        ratio_axis(panel, min(ends), max(ends))
        panel.set_xlabel("times as fast as the other, per token (shaded: slower)")
        legend(panel, handles)
        return figure

    known = len(summary.categories)
    return Plot(
        "Times as fast by category",
        "Time per token after the first on the other server over that on the endpoint, with 95 % "
        "intervals by a paired bootstrap over prompts; left of 1 the endpoint is slower."
        f"{first_of(len(categories), known)}",
        draw,
    )


def _ends(ratio: Ratio) -> tuple[float, float]:
    if ratio.low is None or ratio.high is None:
        return ratio.value, ratio.value
    return ratio.low, ratio.high


def _ratios(panel: Any, known: Sequence[tuple[float, Ratio]], look: Style, name: str) -> Any:
    reach = [
        (ratio.value - low, high - ratio.value)
        for _, ratio in known
        for low, high in (_ends(ratio),)
    ]
    return panel.errorbar(
        [ratio.value for _, ratio in known],
        [y for y, _ in known],
        xerr=list(zip(*reach, strict=True)),
        color=look.color,
        marker=look.marker,
        linestyle="none",
        elinewidth=1.6,
        capsize=3,
        markersize=6,
        label=name,
    )


def tokens_per_s(summary: ServerSummary) -> Plot | None:
    """None for a single number of clients: the table says as much."""
    rates = {
        server: {
            n: rate
            for n in summary.clients
            if (n, server) in summary.loads
            and (rate := summary.load(n, server).tok_per_s) is not None
        }
        for server in summary.result.servers
    }
    clients = sorted({n for found in rates.values() for n in found})
    if len(clients) < 2:
        return None

    def draw() -> Any:
        names = [summary.name(server) for server in rates]
        figure = canvas(2.7, top=legend_height(names))
        panel = figure.subplots()
        handles = []
        for place, (server, found) in enumerate(rates.items()):
            look, measured = nth_style(place), sorted(found.items())
            [line] = panel.plot(
                [n for n, _ in measured],
                [rate for _, rate in measured],
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=6,
                linewidth=1.6,
                label=summary.name(server),
            )
            handles.append(line)
        panel.set_xscale("log")
        panel.set_xlim(clients[0] / 1.2, clients[-1] * 1.2)
        panel.set_xticks(clients, [str(n) for n in clients])
        panel.set_xticks([], minor=True)
        panel.set_ylim(0, 1.1 * max(rate for found in rates.values() for rate in found.values()))
        panel.grid()
        panel.set_xlabel("clients at once")
        panel.set_ylabel("output tokens per second")
        legend(panel, handles)
        return figure

    rows = tuple(
        (str(n), *(number(found.get(n), ".1f") for found in rates.values())) for n in clients
    )
    return Plot(
        "Tokens per second by number of clients",
        "Output tokens of all clients together, over the wall time of whole blocks.",
        draw,
        Table(
            ("clients at once", *(summary.name(server) for server in rates)),
            rows,
            "Output tokens per second",
        ),
    )


def acceptance(summary: ServerSummary) -> Plot | None:
    shares = {
        summary.name(server, n): found
        for n, server in summary.loads
        if (found := _shares(summary, n, server))
    }
    if not shares:
        return None
    known = max(map(len, shares.values()))
    most = min(known, _MOST_POSITIONS)

    def draw() -> Any:
        names = [label(name, 44) for name in shares]
        figure = canvas(2.7, top=legend_height(names))
        panel = figure.subplots()
        handles = []
        for place, (name, found) in enumerate(zip(names, shares.values(), strict=True)):
            look = nth_style(place)
            [line] = panel.plot(
                range(1, len(found[:most]) + 1),
                found[:most],
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=5,
                linewidth=1.6,
                label=name,
            )
            handles.append(line)
        panel.set_ylim(0, 1.03)
        panel.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        panel.set_xlim(0.5, most + 0.5)
        panel.set_xticks(whole_ticks(1, most))
        panel.grid()
        panel.set_xlabel("position in the draft")
        panel.set_ylabel("accepted there")
        legend(panel, handles)
        return figure

    rows = tuple(
        (
            str(place + 1),
            *(percent(one[place] if place < len(one) else None) for one in shares.values()),
        )
        for place in range(most)
    )
    return Plot(
        "Acceptance by position, as the servers count it",
        "By position, the share of all drafted rounds whose token there was accepted."
        f"{first_of(most, known)}",
        draw,
        Table(("position", *shares), rows, "Share accepted at a position"),
    )


def _shares(summary: ServerSummary, clients: int, server: str) -> tuple[float, ...]:
    """Without places of a longer draft than was ever accepted."""
    counters = summary.result.counters(server, clients)
    shares = counters.accepted_at if counters is not None else ()
    while shares and not shares[-1]:
        shares = shares[:-1]
    return shares
