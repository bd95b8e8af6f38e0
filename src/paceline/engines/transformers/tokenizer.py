"""A transformers fast tokenizer, read down to the exact bytes of each token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.engines.tokenizer import Message, Tokenizer, checked_text
from paceline.errors import ModelError, PacelineError

SPACE = "▁"
"""What SentencePiece writes for a space."""


def byte_alphabet() -> dict[str, int]:
    """The letters in which byte-level vocabularies spell bytes: printable Latin-1 stands for
    itself, the other bytes for the letters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + number): byte for number, byte in enumerate(rest)
    }


class TransformersTokenizer(Tokenizer):
    """Over a `PreTrainedTokenizerFast` and the model's own end tokens.

    Raises ModelError for a tokenizer that isn't fast, or whose decoder can't be read by token.
    """

    def __init__(self, tokenizer: Any, end_tokens: Iterable[int] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                f"{type(tokenizer).__name__} is not a fast tokenizer, so its tokens have no bytes.",
                "Use a model directory with a tokenizer.json.",
            )
        self._tokenizer, self._backend = tokenizer, backend
        self._backend.no_truncation()
        self._backend.no_padding()
        added = tokenizer.added_tokens_decoder
        self.size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        own = self.end_token = tokenizer.eos_token_id
        self.end_tokens = frozenset(end_tokens) | (frozenset() if own is None else {own})
        self._control = {token for token, entry in added.items() if entry.special}
        self._control |= set(tokenizer.all_special_ids) | self.end_tokens
        self._added = {token: entry.content for token, entry in added.items()}
        self._spelling = spelling(json.loads(backend.to_str()))
        self._known: dict[int, bytes] = {}
        self._begin = self._beginning()

    def _beginning(self) -> list[int]:
        """The tokens put before a text (what is put after it doesn't belong to a prompt)."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        dressed = self._backend.encode("a", add_special_tokens=True).ids
        for start in range(len(dressed) - len(bare) + 1):
            if dressed[start : start + len(bare)] == bare:
                return list(dressed[:start])
        return []

    def encode(self, text: str) -> list[int]:
        return [
            *self._begin,
            *self._backend.encode(checked_text(text), add_special_tokens=False).ids,
        ]

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        if not self._tokenizer.chat_template:
            raise ModelError(
                "This model's tokenizer has no chat template.",
                "Give a raw prompt, or use a model tuned for chat.",
            )
        for message in messages:
            checked_text(message["content"])
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except PacelineError:
            raise
        except Exception as error:  # templates raise what they like
            raise ModelError(
                f"The model's chat template refuses these messages: {str(error).rstrip('.')}.",
                "Change their roles or order.",
            ) from error
        return list(self._backend.encode(checked_text(text), add_special_tokens=False).ids)

    def token_bytes(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._read(token)
        return found

    def _read(self, token: int) -> bytes:
        if token in self._control:
            return b""
        if token in self._added:
            text: str = self._added[token]
            return (text.replace(SPACE, " ") if self._spelling.spaced else text).encode()
        return self._spelling.read(self.piece(token))

    def piece(self, token: int) -> str:
        if not 0 <= token < self.size:
            return ""
        return self._tokenizer.convert_ids_to_tokens(token) or ""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens. A space that encoding puts before every text is taken off again
        where the tokens begin a text, which shows in the token that begins one."""
        tokens = list(tokens)
        text = super().decode(tokens)
        begins = bool(self._begin) and tokens[: len(self._begin)] == self._begin
        return text.removeprefix(" ") if self._spelling.strips and begins else text


Reader = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a vocabulary writes text.

    read      a token's name to its bytes
    spaced    spaces are written as SPACE, in added tokens too
    strips    decoding drops a space at the start of a text
    """

    read: Reader
    spaced: bool = False
    strips: bool = False


def spelling(description: dict[str, Any]) -> Spelling:
    """How tokens are read, from the decoder of a tokenizer.json.

    Raises ModelError for a decoder whose text isn't the tokens' texts in a row.
    """
    decoder = description.get("decoder") or {}
    steps = decoder.get("decoders", [decoder]) if decoder.get("type") == "Sequence" else [decoder]
    kinds = {str(step.get("type")): step for step in steps}
    if "ByteLevel" in kinds:
        return Spelling(_byte_level)
    metaspace = kinds.get("Metaspace")
    if metaspace or any(SPACE in str(step.get("pattern", "")) for step in steps):
        strips = "Strip" in kinds or (metaspace or {}).get("prepend_scheme", "never") != "never"
        read = _sentence_piece if "ByteFallback" in kinds else _spaced
        return Spelling(read, spaced=True, strips=strips)
    if "WordPiece" in kinds:
        return Spelling(_word_piece(kinds["WordPiece"].get("prefix", "##")), strips=True)
    if "BPEDecoder" in kinds:
        suffix = kinds["BPEDecoder"].get("suffix", "</w>")
        return Spelling(lambda piece: piece.replace(suffix, " ").encode())
    name = " + ".join(kinds) if decoder else "none"
    raise ModelError(
        f"The tokenizer's decoder ({name}) can't be read token by token.",
        "Use a model with a byte-level, SentencePiece or WordPiece tokenizer.",
    )


ALPHABET = byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(ALPHABET[letter] for letter in piece)
    except KeyError:  # a token that was added by its text
        return piece.encode()


def _spaced(piece: str) -> bytes:
    return piece.replace(SPACE, " ").encode()


def _sentence_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return _spaced(piece)


def _word_piece(prefix: str) -> Reader:
    def read(piece: str) -> bytes:
        joined = piece.removeprefix(prefix)
        return (joined if joined != piece else " " + piece).encode()

    return read
