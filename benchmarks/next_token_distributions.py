"""How far apart two engines' next-token distributions are on the same weights: nats a token, on
the prompt suite.

    python benchmarks/next_token_distributions.py MODEL.gguf llamacpp openvino
    python benchmarks/next_token_distributions.py MODEL.gguf openvino:strict openvino

The first is held for the truth: KL(first ‖ other), before temperature, at every token of the
prompts. After a colon an engine may be told the precision to compute in.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from common import prompts, write

from paceline.engines.base import Engine, Job
from paceline.engines.load import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("truth")
    parser.add_argument("other")
    parser.add_argument("--tokens", type=int, default=256, help="of each prompt, at most")
    args = parser.parse_args()
    truth, other = (engine_as_told(args.model, told) for told in (args.truth, args.other))
    nats, first, agree = [], [], []
    for prompt in prompts():
        text = prompt.tokens(truth)[: args.tokens]
        if text != prompt.tokens(other)[: args.tokens]:
            raise SystemExit(f"The tokenizers cut {prompt.id} differently.")
        p, q = log_distributions(truth, text), log_distributions(other, text)
        each = (np.exp(p) * (p - q)).sum(-1)
        first.append(each[0])
        nats.append(each[1:])
        agree.append(p[1:].argmax(-1) == q[1:].argmax(-1))
    later = np.concatenate(nats)
    result = {
        "tokens": int(later.size),
        "mean_nats": float(later.mean()),
        "median_nats": float(np.median(later)),
        "largest_nats": float(later.max()),
        "first_token_mean_nats": float(np.mean(first)),  # some engines round it worse
        "same_argmax": float(np.concatenate(agree).mean()),
    }
    name = f"distributions-{args.truth}-{args.other}-{Path(truth.model).stem.lower()}".replace(
        ":", "-"
    )
    write(name, {"truth": truth.metadata(), "other": other.metadata(), **result})
    print(result)


def engine_as_told(model: str, told: str) -> Engine:
    name, _, precision = told.partition(":")
    options = {"precision": precision} if precision else {}
    return load(model, engine=name, context_size=1024, **options)


def log_distributions(engine: Engine, text: tuple[int, ...]) -> Any:
    """Log-probabilities after each token: float64, shape (tokens, vocabulary)."""
    sequence = engine.open()
    [rows] = engine.score([Job(sequence, text, len(text))])
    logits = np.array(rows, np.float64)
    sequence.close()
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits


if __name__ == "__main__":
    main()
