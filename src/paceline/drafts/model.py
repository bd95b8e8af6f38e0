"""A model as the draft: any engine, usually a smaller sibling of the target.

Its distributions go through the same processing as the target's (temperature, filters, penalties,
with the drafted tokens in the history), and each is recorded exactly as its token was drawn from
it. It can go on behind tokens that another draft offers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.drafts.base import Context, Draft, VerifiedRound
from paceline.drafts.calibrate import FACTORS, Calibration, is_greedy, worth_by_factor
from paceline.drafts.following import agreed_length, catch_up
from paceline.drafts.options import read_options, yes_or_no
from paceline.drafts.pairing import check_pair
from paceline.drafts.stepwise import draw_on
from paceline.engines.base import Engine, Job, Sequence
from paceline.errors import NumericError, SettingError
from paceline.sampling.distribution import Distribution
from paceline.sampling.rows import RowDistributions
from paceline.types import Array, Proposal, Sampling

log = logging.getLogger("paceline")


@dataclass(slots=True)
class _State:
    sequence: Sequence
    sampling: Sampling  # of its distributions
    agreed: int = 0  # so many of the held tokens are known to be the committed ones
    lost: bool = False  # the draft can't follow this sequence any further
    calibration: Calibration | None = None


class ModelDraft(Draft):
    """Proposals of another model, for several sequences in one draft forward.

    engine       scores the drafted tokens; this draft owns and frees it
    calibrate    choose the temperature of its distributions by what the target said in earlier
                 rounds of the request; nothing to do where that is greedy
    usable       so many of the first entries of its rows stand for tokens that it may propose

    Raises PairError if its vocabulary is not the target's.
    """

    name = "model"
    summary = "a smaller model of the same family; needs its file, directory or name"

    takes = "model"
    teacher_forced = True
    can_continue = True

    engine: Engine

    def __init__(self, engine: Engine, target: Engine, *, calibrate: bool = False) -> None:
        self.fit = check_pair(target, engine)
        self.engine = engine
        self.observes_logits = calibrate
        self._states: dict[Context, _State] = {}
        # Rows of padding that only one of the two models has can't be proposed.
        self.usable = min(target.vocabulary_size, engine.vocabulary_size)

    @classmethod
    def create(cls, target: Engine, **options: Any) -> ModelDraft:
        """Option calibrate (yes or no)."""
        engine = options.pop("engine", None)
        assert isinstance(engine, Engine), "the specification names a model"
        return cls(engine, target, **read_options(cls.name, options, {"calibrate": yes_or_no}))

    def open(self, context: Context) -> None:
        state = self._states[context] = _State(self.engine.open(), context.sampling)
        if self.observes_logits and not is_greedy(context.sampling):
            state.calibration = Calibration(FACTORS, 1.0)

    def close(self, context: Context) -> None:
        state = self._states.pop(context, None)
        if state is not None:
            state.sequence.close()

    def release(self) -> None:
        self.engine.close()

    def prefill(self, contexts: AbstractSequence[Context]) -> None:
        jobs = []
        for context in contexts:
            if self._follows(context, ()):
                missing = self._missing(context, ())[:-1]  # the last one's row is for a proposal
                if missing:
                    jobs.append(Job(self._states[context].sequence, missing))
        if jobs:
            self.engine.score(jobs)

    def propose(
        self, contexts: AbstractSequence[Context], limits: AbstractSequence[int]
    ) -> list[Proposal]:
        return draw_on(self, contexts, limits)

    def next_distributions(
        self, contexts: AbstractSequence[Context], drafted: AbstractSequence[AbstractSequence[int]]
    ) -> list[Distribution | None]:
        asked = zip(contexts, drafted, strict=True)
        distributions: list[Distribution | None] = [None] * len(contexts)
        active = [i for i, (one, tokens) in enumerate(asked) if self._follows(one, tokens)]
        if not active:
            return distributions
        rows = self.engine.score(
            [
                Job(self._states[contexts[i]].sequence, self._missing(contexts[i], drafted[i]))
                for i in active
            ]
        )
        for i, row in zip(active, rows, strict=True):
            distributions[i] = self._distribution(contexts[i], row, drafted[i])
        return distributions

    def _distribution(
        self, context: Context, row: Array, drafted: AbstractSequence[int]
    ) -> Distribution | None:
        state = self._states[context]
        try:
            distribution = RowDistributions(
                row[:, : self.usable],
                state.sampling,
                context.history,
                (),
                context.stop_tokens,
                after=drafted,
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

    def _missing(self, context: Context, drafted: AbstractSequence[int]) -> list[int]:
        """What the draft's sequence must be fed to hold all that is committed and these drafted
        tokens."""
        state = self._states[context]
        tokens, state.agreed = catch_up(
            state.sequence, context.history.tokens, drafted, state.agreed
        )
        return tokens

    def pending_tokens(self, context: Context) -> int:
        state, committed = self._states.get(context), context.history.tokens
        if state is None:
            return len(committed)
        state.agreed = agreed_length(
            state.sequence.tokens, committed, state.agreed, len(committed) - 1
        )
        return len(committed) - state.agreed

    def _follows(self, context: Context, drafted: AbstractSequence[int]) -> bool:
        """Whether the draft can hold this sequence and these drafted tokens. Once it can't hold
        what is committed it is lost to that sequence; others are not touched by that."""
        state, size = self._states[context], self.engine.capabilities.context_size
        if state.lost:
            return False
        if len(context.history) > size:
            self._lose(state, f"it holds {size} tokens at most")
        new = context.history.tokens[state.agreed :]
        if new and max(new) >= self.engine.vocabulary_size:
            self._lose(state, f"it has no row for token {max(new)}, which the target emitted")
        fits = len(context.history) + len(drafted) <= size
        known = max(drafted, default=0) < self.engine.vocabulary_size
        return fits and known and not state.lost

    def _lose(self, state: _State, reason: str) -> None:
        state.lost = True
        log.warning("The draft %s sits this request out: %s.", self.engine.model, reason)

    def metadata(self) -> dict[str, Any]:
        return {
            "draft": self.name,
            "fit": self.fit,
            "calibrate": self.observes_logits,
            **self.engine.metadata(),
        }
