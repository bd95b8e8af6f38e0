"""A model as the draft: any engine, usually a smaller sibling of the target.

Its distributions go through the same processing as the target's (temperature, filters, penalties,
with the drafted tokens in the history), and each is recorded exactly as its token was drawn from
it. It can go on behind tokens that another draft offers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from paceline.drafts.base import Context, Contexts, Draft, Drafted, Limits, VerifiedRound, draw_on
from paceline.drafts.calibrate import FACTORS, Calibration, is_greedy, worth_by_factor
from paceline.drafts.vocabulary import check_pair
from paceline.engines.base import Engine, Job, Sequence
from paceline.errors import NumericError, SettingError
from paceline.plugins import yes_or_no
from paceline.sampling.distribution import Distribution
from paceline.sampling.rows import RowDistributions
from paceline.types import Array, Proposal, Sampling

log = logging.getLogger("paceline")


@dataclass(slots=True)
class EngineState:
    """One request as a draft model holds it.

    sampling       of its distributions
    tokens         what is committed, in the model's own ids
    agreed         so many of the sequence's tokens are known to be the first of `tokens`
    lost           the model can't follow this request any further
    read           with another tokenizer: so many committed tokens stand in `tokens`
    drafted        with another tokenizer: the model's own tokens behind them, last time
    """

    sequence: Sequence
    sampling: Sampling
    tokens: list[int]
    agreed: int = 0
    lost: bool = False
    calibration: Calibration | None = None
    read: int = 0
    drafted: AbstractSequence[int] = field(default_factory=list)


class EngineDraft(Draft):
    """What drafts by a model share: each request's sequence follows what is committed, rewound to
    what it rightly holds and fed what is missing, for several requests in one forward.

    engine    scores the drafted tokens; this draft owns and frees it
    fit       how the model's vocabulary fits the target's, in one line
    """

    takes = "model"
    engine: Engine

    def __init__(self, engine: Engine, fit: str) -> None:
        self.engine, self.fit = engine, fit
        self._states: dict[Context, EngineState] = {}

    def open(self, context: Context) -> None:
        """Give the request a sequence of the model's."""
        tokens = context.history.tokens
        self._states[context] = EngineState(self.engine.open(), context.sampling, tokens)

    def close(self, context: Context) -> None:
        """Free the request's sequence."""
        state = self._states.pop(context, None)
        if state is not None:
            state.sequence.close()

    def release(self) -> None:
        """Free the model."""
        self.engine.close()

    def prefill(self, contexts: Contexts) -> None:
        """Read the prompts but for their last tokens, in one forward."""
        jobs = []
        for context in contexts:
            state = self._read(context)
            if self._follows(state, ()):
                missing = self._missing(state, ())[:-1]  # the last one's row is for a proposal
                if missing:
                    jobs.append(Job(state.sequence, missing))
        if jobs:
            self.engine.score(jobs)

    def pending_tokens(self, context: Context) -> int:
        """What the sequence doesn't hold yet, in the model's own tokens."""
        if context not in self._states:
            return len(context.history)
        state = self._read(context)
        held, most = state.sequence.tokens, len(state.tokens) - 1
        state.agreed = _agreed_length(held, state.tokens, state.agreed, most)
        return len(state.tokens) - state.agreed

    def metadata(self) -> dict[str, Any]:
        """Its name, the vocabularies' fit, and the engine's metadata."""
        return {"draft": self.name, "fit": self.fit, **self.engine.metadata()}

    def _read(self, context: Context) -> EngineState:
        """The request's state, its `tokens` up to what is committed."""
        return self._states[context]

    def _rows(self, contexts: Contexts, drafted: Drafted) -> list[Array | None]:
        """Per context the raw row, shape (1, the model's vocabulary_size), behind what is committed
        and these tokens of the model's own; None where it can't follow."""
        rows: list[Array | None] = [None] * len(contexts)
        active, jobs = [], []
        for index, context in enumerate(contexts):
            state = self._read(context)
            if self._follows(state, drafted[index]):
                active.append(index)
                jobs.append(Job(state.sequence, self._missing(state, drafted[index])))
        if jobs:
            for index, scored in zip(active, self.engine.score(jobs), strict=True):
                rows[index] = scored
        return rows

    def _missing(self, state: EngineState, drafted: AbstractSequence[int]) -> list[int]:
        """What the sequence must be fed to hold all that is committed and the drafted tokens.

        Whatever it holds beyond the common part, rejected or superseded, is rewound. The last token
        never counts as held, because its row is what is asked for.
        """
        held, wanted = state.sequence.tokens, state.tokens
        most = len(wanted) - (not drafted)
        agreed = state.agreed = _agreed_length(held, wanted, state.agreed, most)
        missing, more = wanted[agreed:], 0
        if not missing:
            more = _agreed_length(held[agreed:], drafted, 0, len(drafted) - 1)
        state.sequence.rewind(agreed + more)
        return [*missing, *drafted[more:]]

    def _follows(self, state: EngineState, drafted: AbstractSequence[int]) -> bool:
        """Whether the model can hold the request and these drafted tokens. Once it can't hold what
        is committed it is lost to that request; others are not touched by that."""
        if state.lost:
            return False
        size, rows = self.engine.capabilities.context_size, self.engine.vocabulary_size
        if len(state.tokens) > size:
            self._lose(state, f"it holds {size} tokens at most")
        new = state.tokens[state.agreed :]
        if new and max(new) >= rows:
            self._lose(state, f"it has no row for token {max(new)}, which the target emitted")
        fits = 1 <= len(state.tokens) + len(drafted) <= size
        return fits and max(drafted, default=0) < rows and not state.lost

    def _lose(self, state: EngineState, reason: str) -> None:
        state.lost = True
        log.warning("The draft %s sits this request out: %s.", self.engine.model, reason)


