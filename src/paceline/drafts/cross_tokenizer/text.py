"""A model with another tokenizer, drafting text that is encoded anew in the target's tokens.

Timor et al. 2025 (Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies), string-level exact match. The distribution of an encoded text isn't
known, so the draft's text is always its likeliest one: deterministic, its tokens have one-hot
distributions, and that is exact at any temperature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from array_api_compat import array_namespace

from paceline.drafts.base import Context, Contexts, Limits
from paceline.drafts.cross_tokenizer.reading import TranslatedDraft, encode_after
from paceline.drafts.vocabulary import matched_ends
from paceline.engines.base import Engine
from paceline.errors import NumericError, SettingError
from paceline.sampling.distribution import checked_maximum
from paceline.types import Array, Proposal

LOOK_BEHIND = 10


@dataclass(slots=True)
class _TextTurn:
    """One context's text in the making, in the draft's tokens.

    end    the target's end token that stands behind it
    """

    context: Context
    limit: int
    drafted: list[int] = field(default_factory=list)
    end: int | None = None


class TextDraft(TranslatedDraft):
    """Proposals of a draft's likeliest text, of at most as many of its tokens as the limit. What
    penalties and masks say is said of the target's tokens and left to the target.

    look_behind    committed tokens that are encoded together with the drafted text, so that it is
                   split as it would be in its place; without any, as if it stood by itself
    """

    name = "text"
    summary = "a model with another tokenizer, by its text; needs its file, directory or name"
    options: ClassVar = {"look_behind": int}

    def __init__(self, engine: Engine, target: Engine, *, look_behind: int = LOOK_BEHIND) -> None:
        if look_behind < 0:
            raise SettingError(f"look_behind is {look_behind}.", "It must be 0 or more.")
        ends = matched_ends(target.tokenizer, engine.tokenizer)
        whole = len(target.tokenizer.end_tokens)
        fit = f"by text; {len(ends)} of the target's {whole} end tokens the draft has too"
        super().__init__(engine, target, fit)
        self.look_behind = look_behind
        self._target = target.tokenizer
        self._ends = {theirs: ours for ours, theirs in ends.items()}

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        """The likeliest text, in the target's tokens; all of them deterministic."""
        turns = [_TextTurn(*turn) for turn in zip(contexts, limits, strict=True)]
        active = turns
        while active:
            rows = self._rows([t.context for t in active], [t.drafted for t in active])
            active = [turn for turn, row in zip(active, rows, strict=True) if self._take(turn, row)]
        return [self._proposal(turn) for turn in turns]

    def _take(self, turn: _TextTurn, row: Array | None) -> bool:
        """One more token of the draft; False if its text ends here."""
        if row is None:
            return False
        row = row[0]
        try:
            checked_maximum(row, f"of the draft after {len(turn.context.history)} tokens")
        except NumericError as error:
            self._lose(self._states[turn.context], error.fact)
            return False
        tokenizer, token = self.engine.tokenizer, int(array_namespace(row).argmax(row))
        if token >= tokenizer.size or not tokenizer.token_bytes(token):
            turn.end = self._ends.get(token)
            return False
        turn.drafted.append(token)
        return len(turn.drafted) < turn.limit

    def _proposal(self, turn: _TextTurn) -> Proposal:
        text = self.engine.tokenizer.text_bytes(turn.drafted)
        tokens = self._encoded(turn.context, text)
        if turn.end is not None and (tokens or not text):
            tokens.append(turn.end)
        stops = turn.context.stop_tokens
        end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
        return Proposal(tuple(tokens[: min(end, turn.limit)]), self.name)

    def _encoded(self, context: Context, text: bytes) -> list[int]:
        """The target's tokens of a drafted text in its place, of whole characters; none where its
        beginning would have made one token with what is committed."""
        before = self._before(context.history.tokens)
        text = _whole_characters(before + text)[len(before) :]
        return encode_after(before, text, self._target) or []

    def _before(self, committed: list[int]) -> bytes:
        """The committed text to encode with it: nothing before a control token."""
        before = b""
        for token in reversed(committed[-self.look_behind :] if self.look_behind else []):
            text = self._target.token_bytes(token) if token < self._target.size else b""
            if not text:
                break
            before = text + before
        # Half a character at its beginning would be no text.
        start = next((i for i, byte in enumerate(before) if byte & 0xC0 != 0x80), len(before))
        return before[start:]


def _whole_characters(text: bytes) -> bytes:
    """The text without half a character at its end."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if error.end == len(text) and error.reason == "unexpected end of data":
            return text[: error.start]
    return text
