"""Ordinary decoding: our llama.cpp engine beside llama-cpp-python's own Llama.generate, same build.

python benchmarks/plain_llamacpp.py qwen2.5-coder-1.5b --tokens 48
"""

from __future__ import annotations

import argparse
from itertools import islice
from time import perf_counter

from common import interleaved, prompts, write
from llama_cpp import Llama

from paceline import StopConditions, generate
from paceline.engines.load import load, resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--categories")
    args = parser.parse_args()
    path = resolve(args.model)
    engine = load(path, engine="llamacpp", context_size=2048)
    threads = engine.metadata()["threads"]
    peer = Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

    def ours(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        stop = StopConditions(max_tokens=args.tokens, ignore_end=True)
        started = perf_counter()
        done = generate(engine, tokens, stop=stop)
        return perf_counter() - started - done.stats.prefill_s, done.tokens

    def theirs(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        stream = peer.generate(list(tokens), temp=0.0, repeat_penalty=1.0, reset=True)
        first = next(stream)
        started = perf_counter()
        rest = list(islice(stream, args.tokens - 1))
        return perf_counter() - started, (first, *rest)

    chosen = prompts(args.categories.split(",") if args.categories else None)
    for side in (ours, theirs):
        side(chosen[0].tokens(engine)[:64])
    result = interleaved(engine, chosen, ours, theirs)
    write(f"plain-llamacpp-{args.model}", {"target": engine.metadata(), **result})
    print(result["ratio"])


if __name__ == "__main__":
    main()
