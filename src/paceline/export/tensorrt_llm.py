"""A plan as TensorRT-LLM's YAML, for its PyTorch backend."""

from __future__ import annotations

from typing import Any

from paceline.errors import SettingError
from paceline.export.request import PENALTIES, ExportRequest
from paceline.export.setup import EngineSetup
from paceline.plan.document import Step

LARGEST_BATCH = 2048
"""Up to which a schedule's open end is written; TensorRT-LLM drafts nothing above the last."""

_MATCHES = (
    "TensorRT-LLM matches at most 2 tokens, unless max_matching_ngram_size is set, and has no "
    "setting for the shortest match"
)


def setup(ask: ExportRequest) -> EngineSetup:
    """TensorRT-LLM told to draft."""
    table = ask.table
    if table.read["penalties"] == "refused":
        ask.check_sampling(PENALTIES, "rejects requests with that while it drafts")
    ask.check_draft_parallel()
    types = table.families()
    family = ask.family(types)
    limit = ask.fixed_limit()
    model = ask.find_model(family, types[family]).place
    speculative: dict[str, Any] = {"decoding_type": types[family], "max_draft_len": limit}
    if model is not None:
        speculative[table.read["model_key"]] = model
    if family == "ngram":
        # Its pool is shared by all requests unless told otherwise; ours never was when measured.
        speculative["is_public_pool"] = False
        if not ask.say_matches(_MATCHES):
            ask.say(f"{_MATCHES}.")
    speculative |= _schedule(ask, limit)
    table.admit(speculative, types[family])
    ask.say(
        f"Keys of {table.name} are recorded from its public source, not tried: it needs CUDA to "
        "import.",
        "The file turns on the counters that `paceline watch` reads.",
    )
    return ask.made(model, config={"speculative_config": speculative})


def _schedule(ask: ExportRequest, limit: int) -> dict[str, Any]:
    steps, name = ask.schedule, ask.name
    if not steps:
        return {}
    if steps[0].max_draft_tokens != limit:
        ask.say(
            f"{name} wants its longest drafts at the smallest batch, and the plan has "
            f"{steps[0].max_draft_tokens} there and {limit} later: it drafts {limit} at every "
            "load."
        )
        return {}
    drafting = [step for step in steps if step.max_draft_tokens]
    if len(drafting) == 1 and len(steps) > 1:
        return {"max_concurrency": drafting[0].to_batch}
    if ask.table.version.startswith("1.2."):
        raise SettingError(
            f"{name} reads the batch sizes of draft_len_schedule as lower bounds where later "
            "versions read upper ones, and that was not tried.",
            "Give one --max-draft-tokens, or take another --version.",
        )
    if steps[-1].max_draft_tokens:
        ask.say(f"Above a batch of {_end(steps[-1])} nothing is drafted.")
    return {"draft_len_schedule": {_end(step): step.max_draft_tokens for step in steps}}


def _end(step: Step) -> int:
    return step.to_batch or max(step.from_batch, LARGEST_BATCH)
