"""A plan as one engine's settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from paceline.errors import SettingError
from paceline.export import llama_server, sglang, tensorrt_llm, vllm
from paceline.export.evidence import evidence, renamed
from paceline.export.options import Options
from paceline.export.rules import check_evidence, check_place
from paceline.export.setup import Setup
from paceline.export.versions import TITLES, Table, table
from paceline.plan.document import Draft, PlanDocument


class Writer(Protocol):
    """What each engine's module has."""

    def setup(self, plan: PlanDocument, options: Options, table: Table, draft: Draft) -> Setup:
        """The engine told to draft, whose remarks say nothing yet of what was measured."""

    def plain(self, plan: PlanDocument, options: Options, table: Table) -> Setup:
        """The engine told to decode without a draft."""


WRITERS: dict[str, Writer] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "llama-server": llama_server,
}


def make_setup(engine: str, plan: PlanDocument, options: Options) -> Setup:
    """How that engine is told of the plan.

    Raises SettingError for an unknown engine or version, and for a draft or a setting that this
    version can't honour; PairError for a draft that doesn't fit; DataError for a lossy plan.
    """
    known = table(engine, options.version)
    _check_options(engine, options)
    check_evidence(plan)
    draft = _draft_in_use(plan)
    check_place(options.target or plan.target.path or plan.target.name)
    check_place(options.draft_model or (None if draft is None else draft.model))
    if draft is None:
        _check_plain(options)
        setup = WRITERS[engine].plain(plan, options, known)
    else:
        setup = WRITERS[engine].setup(plan, options, known, draft)
    return replace(
        setup,
        tensor_parallel=options.tensor_parallel or 1,
        notes=(*evidence(plan), *renamed(plan, setup), *setup.notes),
    )


def _draft_in_use(plan: PlanDocument) -> Draft | None:
    never = plan.schedule and not any(step.max_draft_tokens for step in plan.schedule)
    return None if never else plan.draft


def _check_plain(options: Options) -> None:
    for name in ("draft_model", "max_draft_tokens", "draft_tensor_parallel"):
        if getattr(options, name) is not None:
            raise SettingError(
                f"--{name.replace('_', '-')} is {getattr(options, name)}, and the plan is to "
                "decode without a draft.",
                "Leave it out, or make a plan with a draft.",
            )
    if options.ours:
        raise SettingError(
            "The plan is to decode without a draft, and --ours drafts.", "Leave --ours out."
        )


def _check_options(engine: str, options: Options) -> None:
    if options.ours and engine != "vllm":
        raise SettingError(
            f"Paceline has no proposer for {TITLES[engine]}.", "Leave --ours out: vLLM has one."
        )
    if options.max_running is not None and engine != "sglang":
        raise SettingError(
            f"--max-running is {options.max_running}, and only SGLang changes it with drafts.",
            "Leave it out.",
        )
