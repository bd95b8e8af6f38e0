"""How a model with another tokenizer reads what the target has committed.

What it is fed only has to be a fair reading: exactness never depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from paceline.drafts.base import Context, Contexts, Drafted
from paceline.drafts.model import EngineDraft, EngineState
from paceline.drafts.vocabulary import by_bytes
from paceline.engines.base import Engine
from paceline.engines.tokenizer import Tokenizer
from paceline.errors import PacelineError
from paceline.types import Array

log = logging.getLogger("paceline")

# Put before a text whose own tokens are wanted: SentencePiece gives a text a space in front, and
# that then stands before this.
_ANCHOR = b"\n"


class TranslatedDraft(EngineDraft):
    """A model with another tokenizer, fed what is committed in its own tokens."""

    def __init__(self, engine: Engine, target: Engine, fit: str) -> None:
        super().__init__(engine, fit)
        self.reader = TextReader(target.tokenizer, engine.tokenizer)

    def observe(self, context: Context, committed: Sequence[int]) -> None:  # noqa: ARG002
        """Put what was committed into the model's tokens."""
        self._read(context)

    def _read(self, context: Context) -> EngineState:
        state, committed = self._states[context], context.history.tokens
        new = committed[state.read :]
        if not state.read:
            state.tokens = self.reader.prompt(new)
        elif new:
            state.tokens += self.reader.read(new, state.drafted)
        if new:
            state.read, state.drafted = len(committed), []
        return state

    def _rows(self, contexts: Contexts, drafted: Drafted) -> list[Array | None]:
        for context, own in zip(contexts, drafted, strict=True):
            self._read(context).drafted = own
        return super()._rows(contexts, drafted)


class TextReader:
    """The draft's tokens for the target's.

    Text is encoded by the draft's own tokenizer; bytes that are no text yet (half a character), by
    the longest tokens that spell them. A control token is read as the draft's token of the same
    name; where the draft has none, or lacks a byte, it reads on without it.

    begin    what the draft's texts begin with (a beginning-of-text token, or nothing)
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target, self._draft = target, draft
        self.begin = draft.encode("")
        self._spelled = {text: tokens[0] for text, tokens in by_bytes(draft).items()}
        self._named: dict[str, int] = {}
        for token in reversed(range(draft.size)):
            if not draft.token_bytes(token) and (name := draft.piece(token)):
                self._named[name] = token
        self._longest = max(map(len, self._spelled), default=0)
        self._said_gap = False

    def prompt(self, tokens: Sequence[int]) -> list[int]:
        """What stands for a whole prompt, the draft's own beginning included."""
        read = self.read(tokens)
        return read if read[: len(self.begin)] == self.begin else [*self.begin, *read]

    def read(self, tokens: Sequence[int], drafted: Sequence[int] = ()) -> list[int]:
        """What stands for newly committed tokens.

        drafted    the draft's own tokens that were offered in their place: kept as far as they say
                   the same, so that what the draft has read of them needs no reading again
        """
        own, found = list(drafted), []
        for run in self._runs(tokens):
            text = b"".join(map(self._bytes, run))
            if not text:
                control = self._named.get(self._target.piece(run[0]))
                own = own[1:] if own[:1] == [control] else []
                found += [] if control is None else [control]
                continue
            while own and (said := self._draft.token_bytes(own[0])) and text.startswith(said):
                found.append(own.pop(0))
                text = text[len(said) :]
            found += self.encode(text)
        return found

    def _bytes(self, token: int) -> bytes:
        return self._target.token_bytes(token) if token < self._target.size else b""

    def _runs(self, tokens: Sequence[int]) -> Iterator[list[int]]:
        """The tokens in stretches of text; each one without text by itself."""
        run: list[int] = []
        for token in tokens:
            if self._bytes(token):
                run.append(token)
                continue
            if run:
                yield run
                run = []
            yield [token]
        if run:
            yield run

    def encode(self, text: bytes) -> list[int]:
        """The draft's tokens of some bytes. What is one of its tokens stays that."""
        if text in self._spelled:
            return [self._spelled[text]]
        found: list[int] = []
        while text:
            try:
                whole, broken = text, b""
                text.decode()
            except UnicodeDecodeError as error:
                whole, broken = text[: error.start], text[error.start : error.end]
            found += self._encode_text(whole) + self._spell(broken)
            text = text[len(whole) + len(broken) :]
        return found

    def _encode_text(self, text: bytes) -> list[int]:
        if not text:
            return []
        for before in (b"", _ANCHOR):
            tokens = encode_after(before, text, self._draft)
            if tokens is not None:
                return tokens
        return self._spell(text)

    def _spell(self, text: bytes) -> list[int]:
        found: list[int] = []
        place = 0
        while place < len(text):
            for length in range(min(self._longest, len(text) - place), 0, -1):
                token = self._spelled.get(text[place : place + length])
                if token is not None:
                    found.append(token)
                    place += length
                    break
            else:
                self._say_gap(text[place : place + 1])
                place += 1
        return found

    def _say_gap(self, byte: bytes) -> None:
        if not self._said_gap:
            self._said_gap = True
            log.warning(
                "The draft's vocabulary has no token for the byte %r: it reads the text without "
                "what it can't spell.",
                byte,
            )


def encode_after(before: bytes, text: bytes, tokenizer: Tokenizer) -> list[int] | None:
    """The tokens of `text` where it stands behind `before`: as the tokenizer encodes both together.
    None if a token spans the border, or if the tokens don't say the text (half a character, the
    name of a control token spelled out)."""
    try:
        tokens = tokenizer.encode((before + text).decode())
    except (UnicodeDecodeError, PacelineError):
        return None
    # From the end: what a tokenizer puts before a text doesn't matter then.
    start, length = len(tokens), 0
    while start and length < len(text):
        start -= 1
        length += len(tokenizer.token_bytes(tokens[start]))
    found = tokens[start:]
    return found if b"".join(map(tokenizer.token_bytes, found)) == text else None
