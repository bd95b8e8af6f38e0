"""Our OpenVINO engine beside OpenVINO GenAI's own pipeline on the same IR: plain, or our policy
with lookup beside its prompt lookup.

    python benchmarks/beside_openvino_genai.py MODEL.gguf plain --tokens 128
    python benchmarks/beside_openvino_genai.py MODEL.gguf lookup

Its cache of keys and values is in eight bits unless `--genai-cache` says otherwise; ours is never,
since rewinding such a cache changes it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from common import interleaved, prompts, write

from paceline import StopConditions, create_draft
from paceline.bench.profile.measured_policy import measured_policy
from paceline.decode.generate import generate
from paceline.engines.load import load, resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file or demo name")
    parser.add_argument("mode", choices=["baseline", "lookup"])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--categories")
    parser.add_argument("--genai-cache", choices=["u8", "f16", "f32"], default="u8")
    args = parser.parse_args()
    engine = load(args.model, engine="openvino", context_size=2048)
    drafts = {"lookup": create_draft("lookup", engine)} if args.mode == "lookup" else {}
    policy = measured_policy(engine, drafts) if drafts else None
    peer = pipeline(
        resolve(args.model),
        engine.metadata(),
        lookup=args.mode == "lookup",
        cache=args.genai_cache,
    )

    def ours(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        stop = StopConditions(max_tokens=args.tokens)
        done = generate(engine, tokens, stop=stop, draft=drafts or None, policy=policy)
        return done.stats.decode_s, done.tokens

    def theirs(tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = args.tokens, False
        config.eos_token_id = min(engine.tokenizer.end_tokens)
        config.stop_token_ids = set(engine.tokenizer.end_tokens)
        if args.mode == "lookup":
            config.num_assistant_tokens, config.max_ngram_size = 5, 3
        done = peer.generate(ov.Tensor(np.array([tokens], np.int64)), config)
        times = done.perf_metrics
        milliseconds = times.get_generate_duration().mean - times.get_ttft().mean
        return milliseconds / 1e3, tuple(done.tokens[0])

    chosen = prompts(args.categories.split(",") if args.categories else None)
    for side in (ours, theirs):
        side(chosen[0].tokens(engine)[:64])
    result = interleaved(engine, chosen, ours, theirs)
    name = f"openvino-genai-{args.mode}-{args.genai_cache}-{Path(engine.model).stem.lower()}"
    metadata = {
        "target": engine.metadata(),
        "genai": genai.__version__,
        "genai_cache": args.genai_cache,
    }
    write(name, {**metadata, **result})
    print(result["ratio"], result["by_category"])


def pipeline(gguf: str, metadata: dict[str, Any], *, lookup: bool, cache: str) -> Any:
    """Their pipeline over our export, with the tokenizer that their reader makes of the file."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "model.gguf").symlink_to(Path(gguf).absolute())
        genai.LLMPipeline(str(place / "model.gguf"), "CPU", enable_save_ov_model=True)
        for part in ("openvino_model.xml", "openvino_model.bin"):
            (place / part).unlink()
            (place / part).symlink_to(Path(metadata["exported_to"]) / part)
        options: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": metadata["threads"],
            "KV_CACHE_PRECISION": cache,
        }
        if lookup:
            options["prompt_lookup"] = True
        return genai.LLMPipeline(folder, "CPU", **options)


if __name__ == "__main__":
    main()
