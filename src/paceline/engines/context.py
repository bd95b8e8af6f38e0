"""How many tokens a sequence may hold, by what a model's configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import SettingError

DEFAULT_CONTEXT = 4096
"""Where none is asked for; the model's own, if that is less."""


def fitting_context(target: str, longest: int | None, asked: int | None) -> int:
    """The context to give a sequence. Raises SettingError for one the model can't keep to.

    longest    most tokens the model is good for; None if it doesn't say
    """
    if asked is None:
        return min(longest or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if asked < 1 or (longest and asked > longest):
        raise SettingError(
            f"context_size is {asked}.",
            f"{target} takes 1 to {longest}." if longest else "It must be 1 or more.",
        )
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
