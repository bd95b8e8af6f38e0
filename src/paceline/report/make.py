"""A report from run files, of benches and of live servers: how each is read, what they come to
together, and where it goes, of which the suffix tells the form."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.bench.local.file import read_result
from paceline.bench.server import result as server_result
from paceline.bench.server.file import read_server_result
from paceline.errors import DataError, SettingError
from paceline.report import markdown, page, rows, sections, verdict
from paceline.report import server_compare as server_compare
from paceline.report import server_rows as server_rows
from paceline.report import server_sections as server_sections
from paceline.report import server_verdict as server_verdict
from paceline.report.compare import side_by_side
from paceline.report.document import Part, Report
from paceline.report.server_summary import ServerSummary
from paceline.report.summary import Summary
from paceline.report.verdict import ReportVerdict

Measured = Summary | ServerSummary
_BEGINNING = 2000


def summaries_of(paths: Sequence[str]) -> list[Measured]:
    """Each run file's figures. A line that was cut off at the end is a run not finished.

    Raises DataError for a file that can't be read or is neither of a bench nor of live servers,
    SettingError for one named twice.
    """
    for path in paths:
        if [Path(other).resolve() for other in paths].count(Path(path).resolve()) > 1:
            raise SettingError(f"The run {path} is named twice.", "Name it once.")
    names = [Path(path).name for path in paths]
    short = names if len(set(names)) == len(names) else list(paths)
    return [_summary(name, path) for name, path in zip(short, paths, strict=True)]


def _summary(name: str, path: str) -> Measured:
    if _beginning(Path(path)).startswith(f'{{"kind":"{server_result.KIND}"'.encode()):
        return ServerSummary(name, read_server_result(path))
    return Summary(name, read_result(path, cut_off_ends=True))


def _beginning(path: Path) -> bytes:
    """Nothing of a file that can't be read: who reads it whole will say so."""
    try:
        with path.open("rb") as file:
            return file.read(_BEGINNING)
    except OSError:
        return b""


def verdicts_of(summary: Measured) -> list[ReportVerdict]:
    if isinstance(summary, ServerSummary):
        return server_verdict.verdicts(summary)
    return verdict.verdicts(summary)


def report_of(summaries: Sequence[Measured]) -> Report:
    parts = tuple(map(_part, summaries))
    if len(parts) > 1:
        parts = (*_together(*_by_kind(summaries)), *parts)
    return Report(f"Paceline report: {', '.join(s.source for s in summaries)}", parts)


def _part(summary: Measured) -> Part:
    if isinstance(summary, ServerSummary):
        return server_sections.part_of(summary)
    return sections.part_of(summary)


def _by_kind(summaries: Sequence[Measured]) -> tuple[list[Summary], list[ServerSummary]]:
    return (
        [one for one in summaries if isinstance(one, Summary)],
        [one for one in summaries if isinstance(one, ServerSummary)],
    )


def _together(benches: Sequence[Summary], live: Sequence[ServerSummary]) -> list[Part]:
    """What compares files of one kind; those of two kinds say nothing of each other."""
    found = [side_by_side(benches)] if len(benches) > 1 else []
    if len(live) > 1:
        found.append(server_compare.side_by_side(live))
    if benches and live:
        found.insert(0, server_compare.two_kinds([*benches, *live]))
    return found


def _csv(summaries: Sequence[Measured]) -> str:
    benches, live = _by_kind(summaries)
    if benches and live:
        raise SettingError(
            "Rows of benches and of live servers have other columns.",
            "Write them into two .csv files, or into one .json.",
        )
    return rows.as_csv(benches) if benches else rows.csv_text(server_rows.rows(live))


def _json(summaries: Sequence[Measured]) -> str:
    benches, live = _by_kind(summaries)
    found = {"rows": rows.rows(benches)} if benches else {}
    return rows.json_text(found | ({"server_rows": server_rows.rows(live)} if live else {}))


_FORMS: dict[str, tuple[Callable[[Sequence[Measured]], str], tuple[str, ...]]] = {
    ".html": (lambda summaries: page.html(report_of(summaries)), (page.MARK,)),
    ".md": (lambda summaries: markdown.text(report_of(summaries)), (markdown.MARK,)),
    ".csv": (_csv, (rows.CSV_MARK, server_rows.CSV_MARK)),
    ".json": (_json, (rows.KIND,)),
}
"""By suffix: what makes the text, and what may stand in its first lines."""


def check_out(path: Path) -> Path:
    """The path, if a report can be written there. Raises SettingError for an unknown suffix,
    DataError for a place that can't be written and for a file that is no report."""
    if path.suffix.lower() not in _FORMS:
        raise SettingError(
            f"The report {path} ends in {path.suffix!r}.", f"It can end in {', '.join(_FORMS)}."
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DataError(f"{path} can't be written.", "Choose another file with -o.")
    if path.exists() and not _is_ours(path):
        raise DataError(
            f"{path} exists, and is no report of Paceline's.",
            "Choose another file with -o, or take that one away.",
        )
    return path


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    marks = _FORMS[path.suffix.lower()][1]
    return not beginning or any(mark.encode() in beginning for mark in marks)


def write(summaries: Sequence[Measured], path: Path) -> None:
    """Raises DataError where there is no room; an earlier report is then still there."""
    text = _FORMS[path.suffix.lower()][0](summaries)
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DataError(f"{path} can't be written: {error.strerror}.", "Make room there.") from None
