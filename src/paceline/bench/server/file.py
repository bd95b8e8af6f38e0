"""The file of a run on live servers: a header, then a line a request and a line a stretch, written
as they come, so that whatever ends a run loses nothing, and a second start goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from paceline.bench.server.result import (
    KIND,
    VERSION,
    Asked,
    Segment,
    ServerBenchHeader,
    ServerResult,
    header_document,
)
from paceline.errors import DataError
from paceline.storage import GrowingFile, Line, whole_lines

_HINT = "`paceline bench-server URL -o FILE` writes such a file."
_MAY_DIFFER = ("command", "started", "client", "patience")  # it measures the same all the same


class ServerFile:
    """A run's file, open for more lines. `result` has what it held, and grows with it."""

    def __init__(self, file: GrowingFile, result: ServerResult) -> None:
        self._file, self.result = file, result

    @classmethod
    def open(cls, path: Path, header: ServerBenchHeader) -> ServerFile:
        """A new file, or one that this very run began; a last line that was cut off is taken away.

        Raises DataError for a file of another run, which is left as it is, and for one that can't
        be written, or that a run is writing.
        """
        file = GrowingFile.open(path)
        try:
            return cls(file, _begun(file, header))
        except BaseException:
            file.close()
            raise

    def add(self, asked: Asked) -> None:
        self.result.asked.append(asked)
        self._file.write({"request": asked.as_json()})

    def add_segment(self, segment: Segment) -> None:
        self.result.segments.append(segment)
        self._file.write({"segment": segment.as_json()})

    def begin_again(self, block: int) -> None:
        """What the file holds of a block counts no more."""
        self.result.begin_again(block)
        self._file.write({"begin_again": {"block": block}})

    def leave_out(self, concurrency: int, id: str, reason: str) -> None:
        self.result.left_out[concurrency, id] = reason
        self._file.write({"left_out": {"concurrency": concurrency, "id": id, "reason": reason}})

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ServerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _begun(file: GrowingFile, header: ServerBenchHeader) -> ServerResult:
    """What a file holds, if it is of this very run."""
    lines = file.lines()
    if not lines:
        _refuse_foreign(file.path)
        file.keep(0)
        file.write(header_document(header))
        return ServerResult(header)
    result = _result(lines, str(file.path))
    _refuse_another(file.path, result.header, header)
    file.keep(lines[-1].start + len(lines[-1].text.encode()) + 1)
    return result


def read_server_result(path: str) -> ServerResult:
    """A run on live servers from its file. A last line that was cut off is left out.

    Raises DataError for a file that can't be read or is none of these.
    """
    return _result(whole_lines(Path(path)), path)


def _result(lines: Sequence[Line], path: str) -> ServerResult:
    result: ServerResult | None = None
    for line in lines:
        try:
            row = json.loads(line.text)
            if result is None:
                result = ServerResult(_header(row, path))
            else:
                _take(result, row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"Line {line.number} of {path} can't be read: {said}.", _HINT) from None
    if result is None:
        raise DataError(f"{path} is empty.", _HINT)
    return result


def _header(row: Any, path: str) -> ServerBenchHeader:
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind != KIND:
        raise DataError(f"{path} is no run on live servers: its kind is {kind!r}.", _HINT)
    if row.get("version") != VERSION:
        raise DataError(
            f"{path} has version {row.get('version')} of the format, not {VERSION}.",
            "Measure again with this Paceline.",
        )
    values = {one.name: row[one.name] for one in fields(ServerBenchHeader)}
    values["command"] = tuple(row["command"])
    values["concurrency"] = tuple(row["concurrency"])
    values["prompts"] = tuple((str(a), str(b), c) for a, b, c in row["prompts"])
    return ServerBenchHeader(**values)


def _take(result: ServerResult, row: Mapping[str, Any]) -> None:
    if "request" in row:
        result.asked.append(Asked.from_json(row["request"]))
    elif "segment" in row:
        result.segments.append(Segment.from_json(row["segment"]))
    elif "begin_again" in row:
        result.begin_again(int(row["begin_again"]["block"]))
    else:
        left = row["left_out"]
        result.left_out[int(left["concurrency"]), str(left["id"])] = str(left["reason"])


def _refuse_foreign(path: Path) -> None:
    """A file without one whole line is new, or a header that was cut off."""
    if not f'{{"kind":"{KIND}"'.encode().startswith(path.read_bytes()[: len(KIND) + 10]):
        raise DataError(f"{path} is no run on live servers.", _HINT)


def _refuse_another(path: Path, theirs: ServerBenchHeader, ours: ServerBenchHeader) -> None:
    old, new = (json.loads(json.dumps(header_document(one))) for one in (theirs, ours))
    for key in new:
        if key not in _MAY_DIFFER and old.get(key) != new[key]:
            raise DataError(
                f"{path} holds another run: its {key.replace('_', ' ')} "
                f"{'are' if key.endswith('s') else 'is'} not the same.",
                "Choose another file with -o.",
            )
