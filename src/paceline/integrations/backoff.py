"""Whether it is worth looking at all: where drafting brings less than deciding on it takes, stop
looking for a while.

On an engine whose steps take 100 ms a decision of 0.1 ms is nothing. With steps of 3 ms, or with
hundreds of sequences, it can be more than "never slower" allows.
"""

from __future__ import annotations

from dataclasses import dataclass

_WINDOW = 48  # steps that are judged together
_NOTHING = 0.005  # of the time may always go into looking
_PAUSE, _LONGEST_PAUSE = 128, 4096  # steps; twice as many each time that nothing came of looking
_FEW = 8  # with so few sequences, each new one is looked at


@dataclass(slots=True)
class Backoff:
    """Counts what drafting takes and brings, and says when to leave it."""

    steps: int = 0
    step_s: float = 0.0
    draft_s: float = 0.0
    emitted: int = 0
    accepted: int = 0
    left: int = 0  # steps of the present pause
    pause: int = _PAUSE

    def count(self, *, step_s: float, draft_s: float, emitted: int, accepted: int) -> None:
        """One step was watched; tokens are those of all its sequences."""
        self.steps += 1
        self.step_s += step_s
        self.draft_s += draft_s
        self.emitted += emitted
        self.accepted += accepted
        if self.steps >= _WINDOW:
            self._judge()

    def backs_off(self, *, sequences: int, begun: bool) -> bool:
        """Whether to leave this step alone.

        begun    a sequence has just begun
        """
        if self.left and begun and sequences <= _FEW:
            self.left, self.pause = 0, _PAUSE
        if not self.left:
            return False
        self.left -= 1
        return True

    def _judge(self) -> None:
        share = self.draft_s / (self.step_s + self.draft_s or 1.0)
        brought = self.accepted / max(1, self.emitted)
        if share > _NOTHING and brought < 2 * share:
            self.left, self.pause = self.pause, min(2 * self.pause, _LONGEST_PAUSE)
        else:
            self.pause = _PAUSE
        self.steps = self.emitted = self.accepted = 0
        self.step_s = self.draft_s = 0.0
