"""Does a draft model speak its target's tokens? Compared by the tokens' own names."""

from __future__ import annotations

from paceline.engines.base import Engine
from paceline.errors import PairError


def check_pair(target: Engine, draft: Engine) -> str:
    """Say in one line that the two vocabularies fit. Padding rows (ids without a name) are
    harmless: they have no text, and exactness does not depend on the draft.

    Raises PairError naming the first token that differs.
    """
    ours, theirs = target.tokenizer, draft.tokenizer
    shared = min(ours.size, theirs.size)
    for token in range(max(ours.size, theirs.size)):
        here = ours.piece(token) if token < ours.size else ""
        there = theirs.piece(token) if token < theirs.size else ""
        if here == there or not (matters(here) or matters(there)):
            continue
        raise PairError(
            f"The draft {draft.model} has another vocabulary: token {token} is {here!r} in the "
            f"target and {there!r} in the draft.",
            "Let it draft through what both have, with `-d shared:MODEL`, or by its text, with "
            "`-d text:MODEL`.",
        )
    padding = abs(target.vocabulary_size - draft.vocabulary_size)
    padded = f"; {padding} rows of padding differ" if padding else ""
    return f"same {shared} tokens{padded}"


def matters(piece: str) -> bool:
    """Whether a name stands for a token that can be emitted; GGUF files name padding rows."""
    return bool(piece) and not piece.startswith("[PAD")
