"""Files that several processes, or several runs, share.

A lock that the system releases when its holder dies, so that none goes stale; a file of JSON lines
that grows: every line is written at once and whole, so that whatever ends a run loses nothing, and
a second start goes on behind it; and the one reader of JSON documents that have a kind and version.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import msgspec

from paceline.errors import DataError

_POLL_S = 0.2

T = TypeVar("T")

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    _BUSY: tuple[type[OSError], ...] = (PermissionError,)
else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    _BUSY: tuple[type[OSError], ...] = (BlockingIOError,)


def taken(descriptor: int) -> bool:
    """Lock an open file until it is closed, without waiting; False if another has it."""
    try:
        _take(descriptor)
    except _BUSY:
        return False
    return True


@contextmanager
def held(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at `path`, waiting for whoever has it; `on_wait` is called once if so.

    The empty file stays: removing it would let a third process lock a file that is no longer
    there for the others.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        waited = False
        while not taken(descriptor):
            if not waited:
                on_wait()
            waited = True
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def whole_directory(place: Path) -> Iterator[Path]:
    """A new directory to fill: it takes its place at the end, also that of an older one, and
    vanishes on any error. Whoever reads the older one goes on. Raises OSError."""
    fresh = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    old = fresh.with_name(f"{fresh.name}.old")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        yield fresh
        for path in fresh.iterdir():
            if path.is_file():  # some libraries write for their owner only
                path.chmod(0o666 & fresh.stat().st_mode)
        with suppress(FileNotFoundError):
            place.rename(old)
        try:
            fresh.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process was first
                raise
    finally:
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)


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
        if not taken(descriptor):
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
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Give another file.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} can't be read: it is not UTF-8.", "Give another file.") from None


def decode_struct(
    data: str | bytes | Any,
    type: type[T],
    name: str,
    hint: str,
    *,
    kind: str | None = None,
    version: int | None = None,
) -> T:
    """A JSON document as `type`, a msgspec struct or a dataclass.

    data       JSON text, or its parsed value
    name       how a message names it: a path, or "Line 3 of" one
    hint       how such a document is made
    kind       what `data["kind"]` must be; None for a part that has none
    version    what `data["version"]` must be

    Raises DataError: one sentence of what is wrong with it, and the hint.
    """
    try:
        if isinstance(data, str | bytes):
            if kind is None:
                return msgspec.json.decode(data, type=type)
            data = msgspec.json.decode(data)
        if kind is not None:
            _check_kind(data, name, hint, kind, version)
        return msgspec.convert(data, type, str_keys=True)
    except msgspec.ValidationError as error:
        raise DataError(f"{name} can't be read: {_said(error, data)}.", hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {not_json(error)}.", hint) from None


def not_json(error: Exception) -> str:
    """What is wrong with a text, of an error of msgspec's."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).removeprefix("JSON is malformed: ").replace("Input data was", "it was")


def _check_kind(data: Any, name: str, hint: str, kind: str, version: int | None) -> None:
    found = data.get("kind") if isinstance(data, dict) else None
    if found != kind:
        of = "it has no kind" if found is None else f"its kind is {found!r:.60}"
        article = "an" if kind[0] in "aeiou" else "a"
        raise DataError(f"{name} is not {article} {kind} file: {of}.", hint)
    if version is not None and data.get("version") != version:
        raise DataError(
            f"{name} has version {data.get('version')!r:.20} of the format, and this Paceline "
            f"reads version {version}.",
            f"Make it again with this Paceline. {hint}",
        )


def _said(error: msgspec.ValidationError, data: Any) -> str:
    """msgspec's words after the place, and the value there where it is short: "rounds[0].width is
    0: expected `int` >= 1"."""
    reason, _, place = str(error).partition(" - at `$")
    where = place.rstrip("`").lstrip(".")
    reason = reason.replace("Expected", "expected", 1) if where else reason
    value = _value_at(data, where)
    if value is not None and not isinstance(value, Mapping | list):
        where = f"{where} is {value!r:.60}"
    return f"{where}: {reason}" if where else reason


def _value_at(data: Any, where: str) -> Any:
    """None where the place isn't one value: msgspec calls the values of a mapping `[...]`."""
    try:
        if isinstance(data, str | bytes):
            data = msgspec.json.decode(data)
        for key in re.findall(r"[^.\[\]]+", where):
            data = data[int(key) if isinstance(data, list) else key]
    except (LookupError, ValueError, TypeError, RecursionError):
        return None
    return data
