"""`paceline models`: list the demo models, pull them, find and check their files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline import plugins
from paceline.bench.wording import aligned
from paceline.cli.options import Output
from paceline.cli.settings import Verb, argument, group, option
from paceline.engines.load import resolve
from paceline.errors import ModelError
from paceline.models import catalog, pull

EXAMPLES = """\
  paceline models
  paceline models pull smollm2-135m
  paceline models export smollm2-135m
  paceline models export ./model-directory --dtype int4"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """List the demo models, which need no account and no hub; they are kept in a cache."""

    output: Output = group(Output)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSettings:
    """Of the actions on demo models."""

    names: tuple[str, ...] = argument("a demo model", "NAME", nargs="+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSettings:
    """Export models to OpenVINO's form, into the cache, and print where they are.
    The openvino engine does the same when it first needs one. What is there already is read whole
    and compared with its checksums. A GGUF file keeps its weights; a model directory is quantised,
    which needs paceline[openvino-export]."""

    names: tuple[str, ...] = argument(
        "a demo model, GGUF file or model directory", "MODEL", nargs="+"
    )
    dtype: str | None = option(
        "of a directory's weights: int8 (default), int4, bfloat16, float16 or float32", "TYPE"
    )


def run(settings: Settings) -> int:
    """Print every demo model and whether it is here, and return the exit code."""
    settings.output.show(lambda: [_document(one) for one in catalog.listing()], _text)
    return 0


def _document(entry: catalog.Entry) -> dict[str, Any]:
    model = entry.model
    return {
        "name": model.name,
        "title": model.title,
        "licence": model.licence,
        "size_bytes": model.size,
        "state": entry.state.value,
        "path": str(entry.path),
        "on_disk_bytes": entry.on_disk,
    }


def _text() -> str:
    rows = [
        (m.name, f"{m.size / 1e6:.0f} MB".rjust(9), one.state.value, f"{m.title} ({m.licence})")
        for one in catalog.listing()
        for m in (one.model,)
    ]
    return "\n".join([*aligned(rows, left=4), f"Cache: {catalog.cache_dir()}"])


def _pull(settings: NamedSettings) -> int:
    for model in map(catalog.find, settings.names):
        print(pull.pull(model))
    return 0


def _verify(settings: NamedSettings) -> int:
    for model in map(catalog.find, settings.names):
        pull.verify(model)
        print(f"{model.name}: as published")
    return 0


def _path(settings: NamedSettings) -> int:
    for model in map(catalog.find, settings.names):
        if not catalog.is_present(model):
            raise ModelError(
                f"The demo model {model.name} is not on this machine.",
                f"Fetch it with `paceline models pull {model.name}`.",
            )
        print(catalog.path_of(model))
    return 0


def _export(settings: ExportedSettings) -> int:
    plugins.find("engine", "openvino")  # says what is missing
    from paceline.engines.openvino.source import Kind, find_ir, find_place, find_tokenizer

    dtype = settings.dtype
    places = {name: find_place(resolve(name), dtype) for name in settings.names}
    for name, place in places.items():
        if place.kind is Kind.DIRECTORY:  # without a tokenizer its export would be of no use
            find_tokenizer(name, place)
    for place in places.values():
        print(find_ir(place, dtype, verify=True).xml.parent)
    return 0


VERB = Verb(
    Settings,
    run,
    EXAMPLES,
    actions={
        "pull": Verb(
            NamedSettings,
            _pull,
            description="Fetch models into the cache; continues where it was cut off.",
        ),
        "verify": Verb(
            NamedSettings,
            _verify,
            description="Read the files whole and compare their checksums.",
        ),
        "path": Verb(NamedSettings, _path, description="Print where the files are."),
        "export": Verb(ExportedSettings, _export),
    },
)
