"""Early exit of the transformers engine: what a draft step costs, what memory it takes, and its
speed beside transformers' own `assistant_early_exit` at the same layer.

python benchmarks/early_exit.py DIRECTORY --dtype float32
python benchmarks/early_exit.py DIRECTORY --exit 15 --max-draft-tokens 4 --tokens 32 \
    --categories edit,json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from common import interleaved, prompts, write
from transformers import AutoModelForCausalLM

from paceline import StopConditions, create_draft, generate
from paceline.bench.machine import peak_memory_bytes
from paceline.engines.base import Job
from paceline.engines.load import load
from paceline.engines.transformers.layers import LayerStack

CONTEXT, REPEATS = 64, 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--exit", type=int, help="the exit layer of the comparison (default: half)")
    parser.add_argument(
        "--max-draft-tokens", type=int, default=4, help="tokens drafted a round, on both sides"
    )
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--categories", default="edit,json,code,chat")
    parser.add_argument("--steps-only", action="store_true", help="costs and memory alone")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    engine = load(args.model, engine="transformers", dtype=args.dtype, context_size=2048)
    stack = LayerStack(args.model, engine.module)
    result: dict[str, Any] = {"target": engine.metadata(), **steps(engine, stack)}
    layers = len(stack.layers)
    if not args.steps_only:
        result["comparison"] = beside_theirs(engine, args, args.exit or layers // 2)
    write(f"early-exit-{args.dtype}-{Path(args.model).name}", result)
    print(result["steps"], result["memory"], result.get("comparison", {}).get("ratio"), sep="\n")


def steps(engine: Any, stack: LayerStack) -> dict[str, Any]:
    """Seconds of one row through the first E layers, in turns with the whole target, against E/L of
    a target pass plus the norm and head."""
    layers = len(stack.layers)
    exits = sorted({1, layers // 8, layers // 4, layers // 2, 3 * layers // 4, layers - 1} - {0})
    trunk = engine.open()
    engine.score([Job(trunk, [token % engine.vocabulary_size for token in range(CONTEXT)])])
    resident, before = resident_bytes(), peak_memory_bytes()
    drafts = {at: create_draft(f"early-exit:layers={at}", engine) for at in exits}
    views = {at: draft.engine.open(trunk) for at, draft in drafts.items()}
    taken: dict[Any, list[float]] = {"target": [], "head": [], **{at: [] for at in exits}}
    states = torch.randn(1, engine.module.config.get_text_config(decoder=True).hidden_size)
    states = states.to(engine.module.device, engine.module.dtype)

    def score(part: Any, sequence: Any) -> None:
        part.score([Job(sequence, [1])])
        sequence.rewind(CONTEXT)

    def read_out() -> None:
        with torch.inference_mode():
            float(stack.read_out(states)[0, 0])

    turns = {"target": lambda: score(engine, trunk), "head": read_out}
    turns |= {at: lambda at=at: score(drafts[at].engine, views[at]) for at in exits}
    for repeat in range(REPEATS + 1):
        for name, turn in turns.items():
            began = perf_counter()
            turn()
            if repeat:  # the first warms up
                taken[name].append(perf_counter() - began)
    memory = {
        "weights_bytes": engine.metadata()["weights_bytes"],
        "resident_grown_bytes": resident_bytes() - resident,
        "peak_grown_bytes": (peak_memory_bytes() or 0) - (before or 0),
    }
    memory["grown_over_weights"] = memory["resident_grown_bytes"] / memory["weights_bytes"]
    trunk.close()
    whole, head = median(taken["target"]), median(taken["head"])
    rows = []
    for at in exits:
        expected = whole * at / layers + head
        rows.append(
            {
                "exit_layer": at,
                "step_s": median(taken[at]),
                "expected_s": expected,
                "over_expected": median(taken[at]) / expected,
                "over_target": median(taken[at]) / whole,
            }
        )
    return {"target_s": whole, "head_s": head, "layers": layers, "steps": rows, "memory": memory}


def resident_bytes() -> int:
    """What the process holds in memory now; Linux only."""
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


def beside_theirs(engine: Any, args: argparse.Namespace, exit_at: int) -> dict[str, Any]:
    """The same prompts, greedy, both with the same exit and a constant number of drafted tokens."""
    draft = create_draft(f"early-exit:layers={exit_at}", engine)
    directory = engine.metadata().get("converted_to", args.model)
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, args.dtype)).eval()
    peer.generation_config.num_assistant_tokens = args.max_draft_tokens
    peer.generation_config.num_assistant_tokens_schedule = "constant"
    peer.generation_config.assistant_confidence_threshold = 0.0
    accepted = [0, 0]

    def ours(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        stop = StopConditions(max_tokens=args.tokens)
        began = perf_counter()
        done = generate(
            engine, tokens, stop=stop, draft=draft, max_draft_tokens=args.max_draft_tokens
        )
        accepted[0] += done.stats.accepted
        accepted[1] += done.stats.proposed
        return perf_counter() - began - done.stats.prefill_s, done.tokens

    def their_seconds(tokens: tuple[int, ...], count: int) -> tuple[float, tuple[int, ...]]:
        ids = torch.tensor([tokens], device=peer.device)
        began = perf_counter()
        out = peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            assistant_early_exit=exit_at,
        )
        return perf_counter() - began, tuple(out[0, len(tokens) :].tolist())

    def theirs(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        prefill_s, _ = their_seconds(tokens, 1)
        total_s, emitted = their_seconds(tokens, args.tokens)
        return total_s - prefill_s, emitted

    chosen = prompts(args.categories.split(",") if args.categories else None)
    for side in (ours, theirs):
        side(chosen[0].tokens(engine)[:64])
    accepted[:] = [0, 0]
    result = interleaved(engine, chosen, ours, theirs)
    return {
        "exit_layer": exit_at,
        "max_draft_tokens": args.max_draft_tokens,
        "tokens": args.tokens,
        "our_acceptance": accepted[0] / max(1, accepted[1]),
        **result,
    }


if __name__ == "__main__":
    main()
