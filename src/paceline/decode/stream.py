"""One request while it is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.decode.stop import Stopper
from paceline.drafts.base import Context
from paceline.engines.base import Sequence
from paceline.errors import PacelineError
from paceline.sampling.chance import RandomChance
from paceline.sampling.history import History
from paceline.types import FinishReason, Request, Round


@dataclass(eq=False, slots=True)
class Stream:
    """A request, its state, and what has come of it so far.

    sequence         the target's; holds all committed tokens but the last
    context          what drafts see of it
    rounds           one per step, the reading of the prompt first
    log_probs        one per output token, if the request asked for them
    margins          one per output token, if the request asked for them
    finish_reason    set when it has ended; `error` then says if it ended badly
    """

    request: Request
    history: History
    sequence: Sequence
    chance: RandomChance
    context: Context
    stopper: Stopper
    rounds: list[Round] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: PacelineError | None = None
    drafts_open: set[str] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    @property
    def prompt_is_read(self) -> bool:
        return self.sequence.length > 0

    @property
    def missing(self) -> list[int]:
        """Committed tokens that the target's sequence doesn't hold yet."""
        return self.history.tokens[self.sequence.length :]
