"""The file of a bench: a header and then a line a run, written as they come, so that whatever ends
a bench loses nothing, and a second start goes on. docs/bench-file.md explains the fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from paceline.errors import DataError
from paceline.measure.identities import check_run
from paceline.measure.result import BenchResult, Header
from paceline.measure.run import ROUND_FIELDS, Described, Run

KIND, VERSION = "paceline bench", 2
_CURE = "`paceline bench … -o FILE` writes such a file."

# What a second start may have otherwise: it measures the same thing.
_MAY_DIFFER = ("command", "started", "bandwidth_bytes_per_s")


class RunFile:
    """A bench's file, open for more lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def open(cls, path: Path, header: Header) -> tuple[RunFile, BenchResult]:
        """A new file, or one that this very bench began; and what it holds.

        Raises DataError for a file of another run, which is left as it is, and for one that can't
        be written.
        """
        try:
            begun = path.exists() and path.stat().st_size > 0
            result = _continued(path, header) if begun else BenchResult(header)
            file = cls(path.open("a", encoding="utf-8"))
        except OSError as error:
            raise DataError(
                f"{path} can't be written: {error.strerror}.", "Choose another file with -o."
            ) from None
        if not begun:
            file._write(header_document(header))
        return file, result

    def add(self, run: Run) -> None:
        self._write({"run": run.as_json()})

    def fail(self, id: str, reason: str) -> None:
        self._write({"failed": {"id": id, "reason": reason}})

    def _write(self, document: Mapping[str, Any]) -> None:
        """One line, at once. Raises DataError where there is no room."""
        try:
            json.dump(document, self._stream, ensure_ascii=False, separators=(",", ":"))
            self._stream.write("\n")
            self._stream.flush()
        except OSError as error:
            raise DataError(
                f"{self._stream.name} can't be written: {error.strerror}.",
                "Make room, then start the same command again: it goes on from there.",
            ) from None

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> RunFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _continued(path: Path, header: Header) -> BenchResult:
    """What a file holds, if it is of this very bench. A line that was cut off is taken away, and
    so are runs whose prompt was not finished: the prompt is decoded again, all in a row."""
    result = read_result(str(path), cut_off_ends=True)
    _refuse_another(path, result.header, header)
    missing = set(result.missing())
    result.runs = [run for run in result.runs if (run.id, run.repeat) not in missing]
    lines = [header_document(result.header), *({"run": run.as_json()} for run in result.runs)]
    lines += [{"failed": {"id": id, "reason": why}} for id, why in result.failed.items()]
    kept = "".join(f"{json.dumps(x, ensure_ascii=False, separators=(',', ':'))}\n" for x in lines)
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(kept, encoding="utf-8")
    beside.replace(path)
    return result


def _refuse_another(path: Path, theirs: Header, ours: Header) -> None:
    old, new = header_document(theirs), json.loads(json.dumps(header_document(ours)))
    old = json.loads(json.dumps(old))
    for document in (old, new):
        for one in document["configurations"]:
            del one["costs"]  # measured anew, and corrected while decoding
    other = [key for key in new if key not in _MAY_DIFFER and old.get(key) != new[key]]
    if other:
        raise DataError(
            f"{path} holds another run: its {_difference(other[0], old, new)}.",
            "Choose another file with -o.",
        )


def _difference(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if key == "configurations":
        names = [[one["name"] for one in document[key]] for document in (old, new)]
        if names[0] != names[1]:
            return f"configurations are {', '.join(names[0])}, and these {', '.join(names[1])}"
    if isinstance(new[key], int | str):
        return f"{key} is {old[key]}, and this {new[key]}"
    return f"{key} {'are' if key.endswith('s') else 'is'} not the same"


# Reading.


def header_document(header: Header) -> dict[str, Any]:
    document = {field.name: getattr(header, field.name) for field in fields(Header)}
    return {
        "kind": KIND,
        "version": VERSION,
        "round_fields": ROUND_FIELDS,
        **document,
        "configurations": [one.as_json() for one in header.configurations],
    }


def read_result(path: str, *, cut_off_ends: bool = False) -> BenchResult:
    """A bench from its file.

    cut_off_ends    take a last line that was cut off for none

    Raises DataError for a file that can't be read or is no bench, and for a run whose counters
    don't add up.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", "Give a bench's file.") from None
    if cut_off_ends and lines[-1]:
        lines.pop()
    rows = _rows(path, lines)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} is empty.", _CURE)
    result = BenchResult(_header(first[1], path))
    for number, row in rows:
        _take(result, row, f"Line {number} of {path}")
    return result


def _rows(path: str, lines: list[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            if number == 1:
                raise DataError(f"{path} is no bench.", _CURE) from None
            reason = str(error).split(": line")[0]
            raise DataError(
                f"Line {number} of {path} is not JSON: {reason}.",
                "If the bench was killed there, start its command again: it goes on.",
            ) from None


def _header(row: Any, path: str) -> Header:
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind != KIND:
        raise DataError(f"{path} is no bench: its kind is {kind!r}, not {KIND!r}.", _CURE)
    if row.get("version") != VERSION:
        raise DataError(
            f"{path} has version {row.get('version')} of the format, not {VERSION}.",
            "Measure again with this Paceline.",
        )
    try:
        values = {field.name: row[field.name] for field in fields(Header)}
        values["command"] = tuple(row["command"])
        values["prompts"] = tuple((str(id), str(category)) for id, category in row["prompts"])
        values["configurations"] = tuple(map(Described.from_json, row["configurations"]))
        return Header(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"The header of {path} can't be read: {_said(error)}.", _CURE) from None


def _take(result: BenchResult, row: Any, where: str) -> None:
    try:
        if "failed" in row:
            result.fail(str(row["failed"]["id"]), str(row["failed"]["reason"]))
            return
        run = Run.from_json(row["run"])
        result.configuration(run.configuration)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where} can't be read: {_said(error)}.", _CURE) from None
    check_run(run, where)
    result.runs.append(run)


def _said(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)
