"""The file of a run on live servers: a header, then a line a request and a line a stretch, written
as they come, so that whatever ends a run loses nothing, and a second start goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from paceline.errors import DataError
from paceline.measure.endpoint_result import (
    KIND,
    VERSION,
    Asked,
    EndpointResult,
    Header,
    Stretch,
    header_document,
)

_CURE = "`paceline bench --endpoint URL -o FILE` writes such a file."
_MAY_DIFFER = ("command", "started", "client", "patience")  # it measures the same all the same


class EndpointFile:
    """A run's file, open for more lines. `result` has what it held, and grows with it."""

    def __init__(self, stream: TextIO, result: EndpointResult) -> None:
        self._stream, self.result = stream, result

    @classmethod
    def open(cls, path: Path, header: Header) -> EndpointFile:
        """A new file, or one that this very run began; a last line that was cut off is taken away.

        Raises DataError for a file of another run, which is left as it is, and for one that can't
        be written.
        """
        try:
            begun = path.exists() and path.stat().st_size > 0
            result = EndpointResult(header)
            if begun:
                result = read_endpoint_result(str(path), cut_off_ends=True)
                _refuse_another(path, result.header, header)
                _drop_cut_off_line(path)
            stream = path.open("a", encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"{path} can't be written: {error.strerror}.", "Choose another file with -o."
            ) from None
        file = cls(stream, result)
        if not begun:
            file._write(header_document(header))
        return file

    def add(self, asked: Asked) -> None:
        self.result.asked.append(asked)
        self._write({"request": asked.as_json()})

    def add_stretch(self, stretch: Stretch) -> None:
        self.result.stretches.append(stretch)
        self._write({"stretch": stretch.as_json()})

    def leave_out(self, concurrency: int, id: str, reason: str) -> None:
        self.result.left_out[concurrency, id] = reason
        self._write({"left_out": {"concurrency": concurrency, "id": id, "reason": reason}})

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

    def __enter__(self) -> EndpointFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_endpoint_result(path: str, *, cut_off_ends: bool = False) -> EndpointResult:
    """A run on live servers from its file.

    cut_off_ends    take a last line that was cut off for none

    Raises DataError for a file that can't be read or is none of these.
    """
    try:
        lines = Path(path).read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", _CURE) from None
    if cut_off_ends:
        lines[-1] = ""
    result: EndpointResult | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if result is None:
                result = EndpointResult(_header(row, path))
            else:
                _take(result, row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"Line {number} of {path} can't be read: {said}.", _CURE) from None
    if result is None:
        raise DataError(f"{path} is empty.", _CURE)
    return result


def _header(row: Any, path: str) -> Header:
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind != KIND:
        raise DataError(f"{path} is no run on live servers: its kind is {kind!r}.", _CURE)
    if row.get("version") != VERSION:
        raise DataError(
            f"{path} has version {row.get('version')} of the format, not {VERSION}.",
            "Measure again with this Paceline.",
        )
    values = {one.name: row[one.name] for one in fields(Header)}
    values["command"] = tuple(row["command"])
    values["concurrency"] = tuple(row["concurrency"])
    values["prompts"] = tuple((str(a), str(b), c) for a, b, c in row["prompts"])
    return Header(**values)


def _take(result: EndpointResult, row: Mapping[str, Any]) -> None:
    if "request" in row:
        result.asked.append(Asked.from_json(row["request"]))
    elif "stretch" in row:
        result.stretches.append(Stretch.from_json(row["stretch"]))
    else:
        left = row["left_out"]
        result.left_out[int(left["concurrency"]), str(left["id"])] = str(left["reason"])


def _refuse_another(path: Path, theirs: Header, ours: Header) -> None:
    old, new = (json.loads(json.dumps(header_document(one))) for one in (theirs, ours))
    for key in new:
        if key not in _MAY_DIFFER and old.get(key) != new[key]:
            raise DataError(
                f"{path} holds another run: its {key.replace('_', ' ')} "
                f"{'are' if key.endswith('s') else 'is'} not the same.",
                "Choose another file with -o.",
            )


def _drop_cut_off_line(path: Path) -> None:
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
