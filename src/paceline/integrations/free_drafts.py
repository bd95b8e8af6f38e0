"""The drafts that can serve another engine: what they offer is a chain, deterministic, and takes
no forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from paceline import plugins
from paceline.drafts.base import Draft
from paceline.drafts.create import create_draft, is_model, kinds_of, models_of
from paceline.engines.tokenizer import Tokenizer
from paceline.engines.tokenizer_only import TokenizerOnly
from paceline.errors import SettingError, unknown_name


def free_drafts(specs: Sequence[str]) -> dict[str, Draft]:
    """Drafts by their specifications, for a target that another engine runs. Raises SettingError
    for one that is unknown, needs forwards, offers trees, or remembers text between requests."""
    if not specs:
        raise SettingError("No draft is named.", "Name lookup, recycle, or both.")
    nothing = TokenizerOnly("another engine", "", cast(Tokenizer, None), vocabulary_size=0)
    found: dict[str, Draft] = {}
    for spec in specs:
        if is_model(spec):
            raise unknown_name("draft without a model", spec, plugins.names("draft"))
        asked = any(not kind.takes and not kind.previewable for kind in kinds_of(spec))
        if models_of(spec) or asked:
            raise _not_free(spec)
        draft = create_draft(spec, nothing)
        if draft.remembers:
            raise SettingError(
                f"The draft {spec!r} remembers text from one request to the next.",
                "Leave that option out: here nothing of a request's text outlives it.",
            )
        if not draft.previewable or draft.branches:
            raise _not_free(spec)
        found[spec] = draft
    return found


def _not_free(spec: str) -> SettingError:
    return SettingError(
        f"The draft {spec!r} can't draft for another engine: it needs forwards, offers trees, or "
        "can't be looked at before it is asked.",
        "Use lookup, recycle, or both.",
    )
