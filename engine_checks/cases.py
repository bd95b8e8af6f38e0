"""What is checked of each engine: a plan, and how it is exported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paceline.plan.document import Measurement, PlanDocument, PlannedDraft, Step, Target


@dataclass(frozen=True, slots=True)
class Models:
    """Where they lie: the target as a directory and as a GGUF file, a draft as a directory."""

    target: Path
    target_gguf: Path
    draft: Path


@dataclass(frozen=True, slots=True)
class Case:
    """options    of `paceline export`, besides engine and version."""

    name: str
    plan: PlanDocument
    options: tuple[str, ...] = ()


def plan(kind: str, max_draft_tokens: int | None = 4, **changes: object) -> PlanDocument:
    made = PlanDocument(
        target=Target(name="smollm2-135m", engine="llamacpp", vocabulary_size=49152),
        draft=None if kind == "none" else PlannedDraft(kind=kind, name=kind),
        max_draft_tokens=0 if kind == "none" else max_draft_tokens,
        mean_draft_tokens=3.0 if max_draft_tokens is None else None,
        measured=Measurement(source="bench", sampling={"temperature": 0.0}),
    )
    return replace(made, **changes)


SCHEDULE = (
    Step(from_batch=1, to_batch=2, max_draft_tokens=4),
    Step(from_batch=3, to_batch=8, max_draft_tokens=2),
    Step(from_batch=9, to_batch=None, max_draft_tokens=0),
)


def vllm(models: Models) -> list[Case]:
    target = ("--target", str(models.target))
    draft = ("--draft-model", str(models.draft))
    return [
        Case("plain", plan("none"), target),
        Case("n-gram", plan("lookup"), target),
        Case("ours", plan("lookup", max_draft_tokens=None), (*target, "--ours")),
        Case("draft model", plan("model"), (*target, *draft)),
        Case(
            "draft model by batch size",
            plan("model", schedule=SCHEDULE),
            (*target, *draft),
        ),
        Case("suffix", plan("suffix"), target),
    ]


def sglang(models: Models) -> list[Case]:
    target = ("--target", str(models.target))
    draft = ("--draft-model", str(models.draft))
    running = ("--max-running", "64")
    return [
        Case("plain", plan("none"), target),
        Case("n-gram", plan("lookup"), (*target, *running)),
        Case("draft model", plan("model"), (*target, *draft, *running)),
        Case("eagle3", plan("eagle3"), (*target, "--draft-model", "owner/eagle3", *running)),
        Case(
            "eagle3 by batch size",
            plan("eagle3", schedule=SCHEDULE),
            (*target, "--draft-model", "owner/eagle3", *running),
        ),
    ]


def llama_server(models: Models) -> list[Case]:
    target = ("--target", str(models.target_gguf))
    # The target drafts for itself: what matters here is that it drafts at all.
    draft = ("--draft-model", str(models.target_gguf))
    return [
        Case("plain", plan("none"), target),
        Case("n-gram", plan("lookup"), target),
        Case("draft model", plan("model"), (*target, *draft)),
        Case("first of both", plan("first"), (*target, *draft, "--nearest")),
    ]
