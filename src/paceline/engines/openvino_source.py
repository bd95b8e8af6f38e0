"""From what a user names to an IR file and what reads its texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline import plugins
from paceline.engines.context import longest_context
from paceline.engines.openvino_export import WEIGHTS, exported_directory, exported_gguf
from paceline.engines.openvino_tokenizer import read_json, read_tokenizer
from paceline.engines.tokenizer import Tokenizer
from paceline.errors import ModelError, SettingError, unknown_name

IR = "openvino_model.xml"
_CURE = "Name an OpenVINO model's directory, a transformers model's, or a GGUF file."


@dataclass(frozen=True, slots=True)
class Ir:
    """A model in OpenVINO's form.

    label    the model, as its user would recognise it
    gguf     the file it was made of, if it was one
    facts    how it was made, for the engine's facts
    """

    label: str
    xml: Path
    gguf: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """A model with its tokenizer.

    longest_context    most tokens the model is good for; None if nothing says
    free               gives back what the tokenizer holds
    """

    ir: Ir
    tokenizer: Tokenizer
    longest_context: int | None
    free: Callable[[], None] = lambda: None


def find_ir(target: str, weights: str | None) -> Ir:
    """An IR directory or file as it is; a model directory or a GGUF file exported into the cache
    on the first call.

    weights    type of an exported directory's weights: int8 (default), int4, bfloat16, float16,
               float32; an IR and a GGUF file have theirs

    Raises ModelError for what can't be found, read or exported, SettingError for weights that
    can't be chosen here.
    """
    path = Path(target).expanduser()
    if weights is not None and weights not in WEIGHTS:
        raise unknown_name("type of weights", weights, WEIGHTS)
    if path.is_dir() and not (path / IR).is_file():
        return _of_directory(target, path, weights or "int8")
    if weights is not None and path.exists():
        raise SettingError(
            f"dtype is {weights}, and the weights of {target} have their type already.",
            "Leave it out, or name the model's original directory.",
        )
    if path.is_dir():
        return Ir(target, path / IR)
    if path.suffix == ".xml" and path.is_file():
        return Ir(target, path)
    if path.is_file():
        made = exported_gguf(path)
        facts = {"exported_to": str(made), "weights": "of the GGUF file"}
        return Ir(path.name, made / IR, path, facts)
    raise ModelError(f"There is no file or directory {target}.", _CURE)


def _of_directory(target: str, path: Path, weights: str) -> Ir:
    if not (path / "config.json").is_file():
        raise ModelError(
            f"The directory {target} has neither an {IR} nor a config.json.",
            _CURE,
        )
    made = exported_directory(path, weights)
    return Ir(target, made / IR, facts={"exported_to": str(made), "weights": weights})


def find_source(target: str, weights: str | None) -> Source:
    """`find_ir` with what reads the model's texts; raises as it does."""
    ir = find_ir(target, weights)
    if ir.gguf is not None:
        # The file's own tokenizer, as llama.cpp has it: tokens are those of that engine.
        reader = plugins.find("engine", "llamacpp").load_tokenizer(str(ir.gguf))
        return Source(ir, reader.tokenizer, reader.trained_context, reader.close)
    directory = ir.xml.parent
    config = read_json(directory / "config.json")
    text = config.get("text_config") or config
    return Source(ir, read_tokenizer(directory), longest_context(text))
