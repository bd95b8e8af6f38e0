"""Our drafts inside transformers' generate, beside ordinary decoding and its own prompt lookup.

python benchmarks/inside_transformers.py DIRECTORY --tokens 96 --dtype bfloat16
python benchmarks/inside_transformers.py DIRECTORY --draft lookup --sample --categories edit,rag

Each prompt goes through all three, in turn and in another order each time. Seconds are from the
first token on. Policies and costs live on from prompt to prompt, as they would in use; `--repeat`
runs the prompts more than once.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from common import prompts, write
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from paceline.bench.stats import Pair, speed_ratio
from paceline.engines.transformers.engine import TransformersEngine
from paceline.integrations.transformers import DRAFTS, paceline_drafts

SIDES = ("baseline", "ours", "lookup")


class Clock(BaseStreamer):
    """When tokens came. The first call brings the prompt."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: Any) -> None:  # noqa: ARG002
        self.at.append(perf_counter())

    def end(self) -> None:
        self.ended = perf_counter()

    @property
    def decode_s(self) -> float:
        return self.ended - self.at[1]

    @property
    def rounds(self) -> int:
        return len(self.at) - 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a transformers model directory")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--draft", default=",".join(DRAFTS), help="several: with commas between")
    parser.add_argument(
        "--max-draft-tokens", type=int, help="always offer so many; default: the policy"
    )
    parser.add_argument("--share", action="store_true", help="counts live on, too")
    parser.add_argument("--sample", action="store_true", help="temperature 0.7, top-p 0.95")
    parser.add_argument("--categories")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    reader = TransformersEngine.load_tokenizer(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    model.eval()
    drafts = paceline_drafts(
        args.draft.split(","), max_draft_tokens=args.max_draft_tokens, share=args.share
    )
    options: dict[str, Any] = {"max_new_tokens": args.tokens, "pad_token_id": 0}
    sampled = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "top_k": 0}
    options |= sampled if args.sample else {"do_sample": False}
    more: dict[str, dict[str, Any]] = {
        "baseline": {},
        "ours": {"custom_generate": drafts},
        "lookup": {"prompt_lookup_num_tokens": 10},  # its users' usual setting
    }

    def run(side: str, tokens: Sequence[int], **changed: Any) -> dict[str, Any]:
        ids, clock = torch.tensor([tokens]), Clock()
        torch.manual_seed(0)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=clock,
            **(options | more[side] | changed),
        )
        found = {"text": out[0, len(tokens) :].tolist(), "rounds": clock.rounds}
        found["s"] = clock.decode_s
        if side == "ours":
            found["draft_s"] = drafts.stats.draft_s
        return found

    chosen = prompts(args.categories.split(",") if args.categories else None)
    for side in SIDES:
        run(side, chosen[0].tokens(reader)[:64], max_new_tokens=16)
    order, rows = random.Random(1), list[dict[str, Any]]()
    for number in range(args.repeat):
        for prompt in chosen:
            tokens = prompt.tokens(reader)
            got = {side: run(side, tokens) for side in order.sample(SIDES, len(SIDES))}
            rows.append(row(prompt.id, prompt.category, number, got))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    name = f"inside-transformers-{args.dtype}-{Path(args.model).name}"
    found = {"all": summary(rows)}
    for category in dict.fromkeys(r["category"] for r in rows):
        found[category] = summary([r for r in rows if r["category"] == category])
    settings = {key: str(value) for key, value in vars(args).items()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    write(name, {"settings": settings, "versions": versions, "rows": rows, "found": found})
    print(f"{'':12}{'times baseline':20}{'its own lookup':20}tokens per round, both")
    for category, values in found.items():
        ours, theirs = shown(values["ours_speedup"]), shown(values["lookup_speedup"])
        rounds = f"{values['ours_tokens_per_round']:.2f} {values['lookup_tokens_per_round']:.2f}"
        print(f"{category:12}{ours:20}{theirs:20}{rounds}")


def row(name: str, category: str, number: int, got: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"id": name, "category": category, "repeat": number}
    for side, run in got.items():
        # the first token belongs to the prefill
        made |= {f"{side}_s": run["s"], f"{side}_tokens": len(run["text"]) - 1}
        made[f"{side}_rounds"] = run["rounds"]
        if side != "baseline":
            made[f"{side}_same_text"] = run["text"] == got["baseline"]["text"]
    made["ours_draft_ms_per_round"] = 1e3 * got["ours"]["draft_s"] / max(1, got["ours"]["rounds"])
    return made


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speedup of both, and of ours over theirs, with intervals."""

    def ratio(base: str, side: str) -> list[float | None] | None:
        pairs = [
            Pair(r[f"{base}_s"], r[f"{base}_tokens"], r[f"{side}_s"], r[f"{side}_tokens"])
            for r in rows
        ]
        found = speed_ratio(pairs)
        return None if found is None else [found.value, found.low, found.high]

    def per_round(side: str) -> float:
        return sum(r[f"{side}_tokens"] for r in rows) / max(
            1, sum(r[f"{side}_rounds"] for r in rows)
        )

    return {
        "ours_speedup": ratio("baseline", "ours"),
        "lookup_speedup": ratio("baseline", "lookup"),
        "ours_times_lookup": ratio("lookup", "ours"),
        "ours_tokens_per_round": per_round("ours"),
        "lookup_tokens_per_round": per_round("lookup"),
        "ours_same_text": sum(r["ours_same_text"] for r in rows) / len(rows),
        "lookup_same_text": sum(r["lookup_same_text"] for r in rows) / len(rows),
    }


def shown(ratio: list[float | None] | None) -> str:
    if ratio is None:
        return "-"
    value, low, high = ratio
    return f"{value:.2f}" if low is None else f"{value:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
