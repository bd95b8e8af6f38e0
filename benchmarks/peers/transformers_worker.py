"""transformers' generate: baseline, prompt lookup, assistant model. One process, one loaded model.

Two calls a prompt, for one token and for all: decoding is what the second takes longer. Streaming
wouldn't tell: an assisted call drafts before it has read the prompt, and its first round may give
the whole answer. An assistant model reads the prompt in the second call only, so in decode time.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation import AssistedCandidateGenerator, PromptLookupCandidateGenerator
from worker import Answer, Ask, Message, serve, without_end

LOOKUP_TOKENS = 10  # what its documentation shows


class Tally:
    """Counts what candidate generators offer and what of it is accepted; generate tells nobody."""

    def __init__(self) -> None:
        self.drafted = self.accepted = 0
        for kind in (AssistedCandidateGenerator, PromptLookupCandidateGenerator):
            self._watch(kind)

    def _watch(self, kind: Any) -> None:
        offer, learn = kind.get_candidates, kind.update_candidate_strategy

        def get_candidates(generator: Any, input_ids: torch.Tensor, **options: Any) -> Any:
            candidates, logits = offer(generator, input_ids, **options)
            self.drafted += candidates.shape[1] - input_ids.shape[1]
            return candidates, logits

        def update_candidate_strategy(
            generator: Any, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int
        ) -> Any:
            self.accepted += int(num_matches)
            return learn(generator, input_ids, scores, num_matches)

        kind.get_candidates = get_candidates
        kind.update_candidate_strategy = update_candidate_strategy


def start(args: argparse.Namespace) -> tuple[Ask, dict[str, Any]]:
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype or "float32")

    def load(path: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()

    model, tokenizer = load(args.model), AutoTokenizer.from_pretrained(args.model)
    options: dict[str, dict[str, Any]] = {
        "baseline": {},
        "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
    }
    if "draft" in args.modes:
        options["draft"] = {"assistant_model": load(args.draft)}
    ends = model.generation_config.eos_token_id
    end_tokens = ends if isinstance(ends, list) else [ends]
    tally = Tally()

    def seconds(inputs: Any, count: int, options: dict[str, Any]) -> tuple[float, list[int]]:
        began = perf_counter()
        whole = model.generate(
            **inputs,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=end_tokens[0],
            **options,
        )
        return perf_counter() - began, whole[0, inputs["input_ids"].shape[1] :].tolist()

    def ask(mode: str, messages: list[Message], max_tokens: int) -> Answer:
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        prefill_s, _ = seconds(inputs, 1, {})
        tally.drafted = tally.accepted = 0
        whole_s, output = seconds(inputs, max_tokens, options[mode])
        written = without_end(output, end_tokens)
        text = tokenizer.decode(written)
        return Answer(
            prompt=inputs["input_ids"][0].tolist(),
            output=output,
            prefill_s=prefill_s,
            decode_s=whole_s - prefill_s,
            text=text,
            drafted=None if mode == "baseline" else tally.drafted,
            accepted=None if mode == "baseline" else tally.accepted,
            end_tokens=end_tokens,
            retokenised=tokenizer.encode(text, add_special_tokens=False) == written,
        )

    metadata = {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "lookup_tokens": LOOKUP_TOKENS,
    }
    return ask, metadata


if __name__ == "__main__":
    serve(start)
