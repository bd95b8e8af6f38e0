"""Where a model lies and what vocabulary it has, beside its facts."""

from __future__ import annotations

from pathlib import Path

from paceline.bench.local.model_metadata import draft_metadata, target_metadata
from paceline.drafts.create import create_draft
from paceline.engines.base import TokenizerOnly
from paceline.engines.load import load
from paceline.engines.tokenizer import Tokenizer


class Named(Tokenizer):
    """Tokens of these names; an empty one is padding."""

    end_tokens = frozenset()

    def __init__(self, *names: str) -> None:
        self.names, self.size = names, len(names)

    def encode(self, text):
        raise NotImplementedError(text)

    def encode_chat(self, messages):
        raise NotImplementedError(messages)

    def token_bytes(self, token):
        return self.names[token].encode()

    def piece(self, token):
        return self.names[token]


def digest(*names: str) -> str:
    engine = TokenizerOnly("llamacpp", "m", Named(*names), 100, Path("/m/m.gguf"))
    metadata = target_metadata(engine)
    assert (metadata["path"], metadata["vocabulary_size"]) == ("/m/m.gguf", 100)
    return metadata["vocabulary_hash"]


def test_equal_hashes_are_equal_vocabularies_whatever_padding_they_end_in() -> None:
    assert digest("a", "b") == digest("a", "b", "", "") == digest("a", "b", "[PAD7]")
    others = [("a",), ("b", "a"), ("ab",), ("a", "", "b"), ("a", "b", "c"), ()]
    assert len({digest("a", "b"), *(digest(*names) for names in others)}) == 7


def test_a_draft_without_a_model_has_none_and_parts_have_their_own() -> None:
    target = load("toy:3")
    assert draft_metadata(create_draft("lookup", target)).keys() == (
        create_draft("lookup", target).metadata().keys()
    )
    metadata = draft_metadata(create_draft("cascade:lookup+toy:4", target))
    assert "path" not in metadata
    assert ["path" in part for part in metadata["parts"]] == [False, True]
    assert metadata["parts"][1]["vocabulary_hash"] == target_metadata(target)["vocabulary_hash"]
