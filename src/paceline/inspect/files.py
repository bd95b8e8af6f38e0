"""A model directory's config and the headers of its weights: what every family is told from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.inspect.checkpoint import Problem
from paceline.inspect.safetensors_header import Header, HeaderError, Tensor, read_header

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
        self.problems.append(Problem(fact, hint, fatal and not stops, stops))


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
        raise DataError(f"{path} is no JSON: {error}.", "Fetch it again.") from None
    except RecursionError:
        raise DataError(f"{path} is nested too deeply to read.", "Fetch it again.") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} is no JSON object.", "Fetch it again.")
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


def _header(files: Files, name: str) -> Header | None:
    try:
        header = read_header(files.path / name)
    except HeaderError as error:
        files.wrong(f"{name} can't be read: {error}.", "Fetch it again.")
        return None
    if header.found < header.bytes:
        files.wrong(
            f"{name} is cut off: {header.found:,} of {header.bytes:,} bytes are there.",
            "Fetch it again.",
        )
    elif header.found > header.bytes:
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
