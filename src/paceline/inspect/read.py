"""A draft from its files: what it is, and what is wrong with it. No weight is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.errors import DataError
from paceline.inspect import gguf
from paceline.inspect.blocks import check_block
from paceline.inspect.checkpoint import Checkpoint
from paceline.inspect.draft import Draft, bare, measures
from paceline.inspect.eagle import check_eagle, check_eagle3
from paceline.inspect.exit_head import read_exit_head
from paceline.inspect.files import Files, read_files
from paceline.inspect.finite import check_finite
from paceline.inspect.gguf_header import is_gguf
from paceline.inspect.medusa import check_medusa
from paceline.inspect.recognise import architecture, recognise
from paceline.inspect.speculators import check_speculators, layer_config
from paceline.inspect.whole import check_model, check_mtp

CHECKS: dict[str, Callable[[Draft], None]] = {
    "eagle": check_eagle,
    "eagle3": check_eagle3,
    "p-eagle": check_eagle3,
    "medusa": check_medusa,
    "dflash": check_block,
    "dflash2": check_block,
    "dspark": check_block,
    "xpress": check_block,
    "mtp": check_mtp,
    "model": check_model,
}


def read(path: str | Path) -> Checkpoint:
    """A draft's directory, GGUF file, or early-exit head.

    Only configs, headers, maps and small weights are read, so that drafts of tens of gigabytes take
    no longer, and nothing in the files is run. Raises DataError where there is no such thing, or
    none that is known.
    """
    place = Path(path).expanduser()
    try:
        if place.is_file():
            return _read_file(place)
    except OSError as error:
        raise DataError(f"{place} can't be read: {error.strerror}.", "Check it.") from None
    return _read_directory(read_files(place))


def _read_file(path: Path) -> Checkpoint:
    if is_gguf(path):
        return gguf.read_draft(path)
    if path.suffix == ".safetensors":
        return read_exit_head(path)
    raise DataError(
        f"{path} is no GGUF file.", "Name a draft's directory, a GGUF file, or an exit head's file."
    )


def _read_directory(files: Files) -> Checkpoint:
    kind, format_ = recognise(files)
    speculators = format_ == "speculators"
    config = layer_config(files) if speculators else files.config
    inner = config.get("model")
    if config.get("model_type") == "eagle" and isinstance(inner, dict):  # vLLM's own form
        config = {**config, **inner}
    model_type = config.get("model_type")
    text = config.get("text_config")
    if isinstance(text, dict):  # a target that sees too keeps its sizes there
        config = {**config, **text}
    draft = Draft(
        files, kind, format_, config, {bare(name): t for name, t in files.tensors.items()}
    )
    CHECKS[kind](draft)
    check_finite(files)
    found = draft.found
    if speculators:
        used = check_speculators(files)
        found = found | {name: value for name, value in used.items() if value is not None}
    return Checkpoint(
        path=files.path,
        kind=kind,
        format=format_,
        architecture=architecture(files.config if speculators else config),
        model_type=model_type if isinstance(model_type, str) else None,
        **measures(files),
        **found,
        problems=tuple(sorted(files.problems, key=lambda problem: not problem.fatal)),
    )
