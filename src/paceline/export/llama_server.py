"""A plan as llama-server's flags."""

from __future__ import annotations

from paceline.export.request import ExportRequest
from paceline.export.setup import EngineSetup


def setup(ask: ExportRequest) -> EngineSetup:
    """llama-server told to draft."""
    ask.check_draft_parallel()
    types = ask.table.families()
    family = ask.family(types)
    limit = ask.fixed_limit()
    model = ask.find_model(family, types[family]).place
    flags = {"--spec-type": types[family]}
    if model is not None:
        gguf = model.lower().endswith(".gguf")
        flags["--spec-draft-model" if gguf else "--spec-draft-hf"] = model
    if family != "ngram":
        flags["--spec-draft-n-max"] = str(limit)
    if family in ("ngram", "ngram+model"):
        least = ask.shortest_match()
        ask.say_matches(f"llama-server is told to match exactly {least} tokens")
        flags["--spec-ngram-simple-size-n"] = str(least)
        flags["--spec-ngram-simple-size-m"] = str(limit)
    for kind in types[family].split(","):
        ask.table.admit(flags | {"--spec-type": kind})
    ask.say_no_schedule()
    ask.say(
        "If its drafts can't be loaded, llama-server serves without them and only logs that: "
        "see that timings.draft_n is above 0 in an answer."
    )
    return ask.made(model, arguments=tuple(part for flag in flags.items() for part in flag))
