"""From what a user names to an IR file, and to what reads its texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from paceline import plugins
from paceline.engines.base import TokenizerOnly
from paceline.engines.load import longest_context
from paceline.engines.openvino.export import WEIGHTS, exported_directory, exported_gguf
from paceline.engines.openvino.model import IR
from paceline.engines.openvino.tokenizer import read_json, read_tokenizer, text_config
from paceline.errors import ModelError, SettingError, unknown_name


class Kind(Enum):
    """What a target is: an IR file, a model directory, or a GGUF file."""

    IR = "ir"
    DIRECTORY = "directory"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target lies. `path` is the IR's file, the model's directory, or the GGUF file."""

    kind: Kind
    path: Path


@dataclass(frozen=True, slots=True)
class Ir:
    """A model in OpenVINO's form, and how it was made, for the engine's metadata."""

    xml: Path
    metadata: dict[str, Any] = field(default_factory=dict)


def find_place(target: str, weights: str | None = None) -> Place:
    """
    weights    the type that is asked for; only a model directory's can be chosen

    Raises ModelError for what can't be found, SettingError for weights that can't be chosen.
    """
    path = Path(target).expanduser()
    if weights is not None and weights not in WEIGHTS:
        raise unknown_name("type of weights", weights, WEIGHTS)
    try:
        place = _place(target, path)
    except OSError as error:
        fact = f"{target} can't be read: {error.strerror}."
        raise ModelError(fact, "Check its path and rights.") from None
    if weights is not None and place.kind is not Kind.DIRECTORY:
        raise SettingError(
            f"dtype is {weights}, and the weights of {target} have their type already.",
            "Leave it out. Where it is meant for another model, export that one (paceline models "
            "export) and name its directory.",
        )
    return place


def _place(target: str, path: Path) -> Place:
    if path.is_dir() and (path / IR).is_file():
        return Place(Kind.IR, path / IR)
    if path.is_dir() and (path / "config.json").is_file():
        return Place(Kind.DIRECTORY, path)
    if path.suffix == ".xml" and path.is_file():
        return Place(Kind.IR, path)
    if path.is_file():
        return Place(Kind.GGUF, path)
    fact = f"There is no file or directory {target}."
    if path.is_dir():
        fact = f"The directory {target} has neither an {IR} nor a config.json."
    raise ModelError(
        fact, "Name an OpenVINO model's directory, a transformers model's, or a GGUF file."
    )


def find_tokenizer(target: str, place: Place) -> TokenizerOnly:
    """What reads a model's texts, and says what is known without its weights. Raises ModelError for
    a tokenizer that is missing or can't be read, SettingError where llama.cpp isn't installed and a
    GGUF file is to be read."""
    path = Path(target).expanduser().absolute()
    if place.kind is Kind.GGUF:
        # The file's own tokenizer, as llama.cpp has it: tokens are those of that engine.
        reader: TokenizerOnly = plugins.find("engine", "llamacpp").load_tokenizer(str(place.path))
        reader.engine, reader.place = "openvino", path
        return reader
    directory = place.path if place.kind is Kind.DIRECTORY else place.path.parent
    tokenizer = read_tokenizer(directory)
    text = text_config(read_json(directory / "config.json"))
    size = text.get("vocab_size") or tokenizer.size
    longest = longest_context(text)
    return TokenizerOnly("openvino", target, tokenizer, size, path, longest_context=longest)


def find_ir(place: Place, weights: str | None, *, verify: bool = False) -> Ir:
    """An IR as it is; a model directory or a GGUF file exported into the cache on the first call.

    weights    type of an exported directory's weights: int8 (default), int4, bfloat16, float16,
               float32
    verify     read an export that is there whole, and make it again if it is damaged

    Raises ModelError for what can't be read or exported.
    """
    if place.kind is Kind.IR:
        return Ir(place.path)
    if place.kind is Kind.GGUF:
        made, stored = exported_gguf(place.path, verify=verify), "of the GGUF file"
    else:
        stored = weights or "int8"
        made = exported_directory(place.path, stored, verify=verify)
    return Ir(made / IR, {"exported_to": str(made), "weights": stored})
