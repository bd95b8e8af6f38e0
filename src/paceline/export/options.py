"""What whoever exports a plan says beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All are optional.

    version                 of the engine; None: the newest known
    target, draft_model     where they lie for that engine; None: as the plan says
    max_draft_tokens                   drafted tokens in a round, in place of the plan's
    ours                    vLLM: our proposer in place of the engine's own n-grams
    nearest                 where the engine can't express the draft, export what comes nearest
    tensor_parallel         of the target
    draft_tensor_parallel   of the draft; None: as the engine chooses
    max_running             sequences that SGLang decodes together
    """

    version: str | None = None
    target: str | None = None
    draft_model: str | None = None
    max_draft_tokens: int | None = None
    ours: bool = False
    nearest: bool = False
    tensor_parallel: int | None = None
    draft_tensor_parallel: int | None = None
    max_running: int | None = None
