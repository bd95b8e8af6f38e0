"""Runs on live servers as a file holds them, made of answers that add up, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.server.answer import Answer
from paceline.bench.server.file import ServerFile
from paceline.bench.server.result import (
    AGAINST,
    FIRST,
    Asked,
    Segment,
    ServerBenchHeader,
    ServerResult,
)
from paceline.monitor.counters import Counters

CATEGORIES = {"code": 2.2, "summary": 1.6, "chat": 1.1, "story": 0.8}
"""How many times as fast the endpoint is, with one client."""

SERVERS = {
    FIRST: {
        "url": "http://gpu-1:8000/v1",
        "model": "qwen-7b",
        "server": "vLLM",
        "version": "0.32.0",
        "metrics": "http://gpu-1:8000/metrics",
        "no_metrics": None,
    },
    AGAINST: {
        "url": "http://gpu-1:8001/v1",
        "model": "qwen-7b",
        "server": "llama.cpp",
        "version": None,
        "metrics": None,
        "no_metrics": "http://gpu-1:8001/metrics answers 501. Start it with --metrics.",
    },
}


def answer(
    s_per_token: float, tokens: int, *, ttft_s: float, text: str = "x", **more: Any
) -> Answer:
    return Answer(
        **{
            "text": text,
            "ttft_s": ttft_s,
            "decode_s": s_per_token * (tokens - 1),
            "total_s": ttft_s + s_per_token * (tokens - 1),
            "prompt_tokens": 40,
            "output_tokens": tokens,
            "finish_reason": "length",
            "pieces": tokens // 2,
            "arrivals": tokens // 2,
            **more,
        }
    )


def live(
    *,
    clients: tuple[int, ...] = (1, 8),
    servers: tuple[str, ...] = (FIRST, AGAINST),
    categories: Mapping[str, float] = CATEGORIES,
    each: int = 6,
    counters: bool = True,
    **changes: Any,
) -> ServerResult:
    """A finished run: the endpoint drafts, and each client more takes away some of its gain."""
    prompts = [(f"{c}-{i}", c) for c in categories for i in range(each)]
    header = ServerBenchHeader(
        **{
            "command": ("paceline", "bench-server", "http://gpu-1:8000"),
            "started": "2026-03-01T12:00:00+00:00",
            "servers": {name: SERVERS[name] for name in servers},
            "workload": {
                "name": "my prompts",
                "licence": "CC0-1.0",
                "sha256": "ab" * 32,
                "prompts": len(prompts),
                "skipped": ["Line 3 is not JSON."],
            },
            "prompts": tuple((id, category, None) for id, category in prompts),
            "fields": {name: {"max_tokens": 60, "temperature": 0.0} for name in servers},
            "sampling": {"temperature": 0.0, "top_p": 1.0, "seed": None},
            "max_tokens": 60,
            "concurrency": clients,
            "patience": {"retries": 4, "total_s": 600.0},
            "client": {"cpu": "A CPU", "cores": 8, "paceline": "0.1.0"},
            **changes,
        }
    )
    result, rng = ServerResult(header), np.random.default_rng(0)
    for block, n in enumerate(clients):
        for server in servers:
            tokens = 0
            for id, category in prompts:
                gain = categories[category] / n**0.15 if server == FIRST else 1.0
                s = 0.02 * n**0.3 / gain * float(rng.uniform(0.9, 1.1))
                one = answer(s, 50, ttft_s=0.05 * n**0.5 * float(rng.uniform(0.8, 1.2)))
                result.asked.append(Asked(server, n, block, id, category, False, one))
                tokens += 50
            counted = _counters(tokens) if counters and server == FIRST else None
            seconds = sum(a.answer.total_s or 0.0 for a in result.of(server, n)) / n
            result.segments.append(
                Segment(
                    server, n, n, block, tuple(categories), len(prompts), seconds, tokens, counted
                )
            )
    return result


def _counters(tokens: int) -> Counters:
    rounds = tokens / 2.5
    return Counters(
        "vLLM",
        drafts=rounds,
        drafted=4 * rounds,
        accepted=1.5 * rounds,
        generated=float(tokens),
        accepted_by_position=(0.7 * rounds, 0.45 * rounds, 0.25 * rounds, 0.1 * rounds),
    )


def written(result: ServerResult, path: Path) -> str:
    with ServerFile.open(path, result.header) as file:
        for (n, id), why in result.left_out.items():
            file.leave_out(n, id, why)
        for one in result.asked:
            file.add(one)
        for segment in result.segments:
            file.add_segment(segment)
    return str(path)
