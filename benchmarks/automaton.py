"""The suffix automaton: seconds and memory to index 128k tokens, microseconds a token after that.

python benchmarks/automaton.py
"""

from __future__ import annotations

import random
import tracemalloc
from time import perf_counter

from common import write

from paceline.drafts.automaton import SuffixAutomaton

LENGTH, MORE = 128_000, 5_000


def texts() -> dict[str, list[int]]:
    source = random.Random(1)
    words = [[source.randrange(50_000) for _ in range(source.randint(1, 6))] for _ in range(3000)]
    natural: list[int] = []
    while len(natural) < LENGTH + MORE:
        natural += words[int(source.paretovariate(0.7)) % 3000]
    return {
        "words of 1 to 6 tokens, Zipf-like": natural[: LENGTH + MORE],
        "random tokens": [source.randrange(50_000) for _ in range(LENGTH + MORE)],
        "a page repeated": (list(range(500)) * 300)[: LENGTH + MORE],
        "one token": [1] * (LENGTH + MORE),
    }


def main() -> None:
    result = {}
    for name, tokens in texts().items():
        prompt, rest = tokens[:LENGTH], tokens[LENGTH:]
        tracemalloc.start()
        automaton = SuffixAutomaton(prompt)
        memory, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del automaton
        started = perf_counter()
        automaton = SuffixAutomaton(prompt)
        index_s = perf_counter() - started
        started = perf_counter()
        for token in rest:
            automaton.extend((token,))
            automaton.continuation(16)
        result[name] = {
            "index_s": index_s,
            "memory_mb": memory / 1e6,
            "peak_mb": peak / 1e6,
            "us_per_token_after": 1e6 * (perf_counter() - started) / len(rest),
        }
        print(name, result[name])
    write("automaton", {"tokens": LENGTH, "texts": result})


if __name__ == "__main__":
    main()
