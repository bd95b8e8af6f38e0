"""A model as the draft: any engine, usually a smaller sibling of the target.

Its laws go through the same processing as the target's (temperature, filters, penalties, with the
drafted tokens in the history), and each is recorded exactly as its token was drawn from it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from typing import Any

from paceline.drafts.base import Context, Draft
from paceline.drafts.pairing import check_pair
from paceline.engines.base import Engine, Job, Sequence
from paceline.errors import NumericError, SettingError
from paceline.sampling.law import Law
from paceline.sampling.rows import RowLaws
from paceline.types import Array, Proposal

log = logging.getLogger("paceline")


@dataclass(slots=True)
class _State:
    sequence: Sequence
    agreed: int = 0  # so many of the held tokens are known to be the committed ones
    lost: bool = False  # the draft can't follow this sequence any further


@dataclass(slots=True)
class _Turn:
    """One context's proposal in the making."""

    context: Context
    state: _State
    limit: int
    tokens: list[int] = field(default_factory=list)
    laws: list[Law | None] = field(default_factory=list)


class ModelDraft(Draft):
    """Proposals of another model, for several sequences in one draft forward.

    engine    scores the drafted tokens; this draft owns and frees it

    Raises PairError if its vocabulary is not the target's.
    """

    name = "model"
    summary = "a smaller model of the same family; needs its file, directory or name"

    engine: Engine

    def __init__(self, engine: Engine, target: Engine) -> None:
        self.fit = check_pair(target, engine)
        self.engine = engine
        self._states: dict[Context, _State] = {}
        # Rows of padding that only one of the two models has can't be proposed.
        self._usable = min(target.vocabulary_size, engine.vocabulary_size)

    @classmethod
    def create(cls, target: Engine, **options: Any) -> ModelDraft:
        engine = options.pop("engine", None)
        if options:
            raise SettingError(
                f"The draft 'model' has no option {min(options)!r}.", "Leave it out."
            )
        if not isinstance(engine, Engine):
            raise SettingError(
                "The draft 'model' was named without a model.",
                "Name the model itself: a GGUF file, a directory, a hub name or a demo model.",
            )
        return cls(engine, target)

    def open(self, context: Context) -> None:
        self._states[context] = _State(self.engine.open())

    def close(self, context: Context) -> None:
        state = self._states.pop(context, None)
        if state is not None:
            state.sequence.close()

    def release(self) -> None:
        self.engine.close()

    def prefill(self, contexts: AbstractSequence[Context]) -> None:
        jobs = []
        for context in contexts:
            turn = _Turn(context, self._states[context], self._within_reach(context, 1))
            missing = self._missing(turn)[:-1]  # the first proposal needs the last one's row
            if turn.limit and missing:
                jobs.append(Job(turn.state.sequence, missing))
        if jobs:
            self.engine.score(jobs)

    def propose(
        self, contexts: AbstractSequence[Context], limits: AbstractSequence[int]
    ) -> list[Proposal]:
        turns = [
            _Turn(context, self._states[context], self._within_reach(context, limit))
            for context, limit in zip(contexts, limits, strict=True)
        ]
        active = [turn for turn in turns if turn.limit > 0]
        jobs = [Job(turn.state.sequence, self._missing(turn)) for turn in active]
        while active:
            rows = self.engine.score(jobs)
            turns_and_rows = zip(active, rows, strict=True)
            active = [turn for turn, row in turns_and_rows if self._draw(turn, row)]
            jobs = [Job(turn.state.sequence, turn.tokens[-1:]) for turn in active]
        return [Proposal(tuple(t.tokens), self.name, tuple(t.laws)) for t in turns]

    def _draw(self, turn: _Turn, row: Array) -> bool:
        """One more token of the turn, with its law; False if this sequence's proposal ends here.

        Ending before a draw is exact: nothing has been drawn that could be dropped.
        """
        context = turn.context
        try:
            law = RowLaws(
                row[:, : self._usable],
                context.sampling,
                context.history,
                (),
                context.stop_tokens,
                after=turn.tokens,
            )[0]
        except SettingError:
            return False  # the masks leave the draft no token here; the target may never come here
        except NumericError as error:
            self._lose(turn.state, error.fact)
            return False
        turn.tokens.append(context.chance.draw(law))
        turn.laws.append(None if law.single is not None else law)
        # The token is kept before stopping: to drop it for what it is would break exactness.
        return len(turn.tokens) < turn.limit and turn.tokens[-1] not in context.stop_tokens

    def _missing(self, turn: _Turn) -> list[int]:
        """What the draft's sequence must be fed to hold all that is committed. Whatever it holds
        beyond the common part, rejected or superseded, is rewound."""
        state, committed = turn.state, turn.context.history.tokens
        state.sequence.rewind(_agreed(state, committed))
        return committed[state.agreed :]

    def behind(self, context: Context) -> int:
        state = self._states.get(context)
        held = 0 if state is None else _agreed(state, context.history.tokens)
        return len(context.history) - held

    def _within_reach(self, context: Context, limit: int) -> int:
        """The limit that the draft's own context leaves this sequence; 0 once it can't follow.
        Other sequences are not touched by that."""
        state, size = self._states[context], self.engine.capabilities.context_size
        if state.lost:
            return 0
        room = size - len(context.history) + 1
        if room <= 0:
            self._lose(state, f"it holds {size} tokens at most")
        new = context.history.tokens[state.agreed :]
        if new and max(new) >= self.engine.vocabulary_size:
            self._lose(state, f"it has no row for token {max(new)}, which the target emitted")
        return 0 if state.lost else min(limit, room)

    def _lose(self, state: _State, reason: str) -> None:
        state.lost = True
        log.warning("The draft %s sits this request out: %s.", self.engine.model, reason)

    def facts(self) -> dict[str, Any]:
        return {"draft": self.name, "fit": self.fit, **self.engine.facts()}


def _agreed(state: _State, committed: AbstractSequence[int]) -> int:
    """How many of the held tokens are the committed ones; the last committed one never counts,
    because its row is what the next proposal needs."""
    held, agreed = state.sequence.tokens, state.agreed
    while agreed < min(len(held), len(committed) - 1) and held[agreed] == committed[agreed]:
        agreed += 1
    state.agreed = agreed
    return agreed
