"""A plan as llama-server's flags."""

from __future__ import annotations

import re

from paceline.errors import SettingError
from paceline.export.cluster import is_path
from paceline.export.evidence import NO_DRAFT, undo
from paceline.export.nearest import family_of
from paceline.export.options import Options
from paceline.export.rules import (
    check_checkpoint,
    check_draft_parallel,
    check_no_model,
    check_vocabulary,
    fixed_draft_tokens,
    is_gguf,
    is_here,
    match_lengths,
    shortest_match,
)
from paceline.export.setup import Setup
from paceline.export.versions import Table
from paceline.plan.document import Draft, PlanDocument

TYPES = {
    "model": "draft-simple",
    "ngram": "ngram-simple",
    "ngram+model": "ngram-simple,draft-simple",
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "dflash": "draft-dflash",
}

METRICS = ("--metrics",)


def setup(plan: PlanDocument, options: Options, table: Table, draft: Draft) -> Setup:
    check_draft_parallel(options, table.name)
    target = _target(plan, options, table)
    family = family_of(draft, options, table, _offered(table))
    max_draft_tokens, notes = fixed_draft_tokens(plan, options)
    place, unchecked = _place(plan, draft, options, table, family.name)
    flags = {"--spec-type": TYPES[family.name]}
    if place is not None:
        flags["--spec-draft-model" if is_gguf(place) else "--spec-draft-hf"] = place
    if family.name != "ngram":
        flags["--spec-draft-n-max"] = str(max_draft_tokens)
    if family.name in ("ngram", "ngram+model"):
        least = shortest_match(draft)
        notes += match_lengths(draft, f"llama-server is told to match exactly {least} tokens")
        flags["--spec-ngram-simple-size-n"] = str(least)
        flags["--spec-ngram-simple-size-m"] = str(max_draft_tokens)
    _admit(table, flags)
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target,
        draft=place,
        arguments=tuple(part for flag in flags.items() for part in flag),
        metrics=METRICS,
        notes=(
            *family.notes,
            *notes,
            *unchecked,
            *_no_schedule(plan, options),
            "If its drafts can't be loaded, llama-server serves without them and only logs that: "
            "see that timings.draft_n is above 0 in an answer.",
            undo("start llama-server without the --spec flags"),
        ),
    )


def plain(plan: PlanDocument, options: Options, table: Table) -> Setup:
    return Setup(
        engine=table.engine,
        version=table.version,
        target=_target(plan, options, table),
        metrics=METRICS,
        notes=(NO_DRAFT,),
    )


def _admit(table: Table, flags: dict[str, str]) -> None:
    """One value of --spec-type may be several types."""
    for kind in flags["--spec-type"].split(","):
        table.admit(flags | {"--spec-type": kind})


def _offered(table: Table) -> set[str]:
    return {
        family
        for family, kinds in TYPES.items()
        if all(table.offers("--spec-type", kind) for kind in kinds.split(","))
    }


def _target(plan: PlanDocument, options: Options, table: Table) -> str:
    """Its GGUF file, or a repository of some that was named for it: the plan's own may be one of
    another format. Raises SettingError for anything else."""
    place = options.target or plan.target.path or plan.target.name
    if not is_gguf(place) and not (options.target is not None and _is_repository(place)):
        raise SettingError(
            f"The target {place} is no GGUF file, and {table.name} loads nothing else.",
            "Name the same model's with --target FILE.gguf or owner/name of a repository of them.",
        )
    return place


def _place(
    plan: PlanDocument, draft: Draft, options: Options, table: Table, family: str
) -> tuple[str | None, tuple[str, ...]]:
    """Where the draft's model lies, if it needs one (a GGUF file, or a repository of some), and
    what was not checked of it."""
    if family == "ngram":
        check_no_model(options, table.name)
        return None, ()
    place = options.draft_model or draft.model
    if place is None:
        if family == "mtp":  # its layers are in the target's file
            return None, ()
        raise SettingError(
            f"The plan doesn't say where the draft {draft.name!r} lies.",
            "Name its model with --draft-model FILE.gguf.",
        )
    if not is_gguf(place) and not (options.draft_model is not None and _is_repository(place)):
        raise SettingError(
            f"The draft {place} is no GGUF file, and llama-server loads nothing else.",
            "Name the same model's with --draft-model FILE.gguf or owner/name of a repository.",
        )
    check_checkpoint(place, table, TYPES[family].split(",")[-1])
    if family in ("model", "ngram+model"):
        extra = table.read["most_extra_tokens"]
        return place, check_vocabulary(plan, options, draft, place, table.name, extra)
    return place, ()


def _is_repository(place: str) -> bool:
    """`owner/name` or `owner/name:quantisation`, where no directory here has that name."""
    named = re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", place, re.ASCII)
    return named is not None and not is_path(place) and not is_here(place)


def _no_schedule(plan: PlanDocument, options: Options) -> tuple[str, ...]:
    if (
        not plan.schedule or options.max_draft_tokens is not None
    ):  # which is said with --max-draft-tokens
        return ()
    return (
        "llama-server has no schedule by batch size: it drafts at every load, also where the plan "
        "would not.",
    )
