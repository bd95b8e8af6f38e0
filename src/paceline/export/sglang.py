"""A plan as SGLang's flags."""

from __future__ import annotations

import json
from collections.abc import Iterator

from paceline.export.rules import (
    PENALTIES,
    ExportRequest,
    beyond_schedule,
    check_draft_parallel,
    check_sampling,
    family_of,
    find_model,
    fixed_draft_tokens,
    match_lengths,
    no_schedule,
)
from paceline.export.setup import EngineSetup
from paceline.plan.document import PlannedDraft

ADAPTIVE_FILE = "paceline-adaptive.json"


def setup(ask: ExportRequest, draft: PlannedDraft | None) -> EngineSetup:
    """SGLang told to draft, or without a draft to decode without one."""
    if draft is None:
        return ask.made()
    check_sampling(
        ask, ("min_p", *PENALTIES), "doesn't apply that exactly while it verifies drafts"
    )
    check_draft_parallel(ask)
    algorithms = ask.table.families()
    family, notes = family_of(ask, draft, algorithms)
    algorithm = algorithms[family]
    limit, limited = fixed_draft_tokens(ask)
    model = find_model(ask, draft, family, algorithm)
    flags = {"--speculative-algorithm": algorithm}
    if model.place is not None:
        flags["--speculative-draft-model-path"] = model.place
    flags |= _lengths(algorithm, limit)
    files, scheduled = {}, no_schedule(ask, algorithm)
    if ask.schedule and algorithm in ask.table.read["adaptive"]:
        slots = {
            str(step.from_batch): {"candidate_steps": [step.max_draft_tokens]}
            for step in ask.schedule
        }
        flags |= {"--speculative-adaptive": "", "--speculative-adaptive-config": ADAPTIVE_FILE}
        files = {ADAPTIVE_FILE: json.dumps(slots, indent=1) + "\n"}
        scheduled = (
            f"The schedule by batch size is in {ADAPTIVE_FILE}. SGLang ignores it, with a warning, "
            "under attention data parallelism.",
            *beyond_schedule(ask),
        )
    if ask.options.max_running is not None:
        flags["--max-running-requests"] = str(ask.options.max_running)
    ask.table.admit(flags)
    return ask.made(
        *notes,
        *limited,
        *model.notes,
        *scheduled,
        *_traps(ask, draft, algorithm, limit),
        draft=model.place,
        arguments=tuple(part for flag in flags.items() for part in flag if part),
        files=files,
    )


def _lengths(algorithm: str, limit: int) -> dict[str, str]:
    """All of the lengths or none: SGLang refuses some of them, and its number of draft tokens
    counts the root."""
    rows = str(limit + 1)
    if algorithm == "NGRAM":
        return {"--speculative-num-draft-tokens": rows, "--speculative-ngram-max-bfs-breadth": "1"}
    if algorithm == "DFLASH":
        return {"--speculative-dflash-block-size": rows}
    return {
        "--speculative-num-steps": str(limit),
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": rows,
    }


def _traps(ask: ExportRequest, draft: PlannedDraft, algorithm: str, limit: int) -> Iterator[str]:
    yield (
        f"{limit + 1} draft tokens are {limit} drafted ones and the root, which SGLang counts too."
    )
    if algorithm == "NGRAM":
        yield "A breadth of 1 keeps its drafts chains, as measured; SGLang's default is trees."
    if ask.options.max_running is None:
        yield (
            "With drafts SGLang decodes at most 48 sequences together unless told otherwise: for a "
            "fair comparison set --max-running-requests in both servers (here: --max-running N)."
        )
    if ask.plan.measured.sampling.get("temperature"):
        yield (
            "On CPU and XPU SGLang verifies greedily whatever the temperature: there its output is "
            "not the target's distribution. On CUDA it is."
        )
    if algorithm == "NGRAM":
        yield from match_lengths(
            draft, "SGLang has no setting for the shortest match, and its own rules"
        )
