"""Plans to export, as a bench would have made them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
    Step,
    Target,
)

TARGET, DRAFT = "owner/target", "owner/draft"


def plan(kind: str = "lookup", **changes: Any) -> PlanDocument:
    """Of a draft of this kind, with a model where that needs one; `none` is ordinary decoding.

    changes    to the plan, or by `draft_`, `target_`, `measured_` and a name to its parts
    """
    made = PlanDocument(
        target=Target(name=TARGET, engine="transformers", vocabulary_size=49152),
        draft=None if kind == "none" else draft(kind),
        max_draft_tokens=0 if kind == "none" else 4,
        expected=Expected(
            tokens_per_drafted_round=2.5,
            acceptance_rate=0.4,
            break_even_tokens=1.3,
            gain=Gain(value=1.62, low=1.5, high=1.75),
        ),
        measured=Measurement(
            source="bench",
            file="run.jsonl",
            when="2026-11-30T03:00:00+00:00",
            machine={"cpu": "A CPU", "cores": 2},
            sampling={"temperature": 0.0},
            prompts=40,
            tokens=5120,
        ),
    )
    parts: dict[str, dict[str, Any]] = {"draft": {}, "target": {}, "measured": {}}
    for name in list(changes):
        part, _, inner = name.partition("_")
        if part in parts and inner:
            parts[part][inner] = changes.pop(name)
    for part, values in parts.items():
        if values:
            changes[part] = replace(getattr(made, part), **values)
    return replace(made, **changes)


def draft(kind: str) -> PlannedDraft:
    needs = kind not in ("lookup", "recycle", "ngram", "suffix", "mtp", "early-exit", "first")
    return PlannedDraft(
        kind=kind,
        name=kind,
        model=DRAFT if needs else None,
        vocabulary_size=49152 if needs else None,
    )


def steps(*limits: tuple[int, int | None, int]) -> tuple[Step, ...]:
    return tuple(
        Step(from_batch=low, to_batch=high, max_draft_tokens=max_draft_tokens)
        for low, high, max_draft_tokens in limits
    )
