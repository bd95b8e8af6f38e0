"""A plan as llama-server's flags."""

from __future__ import annotations

from paceline.export.rules import (
    ExportRequest,
    check_draft_parallel,
    family_of,
    find_model,
    fixed_draft_tokens,
    match_lengths,
    no_schedule,
    shortest_match,
)
from paceline.export.setup import EngineSetup
from paceline.plan.document import PlannedDraft


def setup(ask: ExportRequest, draft: PlannedDraft | None) -> EngineSetup:
    """llama-server told to draft, or without a draft to decode without one."""
    if draft is None:
        return ask.made()
    check_draft_parallel(ask)
    types = ask.table.families()
    family, notes = family_of(ask, draft, types)
    limit, said = fixed_draft_tokens(ask)
    notes += said
    model = find_model(ask, draft, family, types[family])
    flags = {"--spec-type": types[family]}
    if model.place is not None:
        gguf = model.place.lower().endswith(".gguf")
        flags["--spec-draft-model" if gguf else "--spec-draft-hf"] = model.place
    if family != "ngram":
        flags["--spec-draft-n-max"] = str(limit)
    if family in ("ngram", "ngram+model"):
        least = shortest_match(draft)
        notes += match_lengths(draft, f"llama-server is told to match exactly {least} tokens")
        flags["--spec-ngram-simple-size-n"] = str(least)
        flags["--spec-ngram-simple-size-m"] = str(limit)
    for kind in types[family].split(","):
        ask.table.admit(flags | {"--spec-type": kind})
    return ask.made(
        *notes,
        *model.notes,
        *no_schedule(ask),
        "If its drafts can't be loaded, llama-server serves without them and only logs that: "
        "see that timings.draft_n is above 0 in an answer.",
        draft=model.place,
        arguments=tuple(part for flag in flags.items() for part in flag),
    )
