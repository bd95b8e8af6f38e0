"""A report from run files, and where it goes: the suffix tells the form."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import DataError, SettingError
from paceline.measure.run_file import read_result
from paceline.report import markdown, page, rows
from paceline.report.compare import side_by_side
from paceline.report.document import Report
from paceline.report.sections import part_of
from paceline.report.summary import Summary

_FORMS: dict[str, tuple[Callable[[Sequence[Summary]], str], str]] = {
    ".html": (lambda summaries: page.html(report_of(summaries)), page.MARK),
    ".md": (lambda summaries: markdown.text(report_of(summaries)), markdown.MARK),
    ".csv": (rows.as_csv, rows.CSV_MARK),
    ".json": (rows.as_json, rows.KIND),
}
"""By suffix: what makes the text, and what stands in its first lines."""

_BEGINNING = 2000


def summaries_of(paths: Sequence[str]) -> list[Summary]:
    """Each run file's figures. A line that was cut off at the end is a run not finished.

    Raises DataError for a file that can't be read or is no bench, SettingError for one named twice.
    """
    for path in paths:
        if [Path(other).resolve() for other in paths].count(Path(path).resolve()) > 1:
            raise SettingError(f"The run {path} is named twice.", "Name it once.")
    names = [Path(path).name for path in paths]
    short = names if len(set(names)) == len(names) else list(paths)
    return [
        Summary(name, read_result(path, cut_off_ends=True))
        for name, path in zip(short, paths, strict=True)
    ]


def report_of(summaries: Sequence[Summary]) -> Report:
    parts = tuple(part_of(summary) for summary in summaries)
    if len(parts) > 1:
        parts = (side_by_side(summaries), *parts)
    return Report(f"Paceline report: {', '.join(s.source for s in summaries)}", parts)


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
    return not beginning or _FORMS[path.suffix.lower()][1].encode() in beginning


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
