"""The sections of one run on live servers, in the order in which a sceptical reader asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.bench.server.notes import counter_meanings, notes, why_none
from paceline.bench.server.result import Spread, clients_words
from paceline.bench.stats import Ratio
from paceline.report import server_plots
from paceline.report.document import (
    SLOWER,
    UNCLEAR,
    Block,
    Cell,
    Metadata,
    Paragraph,
    Part,
    Table,
    section,
)
from paceline.report.server_measured import how_measured
from paceline.report.server_summary import ServerSummary
from paceline.report.server_verdict import verdicts
from paceline.report.summary import is_slower, is_unclear
from paceline.report.words import NONE, count, interval, number, percent, scope_words

_MOST_NAMED = 20
_RATIOS = (
    "Times as fast are the other server's time per output token over the endpoint's, sums over "
    "sums of the prompts that both answered; above 1 the endpoint is faster. Intervals are 95 % "
    "ones, by a paired bootstrap over prompts. Whole answers count from the first attempt to the "
    "end of the answer, waits after a refusal and the reading of the prompt included."
)
_TIMES = (
    "The time to the first token is from sending the request to the first piece of text; the time "
    "per token from there to the last piece, by the output tokens after the first. Both are of the "
    "attempt that was answered; a whole answer is timed from the first attempt on. 95 % of the "
    "answers took no longer than p95."
)


def part_of(summary: ServerSummary) -> Part:
    found: list[tuple[str, Sequence[Block | None]]] = [("Verdict", list(_verdict(summary)))]
    if summary.loads:
        found += [
            ("The worst category, first", _by_category(summary)),
            ("What users wait for", [_times(summary), Paragraph(_TIMES)]),
            ("Load", [_load(summary), server_plots.tokens_per_s(summary), _load_note(summary)]),
            ("Drafts, as the servers count them", _drafts(summary)),
            ("Is the text the same?", _texts(summary)),
        ]
    found.append(("What failed", _failures(summary)))
    sections = [one for title, blocks in found if (one := section(title, blocks)) is not None]
    return Part(summary.source, (*sections, how_measured(summary)))


def _verdict(summary: ServerSummary) -> Iterator[Block]:
    for verdict in verdicts(summary):
        yield Paragraph(verdict.sentence, "lead")
        for doubt in verdict.doubts:
            yield Paragraph(doubt, "warning")
    yield Metadata(tuple((summary.name(s), summary.about(s)) for s in summary.result.servers))
    for note in notes(summary.result):
        yield Paragraph(note)


# Categories.


def _by_category(summary: ServerSummary) -> list[Block | None]:
    if not summary.several:
        return [_categories_alone(summary)]
    if all(summary.whole_ratio(n) is None for n in summary.clients):
        return []
    scopes = [*summary.worst_first, None] if len(summary.categories) > 1 else [None]
    head: tuple[str, ...] = ("category",)
    for n in summary.clients:
        where = f", {clients_words(n)}" if len(summary.clients) > 1 else ""
        head += (f"per token{where}", f"whole answers{where}")
    rows = tuple(
        (
            Cell(scope_words(scope), _prompts(summary, scope)),
            *(
                _ratio_cell(ratio)
                for n in summary.clients
                for ratio in (summary.ratio(n, scope), summary.whole_ratio(n, scope))
            ),
        )
        for scope in scopes
    )
    return [
        Table(head, rows, "Times as fast as the other server"),
        server_plots.speed_up(summary),
        Paragraph(_RATIOS),
    ]


def _prompts(summary: ServerSummary, category: str | None) -> str:
    pairs = {
        len([p for p in summary.result.comparison(n).prompts if category in (None, p.category)])
        for n in summary.clients
    }
    least, most = min(pairs), max(pairs)
    return count(most, "prompt") if least == most else f"{least} to {count(most, 'prompt')}"


def _ratio_cell(ratio: Ratio | None) -> Cell:
    if ratio is None:
        return Cell(NONE)
    marks = (SLOWER,) if is_slower(ratio) else (UNCLEAR,) if is_unclear(ratio) else ()
    return Cell(f"{ratio.value:.2f}×", interval(ratio), marks)


def _categories_alone(summary: ServerSummary) -> Table | None:
    """The slowest per token first, at the first number of clients."""
    if len(summary.categories) < 2:
        return None
    server = summary.result.servers[0]

    def slowness(category: str) -> float:
        spread = summary.load(summary.clients[0], server, category).s_per_token
        return -spread.median if spread else 0.0

    head: tuple[str, ...] = ("category",)
    for n in summary.clients:
        where = f", {clients_words(n)}" if len(summary.clients) > 1 else ""
        head += (f"to the first token{where}", f"per token{where}")
    rows = []
    for category in sorted(summary.categories, key=slowness):
        loads = [summary.load(n, server, category) for n in summary.clients]
        cells = [cell for one in loads for cell in (_ms(one.ttft_s), _ms(one.s_per_token))]
        rows.append((Cell(category, count(loads[0].requests, "request")), *cells))
    return Table(head, tuple(rows), "Milliseconds, medians; beneath them p95")


def _ms(spread: Spread | None) -> Cell:
    if spread is None:
        return Cell(NONE)
    return Cell(_three(1e3 * spread.median), _three(1e3 * spread.p95))


def _three(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# Times and load.


def _who(summary: ServerSummary, clients: int, server: str) -> Cell:
    return Cell(summary.name(server), clients_words(clients))


def _times(summary: ServerSummary) -> Table:
    rows: list[tuple[str | Cell, ...]] = []
    for n, server in summary.loads:
        load = summary.load(n, server)
        cells = [
            text
            for spread in (load.ttft_s, load.s_per_token)
            for text in (
                (NONE, NONE)
                if spread is None
                else (_three(1e3 * spread.median), _three(1e3 * spread.p95))
            )
        ]
        whole = load.total_s
        cells += [
            number(whole.median if whole else None, ".2f"),
            number(whole.p95 if whole else None, ".2f"),
            str(load.requests - load.failed),
        ]
        rows.append((_who(summary, n, server), *cells))
    head = (
        "server",
        "to the first token, median ms",
        "p95",
        "per token, median ms",
        "p95",
        "whole answer, median s",
        "p95",
        "answers",
    )
    return Table(head, tuple(rows), "Times by number of clients and server")


def _load(summary: ServerSummary) -> Table:
    rows = []
    for n, server in summary.loads:
        load = summary.load(n, server)
        rows.append(
            (
                _who(summary, n, server),
                number(load.tok_per_s, ".1f"),
                number(load.output_tokens, ",.0f"),
                number(load.wall_s, ".1f"),
                number(load.tokens_per_piece, ".2f"),
                f"{load.requests:,}",
                f"{load.retries:,}",
                f"{load.failed:,}",
            )
        )
    head = (
        "server",
        "tokens/s",
        "output tokens",
        "wall time, s",
        "tokens per piece of the stream",
        "requests",
        "tried again",
        "failed",
    )
    return Table(head, tuple(rows), "All clients together")


def _load_note(summary: ServerSummary) -> Paragraph:
    said = (
        "Tokens per second are over whole blocks: those that ran to their end with all clients, on "
        "every server."
    )
    if max(summary.clients) > 1:
        said += " Near a block's end some clients have nothing left to ask, on both servers alike."
    return Paragraph(said)


# Drafts.


def _drafts(summary: ServerSummary) -> list[Block | None]:
    rows = tuple(_draft_row(summary, n, server) for n, server in summary.loads)
    head = (
        "server",
        "drafted",
        "accepted",
        "accepted of drafted",
        "rounds with a draft",
        "tokens per drafted round",
        "tokens per round",
        "of all tokens, from drafts",
    )
    none = [
        Paragraph(f"{summary.name(server).capitalize()}: no drafts counted{why}.")
        for n, server in summary.loads
        if (why := _why_none(summary, n, server)) is not None
    ]
    return [
        Table(head, rows, "What each server counted of its drafts"),
        *dict.fromkeys(none),
        *(Paragraph(sentence) for sentence in counter_meanings(summary.result)),
        server_plots.acceptance(summary),
    ]


def _draft_row(summary: ServerSummary, clients: int, server: str) -> tuple[str | Cell, ...]:
    who = _who(summary, clients, server)
    counters = summary.result.counters(server, clients)
    if counters is not None and counters.has_drafts:
        share = None
        if counters.drafted and counters.accepted is not None and counters.generated:
            share = counters.accepted / counters.generated
        return (
            who,
            number(counters.drafted, ",.0f"),
            number(counters.accepted, ",.0f"),
            percent(counters.acceptance_rate),
            number(counters.drafts, ",.0f"),
            number(counters.tokens_per_drafted_round, ".2f"),
            number(counters.tokens_per_round, ".2f"),
            percent(share),
        )
    told = summary.result.told_drafts(server, clients)
    if told is not None:
        drafted, accepted = told
        rate = percent(accepted / drafted if drafted else None)
        return (who, Cell(f"{drafted:,}", "told with answers"), f"{accepted:,}", rate, *(NONE,) * 4)
    return (who, "none", *(NONE,) * 6)


def _why_none(summary: ServerSummary, clients: int, server: str) -> str | None:
    """None where there is something."""
    counters = summary.result.counters(server, clients)
    if counters is not None and counters.has_drafts:
        return None
    if summary.result.told_drafts(server, clients) is not None:
        return None
    return why_none(summary.result, server, counters)


# Texts and failures.


def _texts(summary: ServerSummary) -> list[Block | None]:
    if not summary.several:
        return []
    if not summary.result.greedy:
        return [Paragraph("Texts are not compared: they were sampled.")]
    rows = tuple(
        (str(n), f"{equal[0]} of {equal[1]}")
        for n in summary.clients
        if (equal := summary.result.comparison(n).equal) is not None
    )
    return [
        Table(("clients at once", "prompts with equal texts"), rows, "Texts on both servers"),
        Paragraph(
            "At temperature 0. A difference may come from a near-tie that wider kernels round "
            "otherwise; over an API there is no telling, so it isn't judged here."
        ),
    ]


def _failures(summary: ServerSummary) -> list[Block | None]:
    result = summary.result
    kinds = dict.fromkeys(
        kind for n, server in summary.loads for kind in summary.load(n, server).failures
    )
    blocks: list[Block | None] = []
    if kinds:
        rows: tuple[tuple[str | Cell, ...], ...] = tuple(
            (
                _who(summary, n, server),
                *(str(summary.load(n, server).failures.get(kind, 0)) for kind in kinds),
            )
            for n, server in summary.loads
        )
        head = ("server", *kinds)
        blocks.append(Table(head, rows, "Failed requests, by kind"))
    failed = [
        (one.id, summary.name(one.server), str(one.concurrency), one.answer.failure)
        for one in result.asked
        if one.answer.failure is not None
    ]
    blocks.append(_named(("prompt", "server", "clients at once", "what happened"), failed))
    left = [(id, str(n), why) for (n, id), why in result.left_out.items()]
    blocks.append(_named(("left out", "clients at once", "why"), left))
    return blocks


def _named(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table | None:
    if not rows:
        return None
    shown = tuple(rows[:_MOST_NAMED])
    more = len(rows) - len(shown)
    if more:
        shown += ((f"… and {more} more", *("",) * (len(head) - 1)),)
    return Table(head, shown, words=None)
