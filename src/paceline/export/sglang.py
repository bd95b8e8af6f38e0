"""A plan as SGLang's flags."""

from __future__ import annotations

import json

from paceline.export.evidence import NO_DRAFT, undo
from paceline.export.nearest import family_of
from paceline.export.options import Options
from paceline.export.rules import (
    PENALTIES,
    beyond_schedule,
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
from paceline.plan.document import Draft, PlanDocument

ALGORITHMS = {
    "model": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
}

METRICS = ("--enable-metrics",)

ADAPTIVE_FILE = "paceline-adaptive.json"

Flags = dict[str, str]


def setup(plan: PlanDocument, options: Options, table: Table, draft: Draft) -> Setup:
    check_sampling(
        plan.measured.sampling,
        ("min_p", *PENALTIES),
        table.name,
        "doesn't apply that exactly while it verifies drafts",
    )
    check_draft_parallel(options, table.name)
    target = target_place(plan, options, table.name)
    family = family_of(draft, options, table, _offered(table))
    algorithm = ALGORITHMS[family.name]
    max_draft_tokens, notes = fixed_draft_tokens(plan, options)
    place, unchecked = _place(plan, draft, options, table, family.name)
    adaptive, files, said = _schedule(plan, options, table, algorithm)
    flags: Flags = {"--speculative-algorithm": algorithm}
    if place is not None:
        flags["--speculative-draft-model-path"] = place
    flags |= _lengths(algorithm, max_draft_tokens) | adaptive
    if options.max_running is not None:
        flags["--max-running-requests"] = str(options.max_running)
    table.admit(flags)
    said = (
        *family.notes,
        *notes,
        *unchecked,
        *said,
        *_traps(plan, options, algorithm, max_draft_tokens),
    )
    if algorithm == "NGRAM":
        said += match_lengths(
            draft, "SGLang has no setting for the shortest match, and its own rules"
        )
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target,
        draft=place,
        arguments=tuple(part for flag in flags.items() for part in flag if part),
        files=files,
        metrics=METRICS,
        notes=(*said, undo("start SGLang without the --speculative flags")),
    )


def plain(plan: PlanDocument, options: Options, table: Table) -> Setup:
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target_place(plan, options, table.name),
        metrics=METRICS,
        notes=(NO_DRAFT,),
    )


def _place(
    plan: PlanDocument, draft: Draft, options: Options, table: Table, family: str
) -> tuple[str | None, tuple[str, ...]]:
    """Where the draft's model lies, if it needs one, and what was not checked of it."""
    if family == "ngram":
        check_no_model(options, table.name)
        return None, ()
    if family == "mtp" and not (options.draft_model or draft.model):
        return None, ()
    place = draft_place(draft, options, table.name)
    check_checkpoint(place, table, ALGORITHMS[family])
    if family == "model":
        return place, check_vocabulary(plan, options, draft, place, table.name)
    return place, ()


def _offered(table: Table) -> set[str]:
    return {
        family
        for family, algorithm in ALGORITHMS.items()
        if table.offers("--speculative-algorithm", algorithm)
    }


def _lengths(algorithm: str, max_draft_tokens: int) -> Flags:
    """All of the lengths or none: SGLang refuses some of them, and its number of draft tokens
    counts the root."""
    rows = str(max_draft_tokens + 1)
    if algorithm == "NGRAM":
        return {"--speculative-num-draft-tokens": rows, "--speculative-ngram-max-bfs-breadth": "1"}
    if algorithm == "DFLASH":
        return {"--speculative-dflash-block-size": rows}
    return {
        "--speculative-num-steps": str(max_draft_tokens),
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": rows,
    }


def _schedule(
    plan: PlanDocument, options: Options, table: Table, algorithm: str
) -> tuple[Flags, dict[str, str], tuple[str, ...]]:
    if not plan.schedule or options.max_draft_tokens is not None:
        return {}, {}, ()
    if algorithm not in table.read["adaptive"]:
        return (
            {},
            {},
            (
                f"{table.name} has no schedule by batch size for {algorithm}: it drafts at every "
                "load, also where the plan would not.",
            ),
        )
    slots = {
        str(step.from_batch): {"candidate_steps": [step.max_draft_tokens]} for step in plan.schedule
    }
    flags = {"--speculative-adaptive": "", "--speculative-adaptive-config": ADAPTIVE_FILE}
    return (
        flags,
        {ADAPTIVE_FILE: json.dumps(slots, indent=1) + "\n"},
        (
            f"The schedule by batch size is in {ADAPTIVE_FILE}. SGLang ignores it, with a warning, "
            "under attention data parallelism.",
            *beyond_schedule(plan, "SGLang"),
        ),
    )


def _traps(
    plan: PlanDocument, options: Options, algorithm: str, max_draft_tokens: int
) -> tuple[str, ...]:
    said = [
        f"{max_draft_tokens + 1} draft tokens are {max_draft_tokens} drafted ones and the "
        f"root, which SGLang counts too."
    ]
    if algorithm == "NGRAM":
        said.append(
            "A breadth of 1 keeps its drafts chains, as measured; SGLang's default is trees."
        )
    if options.max_running is None:
        said.append(
            "With drafts SGLang decodes at most 48 sequences together unless told otherwise: for a "
            "fair comparison set --max-running-requests in both servers (here: --max-running N)."
        )
    if plan.measured.sampling.get("temperature"):
        said.append(
            "On CPU and XPU SGLang verifies greedily whatever the temperature: there its output is "
            "not the target's distribution. On CUDA it is."
        )
    return tuple(said)
