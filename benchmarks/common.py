"""What the benchmarks share: prompts, a peer's side of an interleaved pair, results as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.bench.machine import machine_metadata
from paceline.bench.prompts.formats import find_workload
from paceline.bench.prompts.workload import WorkloadPrompt
from paceline.bench.stats import Pair, speed_ratio
from paceline.engines.base import Engine
from paceline.engines.load import load

HERE = Path(__file__).parent
SUITE = HERE / "data" / "suite.jsonl"
RESULTS = HERE / "results"

Timed = Callable[[tuple[int, ...]], tuple[float, tuple[int, ...]]]
"""Decodes a prompt; gives decode seconds (the prefill apart) and the emitted tokens."""


def prompts(categories: Sequence[str] | None = None) -> list[WorkloadPrompt]:
    """The prompt suite: 14 prompts in 8 categories, or those of some categories."""
    every = find_workload(str(SUITE)).prompts
    return [p for p in every if categories is None or p.category in categories]


def load_told(model: str, told: str, **options: Any) -> Engine:
    """`ENGINE` on the model, or `ENGINE=MODEL` on another form of the same weights."""
    name, _, other = told.partition("=")
    return load(other or model, engine=name, **options)


def label(engine: Engine) -> str:
    """A model's name, for the name of a file of results."""
    return Path(engine.model).name.removesuffix(".gguf").lower()


def interleaved(
    engine: Engine,
    chosen: Sequence[WorkloadPrompt],
    ours: Timed,
    theirs: Timed,
) -> dict[str, Any]:
    """Both sides on every prompt in turns, the first one alternating. The ratio is theirs over
    ours: above 1 we are faster."""
    rows = []
    for number, prompt in enumerate(chosen):
        tokens = prompt.tokens(engine)
        sides = {"ours": ours, "theirs": theirs}
        order = ["ours", "theirs"] if number % 2 else ["theirs", "ours"]
        got = {side: sides[side](tokens) for side in order}
        rows.append(
            {
                "id": prompt.id,
                "category": prompt.category,
                "same_tokens": got["ours"][1] == got["theirs"][1],
                **{f"{side}_s": seconds for side, (seconds, _) in got.items()},
                # the first token belongs to the prefill
                **{f"{side}_tokens": len(emitted) - 1 for side, (_, emitted) in got.items()},
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {
        "rows": rows,
        "ratio": ratio_of(rows),
        "by_category": {
            c: ratio_of([r for r in rows if r["category"] == c])
            for c in dict.fromkeys(r["category"] for r in rows)
        },
    }


def ratio_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    pairs = [Pair(r["theirs_s"], r["theirs_tokens"], r["ours_s"], r["ours_tokens"]) for r in rows]
    ratio = speed_ratio(pairs)
    return None if ratio is None else {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def write(name: str, document: dict[str, Any]) -> None:
    """A result with the machine's facts, the command and the commit beside it."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=HERE,
        text=True,
        capture_output=True,
        check=False,
    ).stdout.strip()
    whole = {
        "benchmark": name,
        "command": ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]],
        "commit": commit,
        "machine": machine_metadata(),
        **document,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
