"""What the policy did, and what it saved by its own costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from paceline.types import Round


@dataclass(slots=True)
class PolicyStats:
    """Sums over decoding rounds; those that shared a forward with a prompt are kept out.

    limits     how often each limit was chosen, 0 included
    spent_s    what the rounds took
    baseline_s    what their tokens would have taken without drafts, by the profile and its present
               drift: an estimate, which a bench replaces by a measurement
    """

    rounds: int = 0
    drafted: int = 0
    limits: Counter[int] = field(default_factory=Counter)
    spent_s: float = 0.0
    baseline_s: float = 0.0

    def add(self, round: Round, baseline_token_s: float) -> None:
        """Count a round; `baseline_token_s` is what ordinary decoding takes for a token."""
        self.rounds += 1
        self.drafted += round.max_draft_tokens > 0
        self.limits[round.max_draft_tokens] += 1
        self.spent_s += round.draft_s + round.verify_s + round.other_s
        self.baseline_s += round.emitted * baseline_token_s

    def __add__(self, other: PolicyStats) -> PolicyStats:
        return PolicyStats(
            self.rounds + other.rounds,
            self.drafted + other.drafted,
            self.limits + other.limits,
            self.spent_s + other.spent_s,
            self.baseline_s + other.baseline_s,
        )

    @property
    def saved_s(self) -> float:
        """Seconds gained over ordinary decoding; below 0 if lost."""
        return self.baseline_s - self.spent_s

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rounds": self.rounds,
            "rounds_asked": self.drafted,
            "limits": {str(limit): n for limit, n in sorted(self.limits.items())},
            "spent_s": self.spent_s,
            "baseline_s_by_costs": self.baseline_s,
            "saved_s_by_costs": self.saved_s,
        }

    def sentence(self) -> str:
        """For a terminal."""
        if not self.rounds:
            return "no rounds after the first token"
        asked = Counter({limit: n for limit, n in self.limits.items() if limit})
        common = ", ".join(f"{limit} ({n}×)" for limit, n in asked.most_common(3))
        limits = f", limits {common}" if common else ""
        return (
            f"drafted in {self.drafted} of {self.rounds} rounds{limits}; "
            f"{'saved' if self.saved_s >= 0 else 'lost'} {abs(self.saved_s):.2f} s against "
            f"{self.baseline_s:.2f} s of ordinary decoding"
        )
