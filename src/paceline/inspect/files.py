"""A model directory's config, and the headers of its weights: what every family is told from.

A safetensors file is the header's length (uint64, little-endian), the header (JSON), then the
tensors' bytes without a gap (https://huggingface.co/docs/safetensors). The `safetensors` package
reads the same, but it comes with an extra that whoever only asks about a draft needn't have, and it
says of a file that was cut off that it is broken, not what is missing.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.errors import DataError
from paceline.inspect.checkpoint import Problem

LONGEST = 100_000_000
"""Bytes of a header; the format's own limit."""


def read_table(name: str) -> bytes:
    """A table of this package, as JSON."""
    return (package_files("paceline.inspect") / f"tables/{name}.json").read_bytes()


TYPES = msgspec.json.decode(read_table("safetensors_types"), type=dict[str, tuple[str, int]])
"""By the format's name: ours and PyTorch's, and bits of an entry."""


class HeaderError(ValueError):
    """What is wrong with a file, without its name: one clause."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor lies.

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
class SafetensorsHeader:
    """What the first bytes of a file promise.

    tensors     in the order of the file
    metadata    free text by name
    bytes       the file's length if all of it is there
    found       its length
    """

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]
    bytes: int
    found: int


def read_header(path: Path) -> SafetensorsHeader:
    """Reads the header only. Raises HeaderError for what is not a safetensors file or contradicts
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
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise HeaderError("its header is not JSON") from None
    if not isinstance(document, dict):
        raise HeaderError("its header is not a JSON object")
    metadata = document.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise HeaderError("its __metadata__ is not a JSON object")
    start = 8 + length
    tensors = sorted(
        (_tensor(path, start, name, entry) for name, entry in document.items()),
        key=lambda tensor: (tensor.begin, tensor.bytes),
    )
    end = start
    for tensor in tensors:
        if tensor.begin != end:
            raise HeaderError(f"{tensor.name} does not begin where the tensor before it ends")
        end += tensor.bytes
    texts = {name: text for name, text in metadata.items() if isinstance(text, str)}
    return SafetensorsHeader(tuple(tensors), texts, end, found)


def _tensor(path: Path, start: int, name: str, entry: Any) -> Tensor:
    try:
        dtype, bits = TYPES[entry["dtype"]]
        shape = tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):  # the last of Infinity
        raise HeaderError(f"its header says {reprlib.repr(entry)} of {name}") from None
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
    """What lies in a directory.

    config      its config.json, as it is
    tensors     of its weights, by name
    metadata    of a single file of weights
    pickles     files of weights that only running their code would read: they are left alone
    bytes       of all its files of weights
    problems    found so far
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    pickles: tuple[str, ...] = ()
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def wrong(
        self, fact: str, hint: str, *, fatal: bool = True, stops: tuple[str, ...] = ()
    ) -> None:
        """Note a problem; it stops these engines, or (`fatal`) every one."""
        self.problems.append(Problem(fact, hint, fatal and not stops, stops))

    def check_length(
        self, name: str, found: int, whole: int, hint: str = "Fetch it again."
    ) -> None:
        """Note that a file has fewer bytes than its header says."""
        if found < whole:
            self.wrong(f"{name} is cut off: {found:,} of {whole:,} bytes are there.", hint)

    def sorted_problems(self) -> tuple[Problem, ...]:
        """What was found, fatal problems first."""
        return tuple(sorted(self.problems, key=lambda problem: not problem.fatal))


def read_files(path: Path) -> Files:
    """A directory's config and headers. Raises DataError where there is no such directory, or none
    that holds a config."""
    config = read_config(path)
    files = Files(path, config)
    try:
        names = sorted(entry.name for entry in path.iterdir())
        _read_weights(files, names)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Check the files.") from None
    return files


def read_config(path: Path) -> dict[str, Any]:
    """A directory's config.json. Raises DataError and says what is there instead."""
    try:
        if not path.is_dir():
            raise DataError(f"There is no directory {path}.", _where(path))
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Check it.") from None
    if CONFIG not in names:
        raise DataError(f"{path} holds no config.json but {some(names)}.", _instead(path, names))
    return read_json(path / CONFIG)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from its file. Raises DataError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Check it.") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.", "Fetch it again.") from None
    except RecursionError:
        raise DataError(f"{path} is nested too deeply to read.", "Fetch it again.") from None
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


def _read_weights(files: Files, names: list[str]) -> None:
    path = files.path
    weights = [name for name in names if name.endswith(".safetensors")]
    if INDEX in names:
        weights = _indexed(files, names)
    elif "model.safetensors" in names:
        weights = ["model.safetensors"]
    promised: dict[str, str] = {}
    for name in weights:
        header = _header(files, name)
        if header is None:
            continue
        files.metadata = header.metadata if len(weights) == 1 else {}
        for tensor in header.tensors:
            if tensor.name in promised:
                files.wrong(
                    f"{tensor.name} lies in {promised[tensor.name]} and in {name}.",
                    "Keep one of the two files.",
                    fatal=False,
                )
            promised[tensor.name] = name
            files.tensors[tensor.name] = tensor
    files.bytes = sum((path / name).stat().st_size for name in weights if (path / name).is_file())
    if INDEX in names:
        _check_index(files, promised)
    if not weights:
        _without_safetensors(files, names)


def _header(files: Files, name: str) -> SafetensorsHeader | None:
    try:
        header = read_header(files.path / name)
    except HeaderError as error:
        files.wrong(f"{name} can't be read: {error}.", "Fetch it again.")
        return None
    files.check_length(name, header.found, header.bytes)
    if header.found > header.bytes:
        files.wrong(
            f"{name} has {header.found - header.bytes:,} bytes more than its header says.",
            "Fetch it again.",
        )
    return header


def _indexed(files: Files, names: list[str]) -> list[str]:
    """The shards that an index names and that are there."""
    shards = sorted(set(_weight_map(files).values()))
    missing = [name for name in shards if name not in names]
    if missing:
        files.wrong(
            f"{len(missing)} of {len(shards)} files of weights are missing: {some(missing)}.",
            "Fetch them.",
        )
    return [name for name in shards if name in names]


def _weight_map(files: Files) -> Mapping[str, str]:
    found = read_json(files.path / INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise DataError(f"{files.path / INDEX} has no weight_map.", "Fetch it again.")
    return found


def _check_index(files: Files, promised: Mapping[str, str]) -> None:
    whole = set(promised.values())
    lost = [
        name
        for name, shard in _weight_map(files).items()
        if promised.get(name) != shard and shard in whole
    ]
    if lost:
        files.wrong(
            f"{len(lost)} weights are not where {INDEX} says: {some(lost)}.", "Fetch all again."
        )


def _without_safetensors(files: Files, names: list[str]) -> None:
    if INDEX in names:
        return  # its shards are missing, which has been said
    files.pickles = tuple(name for name in names if name.endswith(PICKLES))
    files.bytes = sum((files.path / name).stat().st_size for name in files.pickles)
    if not files.pickles:
        files.wrong("It holds no weights.", "Put its .safetensors files beside config.json.")
        return
    files.wrong(
        f"Its weights lie in {some(files.pickles)}, a pickle, and reading one can "
        "run code in it: only the config was looked at.",
        "Convert it to safetensors where you trust it.",
        fatal=False,
    )


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
            return  # the file is cut off, which has been said
    if broken:
        files.wrong(
            f"Not a number, or infinite: {some(broken)}.",
            "Take an earlier checkpoint of the training.",
        )
