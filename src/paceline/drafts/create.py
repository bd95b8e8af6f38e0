"""From what a user writes after `-d` to a draft for a target."""

from __future__ import annotations

from typing import Any

from paceline import plugins
from paceline.drafts.base import Draft
from paceline.drafts.model import ModelDraft
from paceline.engines import load as engines
from paceline.engines.base import Engine
from paceline.errors import PacelineError, SettingError, unknown_name
from paceline.models import catalog


def create_draft(spec: str, target: Engine, **engine_options: Any) -> Draft:
    """A draft from its specification.

    spec              a registered draft, with options if it takes any
                      (`lookup`, `lookup:min_match=1,reach=4`), or a model: a GGUF file, a
                      directory, a hub name or a demo name
    engine_options    how a model draft is loaded (engine, threads, dtype, …)

    Raises SettingError for an unknown draft or option, PairError for one that doesn't fit.
    """
    name, _, written = spec.partition(":")
    if not is_model(spec):
        if engine_options:
            raise SettingError(
                f"The draft {name!r} is no model, and {min(engine_options)} is for one.",
                "Leave it out.",
            )
        draft: Draft = plugins.find("draft", name).create(target, **_options(spec, written))
        return draft
    if "engine" not in engine_options:
        engine_name(spec)  # refuses what is neither draft nor model
    engine = engines.load(spec, max_sequences=target.capabilities.max_sequences, **engine_options)
    try:
        return ModelDraft(engine, target)
    except PacelineError:
        engine.close()
        raise


def _options(spec: str, written: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, written.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise SettingError(
                f"The draft {spec!r} has the option {part!r} without a value.",
                "Write NAME:KEY=VALUE.",
            )
        options[key.strip()] = value.strip()
    return options


def is_model(spec: str) -> bool:
    """Whether a specification names a model rather than a registered draft."""
    return spec.partition(":")[0] not in plugins.names("draft")


def engine_name(spec: str) -> str:
    """The engine that reads a model draft. A name that is neither draft nor model is refused with
    the nearest of both."""
    try:
        return engines.engine_of(engines.resolve(spec))
    except SettingError:
        raise unknown_name("draft", spec, [*plugins.names("draft"), *catalog.CATALOG]) from None
