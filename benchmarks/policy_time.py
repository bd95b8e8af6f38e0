"""The policy's own time a round: learning from the last one, previews, and the choice.

Three sources (two lookups and a priced model), one sequence and eight, on a toy engine whose text
repeats itself; costs are recorded ones.

    python benchmarks/policy_time.py
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np
from common import write

from paceline import Request, Sampling, StopConditions
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.costs import Costs, Feed, Point
from paceline.policy.live import LiveCosts
from paceline.types import Choice
from paceline.verify.chain import ChainVerifier

CASES = {"the model pays": 0.01, "the model can't pay": 0.5}


def main() -> None:
    result = {}
    for case, draft_s in CASES.items():
        for sequences in (1, 8):
            taken = [1e3 * s for s in seconds(sequences, draft_s)]
            name = f"{case}, {sequences} sequence{'s' * (sequences > 1)}"
            result[name] = {
                "median_ms": median(taken),
                "p90_ms": quantiles(taken, n=10)[-1],
                "rounds": len(taken),
            }
            print(name, result[name])
    write("policy-time", {"sources": 3, "cases": result})


class TimedPolicy:
    """A policy whose calls are timed."""

    def __init__(self, policy: MeasuredPolicy) -> None:
        self._policy, self.looks_at = policy, policy.looks_at
        self.taken: list[float] = []

    def __call__(self, streams: Sequence[Any]) -> list[Choice]:
        started = perf_counter()
        choices = self._policy(streams)
        self.taken.append(perf_counter() - started)
        return choices


def seconds(sequences: int, draft_s: float) -> list[float]:
    engine = toy(3.0)
    drafts = {
        "lookup": LookupDraft(),
        "lookup:min_match=2": LookupDraft(min_match=2),
        "model": ModelDraft(toy(2.5), engine),
    }
    costs = line(0.02, 0.001, drafts={"model": line(draft_s, 0.0005)})
    sources = [
        Source(name, d.previewable, d.has_confidence, costs.drafts.get(name))
        for name, d in drafts.items()
    ]
    timed = TimedPolicy(MeasuredPolicy(LiveCosts(costs), sources, say=lambda _: None))
    requests = [
        Request(
            prompt=tuple(np.random.default_rng(number).integers(0, 16, 50).tolist()),
            sampling=Sampling(temperature=0.6, seed=number),
            stop=StopConditions(max_tokens=600, ignore_end=True),
        )
        for number in range(sequences)
    ]
    decode(Decoder(engine, drafts, ChainVerifier(), timed), requests)
    return timed.taken[5:]


def toy(sharpness: float) -> ToyEngine:
    return ToyEngine(16, seed=3, order=2, context_size=2000, max_sequences=8, sharpness=sharpness)


def line(base_s: float, row_s: float, **options: Any) -> Costs:
    points = [
        Point(n * w, n, 64, base_s + row_s * n * w)
        for n in (1, 2, 4, 8)
        for w in (1, 2, 4, 8, 16, 33)
    ]
    feeds = (Feed(1, base_s + row_s), Feed(128, base_s + 128 * row_s))
    return Costs(key={"model": "toy"}, points=tuple(points), feeds=feeds, **options)


if __name__ == "__main__":
    main()
