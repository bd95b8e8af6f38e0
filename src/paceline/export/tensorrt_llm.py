"""A plan as TensorRT-LLM's YAML, for its PyTorch backend."""

from __future__ import annotations

from typing import Any

from paceline.errors import SettingError
from paceline.export.evidence import NO_DRAFT, undo
from paceline.export.manifest import as_yaml
from paceline.export.nearest import family_of
from paceline.export.options import Options
from paceline.export.rules import (
    PENALTIES,
    check_checkpoint,
    check_draft_parallel,
    check_no_model,
    check_sampling,
    check_vocabulary,
    draft_place,
    fixed_draft_tokens,
    match_lengths,
    target_place,
)
from paceline.export.setup import Setup
from paceline.export.versions import Table
from paceline.plan.document import Draft, PlanDocument, Step

FILE = "paceline-trtllm.yaml"

# `Draft_Target` is what the program takes, though tutorials write `DraftTarget`; before 1.3 the
# EAGLE-3 type is named `Eagle`.
TYPES = {
    "model": ("Draft_Target",),
    "ngram": ("NGram",),
    "suffix": ("SA",),
    "eagle3": ("Eagle3", "Eagle"),
    "mtp": ("MTP",),
    "dflash": ("DFlash",),
}

METRICS = {"enable_iter_perf_stats": True, "return_perf_metrics": True}

LARGEST_BATCH = 2048
"""Up to which a schedule's open end is written; TensorRT-LLM drafts nothing above the last."""


_MATCHES = (
    "TensorRT-LLM matches at most 2 tokens, unless max_matching_ngram_size is set, and has no "
    "setting for the shortest match"
)


def setup(plan: PlanDocument, options: Options, table: Table, draft: Draft) -> Setup:
    if table.read["penalties"] == "refused":
        check_sampling(
            plan.measured.sampling,
            PENALTIES,
            table.name,
            "rejects requests with that while it drafts",
        )
    check_draft_parallel(options, table.name)
    types = _types(table)
    target = target_place(plan, options, table.name)
    family = family_of(draft, options, table, types)
    max_draft_tokens, notes = fixed_draft_tokens(plan, options)
    method = types[family.name]
    speculative: dict[str, Any] = {"decoding_type": method, "max_draft_len": max_draft_tokens}
    place, unchecked = _place(plan, draft, options, table, family.name)
    notes += unchecked
    if place is not None:
        speculative[table.read["model_key"]] = place
    if family.name == "ngram":
        # Its pool is shared by all requests unless told otherwise; ours never was when measured.
        speculative["is_public_pool"] = False
        notes += match_lengths(draft, _MATCHES) or (f"{_MATCHES}.",)
    schedule, said = _schedule(plan, options, table, max_draft_tokens)
    speculative |= schedule
    table.admit(speculative, method)
    config = {"speculative_config": speculative, **METRICS}
    table.admit(config)
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target,
        draft=place,
        arguments=(table.read["file_flag"], FILE),
        config=config,
        files={FILE: as_yaml(config)},
        notes=(
            *family.notes,
            *notes,
            *said,
            *_recorded(table),
            undo("take speculative_config out"),
        ),
    )


def plain(plan: PlanDocument, options: Options, table: Table) -> Setup:
    table.admit(METRICS)
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target_place(plan, options, table.name),
        arguments=(table.read["file_flag"], FILE),
        config=METRICS,
        files={FILE: as_yaml(METRICS)},
        notes=(NO_DRAFT,),
    )


def _types(table: Table) -> dict[str, str]:
    """A family's type in this version, where it has one."""
    return {
        family: name
        for family, names in TYPES.items()
        for name in names
        if table.offers("decoding_type", name)
    }


def _place(
    plan: PlanDocument, draft: Draft, options: Options, table: Table, family: str
) -> tuple[str | None, tuple[str, ...]]:
    """Where the draft's model lies, if it needs one, and what was not checked of it."""
    if family in ("ngram", "suffix"):
        check_no_model(options, table.name)
        return None, ()
    if family == "mtp" and not (options.draft_model or draft.model):
        return None, ()
    place = draft_place(draft, options, table.name)
    check_checkpoint(place, table, TYPES[family][0])
    if family == "model":
        return place, check_vocabulary(plan, options, draft, place, table.name)
    return place, ()


def _schedule(
    plan: PlanDocument, options: Options, table: Table, max_draft_tokens: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    steps = plan.schedule
    if not steps or options.max_draft_tokens is not None:
        return {}, ()
    if steps[0].max_draft_tokens != max_draft_tokens:
        return {}, (
            f"{table.name} wants its longest drafts at the smallest batch, and the plan has "
            f"{steps[0].max_draft_tokens} there and {max_draft_tokens} later: it drafts "
            f"{max_draft_tokens} at every load.",
        )
    drafting = [step for step in steps if step.max_draft_tokens]
    if len(drafting) == 1 and len(steps) > 1:
        return {"max_concurrency": drafting[0].to_batch}, ()
    if table.version.startswith("1.2."):
        raise SettingError(
            f"{table.name} reads the batch sizes of draft_len_schedule as lower bounds where later "
            "versions read upper ones, and that was not tried.",
            "Give one --max-draft-tokens, or take another --version.",
        )
    last = steps[-1]
    said = (f"Above a batch of {_end(last)} nothing is drafted.",) if last.max_draft_tokens else ()
    return {"draft_len_schedule": {_end(step): step.max_draft_tokens for step in steps}}, said


def _end(step: Step) -> int:
    return step.to_batch or max(step.from_batch, LARGEST_BATCH)


def _recorded(table: Table) -> tuple[str, ...]:
    return (
        f"Keys of {table.name} are recorded from its public source, not tried: it needs CUDA to "
        "import.",
        "The file turns on the counters that `paceline watch` reads.",
    )
