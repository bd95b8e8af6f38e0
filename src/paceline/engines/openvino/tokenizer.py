"""The tokenizer files of a model directory, read without transformers or torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from paceline.engines.tokenizer import render
from paceline.engines.transformers.tokenizer import TransformersTokenizer
from paceline.errors import ModelError


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token beside the vocabulary proper."""

    content: str
    special: bool


class TokenizerFiles:
    """What `TransformersTokenizer` reads of a transformers tokenizer, from its files."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{directory} has no tokenizer.json.",
                "Copy it there from the model that this one was made of.",
            )
        try:
            self.backend_tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise ModelError(f"{path} can't be read: {error}.", "Copy it there again.") from None
        # What both name is the configuration's; older directories have roles in the map alone.
        roles = read_json(directory / "special_tokens_map.json")
        self._config = roles | read_json(directory / "tokenizer_config.json")
        self.chat_template = _chat_template(directory, self._config)
        self.eos_token_id = self._id_of("eos_token")

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Added tokens by id."""
        return {
            entry["id"]: AddedToken(entry["content"], entry["special"])
            for entry in json.loads(self.backend_tokenizer.to_str())["added_tokens"]
        }

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens that it names."""
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
        found = (self._id_of(name) for name in names)
        return [token for token in found if token is not None]

    def get_vocab(self) -> dict[str, int]:
        """Ids by name."""
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab()
        return vocabulary

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """A token's name; None where there is none."""
        name: str | None = self.backend_tokenizer.id_to_token(token)
        return name

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        """The text of a chat."""
        assert self.chat_template is not None
        return render(
            self.chat_template, messages, self._name_of("bos_token"), self._name_of("eos_token")
        )

    def _name_of(self, role: str) -> str:
        """The token of a role, which a configuration writes as text or as an entry with text."""
        named = self._config.get(role) or ""
        return str(named.get("content", "")) if isinstance(named, dict) else str(named)

    def _id_of(self, role: str) -> int | None:
        token: int | None = self.backend_tokenizer.token_to_id(self._name_of(role))
        return token


def read_tokenizer(directory: Path) -> TransformersTokenizer:
    """Raises ModelError for a directory without a tokenizer.json, or with one that can't be read
    token by token."""
    ends: list[int] = []
    config = read_json(directory / "config.json")
    places = (read_json(directory / "generation_config.json"), config, text_config(config))
    for told in (place.get("eos_token_id") for place in places):
        if told is not None:
            ends = [told] if isinstance(told, int) else list(told)
            break
    return TransformersTokenizer(TokenizerFiles(directory), ends)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """What a configuration says of its text model, which may be all of it."""
    found: dict[str, Any] = config.get("text_config") or config
    return found


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing if there is none. Raises ModelError for a damaged one."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read: {error}.", "Copy it there again.") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no JSON object.", "Copy it there again.")
    return found


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file} can't be read: {error}.", "Copy it there again.") from None
    named = config.get("chat_template")
    if isinstance(named, list):  # several, by name
        by_name = {entry.get("name"): entry.get("template") for entry in named}
        named = by_name.get("default")
    return named
