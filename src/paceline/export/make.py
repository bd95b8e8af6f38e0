"""A plan as one engine's settings, with what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import DataError, SettingError
from paceline.export import llama_server, sglang, tensorrt_llm, vllm
from paceline.export.request import ExportRequest, check_format, check_place, made_setup
from paceline.export.setup import EngineSetup, ExportOptions, engine_table
from paceline.plan.document import Gain, PlanDocument

WRITERS: dict[str, Callable[[ExportRequest], EngineSetup]] = {
    "vllm": vllm.setup,
    "sglang": sglang.setup,
    "tensorrt-llm": tensorrt_llm.setup,
    "llama-server": llama_server.setup,
}
"""Each tells its engine to draft."""

_ABOUT_DRAFTS = ("draft_model", "max_draft_tokens", "draft_tensor_parallel", "ours")

_HOW = {
    "bench": "measured by a bench",
    "endpoint": "measured on live servers",
    "replay": "predicted, not measured, by a replay",
    "costs": "predicted, not measured, from costs",
}


def make_setup(engine: str, plan: PlanDocument, options: ExportOptions) -> EngineSetup:
    """How that engine is told of the plan.

    Raises SettingError for an unknown engine or version, and for a draft or a setting that this
    version can't honour; PairError for a draft that doesn't fit; DataError for a lossy plan.
    """
    table = engine_table(engine, options.version)
    if not plan.measured.exact:
        raise DataError(
            "The plan was measured with a lossy verifier, and an export never relaxes a rule.",
            "Make the plan from a run with an exact one (`--verifier chain`).",
        )
    never = plan.schedule and not any(step.max_draft_tokens for step in plan.schedule)
    draft = None if never else plan.draft
    target = options.target or plan.target.path or plan.target.name
    check_place(target)
    check_place(options.draft_model or (None if draft is None else draft.model))
    _check_options(engine, options, drafts=draft is not None)
    check_format(target, "target", table, given=options.target is not None)
    if draft is None:
        setup = made_setup(table, options, target)
        last = "The plan is to decode without a draft."
    else:
        setup = WRITERS[engine](ExportRequest(plan, options, table, target, draft))
        how = table.profile.without_drafts
        last = f"To roll back: {how}. The output's distribution stays the same."
    return replace(setup, notes=(*_evidence(plan), *_replaced(plan, setup), *setup.notes, last))


def _check_options(engine: str, options: ExportOptions, *, drafts: bool) -> None:
    no_draft = "the plan is to decode without a draft"
    refused = {} if drafts else dict.fromkeys(_ABOUT_DRAFTS, no_draft)
    if engine != "vllm":
        refused["ours"] = "Paceline's proposer is for vLLM"
    if engine != "sglang":
        refused["max_running"] = "only SGLang changes it with drafts"
    for name, why in refused.items():
        if getattr(options, name) not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise SettingError(f"{option} is given, and {why}.", f"Leave {option} out.")


# What was measured, a sentence each.


def _evidence(plan: PlanDocument) -> tuple[str, ...]:
    """Figures, conditions, and what they don't say."""
    said = (_gain(plan), _conditions(plan), _rounds(plan), *plan.notes)
    return tuple(sentence for sentence in said if sentence)


def _replaced(plan: PlanDocument, setup: EngineSetup) -> tuple[str, ...]:
    """That models are other files than those that the plan was made with."""
    draft = plan.draft
    pairs = [
        ("target", plan.target.path or plan.target.name, setup.target),
        ("draft", draft.model if draft else None, setup.draft),
    ]
    return tuple(
        f"The plan was made with the {what} {before}, and this names {now}: other weights or "
        "another precision change acceptance and cost."
        for what, before, now in pairs
        if before is not None and now is not None and _last(before) != _last(now)
    )


def _last(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2]


def _gain(plan: PlanDocument) -> str:
    gain, measured = plan.expected.gain, plan.measured
    of = f"{plan.target.name}, {'no draft' if plan.draft is None else plan.draft.name}"
    where = f" ({measured.file})" if measured.file else ""
    on = f" on {measured.when[:10]}" if measured.when else ""
    how = f"{_HOW[measured.source]}{where}{on}"
    if gain is None and plan.draft is not None:
        return f"{of}: how much it gains isn't in the plan. It was {how}."
    # Without a gain and a draft: asked for, or nothing paid; a note says which.
    speedup = "" if gain is None else f", {_speedup(gain)}"
    return f"{how[0].upper()}{how[1:]}: {of}{speedup}."


def _speedup(gain: Gain) -> str:
    interval = (
        "" if gain.low is None or gain.high is None else f" ({gain.low:.2f} to {gain.high:.2f})"
    )
    return f"speedup {gain.value:.2f}×{interval}"


def _conditions(plan: PlanDocument) -> str:
    measured = plan.measured
    temperature = measured.sampling.get("temperature")
    parts = [
        f"{measured.prompts:,} prompts" if measured.prompts else "",
        f"{measured.tokens:,} tokens" if measured.tokens else "",
        "one sequence at a time" if measured.batch == 1 else f"{measured.batch} sequences at once",
        {None: "", 0: "greedy"}.get(temperature, f"temperature {temperature}"),
        _machine(measured.machine),
    ]
    return f"Conditions: {', '.join(part for part in parts if part)}."


def _machine(machine: Mapping[str, Any]) -> str:
    named = (machine.get(key) for key in ("gpu", "device", "cpu", "name", "machine"))
    text = next((str(name) for name in named if name), "")
    cores = machine.get("cores")
    return f"{text}, {cores} cores" if text and cores else text


def _rounds(plan: PlanDocument) -> str:
    expected = plan.expected
    parts = []
    if expected.tokens_per_drafted_round is not None:
        parts.append(f"{expected.tokens_per_drafted_round:.2f} tokens per drafted round")
    elif expected.tokens_per_round is not None:
        parts.append(f"{expected.tokens_per_round:.2f} tokens per round")
    if expected.acceptance_rate is not None:
        parts.append(f"acceptance rate {100 * expected.acceptance_rate:.0f} %")
    if expected.break_even_tokens is not None:
        parts.append(f"break-even at {expected.break_even_tokens:.2f} tokens per drafted round")
    return f"Expected: {', '.join(parts)}." if parts else ""
