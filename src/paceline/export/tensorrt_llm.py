"""A plan as TensorRT-LLM's YAML, for its PyTorch backend."""

from __future__ import annotations

from typing import Any

from paceline.errors import SettingError
from paceline.export.rules import (
    PENALTIES,
    ExportRequest,
    check_draft_parallel,
    check_sampling,
    family_of,
    find_model,
    fixed_draft_tokens,
    match_lengths,
)
from paceline.export.setup import EngineSetup
from paceline.export.text import as_yaml
from paceline.plan.document import PlannedDraft, Step

FILE = "paceline-trtllm.yaml"

COUNTERS = {"enable_iter_perf_stats": True, "return_perf_metrics": True}

LARGEST_BATCH = 2048
"""Up to which a schedule's open end is written; TensorRT-LLM drafts nothing above the last."""

_MATCHES = (
    "TensorRT-LLM matches at most 2 tokens, unless max_matching_ngram_size is set, and has no "
    "setting for the shortest match"
)


def setup(ask: ExportRequest, draft: PlannedDraft | None) -> EngineSetup:
    """TensorRT-LLM told to draft, or without a draft to decode without one."""
    if draft is None:
        return _made(ask, COUNTERS)
    table = ask.table
    if table.read["penalties"] == "refused":
        check_sampling(ask, PENALTIES, "rejects requests with that while it drafts")
    check_draft_parallel(ask)
    types = table.families()
    family, notes = family_of(ask, draft, types)
    limit, said = fixed_draft_tokens(ask)
    model = find_model(ask, draft, family, types[family])
    notes += (*said, *model.notes)
    speculative: dict[str, Any] = {"decoding_type": types[family], "max_draft_len": limit}
    if model.place is not None:
        speculative[table.read["model_key"]] = model.place
    if family == "ngram":
        # Its pool is shared by all requests unless told otherwise; ours never was when measured.
        speculative["is_public_pool"] = False
        notes += match_lengths(draft, _MATCHES) or (f"{_MATCHES}.",)
    schedule, said = _schedule(ask, limit)
    speculative |= schedule
    table.admit(speculative, types[family])
    recorded = (
        f"Keys of {table.name} are recorded from its public source, not tried: it needs CUDA to "
        "import."
    )
    counts = "The file turns on the counters that `paceline watch` reads."
    config = {"speculative_config": speculative, **COUNTERS}
    return _made(ask, config, *notes, *said, recorded, counts, draft=model.place)


def _made(
    ask: ExportRequest, config: dict[str, Any], *notes: str, draft: str | None = None
) -> EngineSetup:
    ask.table.admit(config)
    return ask.made(
        *notes,
        draft=draft,
        arguments=(ask.table.read["file_flag"], FILE),
        config=config,
        files={FILE: as_yaml(config)},
    )


def _schedule(ask: ExportRequest, limit: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    steps, name = ask.schedule, ask.name
    if not steps:
        return {}, ()
    if steps[0].max_draft_tokens != limit:
        return {}, (
            f"{name} wants its longest drafts at the smallest batch, and the plan has "
            f"{steps[0].max_draft_tokens} there and {limit} later: it drafts {limit} at every "
            "load.",
        )
    drafting = [step for step in steps if step.max_draft_tokens]
    if len(drafting) == 1 and len(steps) > 1:
        return {"max_concurrency": drafting[0].to_batch}, ()
    if ask.table.version.startswith("1.2."):
        raise SettingError(
            f"{name} reads the batch sizes of draft_len_schedule as lower bounds where later "
            "versions read upper ones, and that was not tried.",
            "Give one --max-draft-tokens, or take another --version.",
        )
    last = steps[-1]
    said = (f"Above a batch of {_end(last)} nothing is drafted.",) if last.max_draft_tokens else ()
    return {"draft_len_schedule": {_end(step): step.max_draft_tokens for step in steps}}, said


def _end(step: Step) -> int:
    return step.to_batch or max(step.from_batch, LARGEST_BATCH)
