"""The target and the draft of a plan, from the metadata that a bench or a replay has of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import SettingError
from paceline.plan.document import DRAFT_KINDS, TRAINED, PlannedDraft, Target

WITH_MODEL = ("model", "tree", "shared", "text", *TRAINED)
"""Kinds that have a model of their own."""

_SETTINGS = (
    "min_match",
    "reach",
    "shared_store",
    "branches",
    "kept",
    "lasting",
    "depth",
    "calibrate",
    "weight",
    "layers",
)
"""Options of drafts, among their metadata."""

IDENTITY = ("model", "path", "vocabulary_size", "vocabulary_hash")


def target_of(metadata: Mapping[str, Any]) -> Target:
    """A plan's target.

    metadata    an engine's, with the model's identity where it is known (`model_metadata`)
    """
    return Target(
        name=str(metadata.get("model") or "unknown"),
        engine=str(metadata.get("engine") or "unknown"),
        path=metadata.get("path"),
        vocabulary_size=metadata.get("vocabulary_size"),
        vocabulary_hash=metadata.get("vocabulary_hash"),
    )


def draft_of(name: str, metadata: Mapping[str, Any]) -> PlannedDraft:
    """A plan's draft.

    name        as `-d` has it
    metadata    the draft's, with its model's identity where it is known

    Raises SettingError for a kind that a plan doesn't know, such as a plug-in's.
    """
    kind = str(metadata.get("draft"))
    if kind not in DRAFT_KINDS:
        raise SettingError(
            f"The draft {name!r} is of the kind {kind!r}, which no engine but Paceline knows.",
            "Name a configuration with another draft (--configuration).",
        )
    settings = {
        key: metadata[key]
        for key in _SETTINGS
        if metadata.get(key) is not None and metadata[key] is not False
    }
    if metadata.get("parts"):
        parts = [_part(draft_of(_part_name(one), one)) for one in metadata["parts"]]
        models = [part["model"] for part in parts if part["model"] is not None]
        model = models[0] if len(models) == 1 else None
        return PlannedDraft(
            kind=kind, name=name, model=model, settings={**settings, "parts": parts}
        )
    if kind not in WITH_MODEL:
        return PlannedDraft(kind=kind, name=name, settings=settings)
    return PlannedDraft(
        kind=kind,
        name=name,
        model=_place(metadata),
        settings=settings,
        vocabulary_size=metadata.get("vocabulary_size"),
        vocabulary_hash=metadata.get("vocabulary_hash"),
    )


def unknown_kind(metadata: Mapping[str, Any]) -> str:
    """Why a plan can't name a draft, or what it is made of; empty if it can."""
    kind = str(metadata.get("draft"))
    if kind not in DRAFT_KINDS:
        return f"no engine but Paceline knows the draft {kind!r}"
    return next((why for part in metadata.get("parts") or () if (why := unknown_kind(part))), "")


def _place(metadata: Mapping[str, Any]) -> str | None:
    """Where a model lies: its path, or the name by which a hub has it; None where nobody knows."""
    return (metadata["path"] or metadata.get("model")) if "path" in metadata else None


def unplaced(drafts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each draft whose model is known by its name only."""
    return [
        f"Where the model of the draft {name} lies is not known: {metadata['model']} is its "
        f"name only."
        for name, metadata in drafts.items()
        if metadata.get("model") and "path" not in metadata
    ]


def several(drafts: Mapping[str, Mapping[str, Any]]) -> PlannedDraft:
    """Drafts on offer to a policy, as one entry; a single one is itself. Metadata by name."""
    found = [draft_of(name, metadata) for name, metadata in drafts.items()]
    if len(found) == 1:
        return found[0]
    models = [one.model for one in found if one.model is not None]
    return PlannedDraft(
        kind="several",
        name=" + ".join(drafts),
        model=models[0] if len(models) == 1 else None,
        settings={"drafts": [_part(one) for one in found]},
    )


def _part(draft: PlannedDraft) -> dict[str, Any]:
    return {
        "kind": draft.kind,
        "name": draft.name,
        "model": draft.model,
        "settings": dict(draft.settings),
    }


def _part_name(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("model") or metadata.get("draft"))
