"""What a round takes outside forward and draft, on each engine, while it decodes; and, of the
OpenVINO engine, the time it takes to put a forward's inputs in place, which is part of its forward.

    python benchmarks/engine_overhead.py MODEL.gguf --engines llamacpp,openvino
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from common import prompts, write

from paceline import Sampling, StopConditions, create_draft, generate, load
from paceline.decode.generate import fitting_verifier
from paceline.decode.round import fixed
from paceline.decode.step import Decoder
from paceline.engines.base import Engine
from paceline.types import Request

SAMPLINGS = {
    "greedy": Sampling(),
    "temperature 0.8, top-p 0.95": Sampling(temperature=0.8, top_p=0.95, seed=1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--engines", default="llamacpp,openvino")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--streams", type=int, default=8)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for name in args.engines.split(","):
        with load(args.model, engine=name, context_size=1024, max_sequences=args.streams) as engine:
            found[name] = {
                "metadata": engine.metadata(),
                "round_outside_forward_and_draft_ms": rounds(engine, args.tokens),
            }
            if name == "openvino":
                found[name]["inputs_ms"] = inputs(engine, args.streams, args.tokens)
            model = Path(engine.model).stem.lower()
        print(name, {key: value for key, value in found[name].items() if key != "metadata"})
    write(f"engine-overhead-{model}", {"engines": found})


def rounds(engine: Engine, tokens: int) -> dict[str, Any]:
    """Milliseconds of rounds of one prompt with lookup, up to 7 drafted tokens."""
    prompt = prompts(["edit"])[0].tokens(engine)
    stop = StopConditions(max_tokens=tokens, ignore_end=True)
    found = {}
    for name, sampling in SAMPLINGS.items():
        draft = create_draft("lookup:min_match=1", engine)
        done = generate(
            engine, prompt, draft=draft, max_draft_tokens=7, sampling=sampling, stop=stop
        )
        found[name] = told([r.other_s for r in done.rounds if not r.prefill])
    return found


def inputs(engine: Any, streams: int, tokens: int) -> dict[str, Any]:
    """Milliseconds to fill the inputs of forwards of many sequences."""
    given = engine._graphs.any_rows.inputs
    fill, taken = given.fill, []

    def timed(segments: Any) -> Any:
        started = perf_counter()
        rows = fill(segments)
        taken.append((len(segments), perf_counter() - started))
        return rows

    given.fill = timed
    try:
        drafts = {"lookup": create_draft("lookup:min_match=1", engine)}
        decoder = Decoder(engine, drafts, fitting_verifier(drafts), fixed("lookup", 3))
        stop = StopConditions(max_tokens=tokens, ignore_end=True)
        chosen = random.Random(1).sample(prompts(), streams)
        running = [decoder.open(Request(prompt=p.tokens(engine)[:128], stop=stop)) for p in chosen]
        while running := [stream for stream in running if not stream.finished]:
            decoder.step(running)
    finally:
        given.fill = fill
    return told([seconds for sequences, seconds in taken if sequences == streams])


def told(seconds: list[float]) -> dict[str, Any]:
    return {
        "median": 1e3 * median(seconds),
        "p90": 1e3 * quantiles(seconds, n=10)[-1],
        "count": len(seconds),
    }


if __name__ == "__main__":
    main()
