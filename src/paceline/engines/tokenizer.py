"""The tokenizer side of an engine: text to tokens, tokens to bytes, chats to prompts."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence

from paceline.errors import PromptError

Message = Mapping[str, str]
"""One chat message: `role` and `content`."""


class Tokenizer(abc.ABC):
    """What Paceline needs of a tokenizer. Ids run from 0 to `size` - 1; a model may score more
    (padding rows), and those have no text.

    end_tokens    ids with which the model ends an answer
    end_token     the one that it names as the usual one, if it names any
    """

    size: int
    end_tokens: frozenset[int]
    end_token: int | None = None

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Tokens of a raw prompt: with the beginning-of-text token where the model expects one,
        and with special tokens written in the text recognised as such."""

    @abc.abstractmethod
    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a chat up to where the answer begins, through the model's own template.

        Raises ModelError if the model has no chat template.
        """

    @abc.abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text; empty for control and padding tokens."""

    @abc.abstractmethod
    def piece(self, token: int) -> str:
        """The vocabulary's own name of a token, control tokens included: what two vocabularies
        are compared by. Empty for padding rows."""

    def text_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes that tokens add to a text."""
        return b"".join(map(self.token_bytes, tokens))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.text_bytes(tokens).decode("utf-8", errors="replace")


def checked_text(text: str) -> str:
    """The text, if it is text. Half of a surrogate pair, as bytes that are no UTF-8 become on a
    command line, is not: PromptError."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"The prompt has a character that is no text: {text[error.start]!r}.",
            "Give it as UTF-8.",
        ) from None
    return text
