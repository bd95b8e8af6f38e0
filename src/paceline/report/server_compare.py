"""Several files with runs on live servers among them. They are never pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.report import server_verdict as server_verdict
from paceline.report import verdict
from paceline.report.document import Cell, Paragraph, Part, Section, Table
from paceline.report.server_measured import sampling_words
from paceline.report.server_summary import ServerSummary
from paceline.report.summary import Summary
from paceline.report.words import NONE, interval

_ASPECTS: dict[str, Callable[[ServerSummary], str]] = {
    "endpoint": lambda summary: summary.about(summary.result.servers[0]),
    "against": lambda summary: (
        summary.about(summary.result.servers[1]) if summary.several else NONE
    ),
    "workload": lambda summary: str(summary.result.header.workload.get("name", NONE)),
    "prompts": lambda summary: str(len(summary.result.header.prompts)),
    "digest of the prompts": lambda summary: str(
        summary.result.header.workload.get("prompts_sha256") or NONE
    )[:12],
    "clients at once": lambda summary: ", ".join(map(str, summary.clients)) or NONE,
    "most tokens an answer": lambda summary: str(summary.result.header.max_tokens),
    "sampling": lambda summary: sampling_words(summary.result.header.sampling),
    "client": lambda summary: str(summary.result.header.client.get("cpu", NONE)),
    "Paceline": lambda summary: str(summary.result.header.client.get("paceline", NONE)),
    "started": lambda summary: summary.result.header.started or NONE,
}


def side_by_side(summaries: Sequence[ServerSummary]) -> Part:
    """What differs between runs on live servers, and what each came to."""
    differing = [
        name
        for name, tell in _ASPECTS.items()
        if name != "started" and len({tell(summary) for summary in summaries}) > 1
    ]
    said = f"These runs differ in {', '.join(differing)}." if differing else "These runs are alike."
    apart = Paragraph(
        f"{said} They were measured at different times, so nothing is pooled, and times of one are "
        "not held against those of another: each stands beside its own other server.",
        "warning" if differing else "",
    )
    head = ("", *(summary.source for summary in summaries))
    metadata = tuple(
        (name, *(tell(summary) for summary in summaries)) for name, tell in _ASPECTS.items()
    )
    return Part(
        "Live servers, side by side",
        (
            Section("What differs", (apart, Table(head, metadata, "The runs", words=None))),
            Section("Verdicts", (_verdicts(summaries),)),
            Section("Times as fast, run by run", (_ratios(summaries),)),
        ),
    )


def two_kinds(summaries: Sequence[Summary | ServerSummary]) -> Part:
    """What stands before benches and live servers in one report."""
    words = Paragraph(
        "Some of these files are benches of a model in Paceline's own process, others are runs on "
        "live servers. They measure different things, and are not compared."
    )
    return Part("All files", (Section("Verdicts", (words, _verdicts(summaries))),))


def _verdicts(summaries: Sequence[Summary | ServerSummary]) -> Table:
    rows = tuple(
        (summary.source, " ".join(one.sentence for one in _of(summary))) for summary in summaries
    )
    return Table(("run", "verdict"), rows, words=None)


def _of(summary: Summary | ServerSummary) -> list[verdict.ReportVerdict]:
    if isinstance(summary, ServerSummary):
        return server_verdict.verdicts(summary)
    return verdict.verdicts(summary)


def _ratios(summaries: Sequence[ServerSummary]) -> Table:
    clients = sorted({n for summary in summaries for n in summary.clients})
    rows: tuple[tuple[str | Cell, ...], ...] = tuple(
        (str(n), *(_ratio(summary, n) for summary in summaries)) for n in clients
    )
    head = ("clients at once", *(summary.source for summary in summaries))
    return Table(head, rows, "All prompts, per token after the first, each beside its own other")


def _ratio(summary: ServerSummary, clients: int) -> Cell:
    ratio = summary.ratio(clients) if clients in summary.clients else None
    return Cell(NONE) if ratio is None else Cell(f"{ratio.value:.2f}×", interval(ratio))
