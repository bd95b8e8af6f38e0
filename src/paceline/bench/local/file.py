"""The file of a bench (docs/bench-file.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.bench.file import ResultFile
from paceline.bench.local.result import BenchHeader, BenchResult
from paceline.bench.local.run import ROUND_FIELDS, Run, check_run
from paceline.errors import DataError
from paceline.storage import Line

KIND = "paceline bench"


class _Failed(msgspec.Struct):
    id: str
    reason: str


class _BenchLine(msgspec.Struct):
    run: dict[str, Any] | None = None
    failed: _Failed | None = None


class RunFile(ResultFile[BenchHeader, BenchResult]):
    """A bench's file, open for more lines."""

    kind, version = KIND, 4
    hint = "`paceline bench … -o FILE` writes such a file."
    header, line = BenchHeader, _BenchLine
    may_differ = ("command", "started", "bandwidth_bytes_per_s")

    def add(self, run: Run) -> None:
        """Keep a run."""
        self.result.add(run)
        self.write(run=run.as_json())

    def fail(self, id: str, reason: str) -> None:
        """Leave a prompt out of all configurations."""
        self.result.fail(id, reason)
        self.write(failed=_Failed(id, reason))

    @classmethod
    def document(cls, header: BenchHeader) -> dict[str, Any]:
        """The header's line, which names the columns of rounds too."""
        return super().document(header) | {"round_fields": ROUND_FIELDS}

    @classmethod
    def empty(cls, header: BenchHeader) -> BenchResult:
        """A bench without runs."""
        return BenchResult(header)

    @classmethod
    def take(cls, result: BenchResult, line: _BenchLine, where: str) -> None:
        """Add a run, or leave a prompt out."""
        if line.failed is not None:
            result.fail(line.failed.id, line.failed.reason)
        if line.run is None:
            return
        run = Run.from_json(line.run, where, cls.hint)
        if not any(run.configuration == one.name for one in result.configurations):
            raise DataError(f"{where} is of {run.configuration!r}, not in the header.", cls.hint)
        if run.key in result.known:
            raise DataError(f"{where} holds {run.id} in {run.configuration} once more.", cls.hint)
        check_run(run, where)
        result.add(run)

    @classmethod
    def kept(cls, result: BenchResult, lines: Sequence[Line]) -> int:
        """Without the runs of a prompt that was not finished: it is decoded again, all in a row."""
        missing = set(result.missing())
        if missing and any(one.warm for one in result.configurations) and result.runs:
            raise DataError(
                "This bench was begun with drafts that remember, and what they remembered is gone.",
                "Begin again: choose another file with -o.",
            )
        result.runs = [run for run in result.runs if (run.id, run.repeat) not in missing]
        for line in lines[1:]:
            run = json.loads(line.text).get("run")
            if run is not None and (run["id"], run["repeat"]) in missing:
                return line.start  # an unfinished prompt is the last
        return super().kept(result, lines)

    @classmethod
    def compared(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Costs that weren't given are measured anew, and corrected while decoding."""
        for one in document["configurations"]:
            if not one["recorded_costs"]:
                del one["costs"]
        return super().compared(document)


def read_result(path: str, *, cut_off_ends: bool = False) -> BenchResult:
    """A bench from its file.

    cut_off_ends    leave out a last line that was cut off; otherwise it is refused

    Raises DataError for a file that can't be read or is of another kind, and for a run whose
    counters don't add up.
    """
    return RunFile.read(path, cut_off_ends=cut_off_ends)