class ModelDraft(EngineDraft):
    """Proposals of another model, for several sequences in one draft forward.

    engine       scores the drafted tokens; this draft owns and frees it
    calibrate    choose the temperature of its distributions by what the target said in earlier
                 rounds of the request; nothing to do where that is greedy
    usable       so many of the first entries of its rows stand for tokens that it may propose

    Raises PairError if its vocabulary is not the target's.
    """

    name = "model"
    summary = "a smaller model of the same family; needs its file, directory or name"
    options: ClassVar = {"calibrate": yes_or_no}
    teacher_forced = True
    can_continue = True

    def __init__(self, engine: Engine, target: Engine, *, calibrate: bool = False) -> None:
        super().__init__(engine, check_pair(target, engine))
        self.observes_logits = calibrate
        # Rows of padding that only one of the two models has can't be proposed.
        self.usable = min(target.vocabulary_size, engine.vocabulary_size)

    def open(self, context: Context) -> None:
        """Give the request a sequence of the model's, and a calibration if asked for."""
        super().open(context)
        if self.observes_logits and not is_greedy(context.sampling):
            self._states[context].calibration = Calibration(FACTORS, 1.0)

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        """Tokens sampled from the model's distributions, one forward each."""
        return draw_on(self, contexts, limits)

    def next_distributions(self, contexts: Contexts, drafted: Drafted) -> list[Distribution | None]:
        """The model's distributions, after temperature, penalties and filters."""
        rows = self._rows(contexts, drafted)
        return [
            None if row is None else self._distribution(context, row, tokens)
            for context, row, tokens in zip(contexts, rows, drafted, strict=True)
        ]

    def _distribution(
        self, context: Context, row: Array, drafted: AbstractSequence[int]
    ) -> Distribution | None:
        """The distribution of a raw row, shape (1, vocabulary_size), behind drafted tokens."""
        state, stops = self._states[context], context.stop_tokens
        row = row[:, : self.usable]
        try:
            distribution = RowDistributions(
                row, state.sampling, context.history, (), stops, after=drafted
            )[0]
        except SettingError:
            return None  # the masks leave the draft no token here; the target may never come here
        except NumericError as error:
            self._lose(state, error.fact)
            return None
        if state.calibration is not None:
            state.calibration.told[tuple(drafted)] = distribution
        return distribution

    def observe_logits(self, context: Context, verified: VerifiedRound) -> None:
        """Choose the temperature of the next rounds."""
        state = self._states[context]
        calibration = state.calibration
        if calibration is None:
            return
        before = calibration.value
        for target, distribution in calibration.on_path(verified):
            calibration.learn(worth_by_factor(target, distribution, before))
        if calibration.value != before:
            temperature = context.sampling.temperature * calibration.value
            state.sampling = replace(context.sampling, temperature=min(max(temperature, 1e-6), 1e6))

    def metadata(self) -> dict[str, Any]:
        """The engine's, the vocabularies' fit, and whether it calibrates."""
        return {**super().metadata(), "calibrate": self.observes_logits}


def _agreed_length(
    held: AbstractSequence[int], wanted: AbstractSequence[int], known: int, most: int
) -> int:
    """How many of the held tokens are the first of those wanted, at most `most`; `known` of them
    were found to be so before, and are not compared again."""
    most = max(0, most)
    agreed, end = min(known, most), min(len(held), most)
    while agreed < end and held[agreed] == wanted[agreed]:
        agreed += 1
    return agreed
