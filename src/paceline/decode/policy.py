"""Which draft to ask, and for how many tokens: one function type.

A policy sees the streams about to take a round and answers with one choice each. It may look at
rounds and committed tokens, never at what a draft is about to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from paceline.decode.stream import Stream
from paceline.errors import SettingError
from paceline.types import Choice

Policy: TypeAlias = Callable[[Sequence[Stream]], list[Choice]]


def fixed(source: str | None, max_draft_tokens: int) -> Policy:
    """The same draft and limit in every round; limit 0, or no source, is plain decoding."""
    if max_draft_tokens < 0:
        raise SettingError(
            f"The limit is {max_draft_tokens}.", "It must be 0 (plain decoding) or more."
        )
    choice = Choice(source if max_draft_tokens else None, max_draft_tokens if source else 0)
    return lambda streams: [choice] * len(streams)
