"""From what a user writes after `-d` to a draft for a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline import plugins
from paceline.drafts.base import Draft
from paceline.drafts.cross_tokenizer.shared import SharedDraft
from paceline.drafts.model import ModelDraft
from paceline.drafts.vocabulary import MAP_FILE
from paceline.engines import load as engines
from paceline.engines.base import Engine
from paceline.errors import SettingError, unknown_name
from paceline.models import catalog

_ARGUMENTS = ("cls", "self", "target", "engine", "drafts")
"""What `Draft.create` takes besides options."""


def create_draft(
    spec: str,
    target: Engine,
    *,
    loader: Callable[[str], Engine] | None = None,
    **engine_options: Any,
) -> Draft:
    """A draft from its specification.

    spec              a registered draft, with options if it takes any, and behind them the model
                      or the drafts that it is made of (`lookup`, `lookup:min_match=1,reach=4`,
                      `model:draft.gguf`, `cascade:lookup+draft.gguf`); or just a model: a GGUF
                      file, a directory, a hub name or a demo name
    loader            loads a model that the specification names; by default `engines.load` with
                      room for as many sequences as the target has
    engine_options    how it is loaded (engine, threads, dtype, …)

    Raises SettingError for an unknown draft or option, PairError for one that doesn't fit.
    """
    if engine_options and not models_of(spec):
        raise SettingError(
            f"The draft {spec!r} names no model, and {min(engine_options)} is for one.",
            "Leave it out.",
        )
    if loader is not None and engine_options:
        raise ValueError("a loader knows how it loads: engine options are not for it")
    engine_options.setdefault("max_sequences", target.capabilities.max_sequences)

    def load(model: str) -> Engine:
        if "engine" not in engine_options:
            engine_name(model)  # refuses what is neither draft nor model
        return engines.load(model, **engine_options)

    return _create(spec, target, loader or load)


def _create(spec: str, target: Engine, load: Callable[[str], Engine]) -> Draft:
    if is_model(spec):
        engine = load(spec)
        # A directory that brings a map of its tokens has numbers of its own for them.
        mapped = engine.place is not None and (engine.place / MAP_FILE).is_file()
        return _made(SharedDraft if mapped else ModelDraft, target, engine, {})
    kind, options, rest = _parts(spec)
    if kind.takes == "model":
        return _made(kind, target, load(rest), options)
    if kind.takes == "drafts":
        inner: list[Draft] = []
        try:
            inner += [_create(part, target, load) for part in _split(spec, rest)]
            return kind.create(target, drafts=inner, **options)
        except BaseException:
            for draft in inner:
                draft.release()
            raise
    return kind.create(target, **options)


def _made(kind: type[Draft], target: Engine, engine: Engine, options: dict[str, str]) -> Draft:
    try:
        return kind.create(target, engine=engine, **options)
    except BaseException:
        engine.close()
        raise


def _parts(spec: str) -> tuple[type[Draft], dict[str, str], str]:
    """Class, options, and what stands behind them: the model or drafts that it takes."""
    name, _, written = spec.partition(":")
    kind: type[Draft] = plugins.find("draft", name)
    options, rest = plugins.split_options("draft", name, written, _ARGUMENTS)
    wants = {"model": "a model", "drafts": "drafts, joined by +"}.get(kind.takes)
    if rest and wants is None:
        raise plugins.no_value("draft", spec, rest)
    if wants is not None and not rest:
        raise SettingError(
            f"The draft {spec!r} is made of {wants}, and none is named.",
            f"Write {name}:{'MODEL' if kind.takes == 'model' else 'DRAFT+DRAFT'}, its options, if "
            "any, before that.",
        )
    return kind, options, rest


def _split(spec: str, written: str) -> list[str]:
    parts = [part.strip() for part in written.split("+")]
    if not all(parts):
        raise SettingError(f"The draft {spec!r} has an empty part.", "Write DRAFT+DRAFT.")
    return parts


def is_model(spec: str) -> bool:
    """Whether a specification names a model rather than a registered draft."""
    return spec.partition(":")[0] not in plugins.names("draft")


def models_of(spec: str) -> list[str]:
    """The models that a specification names, in its own words."""
    if is_model(spec):
        return [spec]
    kind, _, rest = _parts(spec)
    if kind.takes == "model":
        return [rest]
    if kind.takes == "drafts":
        return [model for part in _split(spec, rest) for model in models_of(part)]
    return []


def kinds_of(spec: str) -> list[type[Draft]]:
    """The registered drafts that a specification names, those it is made of included."""
    if is_model(spec):
        return []
    kind, _, rest = _parts(spec)
    parts = _split(spec, rest) if kind.takes == "drafts" else []
    return [kind, *(inner for part in parts for inner in kinds_of(part))]


def engine_name(spec: str) -> str:
    """The engine that reads a model draft. A name that is neither draft nor model is refused with
    the nearest of both."""
    try:
        return engines.engine_of(engines.resolve(spec))
    except SettingError:
        raise unknown_name("draft", spec, [*plugins.names("draft"), *catalog.CATALOG]) from None
