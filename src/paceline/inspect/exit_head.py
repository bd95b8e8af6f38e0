"""The head that `paceline tune --fit-head` writes: one safetensors file, with what it belongs to in
its metadata."""

from __future__ import annotations

import json
import re
from pathlib import Path

from paceline.errors import DataError
from paceline.inspect.checkpoint import Checkpoint
from paceline.inspect.draft import measures
from paceline.inspect.files import Files
from paceline.inspect.safetensors_header import HeaderError, read_header

KIND = "paceline exit head"


def read_exit_head(path: Path) -> Checkpoint:
    """Raises DataError for another file."""
    try:
        header = read_header(path)
    except HeaderError as error:
        raise DataError(f"{path} can't be read: {error}.", "Fetch it again.") from None
    if header.metadata.get("kind") != KIND:
        raise DataError(
            f"{path} is one file of weights, and no exit head.",
            f"Name the directory that it lies in: {path.parent}.",
        )
    files = Files(path, {}, {tensor.name: tensor for tensor in header.tensors}, bytes=header.found)
    if header.found < header.bytes:
        files.wrong(
            f"{path.name} is cut off: {header.found:,} of {header.bytes:,} bytes are there.",
            "Fit it again.",
        )
    missing = [name for name in ("gain", "down", "up") if name not in files.tensors]
    if missing:
        files.wrong(f"It has no {', '.join(missing)}.", "Fit it again.")
    target = _target(header.metadata)
    gain = files.tensors.get("gain")
    width = gain.entries if gain is not None else None
    if width is not None and isinstance(target.get("width"), int) and width != target["width"]:
        files.wrong(
            f"It moves states of {width:,} entries, and says that its target's have "
            f"{target['width']:,}.",
            "Fit it again.",
        )
    layers = header.metadata.get("layers", "")
    return Checkpoint(
        path=path,
        kind="exit-head",
        format="paceline",
        hidden_size=width,
        target_hidden_size=width,
        aux_layers=(int(layers),) if re.fullmatch("[0-9]{1,9}", layers) else (),
        aux_count=1,
        vocabulary_size=_whole(target.get("vocabulary")),
        draft_vocabulary_size=_whole(target.get("vocabulary")),
        embedding="none",
        head="target",
        **measures(files),
        problems=tuple(files.problems),
    )


def _target(metadata: dict[str, str]) -> dict[str, object]:
    try:
        found = json.loads(metadata.get("target", ""))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int else None
