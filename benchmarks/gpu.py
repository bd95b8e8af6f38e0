"""A GPU's costs, and whether the default policy is ever slower there, in one run of some minutes.

Two models on the transformers engine: a small real one, whose text drafts can be right about, and
one of random weights in the shape of 7B, whose forwards cost what such a model's cost.

    python benchmarks/gpu.py smollm2-135m --minutes 7
"""

from __future__ import annotations

import argparse
from time import monotonic
from typing import Any

import torch
from common import prompts, write
from transformers import LlamaConfig, LlamaForCausalLM

from paceline import create_draft, load, measured_policy
from paceline.bench.local.bench import BenchResult, Configuration, run_bench
from paceline.bench.profile.profile import Timings, costs_key, keep, measure_costs
from paceline.bench.prompts.workload import Workload
from paceline.engines.base import Engine
from paceline.engines.transformers.engine import TransformersEngine
from paceline.errors import PacelineError

SHAPE_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("small")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", type=int, default=SHAPE_7B["num_hidden_layers"])
    parser.add_argument("--hidden", type=int, default=SHAPE_7B["hidden_size"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--minutes", type=float, default=7.0)
    args = parser.parse_args()
    until = monotonic() + 60 * args.minutes
    result: dict[str, Any] = {}
    options = {"engine": "transformers", "device": args.device, "dtype": args.dtype}
    with load(args.small, context_size=1024, max_sequences=8, **options) as engine:
        result["small"] = measured(engine, args.tokens, until - 30 * args.minutes)
        write("gpu", result)
        with shaped_like_7b(engine, args) as large:
            result["shape of 7B"] = measured(large, args.tokens, until)
    write("gpu", result)


def measured(engine: Engine, tokens: int, until: float) -> dict[str, Any]:
    """Costs, then plain against the policy, prompt by prompt until the time is up."""
    samples = Timings()
    measure_costs(engine, samples, sweeps=5)
    costs = samples.costs(costs_key(engine))
    keep(costs)
    table = costs.table()
    print({width: round(float(table[width] / table[1]), 2) for width in (1, 2, 4, 8, 16, 32)})
    drafts = {"lookup": create_draft("lookup", engine)}
    policy = measured_policy(engine, drafts)
    name = "lookup -n auto"
    configurations = [
        Configuration(name, drafts, None, policy=policy.fresh),
        Configuration("lookup -n 7", drafts, 7),
    ]
    whole = BenchResult(
        engine.metadata(), [Configuration("baseline"), *configurations], Workload("", ())
    )
    for prompt in prompts():
        if monotonic() > until:
            break
        try:
            part = run_bench(
                engine, configurations, Workload("suite", (prompt,)), max_tokens=tokens
            )
        except PacelineError as error:
            print(prompt.id, error)
            continue
        whole.runs += part.runs
        print(prompt.id, *(f"{c.name}: {part.comparison(c.name).ratio()}" for c in configurations))
    return {
        "target": engine.metadata(),
        "costs": costs.as_document(),
        "prompts": len({run.prompt.id for run in whole.runs}),
        "speedup": {
            c.name: {
                category or "all": ratio and vars_of(ratio)
                for category in (None, *whole.categories)
                for ratio in [whole.comparison(c.name).ratio(category)]
            }
            for c in configurations
        },
    }


def vars_of(ratio: Any) -> dict[str, Any]:
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def shaped_like_7b(small: Engine, args: argparse.Namespace) -> TransformersEngine:
    """A model of random weights, made on the device itself, with the small one's tokenizer."""
    assert isinstance(small, TransformersEngine)
    loaded = small._loaded
    config = LlamaConfig(
        **{**SHAPE_7B, "num_hidden_layers": args.layers, "hidden_size": args.hidden},
        vocab_size=small.vocabulary_size,
        max_position_embeddings=4096,
        attn_implementation=loaded.model.config._attn_implementation,
        dtype=args.dtype,
    )
    with torch.device(loaded.device):
        torch.set_default_dtype(getattr(torch, args.dtype))
        try:
            model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(torch.float32)
    fork = type(loaded)(model, loaded.tokenizer, args.dtype, "as asked", loaded.device)
    return TransformersEngine(f"random-llama-{args.layers}x{args.hidden}", fork, 1024, 8)


if __name__ == "__main__":
    main()
