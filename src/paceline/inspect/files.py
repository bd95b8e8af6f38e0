"""A model directory's config, and the headers of its weights: what every family is told from.

A safetensors file is the header's length (uint64, little-endian), the header (JSON), then the
tensors' bytes without a gap (https://huggingface.co/docs/safetensors). The `safetensors` package
reads the same, but it comes with an extra that whoever only asks about a draft needn't have, and it
says of a file that was cut off that it is broken, not what is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.errors import DataError
from paceline.inspect.checkpoint import PROBLEMS, Problem, read_table

LONGEST = 100_000_000
"""Bytes of a header; the format's own limit."""

TYPES = read_table("safetensors_types", dict[str, tuple[str, int]])
"""By the format's name: PyTorch's, and bits of an entry."""


class HeaderError(ValueError):
    """What is wrong with a file, without its name: one clause."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever keeps a file from being read into DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Check it.") from None
    except HeaderError as error:
        raise DataError(f"{path} can't be read: {error}.", "Fetch it again.") from None


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor is.

    dtype    as PyTorch names it, or a GGUF file's quantisation
    shape    outermost first
    begin    byte of the file where it begins
    bytes    its length
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    bytes: int

    @property
    def entries(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def values(self) -> np.ndarray:
        """Its entries, for types that NumPy has and bfloat16 (as float32). Raises HeaderError
        where the file ends before them."""
        raw = "uint16" if self.dtype == "bfloat16" else self.dtype
        with self.file.open("rb") as file:
            file.seek(self.begin)
            data = file.read(self.bytes)
        if len(data) < self.bytes:
            raise HeaderError(f"it ends within {self.name}")
        found = np.frombuffer(data, np.dtype(raw).newbyteorder("<")).reshape(self.shape)
        if self.dtype == "bfloat16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found


@dataclass(frozen=True, slots=True)
class WeightsHeader:
    """What the first bytes of a file say of the rest.

    tensors     by name, in the order of the file
    metadata    by key; of a GGUF's long arrays, their length
    bytes       the file's length if all of it is there
    found       its length
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]
    bytes: int
    found: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_header(path: Path) -> WeightsHeader:
    """Reads a safetensors file's header only. Raises HeaderError for what is not one or contradicts
    itself, OSError where it can't be read; that it is cut off is the reader's to judge, from
    `bytes` and `found`."""
    found = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if found < 8 or length > LONGEST:
            raise HeaderError("it does not begin as a safetensors file")
        text = file.read(length)
    if len(text) < length:
        raise HeaderError(f"it ends within its header, at {found:,} of {8 + length:,} bytes")
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        about = raw.pop("__metadata__", msgspec.Raw(b"null"))
        metadata = msgspec.json.decode(about, type=dict[str, str] | None) or {}
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderError(f"its header is not one of safetensors: {error}") from None
    end = 8 + length
    tensors = {}
    for name, entry in sorted(entries.items(), key=lambda one: one[1].data_offsets):
        tensor = _tensor(path, 8 + length, name, entry)
        if tensor.begin != end:
            raise HeaderError(f"{name} does not begin where the tensor before it ends")
        end += tensor.bytes
        tensors[name] = tensor
    return WeightsHeader(tensors, metadata, end, found)


def _tensor(path: Path, start: int, name: str, entry: _Entry) -> Tensor:
    begin, end = entry.data_offsets
    if entry.dtype not in TYPES:
        raise HeaderError(f"{name} is of type {entry.dtype!r:.60}, which is not known")
    dtype, bits = TYPES[entry.dtype]
    shape = entry.shape
    if min(shape, default=0) < 0 or end - begin != (math.prod(shape) * bits + 7) // 8:
        raise HeaderError(f"{name} of {dtype} {list(shape)} has {end - begin:,} bytes")
    return Tensor(name, dtype, shape, path, start + begin, end - begin)


CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
SHOWN = 5
"""Names of files or tensors that a message lists at most."""


