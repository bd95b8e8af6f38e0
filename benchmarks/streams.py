"""Many prompts at once on several engines, drafts on: tokens a second, in turns.

python benchmarks/streams.py MODEL.gguf --engines llamacpp,openvino --streams 8
python benchmarks/streams.py MODEL.gguf --engines llamacpp,openvino=EXPORTED_DIR
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from common import load_told, prompts, write

from paceline import StopConditions, create_draft
from paceline.decode.generate import fitting_verifier
from paceline.decode.step import Decoder
from paceline.engines.base import Engine
from paceline.measure.adaptive import measured_policy
from paceline.measure.stats import Pair, speed_ratio
from paceline.types import Request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--engines", default="llamacpp,openvino")
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sides = {told.partition("=")[0]: Side(args, told) for told in args.engines.split(",")}
    names = list(sides)
    rows: list[dict[str, Any]] = []
    chance = random.Random(args.seed)
    for turn in range(args.turns):
        seed = chance.random()  # the same prompts for all
        for name in chance.sample(names, len(names)):
            rows.append({"turn": turn, "engine": name, **sides[name].run(seed)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    first, *others = names
    ratios = {f"{other} over {first}": ratio(rows, other, first) for other in others}
    write(
        f"streams-{args.streams}-{Path(sides[names[-1]].engine.model).stem.lower()}",
        {
            "draft": args.draft,
            "engines": {name: side.engine.facts() for name, side in sides.items()},
            "ratios": ratios,
            "rows": rows,
        },
    )
    print(ratios)


class Side:
    """One engine with its drafts and the policy's costs."""

    def __init__(self, args: argparse.Namespace, told: str) -> None:
        self.args = args
        self.engine: Engine = load_told(
            args.model, told, context_size=1024, max_sequences=args.streams
        )
        draft = create_draft(args.draft, self.engine)
        self.drafts = {draft.name: draft}
        self.policy = measured_policy(self.engine, self.drafts)

    def run(self, seed: float) -> dict[str, Any]:
        """All streams from prompt to end; the reading of prompts apart."""
        chosen = random.Random(seed).sample(prompts(), self.args.streams)
        stop = StopConditions(max_tokens=self.args.tokens, ignore_end=True)
        decoder = Decoder(self.engine, self.drafts, fitting_verifier(self.drafts), self.policy)
        streams = [
            decoder.open(Request(prompt=one.tokens(self.engine), stop=stop)) for one in chosen
        ]
        started = perf_counter()
        decoder.step(streams)  # reads the prompts
        read = perf_counter()
        while running := [stream for stream in streams if not stream.finished]:
            decoder.step(running)
        ended = perf_counter()
        rounds = [round for stream in streams for round in stream.rounds if not round.prefill]
        return {
            "prompts": [one.id for one in chosen],
            "seconds": ended - read,
            "prefill_s": read - started,
            "tokens": sum(r.emitted for r in rounds),
            "proposed": sum(r.proposed for r in rounds),
            "accepted": sum(r.accepted for r in rounds),
        }


def ratio(rows: list[dict[str, Any]], one: str, other: str) -> dict[str, Any] | None:
    """How much faster one engine is, over the turns."""
    by_turn: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_turn.setdefault(row["turn"], {})[row["engine"]] = row
    found = speed_ratio(
        [
            Pair(
                turn[other]["seconds"],
                turn[other]["tokens"],
                turn[one]["seconds"],
                turn[one]["tokens"],
            )
            for turn in by_turn.values()
        ]
    )
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}


if __name__ == "__main__":
    main()
