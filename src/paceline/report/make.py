"""A report from run files, of benches and of live servers: how each is read, what they come to
together, and where it goes, of which the suffix tells the form."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.bench.local.file import read_result
from paceline.bench.server.file import read_server_result
from paceline.bench.server.result import KIND
from paceline.errors import DataError, SettingError
from paceline.report import render, rows
from paceline.report.document import Report
from paceline.report.measured import together
from paceline.report.sections import part_of
from paceline.report.summary import BenchSummary, ServerSummary, Summary

_BEGINNING = 2000


def summaries_of(paths: Sequence[str]) -> list[Summary]:
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


def _summary(name: str, path: str) -> Summary:
    if _beginning(Path(path)).startswith(f'{{"kind":"{KIND}"'.encode()):
        return ServerSummary(name, read_server_result(path))
    return BenchSummary(name, read_result(path, cut_off_ends=True))


def _beginning(path: Path) -> bytes:
    """Nothing of a file that can't be read: who reads it whole will say so."""
    try:
        with path.open("rb") as file:
            return file.read(_BEGINNING)
    except OSError:
        return b""


def report_of(summaries: Sequence[Summary]) -> Report:
    """What the files say, each by itself, and what compares several before them."""
    parts = tuple(map(part_of, summaries))
    before = together(summaries) if len(parts) > 1 else []
    title = f"Paceline report: {', '.join(one.source for one in summaries)}"
    return Report(title, (*before, *parts))


_FORMS: dict[str, tuple[Callable[[Sequence[Summary]], str], tuple[str, ...]]] = {
    ".html": (lambda found: render.html(report_of(found)), (render.HTML_MARK,)),
    ".md": (lambda found: render.markdown(report_of(found)), (render.MARKDOWN_MARK,)),
    ".csv": (rows.as_csv, rows.CSV_MARKS),
    ".json": (rows.as_json, (rows.KIND,)),
}
"""By suffix: what makes the text, and what may stand in its first lines."""


def check_out(path: Path) -> Path:
    """The path, if a report can be written there. Raises SettingError for an unknown suffix,
    DataError for a place that can't be written and for a file that is not a report."""
    if path.suffix.lower() not in _FORMS:
        raise SettingError(
            f"The report {path} ends in {path.suffix!r}.", f"It can end in {', '.join(_FORMS)}."
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DataError(f"{path} can't be written.", "Choose another file with -o.")
    if path.exists():
        beginning, marks = _beginning(path), _FORMS[path.suffix.lower()][1]
        if beginning and not any(mark.encode() in beginning for mark in marks):
            raise DataError(
                f"{path} exists, and is not a report of Paceline's.",
                "Choose another file with -o, or take that one away.",
            )
    return path


def write(summaries: Sequence[Summary], path: Path) -> None:
    """Raises DataError where there is no room; an earlier report is then still there."""
    text = _FORMS[path.suffix.lower()][0](summaries)
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DataError(f"{path} can't be written: {error.strerror}.", "Make room there.") from None
