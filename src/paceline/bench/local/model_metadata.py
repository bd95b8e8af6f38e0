"""Facts of a model and a draft with where they lie and what vocabulary they have, so that a file
of measurements can become a plan for other engines."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from paceline.drafts.base import Draft
from paceline.drafts.vocabulary import matters, vocabulary_digest
from paceline.engines.base import Engine
from paceline.engines.tokenizer import Tokenizer

_digests: WeakKeyDictionary[Tokenizer, str] = WeakKeyDictionary()


def target_metadata(engine: Engine) -> dict[str, Any]:
    """The engine's facts and the model's identity: `path` (None of a hub name and of a model that
    has no file), `vocabulary_size` and `vocabulary_hash`."""
    return engine.metadata() | _identity(engine)


def draft_metadata(draft: Draft) -> dict[str, Any]:
    """The draft's facts and its model's identity; of one made of drafts, each part's."""
    metadata, parts = draft.metadata(), getattr(draft, "parts", None)
    if parts:
        return metadata | {"parts": [draft_metadata(part) for part in parts]}
    return metadata if draft.engine is None else metadata | _identity(draft.engine)


def _identity(engine: Engine) -> dict[str, Any]:
    return {
        "path": None if engine.place is None else str(engine.place),
        "vocabulary_size": engine.vocabulary_size,
        "vocabulary_hash": _digest(engine.tokenizer),
    }


def _digest(tokenizer: Tokenizer) -> str:
    """The names of all tokens up to the last one that has one: files of the same tokenizer end in
    more or less padding. Found once, because a large vocabulary takes some tenths of a second."""
    if tokenizer not in _digests:
        count = tokenizer.size
        while count and not matters(tokenizer.piece(count - 1)):
            count -= 1
        _digests[tokenizer] = vocabulary_digest(tokenizer, count)
    return _digests[tokenizer]
