"""The setting to change, in the engine's own words, and what another limit would have given."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.monitor.window import Window
from paceline.plan.document import PlanDocument

_WORTH = 1.03
"""A lower limit is named only where it would have been faster than the present one by this."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a drafted round takes.

    rounds    over a plain one
    tokens    drafted in it, on average
    """

    rounds: float
    tokens: float

    def at(self, max_draft_tokens: int) -> float:
        """With a limit, if each drafted token costs the same. Limit 0 is a plain round."""
        return 1 + (self.rounds - 1) * min(1.0, max_draft_tokens / self.tokens)


@dataclass(frozen=True, slots=True)
class _Words:
    """
    lower    to another limit; None where nothing is counted by position, so that none is named
    """

    off: str
    lower: str | None = None


_SETTINGS = {
    "vLLM": _Words(
        "start it without --speculative-config",
        '"num_speculative_tokens": {k} in --speculative-config',
    ),
    "SGLang": _Words("start it without --speculative-algorithm"),
    "TensorRT-LLM": _Words(
        "leave speculative_config out of its YAML", "max_draft_len: {k} in speculative_config"
    ),
    "llama.cpp": _Words(
        "start it with --spec-type none",
        "--spec-draft-n-max {k} (of n-gram drafts: --spec-ngram-mod-n-max, "
        "--spec-ngram-simple-size-m)",
    ),
}
_BY_LOAD = {
    "vLLM": '"num_speculative_tokens_per_batch_size" in --speculative-config',
    "SGLang": "--speculative-adaptive",
    "TensorRT-LLM": "draft_len_schedule in speculative_config",
}


def advice(
    window: Window, state: str, cost: Cost | None, plan: PlanDocument | None = None
) -> str | None:
    """What to change; None if nothing. Limits between plain and the present one are judged by the
    acceptance of the window, as if a round's cost grew evenly with what is drafted."""
    words = _SETTINGS.get(window.server or "")
    if words is None or state not in ("losing", "paying", "breaking even"):
        return None
    gains = what_limits_give(window, cost)
    present = max(gains, default=0)
    best = max(gains, key=lambda max_draft_tokens: gains[max_draft_tokens], default=0)
    worth = 0 < best < present and gains[best] >= max(_WORTH * gains[present], _WORTH)
    if worth and words.lower is not None:
        return (
            f"A limit of {best} would have given {gains[best]:.2f} speedup on what was "
            f"accepted here, and {present} gave {gains[present]:.2f} (if a round's cost grows "
            f"evenly with its tokens): {words.lower.format(k=best)}."
        )
    if state != "losing":
        return None
    load, by_load = window.load, _BY_LOAD.get(window.server or "")
    if load is not None and load > 1.5 and by_load and _pays_alone(plan):
        return f"At smaller batches the plan expects a gain: limit drafts by load with {by_load}."
    if gains:
        return f"No lower limit would have paid: {words.off}."
    off = f"{words.off[:1].upper()}{words.off[1:]}"
    return f"{off}, or try a lower limit: acceptance by position isn't counted, so none is named."


def what_limits_give(window: Window, cost: Cost | None) -> dict[int, float]:
    """Times plain by limit, from 0 to the longest draft seen; empty if it can't be told."""
    total, rounds = window.total, window.rounds
    if cost is None or not total.drafts or not rounds or not total.accepted_by_position:
        return {}
    acceptance = [accepted / total.drafts for accepted in total.accepted_by_position]
    undrafted = max(0.0, rounds / total.drafts - 1)
    return {
        max_draft_tokens: (undrafted + 1 + sum(acceptance[:max_draft_tokens]))
        / (undrafted + cost.at(max_draft_tokens))
        for max_draft_tokens in range(len(acceptance) + 1)
    }


def _pays_alone(plan: PlanDocument | None) -> bool:
    gain = None if plan is None else plan.expected.gain
    return gain is not None and gain.value > 1
