"""llama.cpp's own server (from xllamacpp), asked over HTTP. One process a mode.

The server's own timings: `predicted_ms` begins when the first token has been sampled.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from typing import Any

import xllamacpp
from worker import Answer, Ask, Message, serve, without_end

TYPES = {
    "baseline": None,
    "ngram-simple": "NGRAM_SIMPLE",
    "ngram-mod": "NGRAM_MOD",
    "ngram-cache": "NGRAM_CACHE",
    "draft": "DRAFT_SIMPLE",
}


def start(args: argparse.Namespace) -> tuple[Ask, dict[str, Any]]:
    [mode] = args.modes
    params = _params(args, mode)
    server = xllamacpp.Server(params)

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def tokens(text: str, **options: bool) -> list[int]:
        found: list[int] = post("/tokenize", {"content": text, **options})["tokens"]
        return found

    def ask(_: str, messages: list[Message], max_tokens: int) -> Answer:
        written = post("/apply-template", {"messages": messages})["prompt"]
        prompt = tokens(written, add_special=True, parse_special=True)
        reply = post(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": max_tokens,
                "temperature": 0,
                "cache_prompt": False,
                "return_tokens": True,
            },
        )
        _check_mode(reply, mode)
        timings = reply["timings"]
        output, text = reply["tokens"], reply["content"]
        ended = reply["stop_type"] == "eos"
        ends = output[-1:] if ended else []
        return Answer(
            prompt=prompt,
            output=output,
            prefill_s=timings["prompt_ms"] / 1e3,
            decode_s=timings["predicted_ms"] / 1e3,
            text=text,
            # The server leaves these out when nothing was drafted.
            drafted=None if mode == "baseline" else timings.get("draft_n", 0),
            accepted=None if mode == "baseline" else timings.get("draft_n_accepted", 0),
            end_tokens=ends,
            retokenised=tokens(text, add_special=False) == without_end(output, ends),
        )

    metadata = {
        "versions": {"xllamacpp": xllamacpp.__version__},
        "build": xllamacpp.get_system_info(),
        "threads": params.cpuparams.n_threads,
        "draft_tokens": params.speculative.draft.n_max if mode == "draft" else None,
    }
    return ask, metadata


def _params(args: argparse.Namespace, mode: str) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = args.model, args.context, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    if TYPES[mode] is not None:
        kind = f"COMMON_SPECULATIVE_TYPE_{TYPES[mode]}"
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
    if mode == "draft":
        draft = params.speculative.draft
        draft.mparams.path = args.draft
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = args.threads
    return params


def _check_mode(reply: dict[str, Any], mode: str) -> None:
    """The server goes on without drafts if it can't set them up, and only logs that."""
    asked = {"baseline": "none", "draft": "draft-simple"}.get(mode, mode)
    found = reply["generation_settings"]["speculative.types"]
    if found != asked:
        raise RuntimeError(f"the server drafts by {found!r} where {asked!r} was asked for")


if __name__ == "__main__":
    serve(start)
