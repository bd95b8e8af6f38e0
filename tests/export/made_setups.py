"""Setups such as the engines' exports make, and what a cluster makes of their manifests."""

from __future__ import annotations

import json
from typing import Any

import yaml

from paceline.export.setup import EngineSetup

TARGET, DRAFT = "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"
MEASURED = "Measured by bench run.jsonl: speedup 1.60× (1.45 to 1.75)."
UNDO = "To roll back: leave the draft's arguments out."


def vllm(target: str = TARGET, draft: str | None = DRAFT, **config: Any) -> EngineSetup:
    config = config or {"method": "draft_model", "model": draft, "num_speculative_tokens": 4}
    told = json.dumps(config, separators=(",", ":"))
    return EngineSetup(
        engine="vllm",
        version="0.31.0",
        target=target,
        draft=draft,
        arguments=("--speculative-config", told),
        config=config,
        notes=(MEASURED, UNDO),
    )


def sglang(algorithm: str = "EAGLE3", draft: str | None = DRAFT) -> EngineSetup:
    return EngineSetup(
        engine="sglang",
        version="0.5.21",
        target=TARGET,
        draft=draft,
        arguments=("--speculative-algorithm", algorithm, "--speculative-num-draft-tokens", "5"),
        metrics=("--enable-metrics",),
        notes=(MEASURED, UNDO),
    )


def tensorrt_llm(decoding: str = "Draft_Target", draft: str | None = DRAFT) -> EngineSetup:
    speculative = {"decoding_type": decoding, "max_draft_len": 4, "speculative_model": draft}
    counters = {"enable_iter_perf_stats": True, "return_perf_metrics": True}
    config = {"speculative_config": speculative, **counters}
    return EngineSetup(
        engine="tensorrt-llm",
        version="1.3.0rc29",
        target=TARGET,
        draft=draft,
        arguments=("--config", "speculative.yaml"),
        config=config,
        files={"speculative.yaml": yaml.safe_dump(config)},
        notes=(MEASURED, UNDO),
    )


def llama_server(target: str = "ggml-org/Qwen3-8B-GGUF:Q4_K_M") -> EngineSetup:
    return EngineSetup(
        engine="llama-server",
        version="b11549",
        target=target,
        draft="/models/draft.gguf",
        arguments=("--spec-draft-model", "/models/draft.gguf", "--spec-draft-n-max", "4"),
        metrics=("--metrics",),
        notes=(MEASURED, UNDO),
    )


def plain(engine: str = "vllm", version: str = "0.31.0") -> EngineSetup:
    return EngineSetup(engine=engine, version=version, target=TARGET, notes=("No draft pays.",))


def documents(text: str) -> list[Any]:
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def of_kind(text: str, kind: str) -> Any:
    found = [one for one in documents(text) if one["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of {kind}"
    return found[0]


def received(arguments: list[str], **variables: str) -> list[str]:
    """What a container's program gets: `Expand` of Kubernetes' third_party/forked/golang/expansion,
    by which the kubelet reads `$(NAME)` and `$$` in commands and arguments."""
    return [_expanded(argument, variables) for argument in arguments]


def _expanded(text: str, variables: dict[str, str]) -> str:
    out, place = "", 0
    while place < len(text):
        rest = text[place + 1 :]
        if text[place] != "$" or not rest:
            out += text[place]
            place += 1
        elif rest[0] == "$":
            out += "$"
            place += 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            out += variables.get(name, f"$({name})")
            place += len(name) + 3
        else:
            out += f"${rest[0]}"
            place += 2
    return out


FREE = ("labels", "matchLabels", "data", "limits", "requests")
"""Mappings whose keys a user or a cluster chooses."""


def paths(value: Any, place: str = "") -> set[str]:
    """Every place in a document: `spec.components[].name`. What a user may name is `*`."""
    if isinstance(value, dict):
        free = place.rpartition(".")[2] in FREE
        found = set()
        for key, inner in value.items():
            at = f"{place}.{'*' if free else key}".removeprefix(".")
            found |= {at} | paths(inner, at)
        return found
    if isinstance(value, list):
        at = f"{place}[]"
        return {at}.union(*(paths(one, at) for one in value)) if value else set()
    return set()
