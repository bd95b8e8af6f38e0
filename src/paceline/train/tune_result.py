"""What a search for layers that draft has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.machine import machine_metadata
from paceline.bench.stats import Ratio
from paceline.bench.wording import aligned
from paceline.drafts.early_exit import Setting
from paceline.errors import DataError
from paceline.types import Sampling

SHOWN = 8


@dataclass(slots=True)
class Candidate:
    """A setting, and what is known of it.

    kept         the layers that run
    head         the file of a head behind them
    agreement    with the target on its own text: the share of rows with the same best token, or,
                 where the sampling has a temperature, the mean of Σ min(p, q)
    estimate     speedup that agreement and costs promise at the best limit of 1 or more
    measured     speedup under the policy, on so many prompts
    """

    kept: tuple[int, ...]
    head: Path | None = None
    agreement: float = 0.0
    estimate: float = 0.0
    measured: float | None = None
    prompts: int = 0

    @property
    def speed(self) -> tuple[float, float]:
        """To rank by: what was measured in steps of 5 %, which a few prompts can't tell apart, then
        what is promised."""
        return round((self.measured or 0.0) / 0.05), self.estimate


@dataclass(slots=True)
class TuneResult:
    """What a search has found, growing while it goes on.

    best        the candidate that a setting is made of
    ratio       its speedup on all prompts; None where the search ended before that
    baseline_tok_per_s, tok_per_s    without drafts and with it, in its bench
    prompts_fitted_to    of its prompts those, by name, that its head was fitted to
    drafted_rounds    share of its rounds in which the policy let it draft
    """

    target: dict[str, Any]
    workload: str
    sampling: Sampling
    max_tokens: int
    layers: int
    candidates: list[Candidate] = field(default_factory=list)
    looked_at: int = 0
    ratio: Ratio | None = None
    baseline_tok_per_s: float | None = None
    tok_per_s: float | None = None
    drafted_rounds: float | None = None
    prompts: int = 0
    prompts_fitted_to: int = 0
    complete: bool = False  # whether the search came to its end; a budget that is over is one

    @property
    def best(self) -> Candidate | None:
        """The candidate measured on most prompts, the fastest of those; before any was measured,
        the one that promises most."""
        return max(self.candidates, key=lambda c: (c.prompts, *c.speed), default=None)

    @property
    def verdict(self) -> str:
        """One honest sentence."""
        if self.best is None:
            return "Nothing was found before it ended."
        if self.ratio is None:
            return "It ended before the best one was measured on all prompts: this is an estimate."
        value, low, high = self.ratio.value, self.ratio.low, self.ratio.high
        said = f"speedup {value:.2f} under the policy"
        if low is not None and high is not None:
            said += f" (95 % interval {low:.2f} to {high:.2f})"
        if self.prompts_fitted_to:
            said += f", on prompts of which its head was fitted to {self.prompts_fitted_to}"
        if value > 1.02 and (low is None or low > 1):
            return f"It pays: {said}."
        if self.drafted_rounds is not None and self.drafted_rounds < 0.1:
            return (
                f"No setting pays here: {said}, because the policy let it draft in "
                f"{self.drafted_rounds:.0%} of the rounds."
            )
        return f"No setting clearly pays here: {said}."

    def as_json(self) -> dict[str, Any]:
        """What readers of the setting are told."""
        ranked = sorted(self.candidates, key=lambda c: -c.estimate)
        rows = [{**asdict(c), "head": c.head and str(c.head), "kept": list(c.kept)} for c in ranked]
        told = {name: getattr(self, name) for name in _TOLD}
        return {
            "verdict": self.verdict,
            "speedup": asdict(self.ratio) if self.ratio else None,
            **told,
            "sampling": asdict(self.sampling),
            "max_draft_tokens": "auto",
            "candidates": rows,
            "machine": machine_metadata(),
        }

    def setting(self, identity: dict[str, Any]) -> Setting:
        """Of the best candidate. Raises DataError where there is none yet."""
        if self.best is None:
            raise DataError("Nothing was found before it ended.", "Give it a larger --budget.")
        return Setting(self.best.kept, self.best.head, identity, self.as_json())


_TOLD = (
    *("baseline_tok_per_s", "tok_per_s", "drafted_rounds", "prompts", "prompts_fitted_to"),
    *("workload", "max_tokens", "complete", "looked_at"),
)


def tune_summary(result: TuneResult) -> list[str]:
    """The best setting, and the candidates that come nearest to it."""
    best = result.best
    assert best is not None, "a setting was written"
    lines = [result.verdict, f"The best setting: {_name(best)} of {result.layers} layers."]
    if result.baseline_tok_per_s is not None and result.tok_per_s is not None:
        lines.append(
            f"baseline {result.baseline_tok_per_s:.1f} tokens/s, with it {result.tok_per_s:.1f}, "
            f"on {result.prompts} prompts; it drafted in {result.drafted_rounds:.0%} of the rounds"
        )
    rows = [("setting", "agreement", "estimate", "measured")]
    for c in sorted(result.candidates, key=lambda c: (-c.prompts, -c.estimate))[:SHOWN]:
        measured = "-" if c.measured is None else f"{c.measured:.2f} ({c.prompts})"
        rows.append((_name(c), f"{c.agreement:.0%}", f"{c.estimate:.2f}", measured))
    lines += aligned(rows, left=4)
    lines.append(
        f"{result.looked_at} settings tried; estimate: speedup at the best fixed limit; "
        "measured: speedup under the policy (prompts)"
    )
    return lines


def _name(candidate: Candidate) -> str:
    """A candidate in the words of -d."""
    from paceline.engines.transformers.layers import ranges

    if candidate.head is not None:
        return f"head={candidate.head}"
    last = len(candidate.kept)
    exits = candidate.kept == tuple(range(last))
    return f"layers={last}" if exits else f"kept {ranges(candidate.kept)}"
