"""Pictures of speed and rounds: speedup by category of both kinds of files, acceptance, tokens per
round and tokens per second. Each has its numbers as a table, or stands beside one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.report import canvas
from paceline.report.document import (
    NONE,
    Cell,
    Plot,
    Row,
    Table,
    first_of,
    number,
    percent,
    scope_words,
    table_of,
)
from paceline.report.summary import BenchSummary, Group, ServerSummary, Summary

_MOST_SCOPES = 24
_MOST_POSITIONS = 16
_LEAST_ROUNDS = 20  # fewer are drawn hollow


# Speedup.


def speedup(summary: Summary, group: Group) -> Plot | None:
    """Speedup with intervals: a row for each category, a mark for each that is compared."""
    drawn = [(place, one) for place, one in enumerate(group.comparisons) if one.ratio()]
    scopes, more = drawn_scopes(summary, group)
    if not drawn:
        return None
    names = [canvas.label(one.title) for _, one in drawn]

    def draw() -> Any:
        rows = [canvas.label(scope_words(scope), 30) for scope in scopes]
        panel = canvas.row_panel(0.17 * len(drawn) + 0.22, rows, names)
        handles, reach = [], list[float]()
        for nth, (place, one) in enumerate(drawn):
            offset = (nth - (len(drawn) - 1) / 2) * 0.72 / len(drawn)
            known = {
                row + offset: ratio
                for row, scope in enumerate(scopes)
                if (ratio := one.ratio(scope)) is not None
            }
            reach += [end for ratio in known.values() for end in canvas.ends(ratio)]
            bars = [[abs(r.value - canvas.ends(r)[i]) for r in known.values()] for i in (0, 1)]
            look = {**canvas.nth_style(place), "linestyle": "none", "label": names[nth]}
            look |= {"elinewidth": 1.6, "capsize": 3, "markersize": 6}
            xs = [ratio.value for ratio in known.values()]
            handles.append(panel.errorbar(xs, list(known), xerr=bars, **look))
        canvas.ratio_axis(panel, min(reach), max(reach))
        return canvas.labelled(panel, "speedup (shaded: slower than the baseline)", "", handles)

    return Plot(
        "Speedup by category",
        f"Speedup in {len(scopes)} rows, with 95 % intervals by a paired bootstrap over prompts; "
        f"left of 1 it is slower than the baseline.{more}",
        draw,
    )


def drawn_scopes(summary: Summary, group: Group) -> tuple[list[str | None], str]:
    """Rows of a plot: the worst categories, and all prompts; and whether others are left out."""
    scopes, known = summary.scopes(group), len(summary.categories)
    if known <= _MOST_SCOPES:
        return scopes, ""
    return [*scopes[:_MOST_SCOPES], None], first_of(_MOST_SCOPES, known)


# Curves.


@dataclass(frozen=True, slots=True)
class _Curve:
    """One line of a plot over whole numbers: its column in the table, the place of its style, its
    points with their words, and those to be drawn hollow."""

    head: Cell
    name: str
    place: int
    points: Mapping[int, float]
    words: Mapping[int, str]
    thin: tuple[int, ...] = ()


def _curves(curves: Sequence[_Curve], x: str, y: str) -> Any:
    """A panel with all of them."""
    panel = canvas.figure(2.7, top=canvas.legend_height([one.name for one in curves])).subplots()
    handles = [canvas.curve(panel, one.points, one.place, one.name) for one in curves]
    for one in curves:
        hollow = {at: one.points[at] for at in one.thin}
        look = {"linestyle": "none", "markerfacecolor": canvas.PAPER}
        canvas.curve(panel, hollow, one.place, one.name, **look)
    panel.grid()
    canvas.labelled(panel, x, y, handles)
    return panel


def _numbers(curves: Sequence[_Curve], first: str, caption: str) -> Table | None:
    every = sorted({at for one in curves for at in one.words})
    rows: list[Row] = [
        {first: str(at), **{one.head: one.words.get(at, NONE) for one in curves}} for at in every
    ]
    return table_of(rows, caption)


def _by_place(
    curves: Sequence[_Curve], title: str, description: str, x: str, y: str, first: str, caption: str
) -> Plot | None:
    """Shares by a place counted from 1."""
    if not curves:
        return None
    last = max(max(one.points) for one in curves)

    def draw() -> Any:
        panel = _curves(curves, x, y)
        canvas.share_axis(panel, max(max(one.points.values()) for one in curves))
        canvas.place_axis(panel, last)
        return panel.figure

    return Plot(title, description, draw, _numbers(curves, first, caption))


def bench_acceptance(summary: BenchSummary, group: Group) -> Plot | None:
    """Acceptance of drafted prefixes by their length."""
    curves = []
    for place, one in enumerate(group.drafted):
        stats, name = summary.stats(one.name), canvas.label(one.title)
        points, offered = dict(enumerate(stats.acceptance, 1)), dict(enumerate(stats.offered, 1))
        words = {at: f"{percent(share)} of {offered[at]:,}" for at, share in points.items()}
        thin = tuple(at for at, rounds in offered.items() if rounds < _LEAST_ROUNDS)
        if points:
            curves.append(_Curve(summary.cell(one), name, place, points, words, thin))
    return _by_place(
        curves,
        "Acceptance by position",
        "By position i, the share of the rounds that offered i drafted tokens or more in which "
        "tokens 1 to i were all accepted.",
        f"position (hollow: fewer than {_LEAST_ROUNDS} rounds offered so many)",
        "this and all before accepted",
        "position",
        "Share accepted up to a position, of the rounds that offered so many",
    )


def server_acceptance(summary: ServerSummary) -> Plot | None:
    """Acceptance by position, of servers that count it."""
    curves, known = [], 0
    for place, (n, server) in enumerate(summary.loads):
        counters = summary.result.counters(server, n)
        shares = list(counters.accepted_at) if counters is not None else []
        while shares and not shares[-1]:  # places of a longer draft than was ever accepted
            shares.pop()
        if shares:
            known = max(known, len(shares))
            points = dict(enumerate(shares[:_MOST_POSITIONS], 1))
            words = {at: percent(share) for at, share in points.items()}
            name = summary.name(server, n)
            curves.append(_Curve(Cell(name), canvas.label(name), place, points, words))
    return _by_place(
        curves,
        "Acceptance by position, as the servers count it",
        "By position, the share of all drafted rounds whose token there was accepted."
        f"{first_of(min(known, _MOST_POSITIONS), known)}",
        "position in the draft",
        "accepted there",
        "position",
        "Share accepted at a position",
    )


def tokens_per_s(summary: ServerSummary) -> Plot | None:
    """None for a single number of clients: the table says as much."""
    curves = []
    for place, server in enumerate(summary.result.servers):
        rates = {n: summary.load(n, one).tok_per_s for n, one in summary.loads if one == server}
        points = {n: rate for n, rate in sorted(rates.items()) if rate is not None}
        words = {n: number(rate, ".1f") for n, rate in points.items()}
        name = summary.name(server)
        curves.append(_Curve(Cell(name), name, place, points, words))
    clients = sorted({n for one in curves for n in one.points})
    if len(clients) < 2:
        return None

    def draw() -> Any:
        panel = _curves(curves, "clients at once", "output tokens per second")
        panel.set_xscale("log")
        panel.set_xlim(clients[0] / 1.2, clients[-1] * 1.2)
        panel.set_xticks(clients, [str(n) for n in clients])
        panel.set_xticks([], minor=True)
        panel.set_ylim(0, 1.1 * max(rate for one in curves for rate in one.points.values()))
        return panel.figure

    return Plot(
        "Tokens per second by number of clients",
        "Output tokens of all clients together, over the wall time of whole blocks.",
        draw,
        _numbers(curves, "clients at once", "Output tokens per second"),
    )


def tokens_per_round(summary: BenchSummary, group: Group) -> Plot | None:
    """How often a round emitted so many tokens."""
    curves = []
    for place, one in enumerate(group.drafted):
        share = shares_of([round.emitted for round in summary.rounds(one.name)])
        if share:
            mean = number(summary.stats(one.name).tokens_per_round)
            name = f"{canvas.label(one.title, 36)}: τ {mean}"
            words = {tokens: percent(part, 1) for tokens, part in share.items()}
            curves.append(_Curve(summary.cell(one), name, place, share, words))
    return _by_place(
        curves,
        "Tokens per round",
        "Share of the decoding rounds by how many tokens they emitted, bonus or replacement "
        "included; a round without a draft emits one. Their mean is the mean accepted length τ.",
        "tokens emitted in a round",
        "share of rounds",
        "tokens",
        "Share of rounds",
    )


def shares_of(values: Sequence[int]) -> dict[int, float]:
    """How often each value is there, in order."""
    counts = Counter(values)
    return {value: counts[value] / len(values) for value in sorted(counts)}
