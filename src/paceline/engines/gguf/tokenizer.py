"""A GGUF model's own vocabulary and chat template."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.engines.gguf.library import Library
from paceline.engines.tokenizer import Message, Tokenizer, checked_text, render
from paceline.errors import ModelError

_UNUSED = 2  # LLAMA_TOKEN_ATTR_UNUSED
_SENTENCEPIECE = 1  # LLAMA_VOCAB_TYPE_SPM


class GgufTokenizer(Tokenizer):
    """The library's tokenizer of a model.

    SentencePiece vocabularies put a space before a text: "a b" becomes the tokens of " a b". That
    space belongs to the first token's bytes, as it does in the middle of a text, where it is
    real. So `text_bytes` drops it only where it can't be real: right after a
    beginning-of-text token. Then text to tokens to bytes gives the text back, and what a model
    goes on to write keeps its spaces.
    """

    def __init__(self, library: Library, model: Any, label: str) -> None:
        self._library, self._model = library, model
        self._call = functions = library.functions
        self._vocab = functions.llama_model_get_vocab(model)
        self._label = label
        self.size = functions.llama_vocab_n_tokens(self._vocab)
        is_end = functions.llama_vocab_is_eog
        self.end_tokens = frozenset(t for t in range(self.size) if is_end(self._vocab, t))
        self._known: dict[int, bytes] = dict.fromkeys(self.end_tokens, b"")
        self._template = functions.llama_model_chat_template(model, None)
        self._begin = functions.llama_vocab_bos(self._vocab)
        self._end = functions.llama_vocab_eos(self._vocab)
        self.end_token = self._end if self._end in self.end_tokens else None
        self._puts_space = self._has_space_prefix()

    def _has_space_prefix(self) -> bool:
        if self._call.llama_vocab_type(self._vocab) != _SENTENCEPIECE:
            return False
        tokens = self._tokens("a", add_special=False)
        return b"".join(map(self.token_bytes, tokens)) == b" a"

    def close(self) -> None:
        """Forget the vocabulary, which goes with the model."""
        self._vocab = None

    def encode(self, text: str) -> list[int]:
        tokens = self._tokens(text, add_special=True)
        if tokens and self._adds_end() and tokens[-1] == self._end:
            tokens.pop()  # some models end every text with it; a prompt goes on
        return tokens

    def _adds_end(self) -> bool:
        return bool(self._call.llama_vocab_get_add_eos(self._vocab))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Raises ModelError without a chat template, PromptError where it refuses the messages.

        The template alone decides on a beginning-of-text token, as in transformers.
        """
        if not self._template:
            raise ModelError(
                f"{self._label} has no chat template.", "Give a raw prompt, or an instruct model."
            )
        begin, end = (self.piece(token) for token in (self._begin, self._end))
        text = render(self._template.decode(), messages, begin, end)
        return self._tokens(text, add_special=False)

    def _tokens(self, text: str, *, add_special: bool) -> list[int]:
        self._check_open()
        data = checked_text(text).encode()
        room = len(data) + 2  # no token is empty; at most one is put before and one after
        tokens = (ctypes.c_int32 * room)()
        count = self._call.llama_tokenize(
            self._vocab, data, len(data), tokens, room, add_special, True
        )
        if count < 0:
            tokens = (ctypes.c_int32 * -count)()
            count = self._call.llama_tokenize(
                self._vocab, data, len(data), tokens, -count, add_special, True
            )
        return list(tokens[:count])

    def token_bytes(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._bytes_of(token)
        return self._known[token]

    def _bytes_of(self, token: int) -> bytes:
        self._check_open()
        if not 0 <= token < self.size:
            return b""
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = self._call.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            room = -length

    def text_bytes(self, tokens: Iterable[int]) -> bytes:
        """The tokens' text, without the space that is put before a text."""
        tokens = list(tokens)
        text = super().text_bytes(tokens)
        starts = self._puts_space and tokens[:1] == [self._begin]
        return text.removeprefix(b" ") if starts else text

    def piece(self, token: int) -> str:
        self._check_open()
        if not 0 <= token < self.size:
            return ""
        if self._library.attributes(self._model, token) & _UNUSED:
            return ""
        name: bytes = self._call.llama_vocab_get_text(self._vocab, token)
        return name.decode("utf-8", errors="replace")

    def _check_open(self) -> None:
        if self._vocab is None:
            raise ValueError("the engine is closed")
