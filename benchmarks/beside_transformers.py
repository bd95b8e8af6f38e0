"""Our transformers engine beside transformers' own generate: plain, or both with prompt lookup.

python benchmarks/beside_transformers.py DIRECTORY plain --tokens 48 --dtype bfloat16
python benchmarks/beside_transformers.py DIRECTORY lookup --max-draft-tokens 15 \
    --categories edit,rag
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import interleaved, prompts, write
from transformers import AutoModelForCausalLM

from paceline import StopConditions, create_draft, generate
from paceline.engines.load import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("mode", choices=["baseline", "lookup"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-draft-tokens", type=int, default=15)
    parser.add_argument("--draft", default="lookup:min_match=1,reach=4")
    parser.add_argument("--categories")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    engine = load(args.model, engine="transformers", dtype=args.dtype, context_size=2048)
    draft = create_draft(args.draft, engine) if args.mode == "lookup" else None
    directory = engine.metadata().get("converted_to", args.model)
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, args.dtype)).eval()
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
    if args.mode == "lookup":
        options["prompt_lookup_num_tokens"] = 10  # its users' usual setting

    def ours(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        stop = StopConditions(max_tokens=args.tokens)
        started = perf_counter()
        done = generate(
            engine, tokens, stop=stop, draft=draft, max_draft_tokens=args.max_draft_tokens
        )
        return perf_counter() - started - done.stats.prefill_s, done.tokens

    def their_seconds(tokens: tuple[int, ...], count: int) -> tuple[float, tuple[int, ...]]:
        ids = torch.tensor([tokens])
        started = perf_counter()
        out = peer.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **options
        )
        return perf_counter() - started, tuple(out[0, len(tokens) :].tolist())

    def theirs(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        prefill_s, _ = their_seconds(tokens, 1)
        total_s, emitted = their_seconds(tokens, args.tokens)
        return total_s - prefill_s, emitted

    chosen = prompts(args.categories.split(",") if args.categories else None)
    for side in (ours, theirs):
        side(chosen[0].tokens(engine)[:64])
    result = interleaved(engine, chosen, ours, theirs)
    name = f"transformers-{args.mode}-{args.dtype}-{Path(args.model).name}"
    write(
        name,
        {
            "target": engine.metadata(),
            "draft": args.draft,
            "max_draft_tokens": args.max_draft_tokens,
            **result,
        },
    )
    print(result["ratio"], result["by_category"])


if __name__ == "__main__":
    main()