@dataclass(slots=True)
class Files:
    """What is in a directory.

    config      its config.json, as it is
    tensors     of its weights, by name
    bytes       of all its files of weights
    problems    found so far
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def note(self, problem: str, *, fatal: bool | None = None, **values: object) -> None:
        """Note a problem of the table, with its values."""
        self.problems.append(PROBLEMS[problem].problem(fatal, values))

    def check_length(self, name: str, header: WeightsHeader, problem: str = "file.cut") -> None:
        """Note that a file has fewer bytes than its header says."""
        if header.found < header.bytes:
            self.note(problem, name=name, found=header.found, whole=header.bytes)

    def sorted_problems(self) -> tuple[Problem, ...]:
        """What was found, fatal problems first."""
        return tuple(sorted(self.problems, key=lambda problem: not problem.fatal))


def read_files(path: Path) -> Files:
    """A directory's config and headers. Raises DataError where there is no such directory, or none
    that holds a config; OSError where it can't be read."""
    files = Files(path, read_config(path))
    names = sorted(entry.name for entry in path.iterdir())
    shards = _weight_map(path) if INDEX in names else {}
    weights = [name for name in names if name.endswith(".safetensors")]
    if INDEX in names:
        weights = sorted(set(shards.values()))
        missing = [name for name in weights if name not in names]
        if missing:
            files.note(
                "files.missing", missing=len(missing), count=len(weights), names=some(missing)
            )
        weights = [name for name in weights if name in names]
    elif "model.safetensors" in names:
        weights = ["model.safetensors"]
    places = _read_headers(files, weights)
    whole = set(places.values())
    lost = [one for one, file in shards.items() if places.get(one) != file and file in whole]
    if lost:
        files.note("files.index", count=len(lost), index=INDEX, names=some(lost))
    if not weights and INDEX not in names:
        weights = [name for name in names if name.endswith(PICKLES)]
        files.note("files.pickle" if weights else "files.none", names=some(weights))
    files.bytes = sum((path / name).stat().st_size for name in weights)
    return files


def _read_headers(files: Files, weights: Sequence[str]) -> dict[str, str]:
    """Fills in the tensors, and says which file holds each."""
    places: dict[str, str] = {}
    for name in weights:
        try:
            header = read_header(files.path / name)
        except HeaderError as error:
            files.note("file.header", name=name, error=error)
            continue
        files.check_length(name, header)
        if header.found > header.bytes:
            files.note("file.more", name=name, more=header.found - header.bytes)
        for tensor in header.tensors:
            if tensor in places:
                files.note("files.twice", tensor=tensor, one=places[tensor], other=name)
            places[tensor] = name
        files.tensors |= header.tensors
    return places


def _weight_map(path: Path) -> Mapping[str, str]:
    found = read_json(path / INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise DataError(f"{path / INDEX} has no weight_map.", "Fetch it again.")
    return found


def read_config(path: Path) -> dict[str, Any]:
    """A directory's config.json. Raises DataError and says what is there instead."""
    with reading(path):
        if not path.is_dir():
            raise DataError(f"There is no directory {path}.", _where(path))
        names = sorted(entry.name for entry in path.iterdir())
    if CONFIG not in names:
        raise DataError(f"{path} holds no config.json but {some(names)}.", _instead(path, names))
    return read_json(path / CONFIG)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's own file, which may say Infinity. Raises DataError."""
    try:
        with reading(path):
            document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}.", "Fetch it again.") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} is not a JSON object.", "Fetch it again.")
    return document


def _where(path: Path) -> str:
    if len(path.parts) == 2 and not path.is_absolute():
        return f"If that is a repository, fetch it first: hf download {path} --local-dir DIR."
    return "Check the path."


def _instead(path: Path, names: list[str]) -> str:
    for name in names:
        if name.endswith(".gguf"):
            return f"Name the GGUF file itself: {path / name}."
        if name == "adapter_config.json":
            return "It is a LoRA adapter, which drafts nothing by itself: merge it first."
        if (path / name / CONFIG).is_file():
            return f"Is it {path / name}?"
    return "A draft's directory needs config.json beside its weights."


def some(names: Sequence[str]) -> str:
    """Names in a message: the first ones, and how many more."""
    if not names:
        return "nothing"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


FLOATS = ("float16", "bfloat16", "float32")
SMALL = 1 << 18
"""Bytes of a weight that is read: norms, biases, a mask's state."""
SMALL_TOGETHER = 1 << 24
"""Bytes of all that are read."""


def check_finite(files: Files) -> None:
    """Note norms, biases and other small weights with NaN or infinity; larger ones are not read."""
    left, broken = SMALL_TOGETHER, []
    for name, tensor in sorted(files.tensors.items()):
        if tensor.dtype not in FLOATS or tensor.bytes > min(SMALL, left):
            continue
        left -= tensor.bytes
        try:
            if not np.isfinite(tensor.values()).all():
                broken.append(name)
        except (HeaderError, OSError):
            return  # the file is cut off, which was noted
    if broken:
        files.note("files.not_finite", names=some(broken))
