"""The file of a bench: a header and then a line a run, written as they come, so that whatever ends
a bench loses nothing, and a second start goes on. docs/bench-file.md explains the fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.bench.local.identities import check_run
from paceline.bench.local.result import BenchHeader, BenchResult
from paceline.bench.local.run import ROUND_FIELDS, Described, Run
from paceline.errors import DataError
from paceline.storage import GrowingFile, Line, whole_lines

KIND, VERSION = "paceline bench", 3
_HINT = "`paceline bench … -o FILE` writes such a file."

# What a second start may have otherwise: it measures the same thing.
_MAY_DIFFER = ("command", "started", "bandwidth_bytes_per_s")


class RunFile:
    """A bench's file, open for more lines."""

    def __init__(self, file: GrowingFile) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path, header: BenchHeader) -> tuple[RunFile, BenchResult]:
        """A new file, or one that this very bench began; and what it holds.

        Raises DataError for a file of another run, which is left as it is, and for one that can't
        be written, or that a bench is writing.
        """
        file = GrowingFile.open(path)
        try:
            return cls(file), _begun(file, header)
        except BaseException:
            file.close()
            raise

    def add(self, run: Run) -> None:
        self._file.write({"run": run.as_json()})

    def fail(self, id: str, reason: str) -> None:
        self._file.write({"failed": {"id": id, "reason": reason}})

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _begun(file: GrowingFile, header: BenchHeader) -> BenchResult:
    """What a file holds, if it is of this very bench. A line that was cut off is taken away, and
    so are runs whose prompt was not finished: the prompt is decoded again, all in a row."""
    lines = file.lines()
    if not lines:
        _refuse_foreign(file.path)
        file.keep(0)
        file.write(header_document(header))
        return BenchResult(header)
    result = _result(lines, str(file.path))
    _refuse_another(file.path, result.header, header)
    missing = set(result.missing())
    if missing and any(one.warm for one in result.configurations) and result.runs:
        raise DataError(
            f"{file.path} was begun with drafts that remember, and what they remembered is gone.",
            "Begin again: choose another file with -o.",
        )
    size = lines[-1].start + len(lines[-1].text.encode()) + 1
    for line in lines[1:]:
        run = json.loads(line.text).get("run")
        if run is not None and (run["id"], run["repeat"]) in missing:
            size = line.start  # an unfinished prompt is the last
            break
    file.keep(size)
    result.runs = [run for run in result.runs if (run.id, run.repeat) not in missing]
    return result


def _refuse_foreign(path: Path) -> None:
    """A file without one whole line is new, or a header that was cut off."""
    if not f'{{"kind":"{KIND}"'.encode().startswith(path.read_bytes()[: len(KIND) + 10]):
        raise DataError(f"{path} is no bench.", _HINT)


def _refuse_another(path: Path, theirs: BenchHeader, ours: BenchHeader) -> None:
    old, new = (json.loads(json.dumps(header_document(one))) for one in (theirs, ours))
    for one in (*old["configurations"], *new["configurations"]):
        if not one["recorded_costs"]:
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


def header_document(header: BenchHeader) -> dict[str, Any]:
    document = {field.name: getattr(header, field.name) for field in fields(BenchHeader)}
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
    lines = whole_lines(Path(path))
    if not cut_off_ends and not Path(path).read_bytes().endswith(b"\n"):
        if not lines and Path(path).stat().st_size:
            raise DataError(f"{path} is no bench.", _HINT)
        if not lines:
            raise DataError(f"{path} is empty.", _HINT)
        raise DataError(
            f"Line {lines[-1].number + 1} of {path} was cut off.",
            "If the bench was killed there, start its command again: it goes on.",
        )
    return _result(lines, path)


def _result(lines: Sequence[Line], path: str) -> BenchResult:
    if not lines:
        raise DataError(f"{path} is empty.", _HINT)
    result = BenchResult(_header(_row(lines[0], path), path))
    seen: set[tuple[str, str, int]] = set()
    for line in lines[1:]:
        where = f"Line {line.number} of {path}"
        run = _take(result, _row(line, path), where)
        if run is not None:
            key = (run.configuration, run.id, run.repeat)
            if key in seen:
                raise DataError(f"{where} holds {run.id} in {key[0]} once more.", _HINT)
            seen.add(key)
    return result


def _row(line: Line, path: str) -> Any:
    try:
        return json.loads(line.text)
    except (ValueError, RecursionError) as error:
        if line.number == 1:
            raise DataError(f"{path} is no bench.", _HINT) from None
        reason = str(error).split(": line")[0]
        raise DataError(f"Line {line.number} of {path} is not JSON: {reason}.", _HINT) from None


def _header(row: Any, path: str) -> BenchHeader:
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind != KIND:
        raise DataError(f"{path} is no bench: its kind is {kind!r}, not {KIND!r}.", _HINT)
    if row.get("version") != VERSION:
        raise DataError(
            f"{path} has version {row.get('version')} of the format, not {VERSION}.",
            "Measure again with this Paceline.",
        )
    try:
        values = {field.name: row[field.name] for field in fields(BenchHeader)}
        values["command"] = tuple(row["command"])
        values["prompts"] = tuple((str(id), str(category)) for id, category in row["prompts"])
        values["configurations"] = tuple(map(Described.from_json, row["configurations"]))
        return BenchHeader(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"The header of {path} can't be read: {_said(error)}.", _HINT) from None


def _take(result: BenchResult, row: Any, where: str) -> Run | None:
    try:
        if "failed" in row:
            result.fail(str(row["failed"]["id"]), str(row["failed"]["reason"]))
            return None
        run = Run.from_json(row["run"])
        result.configuration(run.configuration)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where} can't be read: {_said(error)}.", _HINT) from None
    check_run(run, where)
    result.runs.append(run)
    return run


def _said(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)
