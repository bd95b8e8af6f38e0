"""A file of JSON lines that grows: every line is written at once and whole, so that whatever ends a
run loses nothing, and a second start goes on behind it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from paceline.errors import DataError
from paceline.models import lock


class Line(NamedTuple):
    """A whole line of a file.

    number    from 1
    start     the byte at which it begins
    """

    number: int
    start: int
    text: str


class GrowingFile:
    """Open for more lines, by one process at a time; none of them is written in part."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    @classmethod
    def open(cls, path: Path) -> GrowingFile:
        """A file that is there, or a new one. Raises DataError where it can't be written, and while
        another run writes it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise DataError(
                f"{path} can't be written: {error.strerror}.", "Choose another file with -o."
            ) from None
        if not lock.taken(descriptor):
            os.close(descriptor)
            raise DataError(
                f"{path} is being written by another run.",
                "Wait for it to end, or choose another file with -o.",
            )
        return cls(path, descriptor)

    def lines(self) -> list[Line]:
        """What it holds, without a last line that was cut off. Raises DataError for what is no
        text."""
        return whole_lines(self.path)

    def keep(self, size: int) -> None:
        """Drop what stands behind so many bytes."""
        os.ftruncate(self._descriptor, size)

    def write(self, document: Mapping[str, Any]) -> None:
        """One line. Raises DataError where there is no room, and then leaves none of it."""
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        left = memoryview(f"{text}\n".encode())
        size = os.fstat(self._descriptor).st_size
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            with suppress(OSError):  # a device has nothing to drop
                self.keep(size)
            raise DataError(
                f"{self.path} can't be written: {error.strerror}.",
                "Make room, then start the same command again: it goes on from there.",
            ) from None

    def close(self) -> None:
        """Closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def whole_lines(path: Path) -> list[Line]:
    """The lines of a file that are not blank; one that lacks its end was cut off, and is left out.
    Raises DataError for a file that can't be read."""
    try:
        data = path.read_bytes()
        lines, start = [], 0
        for number, part in enumerate(data.split(b"\n")[:-1], start=1):
            if part.strip():
                lines.append(Line(number, start, part.decode("utf-8")))
            start += len(part) + 1
        return lines
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", "Give another file.") from None
