"""Benches as a file holds them, made of rounds that add up, without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.local.divergence import FirstDifference
from paceline.bench.local.file import RunFile
from paceline.bench.local.result import BenchHeader, BenchResult
from paceline.bench.local.run import Described, Run, check_run
from paceline.policy.costs import Costs, Point
from paceline.policy.stats import PolicyStats
from paceline.types import Divergence, Round, Sampling

ROW_S = {1: 0.020, 2: 0.021, 3: 0.024, 4: 0.022, 5: 0.029, 6: 0.031, 7: 0.033, 8: 0.030}
"""Seconds of a pass by its rows, steps included: four are cheaper than three."""

TARGET = {
    "engine": "llamacpp",
    "model": "tiny.gguf",
    "threads": 2,
    "context_size": 2048,
    "weights_bytes": 90_000_000,
    "cache_bytes": 47_000_000,
    "max_sequences": 1,
}
MACHINE = {"cpu": "A CPU", "cores": 2, "memory_bytes": 8_000_000_000, "paceline": "0.1.0"}
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "naïve –", "“ok”,", "rests\n")


def costs(most: int = 8) -> Mapping[str, Any]:
    points = [Point(rows, 1, 64, s, 0.98 * s, 1.05 * s, 20) for rows, s in ROW_S.items()]
    return Costs(key={"model": "tiny.gguf"}, points=tuple(points[:most])).as_document()


def drafted(name: str, max_draft_tokens: int | None, **changes: Any) -> Described:
    return Described(
        **{
            "name": name,
            "target": TARGET,
            "max_draft_tokens": max_draft_tokens,
            "verifier": "chain",
            "drafts": {"lookup": {"kind": "lookup"}},
            "costs": costs() if max_draft_tokens is None else None,
            **changes,
        }
    )


BASELINE = Described(name="baseline", target=TARGET)


def run(
    one: Described,
    id: str,
    category: str,
    *,
    tokens: int = 60,
    acceptance: float = 0.7,
    seed: int = 0,
    slow: float = 1.0,
    text: str | None = None,
    **changes: Any,
) -> Run:
    """One answer. Each drafted token is accepted with the same chance, and each round offers the
    limit; `slow` makes every pass take so many times as long."""
    rng = np.random.default_rng([seed, *map(ord, one.name + id)])
    rounds = [_round(0, 0, 0, 12, slow * 0.05, prefill=True)]
    emitted = 1
    while emitted < tokens:
        most = int(rng.integers(0, 8)) if one.max_draft_tokens is None else one.max_draft_tokens
        max_draft_tokens = min(most, tokens - emitted - 1)
        misses = np.flatnonzero(rng.random(max_draft_tokens) > acceptance)
        accepted = int(misses[0]) if len(misses) else max_draft_tokens
        seconds = slow * ROW_S.get(max_draft_tokens + 1, 0.03) * float(1 + 0.02 * rng.random())
        rounds.append(_round(max_draft_tokens, accepted, most, 12 + emitted, seconds))
        emitted += accepted + 1
    words = _words(emitted, rng) if text is None else _split(text, emitted)
    ends = np.cumsum([len(word) for word in words])
    asked = None
    if one.max_draft_tokens is None:
        asked = PolicyStats()
        for each in rounds[1:]:
            asked.add(each, 0.02)
    return Run(
        **{
            "configuration": one.name,
            "id": id,
            "category": category,
            "prompt_tokens": 12,
            "tokens": tuple(int(t) for t in rng.integers(0, 4000, emitted)),
            "text": "".join(words),
            "ends": tuple(int(end) for end in ends),
            "finish_reason": "max_tokens",
            "rounds": tuple(rounds),
            "equal_to_baseline": None if one.is_baseline or not one.greedy else True,
            "policy_stats": asked,
            "cpu_s": 2 * sum(r.verify_s for r in rounds),
            "peak_memory_bytes": 210_000_000,
            **changes,
        }
    )


def _words(count: int, rng: np.random.Generator) -> list[str]:
    return [f"{WORDS[i]} " for i in rng.integers(0, len(WORDS), count)]


def _split(text: str, count: int) -> list[str]:
    cuts = np.linspace(0, len(text), count + 1).astype(int)
    return [text[a:b] for a, b in pairwise(cuts)]


def _round(
    max_draft_tokens: int,
    accepted: int,
    asked: int,
    context: int,
    seconds: float,
    *,
    prefill: bool = False,
) -> Round:
    return Round(
        proposed=max_draft_tokens,
        accepted=accepted,
        emitted=accepted + 1,
        source="lookup" if asked else None,
        max_draft_tokens=asked,
        width=max_draft_tokens + 1,
        batch=1,
        context=context,
        prefill=prefill,
        draft_s=0.0004 * bool(asked),
        verify_s=seconds,
        other_s=0.0006,
    )


def header(configurations: Sequence[Described], prompts: Sequence[tuple[str, str]], **changes: Any):
    return BenchHeader(
        **{
            "command": ("paceline", "bench", "tiny.gguf", "--prompts", "my prompts.jsonl"),
            "workload": {
                "name": "my prompts",
                "version": "1",
                "licence": "CC0-1.0",
                "sha256": "ab" * 32,
                "prompts": len(prompts),
                "skipped": ["Line 3 is not JSON."],
                "notes": [],
            },
            "prompts": tuple(prompts),
            "configurations": tuple(configurations),
            "max_tokens": 60,
            "machine": MACHINE,
            "bandwidth_bytes_per_s": 1.2e10,
            "started": "2026-03-01T12:00:00+00:00",
            **changes,
        }
    )


EVERY = (BASELINE, drafted("lookup -n 1", 1), drafted("lookup -n 3", 3), drafted("lookup -n 7", 7))
AUTO = drafted("lookup -n auto", None)


def bench(
    configurations: Sequence[Described] = (*EVERY, AUTO),
    *,
    categories: Mapping[str, float] | None = None,
    each: int = 3,
    tokens: int = 60,
    **changes: Any,
) -> BenchResult:
    """A finished bench: per category the acceptance of its drafts."""
    acceptances = categories or {"code": 0.85, "summary": 0.7, "chat": 0.35, "story": 0.05}
    prompts = [(f"{c}-{i}", c) for c in acceptances for i in range(each)]
    result = BenchResult(header(configurations, prompts, **changes))
    for number, (id, category) in enumerate(prompts):
        for one in configurations:
            acceptance = acceptances[category]
            done = run(one, id, category, tokens=tokens, acceptance=acceptance, seed=number)
            check_run(done)
            result.runs.append(done)
    return result


def written(result: BenchResult, path: Path) -> str:
    file = RunFile.open(path, result.header)
    with file:
        for id, why in result.failed.items():
            file.fail(id, why)
        for one in result.runs:
            file.add(one)
    return str(path)


LOSSY = drafted(
    "lookup -n 3 tolerance",
    3,
    verifier="tolerance",
    lossy=True,
    gives_up="the target's distribution, by a budget of nats per token",
)


def departed(count: int) -> tuple[Divergence, ...]:
    return tuple(Divergence(0.01 * (i % 3), 0.02 * (i % 3)) for i in range(count))


def numeric(position: int = 9) -> FirstDifference:
    return FirstDifference(position, 5, 6, 0.013, 0.08, numeric=True)


def fault(position: int = 4) -> FirstDifference:
    return FirstDifference(position, 5, 6, 3.5, 0.08, numeric=False)


def sampled(one: Described, temperature: float = 0.8) -> Described:
    return replace(one, sampling=Sampling(temperature=temperature, seed=1))
