"""Time of a round outside forwards, on real logits: vocabulary 151,936, width 8.

The logits of a real text are scored once and replayed, and the draft offers the text itself, so
that all eight rows are worked out, as they are when a draft is right.

    python benchmarks/round_overhead.py qwen2.5-coder-1.5b
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

import numpy as np
from common import prompts, write

from paceline import Draft, Proposal, Sampling, StopConditions, create_draft, generate, load
from paceline.engines.base import Engine, Job
from paceline.sampling.processors import distribution_of
from paceline.testing import ToyEngine
from paceline.verify.block import BlockVerifier

WIDTH = 8


class ReplayEngine(ToyEngine):
    """Gives rows that were scored before, by position."""

    def __init__(self, real: Engine, rows: np.ndarray, start: int) -> None:
        super().__init__(rows.shape[1], context_size=10_000)
        self.tokenizer, self._scored, self._start = real.tokenizer, rows, start

    def _score(self, jobs: Sequence[Job]) -> list[np.ndarray]:
        found = []
        for job in jobs:
            end = job.sequence.length + len(job.tokens) - self._start
            found.append(self._scored[np.arange(end - job.rows, end) % len(self._scored)])
        return found


class Told(Draft):
    """Offers the most likely tokens of the replayed rows; sampled, it tells their distributions."""

    name = summary = "told"

    def __init__(self, rows: np.ndarray, start: int, sampling: Sampling, sampled: bool) -> None:
        best = [int(row.argmax()) for row in rows]
        distributions = [distribution_of(row, sampling) for row in rows] if sampled else None
        self.best, self.distributions, self.start = best, distributions, start

    def propose(self, contexts: Any, limits: Any) -> list[Proposal]:
        first = len(contexts[0].history) - 1 - self.start
        places = [(first + i) % len(self.best) for i in range(limits[0])]
        distributions = (
            None
            if self.distributions is None
            else tuple(self.distributions[place] for place in places)
        )
        return [Proposal(tuple(self.best[place] for place in places), self.name, distributions)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    args = parser.parse_args()
    prompt, rows, engine = real_rows(args.model)
    start = len(prompt) - 1
    sampled = Sampling(temperature=0.8, top_p=0.95, seed=1)
    cases = {
        "greedy": (Sampling(), None, False),
        "temperature 0.8, top-p 0.95": (sampled, None, False),
        "temperature 0.8, top-p 0.95, block, sampled draft": (sampled, BlockVerifier(), True),
        "temperature 0.8": (Sampling(temperature=0.8, seed=1), None, False),
        "temperature 0.8, top-p 0.95, repetition penalty 1.1": (
            Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=1),
            None,
            False,
        ),
    }
    result = {}
    for name, (sampling, verifier, distributions) in cases.items():
        done = generate(
            ReplayEngine(engine, rows, start),
            prompt,
            draft=Told(rows, start, sampling, distributions),
            max_draft_tokens=WIDTH - 1,
            sampling=sampling,
            verifier=verifier,
            stop=StopConditions(max_tokens=600, ignore_end=True),
        )
        result[name] = summary(done.rounds)
        print(name, result[name])
    draft = create_draft("lookup", engine)
    replay = ReplayEngine(engine, rows, start)
    done = generate(
        replay,
        prompt,
        draft=draft,
        max_draft_tokens=WIDTH - 1,
        stop=StopConditions(max_tokens=600, ignore_end=True),
    )
    taken = [1e3 * r.draft_s for r in done.rounds if not r.prefill]
    result["lookup, proposing and observing"] = {"median_ms": median(taken), "rounds": len(taken)}
    print(result["lookup, proposing and observing"])
    write("round-overhead", {"width": WIDTH, "vocabulary_size": rows.shape[1], "cases": result})


def real_rows(model: str) -> tuple[tuple[int, ...], np.ndarray, Engine]:
    """64 rows of what the model says to an edit prompt."""
    engine = load(model, context_size=1024)
    prompt = prompts(["edit"])[0].tokens(engine)
    answer = generate(engine, prompt, stop=StopConditions(max_tokens=64, ignore_end=True)).tokens
    [rows] = engine.score([Job(engine.open(), [*prompt, *answer[:-1]], 64)])
    return prompt, np.array(np.asarray(rows)), engine


def summary(rounds: Any) -> dict[str, Any]:
    full = [r for r in rounds if not r.prefill and r.width == WIDTH]
    taken = [1e3 * r.other_s for r in full]
    return {
        "median_ms": median(taken),
        "p90_ms": quantiles(taken, n=10)[-1],
        "rounds": len(taken),
        "tokens_per_round": sum(r.emitted for r in full) / len(full),
    }


if __name__ == "__main__":
    main()
