"""From what a user names to an IR file, and to what reads its texts: the tokenizer files of a model
directory, read without transformers or torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from paceline.engines.base import TokenizerOnly
from paceline.engines.load import load_tokenizer, longest_context
from paceline.engines.openvino.export import WEIGHTS, exported_directory, exported_gguf
from paceline.engines.openvino.model import IR
from paceline.engines.tokenizer import render
from paceline.engines.transformers.tokenizer import TransformersTokenizer
from paceline.errors import ModelError, SettingError, unknown_name


class Kind(Enum):
    """What a target is: an IR file, a model directory, or a GGUF file."""

    IR = "ir"
    DIRECTORY = "directory"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target lies. `path` is the IR's file, the model's directory, or the GGUF file."""

    kind: Kind
    path: Path


@dataclass(frozen=True, slots=True)
class Ir:
    """A model in OpenVINO's form, and how it was made, for the engine's metadata."""

    xml: Path
    metadata: dict[str, Any] = field(default_factory=dict)


def find_place(target: str, weights: str | None = None) -> Place:
    """
    weights    the type that is asked for; only a model directory's can be chosen

    Raises ModelError for what can't be found, SettingError for weights that can't be chosen.
    """
    path = Path(target).expanduser()
    if weights is not None and weights not in WEIGHTS:
        raise unknown_name("type of weights", weights, WEIGHTS)
    try:
        place = _place(target, path)
    except OSError as error:
        fact = f"{target} can't be read: {error.strerror}."
        raise ModelError(fact, "Check its path and rights.") from None
    if weights is not None and place.kind is not Kind.DIRECTORY:
        raise SettingError(
            f"dtype is {weights}, and the weights of {target} have their type already.",
            "Leave it out. Where it is meant for another model, export that one (paceline models "
            "export) and name its directory.",
        )
    return place


def _place(target: str, path: Path) -> Place:
    if path.is_dir() and (path / IR).is_file():
        return Place(Kind.IR, path / IR)
    if path.is_dir() and (path / "config.json").is_file():
        return Place(Kind.DIRECTORY, path)
    if path.suffix == ".xml" and path.is_file():
        return Place(Kind.IR, path)
    if path.is_file():
        return Place(Kind.GGUF, path)
    fact = f"There is no file or directory {target}."
    if path.is_dir():
        fact = f"The directory {target} has neither an {IR} nor a config.json."
    raise ModelError(
        fact, "Name an OpenVINO model's directory, a transformers model's, or a GGUF file."
    )


def find_tokenizer(target: str, place: Place) -> TokenizerOnly:
    """What reads a model's texts, and says what is known without its weights.

    Raises ModelError for a tokenizer that is missing or can't be read, SettingError where neither
    ik nor llamacpp is installed and a GGUF file is to be read.
    """
    path = Path(target).expanduser().absolute()
    if place.kind is Kind.GGUF:
        # The file's own, as llama.cpp or its fork has it: tokens are those of that engine.
        reader = load_tokenizer(str(place.path))
        assert isinstance(reader, TokenizerOnly)
        reader.engine, reader.place = "openvino", path
        return reader
    directory = place.path if place.kind is Kind.DIRECTORY else place.path.parent
    tokenizer = read_tokenizer(directory)
    text = text_config(read_json(directory / "config.json"))
    size = text.get("vocab_size") or tokenizer.size
    longest = longest_context(text)
    return TokenizerOnly("openvino", target, tokenizer, size, path, longest_context=longest)


def find_ir(place: Place, weights: str | None, *, verify: bool = False) -> Ir:
    """An IR as it is; a model directory or a GGUF file exported into the cache on the first call.

    weights    type of an exported directory's weights: int8 (default), int4, bfloat16, float16,
               float32
    verify     read an export that is there whole, and make it again if it is damaged

    Raises ModelError for what can't be read or exported.
    """
    if place.kind is Kind.IR:
        return Ir(place.path)
    if place.kind is Kind.GGUF:
        made, stored = exported_gguf(place.path, verify=verify), "of the GGUF file"
    else:
        stored = weights or "int8"
        made = exported_directory(place.path, stored, verify=verify)
    return Ir(made / IR, {"exported_to": str(made), "weights": stored})


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
