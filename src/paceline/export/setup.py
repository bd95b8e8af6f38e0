"""What an engine is started with, before it takes a form: flags, a file, a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one version of one engine is told of a plan.

    engine      as `paceline export` names it: `vllm`, `sglang`, `tensorrt-llm`, `llama-server`
    version     of the engine, as its package names it
    target      the model to serve, a path or a repository as the engine wants it
    draft       where the draft's model lies for the engine; None if it needs none
    arguments   of the engine's server, about drafts only: without program, target, port
    config      the same as the engine's own structured form: vLLM's `speculative_config` dict,
                TensorRT-LLM's YAML as a mapping; empty for engines that only have flags
    files       files that the arguments name, by name: their text
    tensor_parallel   GPUs that the target is laid over
    metrics     arguments that turn the engine's counters on, for `paceline watch`
    notes     what was measured, what the engine can't express and what stands in for it, how to
                undo it; a sentence each. Every output carries them as comments
    """

    engine: str
    version: str
    target: str
    draft: str | None = None
    arguments: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    tensor_parallel: int = 1
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
