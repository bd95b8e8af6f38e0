"""A model with another tokenizer as the draft: what `shared` and `text` have in common."""

from __future__ import annotations

import logging
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from typing import Any

from paceline.drafts.base import Context, Draft
from paceline.drafts.cross_tokenizer.reading import TextReader
from paceline.drafts.following import agreed_length, catch_up
from paceline.engines.base import Engine, Job, Sequence
from paceline.types import Array

log = logging.getLogger("paceline")


@dataclass(slots=True)
class TranslatedState:
    """One request, in the draft's tokens.

    tokens     what stands for the committed tokens that were read
    read       how many committed tokens that is
    drafted    the draft's own tokens behind them, of its last proposal
    agreed     so many of the sequence's tokens are known to be those of `tokens`
    lost       the draft can't follow this request any further
    """

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    read: int = 0
    drafted: list[int] = field(default_factory=list)
    agreed: int = 0
    lost: bool = False


class TranslatedDraft(Draft):
    """Reads what is committed in the draft's own tokens, for several sequences in one forward.

    engine    scores the draft's tokens; this draft owns and frees it
    fit       how well the two vocabularies fit, in one line
    """

    takes = "model"

    engine: Engine

    def __init__(self, engine: Engine, target: Engine, fit: str) -> None:
        self.engine, self.fit = engine, fit
        self.reader = TextReader(target.tokenizer, engine.tokenizer)
        self._states: dict[Context, TranslatedState] = {}

    def open(self, context: Context) -> None:
        self._states[context] = TranslatedState(self.engine.open())

    def close(self, context: Context) -> None:
        state = self._states.pop(context, None)
        if state is not None:
            state.sequence.close()

    def release(self) -> None:
        self.engine.close()

    def prefill(self, contexts: AbstractSequence[Context]) -> None:
        jobs = []
        for context in contexts:
            state = self._read(context)
            if self._follows(state):
                missing = _missing(state)[:-1]  # the last one's row is for a proposal
                if missing:
                    jobs.append(Job(state.sequence, missing))
        if jobs:
            self.engine.score(jobs)

    def observe(self, context: Context, committed: AbstractSequence[int]) -> None:  # noqa: ARG002
        self._read(context)

    def pending_tokens(self, context: Context) -> int:
        if context not in self._states:
            return len(context.history)
        state = self._read(context)
        most = len(state.tokens) - 1
        state.agreed = agreed_length(state.sequence.tokens, state.tokens, state.agreed, most)
        return len(state.tokens) - state.agreed

    def _rows(
        self, contexts: AbstractSequence[Context], drafted: AbstractSequence[list[int]]
    ) -> list[Array | None]:
        """Per context the raw row, shape (the draft's vocabulary_size,), behind what is committed
        and these tokens of the draft's own; None where it can't follow."""
        rows: list[Array | None] = [None] * len(contexts)
        active, jobs = [], []
        for index, (context, own) in enumerate(zip(contexts, drafted, strict=True)):
            state = self._read(context)
            state.drafted = own
            if self._follows(state):
                active.append(index)
                jobs.append(Job(state.sequence, _missing(state)))
        if jobs:
            for index, scored in zip(active, self.engine.score(jobs), strict=True):
                rows[index] = scored[0]
        return rows

    def _read(self, context: Context) -> TranslatedState:
        """Put what was committed since into the draft's tokens."""
        state, committed = self._states[context], context.history.tokens
        new = committed[state.read :]
        if not state.read:
            state.tokens = self.reader.prompt(new)
        elif new:
            state.tokens += self.reader.read(new, state.drafted)
        if new:
            state.read, state.drafted = len(committed), []
        return state

    def _follows(self, state: TranslatedState) -> bool:
        """Whether the draft can hold the sequence and its drafted tokens. Once it can't hold what
        is committed it is lost to that sequence; others are not touched by that."""
        size = self.engine.capabilities.context_size
        if len(state.tokens) > size and not state.lost:
            self._lose(state, f"it holds {size} tokens at most")
        return not state.lost and 1 <= len(state.tokens) + len(state.drafted) <= size

    def _lose(self, state: TranslatedState, reason: str) -> None:
        state.lost = True
        log.warning("The draft %s sits this request out: %s.", self.engine.model, reason)

    def metadata(self) -> dict[str, Any]:
        return {"draft": self.name, "fit": self.fit, **self.engine.metadata()}


def _missing(state: TranslatedState) -> list[int]:
    """What the sequence must be fed to hold all that was read and drafted."""
    tokens, state.agreed = catch_up(state.sequence, state.tokens, state.drafted, state.agreed)
    return tokens
