"""Many prompts at once on several engines, drafts on: tokens a second, in turns.

The ratio is of the time in which all streams run; a stream that drafts well ends early, and then
there are fewer. The whole time, to the end of the last stream, is told beside it.

python benchmarks/streams.py MODEL.gguf --engines llamacpp,openvino --streams 8
python benchmarks/streams.py MODEL.gguf --engines llamacpp,openvino=EXPORTED_DIR
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from common import label, load_told, prompts, write

from paceline import StopConditions, create_draft
from paceline.bench.profile.measured_policy import measured_policy
from paceline.bench.stats import Pair, speed_ratio
from paceline.decode.generate import fitting_verifier
from paceline.decode.step import Decoder
from paceline.decode.stream import Stream
from paceline.engines.base import Engine
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
    if len(names) < len(args.engines.split(",")):
        raise SystemExit("Each engine can be there once.")
    rows: list[dict[str, Any]] = []
    rng = random.Random(args.seed)
    for turn in range(args.turns):
        seed = rng.random()  # the same prompts for all
        for name in rng.sample(names, len(names)):
            rows.append({"turn": turn, "engine": name, **sides[name].run(seed)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    first, *others = names
    ratios = {
        f"{other} over {first}, {how}": ratio(rows, other, first, key)
        for other in others
        for how, key in (("all streams running", "full_"), ("to the last one's end", ""))
    }
    write(
        f"streams-{args.streams}-{label(sides[names[-1]].engine)}",
        {
            "draft": args.draft,
            "engines": {name: side.engine.metadata() for name, side in sides.items()},
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
        full = 0.0, 0
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
            if len(running) == len(streams):
                full = perf_counter() - read, sum(rounds_of(streams, "emitted"))
        ended = perf_counter()
        return {
            "prompts": [one.id for one in chosen],
            "seconds": ended - read,
            "tokens": sum(rounds_of(streams, "emitted")),
            "full_seconds": full[0],
            "full_tokens": full[1],
            "prefill_s": read - started,
            "proposed": sum(rounds_of(streams, "proposed")),
            "accepted": sum(rounds_of(streams, "accepted")),
        }


def rounds_of(streams: Sequence[Stream], what: str) -> list[int]:
    """A figure of every round but the reading of prompts."""
    return [getattr(r, what) for stream in streams for r in stream.rounds if not r.prefill]


def ratio(rows: list[dict[str, Any]], one: str, other: str, key: str) -> dict[str, Any] | None:
    """How much faster one engine is, over the turns."""
    by_turn: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_turn.setdefault(row["turn"], {})[row["engine"]] = row
    found = speed_ratio(
        [
            Pair(
                turn[other][f"{key}seconds"],
                turn[other][f"{key}tokens"],
                turn[one][f"{key}seconds"],
                turn[one][f"{key}tokens"],
            )
            for turn in by_turn.values()
        ]
    )
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}


if __name__ == "__main__":
    main()
