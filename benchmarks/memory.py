"""Peak memory of decoding beside weights, cache and one round's rows.

python benchmarks/memory.py qwen2.5-coder-1.5b
python benchmarks/memory.py DIRECTORY --engine transformers --dtype float32
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

from common import prompts, write

from paceline import StopConditions, create_draft, generate, load

LIMIT = 7


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--engine")
    parser.add_argument("--dtype")
    parser.add_argument("--context", type=int, default=4096)
    args = parser.parse_args()
    if args.engine == "transformers":
        import torch  # noqa: F401  its own libraries are not what is measured
        import transformers  # noqa: F401
    else:
        import llama_cpp  # noqa: F401
    before = resident_bytes()
    engine = load(args.model, engine=args.engine, context_size=args.context, dtype=args.dtype)
    draft = create_draft("lookup", engine)
    prompt = [t for p in prompts() for t in p.tokens(engine)][: args.context - 100]
    done = generate(
        engine,
        prompt,
        draft=draft,
        max_draft_tokens=LIMIT,
        stop=StopConditions(max_tokens=32, ignore_end=True),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    metadata = engine.metadata()
    rows = (LIMIT + 1) * engine.vocabulary_size * 4
    expected = metadata["weights_bytes"] + metadata["cache_bytes"] + rows
    result = {
        "prompt_tokens": done.prompt_tokens,
        "before_bytes": before,
        "peak_bytes": peak,
        "weights_bytes": metadata["weights_bytes"],
        "cache_bytes": metadata["cache_bytes"],
        "rows_bytes": rows,
        "peak_over_expected": (peak - before) / expected,
    }
    print(result)
    engine_name = metadata["engine"]
    write(f"memory-{engine_name}-{Path(args.model).name}", {"target": metadata, **result})


if __name__ == "__main__":
    main()
