"""One request while it is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.decode.stop import Stopper
from paceline.drafts.base import Context, Draft
from paceline.engines.base import Sequence
from paceline.errors import PacelineError, SettingError, unknown_name
from paceline.sampling.history import History
from paceline.sampling.rng import NumpyRng
from paceline.types import Divergence, FinishReason, Preview, Request, Round


@dataclass(eq=False, slots=True, weakref_slot=True)
class Stream:
    """A request, its state, and what has come of it so far.

    sequence         the target's; holds all committed tokens but the last
    context          what drafts see of it
    rounds           one per step, the reading of the prompt first
    log_probs        one per output token, if the request asked for them
    margins          one per output token, if the request asked for them
    divergences      one per output token, if the verifier is lossy and tells them
    drafts           those on offer, by name
    finish_reason    set when it has ended; `error` then says if it ended badly
    """

    request: Request
    history: History
    sequence: Sequence
    rng: NumpyRng
    context: Context
    stopper: Stopper
    drafts: Mapping[str, Draft] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: PacelineError | None = None
    drafts_open: set[str] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.finish_reason is not None or self.error is not None

    @property
    def prompt_is_read(self) -> bool:
        """Whether the target has read the prompt."""
        return self.sequence.length > 0

    @property
    def remaining_tokens(self) -> int:
        """Most tokens the answer can still take."""
        return self.stopper.remaining_tokens

    def open_draft(self, name: str) -> bool:
        """Let a draft know of this request; whether it didn't yet."""
        if name in self.drafts_open:
            return False
        self.drafts[name].open(self.context)
        self.drafts_open.add(name)
        return True

    def preview(self, name: str, most: int) -> Preview:
        """What a previewable draft would offer now (`Draft.preview`). Raises SettingError for one
        that is not on offer, or that the policy doesn't name in `looks_at`."""
        draft = self._draft(name)
        if name not in self.drafts_open:
            raise SettingError(
                f"The policy previews the draft {name!r}, which wasn't opened for it.",
                "Name it in the policy's `looks_at`.",
            )
        return draft.preview(self.context, most)

    def pending_tokens(self, name: str) -> int:
        """How many tokens a draft has yet to read before its next proposal."""
        return self._draft(name).pending_tokens(self.context)

    def _draft(self, name: str) -> Draft:
        if name not in self.drafts:
            raise unknown_name("draft", name, self.drafts)
        return self.drafts[name]

    @property
    def missing(self) -> list[int]:
        """Committed tokens that the target's sequence doesn't hold yet."""
        return self.history.tokens[self.sequence.length :]
