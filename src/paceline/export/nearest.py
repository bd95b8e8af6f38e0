"""A plan's draft as one of the families that engines have, or what comes nearest to it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from paceline.errors import SettingError
from paceline.export.options import Options
from paceline.export.versions import Table
from paceline.plan.document import Draft

DIRECT = {
    "model": "model",
    "lookup": "ngram",
    "recycle": "ngram",
    "ngram": "ngram",
    "suffix": "suffix",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "mtp": "mtp",
    "dflash": "dflash",
    "speculators": "speculators",
}
"""Kinds of drafts that are a family of engines."""

NEAREST = {
    "suffix": ("ngram",),
    "tree": ("model",),
    "early-exit": ("model", "ngram"),
    "first": ("ngram+model", "model", "ngram"),
    "cascade": ("ngram+model", "model", "ngram"),
    "mixture": ("model", "ngram"),
    "several": ("ngram+model", "model", "ngram"),
    "shared": ("other-vocabulary", "ngram"),
    "text": ("other-vocabulary", "ngram"),
}
"""What stands in, best first."""

DESCRIBED = {
    "model": "chains of a draft model",
    "ngram": "n-grams of prompt and output",
    "ngram+model": "n-grams where they match, and a draft model elsewhere",
    "other-vocabulary": "a draft model over the tokens that both vocabularies have",
}

NEEDS_MODEL = ("model", "ngram+model", "other-vocabulary")


@dataclass(frozen=True, slots=True)
class Family:
    """name: of the family; remarks: what must be said where it stands in for the draft."""

    name: str
    notes: tuple[str, ...] = ()


def family_of(draft: Draft, options: Options, table: Table, offered: Container[str]) -> Family:
    """The family of a draft on an engine that offers these.

    Raises SettingError for a draft that the engine can't express, with what comes nearest; not
    where `options.nearest` takes that.
    """
    direct = DIRECT.get(draft.kind)
    if direct in offered:
        return Family(str(direct), _same_in_name_only(draft.kind, table))
    found = _standin(draft, options, offered)
    what = f"{table.name} can't express the draft {draft.name!r} ({draft.kind})"
    if found is None:
        raise SettingError(f"{what}, and has nothing near it.", _elsewhere(draft))
    if not options.nearest:
        raise SettingError(
            f"{what}.", f"Nearest to it: {DESCRIBED[found]}; --nearest exports that. {_hint(draft)}"
        )
    return Family(
        found,
        (
            f"The engine can't express the draft {draft.name!r} ({draft.kind}). In its place: "
            f"{DESCRIBED[found]}. What was measured doesn't hold for that: judge it anew.",
        ),
    )


def _standin(draft: Draft, options: Options, offered: Container[str]) -> str | None:
    # The model of an early exit is the target itself, so only one that is named here can stand in.
    own = None if draft.kind == "early-exit" else draft.model
    model = options.draft_model or own
    for name in NEAREST.get(draft.kind, ()):
        if name in offered and (model is not None or name not in NEEDS_MODEL):
            return name
    return None


def _hint(draft: Draft) -> str:
    if draft.kind == "early-exit":
        return "Or make a draft model of the same layers with `paceline derive`: --draft-model DIR."
    return ""


def _elsewhere(draft: Draft) -> str:
    if draft.kind == "medusa":
        return "vLLM up to 0.32.0 loads Medusa heads."
    if draft.kind in NEAREST:
        return "Name a draft model with --draft-model and use --nearest."
    return "Plan with another draft, or export to another engine."


def _same_in_name_only(kind: str, table: Table) -> tuple[str, ...]:
    ours = " With --ours Paceline's own run there." if table.engine == "vllm" else ""
    if kind == "lookup":
        return (
            f"{table.name}'s own n-grams stand in for Paceline's lookup, which matches texts of "
            f"any length and weighs how far to go.{ours}",
        )
    if kind == "recycle":
        return (
            f"{table.name} has no recycling of the target's likeliest tokens. Its n-grams stand "
            f"in, and what was measured doesn't hold for them: judge them anew.{ours}",
        )
    return ()
