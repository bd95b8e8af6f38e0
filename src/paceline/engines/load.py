"""Which engine reads a target: told from the file, or forced by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paceline import plugins
from paceline.engines.base import Engine
from paceline.errors import ModelError, unknown_name
from paceline.models import catalog

_GGUF_MAGIC = b"GGUF"
_OPENVINO_MODEL = "openvino_model.xml"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def load(target: str, *, engine: str | None = None, **options: Any) -> Engine:
    """Load a model.

    target     a GGUF file, a model directory, a hub name (owner/name), a demo model's name
               (`paceline models`), or toy:SEED
    engine     forces an engine; None finds it from the target
    options    context_size, max_sequences, and what the engine takes (threads, dtype, device,
               precision, cache_type)

    Raises ModelError if there is no such model, or the engine refuses it.
    """
    place = resolve(target)
    name = engine or engine_of(place)
    given = {key: value for key, value in options.items() if value is not None}
    loaded: Engine = plugins.find("engine", name).load(place, **given)
    return loaded


def load_tokenizer(target: str, *, engine: str | None = None) -> Engine:
    """A model's tokenizer without its weights, as an engine that scores nothing: loaded in a
    moment, in little memory. Arguments as for `load`.

    Raises ModelError if there is no such model, SettingError where its engine can't.
    """
    place = resolve(target)
    loaded: Engine = plugins.find("engine", engine or engine_of(place)).load_tokenizer(place)
    return loaded


def resolve(target: str) -> str:
    """A demo model's name becomes its file; everything else stays."""
    if target not in catalog.CATALOG or Path(target).exists():
        return target
    model = catalog.find(target)
    if not catalog.is_present(model):
        raise ModelError(
            f"The demo model {target} is not on this machine.",
            f"Fetch it with `paceline models pull {target}`.",
        )
    return str(catalog.path_of(model))


def engine_of(target: str) -> str:
    """The name of the engine that reads a target."""
    path = Path(target)
    if target == "toy" or target.startswith("toy:"):
        return "toy"
    try:
        if path.is_dir():
            return "openvino" if (path / _OPENVINO_MODEL).is_file() else "transformers"
        if path.suffix == ".xml" and path.is_file():
            return "openvino"
        if path.is_file():
            return _engine_of_file(path)
    except OSError as error:
        raise ModelError(f"{target} can't be read: {error.strerror}.", "Check it.") from None
    if _HUB_NAME.fullmatch(target) and path.suffix != ".gguf":
        return "transformers"
    if path.suffix == ".gguf" or "/" in target:
        raise ModelError(f"There is no file {target}.", "Check the path.")
    raise unknown_name("file, directory or demo model", target, catalog.CATALOG)


def _engine_of_file(path: Path) -> str:
    with path.open("rb") as file:
        magic = file.read(len(_GGUF_MAGIC))
    if magic == _GGUF_MAGIC:
        return "llamacpp"
    raise ModelError(
        f"{path} is not a model: it does not begin as a GGUF file.",
        "Give a GGUF file, or the directory of a model in safetensors form.",
    )
