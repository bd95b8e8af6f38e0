"""What an export says about what was measured, and how to undo it: a sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.export.setup import Setup
from paceline.plan.document import Gain, PlanDocument

NO_DRAFT = "The plan is to decode without a draft."


_HOW = {
    "bench": "measured by a bench",
    "endpoint": "measured on live servers",
    "replay": "predicted, not measured, by a replay",
    "costs": "predicted, not measured, from costs",
}


def evidence(plan: PlanDocument) -> tuple[str, ...]:
    """Figures, conditions, and what they don't say."""
    said = [_gain(plan), _conditions(plan), *_rounds(plan), *plan.notes]
    return tuple(sentence for sentence in said if sentence)


def renamed(plan: PlanDocument, setup: Setup) -> tuple[str, ...]:
    """That models are other files than those that the plan was made with."""
    draft = plan.draft
    pairs = [
        ("target", plan.target.path or plan.target.name, setup.target),
        ("draft", draft.model if draft else None, setup.draft),
    ]
    return tuple(
        f"The plan was made with the {what} {before}, and this names {now}: with other weights or "
        "another precision, acceptance and cost are others."
        for what, before, now in pairs
        if before is not None and now is not None and _last(before) != _last(now)
    )


def _last(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2]


def undo(how: str) -> str:
    return f"To undo: {how}. Then nothing is drafted, and what is emitted is distributed the same."


def _gain(plan: PlanDocument) -> str:
    gain, measured = plan.expected.gain, plan.measured
    of = f"{plan.target.name}, {'no draft' if plan.draft is None else plan.draft.name}"
    where = f" ({measured.file})" if measured.file else ""
    on = f" on {measured.when[:10]}" if measured.when else ""
    how = f"{_HOW[measured.source]}{where}{on}"
    if gain is None and plan.draft is None:  # asked for, or nothing paid: a remark says which
        return f"{how[0].upper()}{how[1:]}: {of}."
    if gain is None:
        return f"{of}: how much it gains isn't in the plan. It was {how}."
    return f"{how[0].upper()}{how[1:]}: {of}, {_times(gain)}."


def _times(gain: Gain) -> str:
    between = (
        "" if gain.low is None or gain.high is None else f" ({gain.low:.2f} to {gain.high:.2f})"
    )
    return f"{gain.value:.2f} speedup{between}"


def _conditions(plan: PlanDocument) -> str:
    measured = plan.measured
    parts = [
        f"{measured.prompts:,} prompts" if measured.prompts else "",
        f"{measured.tokens:,} tokens" if measured.tokens else "",
        "one sequence at a time" if measured.batch == 1 else f"{measured.batch} sequences at once",
        _sampling(measured.sampling),
        _machine(measured.machine),
    ]
    return f"Conditions: {', '.join(part for part in parts if part)}."


def _sampling(sampling: Mapping[str, Any]) -> str:
    temperature = sampling.get("temperature")
    if temperature is None:
        return ""
    return "greedy" if temperature == 0 else f"temperature {temperature}"


def _machine(machine: Mapping[str, Any]) -> str:
    named = (machine.get(key) for key in ("gpu", "device", "cpu", "name", "machine"))
    text = next((str(name) for name in named if name), "")
    cores = machine.get("cores")
    return f"{text}, {cores} cores" if text and cores else text


def _rounds(plan: PlanDocument) -> list[str]:
    expected = plan.expected
    parts = []
    if expected.tokens_per_drafted_round is not None:
        parts.append(f"{expected.tokens_per_drafted_round:.2f} tokens per drafted round")
    elif expected.tokens_per_round is not None:
        parts.append(f"{expected.tokens_per_round:.2f} tokens per round")
    if expected.acceptance_rate is not None:
        parts.append(f"{100 * expected.acceptance_rate:.0f} % of drafted tokens accepted")
    if expected.break_even_tokens is not None:
        parts.append(f"it pays from {expected.break_even_tokens:.2f} tokens per drafted round")
    return [f"Expected: {', '.join(parts)}."] if parts else []
