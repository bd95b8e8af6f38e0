"""Which engine reads a target, told from the file or forced by name, and what all loaders share."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline import plugins
from paceline.engines.base import Engine
from paceline.engines.cpu import cpu_field
from paceline.errors import (
    ModelError,
    PacelineError,
    SettingError,
    UnknownModelError,
    unknown_name,
)
from paceline.models import catalog

log = logging.getLogger("paceline")

DEFAULT_CONTEXT = 4096
"""Tokens a sequence may hold where no number is asked for; the model's own, if that is less."""

GGUF_ENGINES = {"ik": "ik_llama_cpp", "llamacpp": "llama_cpp"}
"""The engines that read GGUF files, with the package each needs: the fastest first."""

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
    given = {key: value for key, value in options.items() if value is not None}
    return _loaded(place, engine, lambda kind: kind.load(place, **given))


def load_tokenizer(target: str, *, engine: str | None = None) -> Engine:
    """A model's tokenizer without its weights, as an engine that scores nothing: loaded in a
    moment, in little memory. Arguments as for `load`.

    Raises ModelError if there is no such model, SettingError where its engine can't.
    """
    place = resolve(target)
    return _loaded(place, engine, lambda kind: kind.load_tokenizer(place))


def _loaded(place: str, engine: str | None, make: Callable[[type[Engine]], Engine]) -> Engine:
    """What `make` loads with the engine that is forced, or with the one that reads the place."""
    name = engine or engine_of(place)
    try:
        return make(plugins.find("engine", name))
    except UnknownModelError as refusal:
        if engine is not None or name == "llamacpp" or not find_spec(GGUF_ENGINES["llamacpp"]):
            raise
        log.warning("%s The engine llamacpp is used instead.", refusal.fact)
        return make(plugins.find("engine", "llamacpp"))


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
    """The name of the engine that reads a target: for a GGUF file the fastest that is installed."""
    path = Path(target)
    if target == "toy" or target.startswith("toy:"):
        return "toy"
    try:
        if path.is_dir():
            return "openvino" if (path / _OPENVINO_MODEL).is_file() else "transformers"
        if path.suffix == ".xml" and path.is_file():
            return "openvino"
        if path.is_file():
            if is_gguf(path):
                return next(filter(_runs_here, GGUF_ENGINES), "llamacpp")
            raise ModelError(
                f"{path} is not a model: it does not begin as a GGUF file.",
                "Give a GGUF file, or the directory of a model in safetensors form.",
            )
    except OSError as error:
        raise ModelError(f"{target} can't be read: {error.strerror}.", "Check it.") from None
    if _HUB_NAME.fullmatch(target) and path.suffix != ".gguf":
        return "transformers"
    if path.suffix == ".gguf" or "/" in target:
        raise ModelError(f"There is no file {target}.", "Check the path.")
    raise unknown_name("file, directory or demo model", target, catalog.CATALOG)


def _runs_here(name: str) -> bool:
    """Whether an engine's package is installed, and this processor can run it: the wheels of ik for
    x86 end the process where there is no AVX2."""
    flags = cpu_field("flags").split()
    return find_spec(GGUF_ENGINES[name]) is not None and (
        name != "ik" or "sse2" not in flags or "avx2" in flags
    )


def check_range(
    name: str, value: int | None, most: int | None = None, taker: str = "The model"
) -> None:
    """Raise SettingError for a number that is given and not from 1 to what `taker` takes."""
    if value is not None and (value < 1 or (most and value > most)):
        hint = f"{taker} takes 1 to {most}." if most else "It must be 1 or more."
        raise SettingError(f"{name} is {value}.", hint)


def fitting_context(target: str, longest: int | None, asked: int | None) -> int:
    """The context to give a sequence, in tokens. Raises SettingError for one the model can't keep
    to.

    longest    most tokens the model is good for; None if it doesn't say
    """
    if asked is None:
        return min(longest or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    check_range("context_size", asked, longest, target)
    return asked


def longest_context(config: Mapping[str, Any]) -> int | None:
    """Most tokens the model's positions are good for; None if it doesn't say.

    Long rotary scalings that change with the length of what shares a forward would make a row
    depend on its neighbours, so such models are held to the length before the change.

    config    what a config.json says of the text model
    """
    ropes = config.get("rope_parameters") or config.get("rope_scaling") or {}
    limits = [config.get("max_position_embeddings")]
    limits += [
        rope.get("original_max_position_embeddings")
        for rope in (ropes, *(value for value in ropes.values() if isinstance(value, dict)))
        if (rope.get("rope_type") or rope.get("type")) in ("longrope", "dynamic")
    ]
    return min((limit for limit in limits if limit), default=None)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type's name if it has none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].rstrip(". :")


def is_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF file does. Raises ModelError where it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}.", "Check its rights.") from None


@contextlib.contextmanager
def loading(
    target: str,
    hint: str,
    said: Callable[[Exception], str] = first_line,
    *,
    verb: str = "loaded",
) -> Iterator[None]:
    """Turn whatever a library raises while it loads a model into one ModelError.

    said    what such an error says, in a line
    verb    what is done, if it is something else
    """
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:  # each format has errors of its own
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            fact, hint = (
                f"{target} doesn't fit into memory.",
                "Use a smaller model, dtype or context.",
            )
            raise ModelError(fact, hint) from error
        raise ModelError(f"{target} can't be {verb}: {said(error)}.", hint) from error
