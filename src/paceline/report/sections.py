"""The sections of one run file, in the order in which a sceptical reader asks: what to do, where it
does worst, by category; then what only a bench or only live servers can tell."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.comparison import Comparison
from paceline.bench.server.notes import counter_meanings, notes, why_none
from paceline.bench.server.result import Load, Spread, clients_words
from paceline.bench.stats import FEW_PROMPTS, Ratio
from paceline.policy.stats import PolicyStats
from paceline.report import cost_plots, plots, texts
from paceline.report.document import (
    BEST,
    NONE,
    SLOWER,
    UNCLEAR,
    Block,
    Cell,
    Metadata,
    Paragraph,
    Part,
    Row,
    Table,
    Titled,
    count,
    interval,
    named,
    number,
    part,
    percent,
    scope_words,
    table_of,
    three_digits,
    times,
)
from paceline.report.measured import how_measured, resources
from paceline.report.summary import (
    BenchSummary,
    Group,
    ServerSummary,
    Summary,
    is_slower,
    is_unclear,
    ms_per_token,
)
from paceline.report.verdict import slower_prompts, verdicts

_SPEEDUP = (
    "Speedup is the baseline's time per token over that with drafts, sums over sums of the prompts "
    "that both finished; above 1 drafting is faster. Intervals are 95 % ones, by a paired "
    "bootstrap over prompts."
)
_WHOLE = (
    "Tokens are those after the first. Whole answers count from the first attempt to the end of "
    "the answer, waits after a refusal and prefill included."
)
_WAITS = "Medians by number of clients and server; beneath them p95"
_TIMES = (
    "TTFT, the time to the first token, is from sending the request to the first piece of text; "
    "TPOT, the time per output token, from there to the last piece, by the output tokens after the "
    "first. Both are of the attempt that was answered; a whole answer is timed from the first "
    "attempt on. 95 % of the answers took no longer than p95."
)
_FIGURES = (
    "Mean accepted length τ is tokens emitted a round, the target's own token included. "
    "Acceptance rate is accepted over drafted tokens. TTFT is the prefill's, a mean over prompts."
)


def part_of(summary: Summary) -> Part:
    """All sections of one file."""
    if isinstance(summary, ServerSummary):
        found = list(_of_servers(summary))
    else:
        found = list(_of_bench(summary))
    verdict, measured = ("Verdict", list(_verdict(summary))), how_measured(summary)
    return part(summary.source, [verdict, *found, ("How it was measured", measured)])


def _verdict(summary: Summary) -> Iterator[Block]:
    for verdict in verdicts(summary):
        yield Paragraph(verdict.sentence, "lead")
        for doubt in verdict.doubts:
            yield Paragraph(doubt, "warning")
    if isinstance(summary, ServerSummary):
        yield Metadata(tuple((summary.name(s), summary.about(s)) for s in summary.result.servers))
        for note in notes(summary.result):
            yield Paragraph(note)


def _of_bench(summary: BenchSummary) -> Iterator[Titled]:
    if not summary.result.runs:
        return
    for group in summary.groups:
        against = f" – against {group.every[0].name}" if len(summary.groups) > 1 else ""
        for title, blocks in (
            *_compared(summary, group),
            ("Acceptance by position", [plots.bench_acceptance(summary, group)]),
            ("Tokens per round", [plots.tokens_per_round(summary, group)]),
            (
                "What width costs",
                [cost_plots.width_cost(summary, group), *_policies(summary, group)],
            ),
            ("Break-even", [cost_plots.break_even(summary, group)]),
            ("Sample texts", [texts.samples(summary, group)]),
        ):
            yield f"{title}{against}", blocks
    yield "Resources", resources(summary)


def _of_servers(summary: ServerSummary) -> Iterator[Titled]:
    if summary.loads:
        for group in summary.groups:
            yield from _compared(summary, group)
        if not summary.several:
            yield "By category", [_categories_alone(summary)]
        waits = table_of([_wait_row(*each) for each in _loads(summary)], _WAITS)
        yield "What users wait for", [waits, Paragraph(_TIMES)]
        loads = table_of([_load_row(*each) for each in _loads(summary)], "All clients together")
        yield "Load", [loads, plots.tokens_per_s(summary), _load_note(summary)]
        yield "Drafts, as the servers count them", _drafts(summary)
    yield "What failed", _failures(summary)


# What both kinds compare.


def _compared(summary: Summary, group: Group) -> Iterator[Titled]:
    yield "The worst, first", [_worst(summary, group)]
    blocks: list[Block | None] = [_by_category(summary, group)]
    if isinstance(summary, BenchSummary):
        blocks += [_figures(summary, group), Paragraph(_FIGURES)]
    if any(one.ratio() or one.whole_ratio() for one in group.comparisons):
        whole = f" {_WHOLE}" if _has_whole(group) else ""
        blocks += [plots.speedup(summary, group), Paragraph(f"{_SPEEDUP}{whole}")]
        if any(1 < n < FEW_PROMPTS for c in summary.categories for n in summary.prompts(group, c)):
            blocks.append(
                Paragraph(f"Intervals of fewer than {FEW_PROMPTS} prompts are too narrow.")
            )
    yield "By category", blocks
    yield "Is the text the same?", texts.equality(summary, group) if group.comparisons else []


def _worst(summary: Summary, group: Group) -> Table | None:
    """Where each does worst, the worst of all at the top."""
    found = [(one, one.worst_first()[0]) for one in group.comparisons if one.worst_first()]
    rows: list[Row] = [
        {
            "compared": summary.name_cell(one),
            "worst category": category,
            "speedup there": _ratio_cell(ratio),
            "prompts slower than the baseline": slower_prompts(one),
        }
        for one, (category, ratio) in sorted(found, key=lambda each: each[1][1].value)
    ]
    return table_of(rows, "The category in which each does worst", words=2)


def _marks(ratio: Ratio | None) -> tuple[str, ...]:
    if ratio is None:
        return ()
    return (SLOWER,) if is_slower(ratio) else (UNCLEAR,) if is_unclear(ratio) else ()


def _has_whole(group: Group) -> bool:
    return any(one.whole_ratio() is not None for one in group.comparisons)


def _by_category(summary: Summary, group: Group) -> Table | None:
    """A column for the baseline that all share, and for each that is compared; of servers one more
    for whole answers."""
    rows: list[Row] = []
    for scope in summary.scopes(group):
        row: Row = {"category": Cell(scope_words(scope), _prompts(summary, group, scope))}
        best = None
        if isinstance(summary, BenchSummary) and group.baseline is not None:
            best, name = summary.best(group, scope), group.baseline.name
            ms = number(summary.stats(name, scope).ms_per_token, ".2f", " ms")
            row[summary.cell(group.baseline)] = Cell(ms, marks=(BEST,) if best == name else ())
        for one in group.comparisons:
            row[summary.name_cell(one)] = _ms_cell(one, scope, best)
            if _has_whole(group):
                row[Cell("whole answers", one.title)] = _ratio_cell(one.whole_ratio(scope))
        rows.append(row)
    if all(cell == Cell(NONE) for row in rows for cell in list(row.values())[1:]):
        return None
    return table_of(rows, "Milliseconds per token, and speedup with its 95 % interval")


def _ms_cell(one: Comparison, scope: str | None, best: str | None) -> Cell:
    ratio = one.ratio(scope)
    marks = ((BEST,) if best == one.candidate else ()) + _marks(ratio)
    ms = number(ms_per_token(one, scope), ".2f", " ms")
    return Cell(ms, times(ratio) if ratio else "", marks)


def _ratio_cell(ratio: Ratio | None) -> Cell:
    return Cell(f"{ratio.value:.2f}×", interval(ratio), _marks(ratio)) if ratio else Cell(NONE)


def _prompts(summary: Summary, group: Group, scope: str | None) -> str:
    found = summary.prompts(group, scope)
    most = count(max(found), "prompt")
    return most if len(set(found)) == 1 else f"{min(found)} to {most}"


# A local bench.


def _figures(summary: BenchSummary, group: Group) -> Table | None:
    rows: list[Row] = []
    for one in group.every:
        stats, runs = summary.stats(one.name), summary.runs(one.name)
        ms, parts = stats.ms_per_token, (stats.verify_s, stats.draft_s, stats.other_s)
        split = [f"{1e3 * s / stats.tokens:.2f}" for s in parts] if ms else [NONE]
        rows.append(
            {
                "configuration": summary.cell(one),
                "tokens per second": number(1e3 / ms if ms else None, ".1f"),
                "TPOT, ms": number(ms),
                "TPOT: target + draft + rest": " + ".join(split),
                "TTFT, ms": three_digits(1e3 * stats.prefill_s / len(runs) if runs else None),
                "acceptance rate": percent(stats.acceptance_rate),
                "mean accepted length τ": number(stats.tokens_per_round),
            }
        )
    return table_of(rows, "All prompts")


def _policies(summary: BenchSummary, group: Group) -> Iterator[Paragraph]:
    """What the policy did and saved by its own costs, a sentence a configuration."""
    for one in group.drafted:
        found = [run.policy_stats for run in summary.runs(one.name) if run.policy_stats is not None]
        if found:
            said = sum(found, PolicyStats()).sentence()
            yield Paragraph(f"The policy of {one.name}: {said} by its costs.")


# Live servers.


def _categories_alone(summary: ServerSummary) -> Table | None:
    """Of one server: the slowest per token first, at the first number of clients."""
    server = summary.result.servers[0]
    if len(summary.categories) < 2:
        return None

    def slowness(category: str) -> float:
        spread = summary.load(summary.clients[0], server, category).s_per_token
        return -spread.median if spread else 0.0

    rows: list[Row] = []
    for category in sorted(summary.categories, key=slowness):
        loads = {n: summary.load(n, server, category) for n in summary.clients}
        requests = count(loads[summary.clients[0]].requests, "request")
        row: Row = {"category": Cell(category, requests)}
        for n, load in loads.items():
            where = f", {clients_words(n)}" if len(loads) > 1 else ""
            row |= {f"TTFT{where}": _spread(load.ttft_s), f"TPOT{where}": _spread(load.s_per_token)}
        rows.append(row)
    return table_of(rows, "Milliseconds, medians; beneath them p95")


def _spread(found: Spread | None, unit_s: float = 1e-3) -> Cell:
    if found is None:
        return Cell(NONE)
    return Cell(three_digits(found.median / unit_s), f"p95 {three_digits(found.p95 / unit_s)}")


def _loads(summary: ServerSummary) -> Iterator[tuple[Cell, Load]]:
    for n, server in summary.loads:
        yield Cell(summary.name(server), clients_words(n)), summary.load(n, server)


def _wait_row(who: Cell, load: Load) -> Row:
    return {
        "server": who,
        "TTFT, ms": _spread(load.ttft_s),
        "TPOT, ms": _spread(load.s_per_token),
        "whole answer, s": _spread(load.total_s, 1),
        "answers": f"{load.requests - load.failed:,}",
    }


def _load_row(who: Cell, load: Load) -> Row:
    return {
        "server": who,
        "tokens per second": number(load.tok_per_s, ".1f"),
        "output tokens": number(load.output_tokens, ",.0f"),
        "wall time, s": number(load.wall_s, ".1f"),
        "tokens per piece of the stream": number(load.tokens_per_piece),
        "requests": f"{load.requests:,}",
        "tried again": f"{load.retries:,}",
        "failed": f"{load.failed:,}",
    }


def _load_note(summary: ServerSummary) -> Paragraph:
    said = (
        "Tokens per second are over whole blocks: those that ran to their end with all clients, on "
        "every server."
    )
    if max(summary.clients) > 1:
        said += " Near a block's end some clients have nothing left to ask, on both servers alike."
    return Paragraph(said)


def _drafts(summary: ServerSummary) -> list[Block | None]:
    rows = [
        _draft_row(summary, n, server, who)
        for (n, server), (who, _) in zip(summary.loads, _loads(summary), strict=True)
    ]
    none = [
        f"{summary.name(server).capitalize()}: no drafts counted"
        f"{why_none(summary.result, server, summary.result.counters(server, n))}."
        for (n, server), row in zip(summary.loads, rows, strict=True)
        if row["drafted"] == "none"
    ]
    return [
        table_of(rows, "What each server counted of its drafts"),
        *map(Paragraph, dict.fromkeys([*none, *counter_meanings(summary.result)])),
        plots.server_acceptance(summary),
    ]


def _draft_row(summary: ServerSummary, clients: int, server: str, who: Cell) -> Row:
    """What it counted, or else what it told with its answers."""
    counters = summary.result.counters(server, clients)
    found = counters if counters is not None and counters.has_drafts else None
    told = summary.result.told_drafts(server, clients) if found is None else None
    drafted, accepted = (found.drafted, found.accepted) if found else told or (None, None)
    rate = accepted / drafted if drafted and accepted is not None else None
    generated = found.generated if found and rate is not None else None
    share = (accepted or 0) / generated if generated else None
    words = Cell(number(drafted, ",.0f"), "told with answers" if told else "")
    return {
        "server": who,
        "drafted": words if found or told else "none",
        "accepted": number(accepted, ",.0f"),
        "acceptance rate": percent(rate),
        "rounds with a draft": number(found.drafts if found else None, ",.0f"),
        "mean accepted length τ of them": number(found.tokens_per_drafted_round if found else None),
        "tokens per round": number(found.tokens_per_round if found else None),
        "of all tokens, from drafts": percent(share),
    }


def _failures(summary: ServerSummary) -> list[Block | None]:
    kinds = dict.fromkeys(kind for _, load in _loads(summary) for kind in load.failures)
    rows: list[Row] = [
        {"server": who, **{kind: str(load.failures.get(kind, 0)) for kind in kinds}}
        for who, load in _loads(summary)
    ]
    failed: list[Row] = [
        {
            "prompt": one.id,
            "server": summary.name(one.server),
            "clients at once": str(one.concurrency),
            "what happened": one.answer.failure,
        }
        for one in summary.result.asked
        if one.answer.failure is not None
    ]
    left: list[Row] = [
        {"left out": id, "clients at once": str(n), "why": why}
        for (n, id), why in summary.result.left_out.items()
    ]
    return [
        table_of(rows, "Failed requests, by kind") if kinds else None,
        named(failed),
        named(left),
    ]
