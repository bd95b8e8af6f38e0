"""The tokenizer side of an engine: text to tokens, tokens to bytes, chats to prompts."""

from __future__ import annotations

import abc
import datetime
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

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
            f"The prompt has a character that is not text: {text[error.start]!r}.",
            "Give it as UTF-8.",
        ) from None
    return text


def render(template: str, messages: Sequence[Message], begin: str, end: str) -> str:
    """A chat as text, where the library that runs a model doesn't apply its chat template. Raises
    PromptError where the template refuses the messages.

    begin, end    the model's beginning-of-text and end-of-text tokens
    """
    try:
        text: str = (
            _chat_environment()
            .from_string(template)
            .render(
                messages=[dict(message) for message in messages],
                tools=None,  # templates ask whether they are none, which an unknown name isn't
                documents=None,
                add_generation_prompt=True,
                bos_token=begin,
                eos_token=end,
            )
        )
        return text
    except Exception as error:  # whatever a template does with messages it wasn't made for
        raise PromptError(
            f"The model's chat template refuses the messages: {error}.",
            "Change them, or give a raw prompt.",
        ) from error


@functools.cache
def _chat_environment() -> Any:
    """The names and filters that chat templates are written for. Templates come with models from
    anywhere, so they run in a sandbox."""
    import jinja2.ext
    import jinja2.sandbox

    class GenerationMark(jinja2.ext.Extension):  # type: ignore[misc]
        """Templates may mark what the assistant said, for training; here it means nothing."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        how: dict[str, Any] = {"separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **how)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationMark, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment
