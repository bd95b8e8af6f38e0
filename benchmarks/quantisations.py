"""One model in several types of weights, decoded without a draft and under the policy: which type
is fastest, and which gains most from drafting?

    python benchmarks/quantisations.py MODEL.gguf --types Q4_0,Q4_K_M,Q8_0

The types are made from the file by the llama-quantize of ik-llama-cpp-python, and removed again. A
type made from fewer bits than it has is no better than its source: this measures speed, not
quality. Prompts are decoded by each type in turns.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import prompts, write

from paceline import StopConditions, create_draft
from paceline.bench.profile.measured_policy import measured_policy
from paceline.bench.profile.profile import costs_for
from paceline.bench.stats import Pair, speed_ratio
from paceline.decode.generate import generate
from paceline.engines.base import Engine
from paceline.engines.load import load, resolve

WIDTHS = (1, 2, 3, 4, 6, 8, 16)


def requantised(source: Path, kind: str, folder: Path) -> Path:
    """The file in another type of weights."""
    from ik_llama_cpp import find_quantize_bin

    program = find_quantize_bin()
    if program is None:
        raise SystemExit("ik-llama-cpp-python has no llama-quantize here.")
    made = folder / f"{kind}.gguf"
    command = [str(program), "--allow-requantize", str(source), str(made), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not made.is_file():
        raise SystemExit(f"llama-quantize can't make {kind}: {done.stderr.strip()[-300:]}")
    return made


class Side:
    """A type of weights, loaded, with its lookup and costs."""

    def __init__(self, kind: str, engine: Engine, args: argparse.Namespace) -> None:
        self.kind, self.engine = kind, engine
        draft = create_draft(args.draft, engine)
        self.drafts = {draft.name: draft}
        self.policy = measured_policy(engine, self.drafts)
        self.stop = StopConditions(max_tokens=args.tokens)

    def decode(self, tokens: tuple[int, ...], *, drafted: bool) -> dict[str, Any]:
        """Seconds and tokens of an answer, the prompt's reading apart."""
        how = {"draft": self.drafts, "policy": self.policy} if drafted else {"draft": None}
        done = generate(self.engine, tokens, stop=self.stop, **how)
        return {"seconds": done.stats.decode_s, "tokens": len(done.tokens) - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--types", default="Q4_0,Q4_K_M,Q5_K_M,Q6_K,Q8_0")
    parser.add_argument("--engine", default="ik")
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--categories")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    source = Path(resolve(args.model))
    rng, rows = random.Random(args.seed), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = []
        for kind in args.types.split(","):
            file = requantised(source, kind, folder)
            engine = stack.enter_context(load(str(file), engine=args.engine, context_size=2048))
            sides.append(Side(kind, engine, args))
        for prompt in prompts(args.categories.split(",") if args.categories else None):
            turns = [(side, drafted) for side in sides for drafted in (False, True)]
            for side, drafted in rng.sample(turns, len(turns)):
                got = side.decode(prompt.tokens(side.engine), drafted=drafted)
                row = {"prompt": prompt.id, "category": prompt.category, "type": side.kind}
                rows.append({**row, "drafted": drafted, **got})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        told = {side.kind: summary(side, rows) for side in sides}
    write(f"quantisations-{args.engine}-{label_of(source)}", {"types": told, "rows": rows})
    for kind, figures in told.items():
        print(kind, json.dumps(figures))


def label_of(source: Path) -> str:
    """The model's name without its type's, for the name of a file of results."""
    return source.name.removesuffix(".gguf").lower()


def summary(side: Side, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens a second without and with drafts, the speedup, and what rows cost."""
    mine = {
        drafted: [r for r in rows if r["type"] == side.kind and r["drafted"] is drafted]
        for drafted in (False, True)
    }
    rate = {
        drafted: sum(r["tokens"] for r in found) / sum(r["seconds"] for r in found)
        for drafted, found in mine.items()
    }
    pairs = [
        Pair(ordinary["seconds"], ordinary["tokens"], drafted["seconds"], drafted["tokens"])
        for ordinary in mine[False]
        for drafted in mine[True]
        if drafted["prompt"] == ordinary["prompt"]
    ]
    ratio, table = speed_ratio(pairs), costs_for(side.engine).table()
    return {
        "tokens_per_second": round(rate[False], 2),
        "drafted_tokens_per_second": round(rate[True], 2),
        "speedup": None if ratio is None else [ratio.value, ratio.low, ratio.high],
        "forward_ms": {w: round(table[w] * 1e3, 1) for w in WIDTHS if w < len(table)},
        "weights_bytes": side.engine.metadata()["weights_bytes"],
    }


if __name__ == "__main__":
    main()
