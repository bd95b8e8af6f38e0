"""Paceline: baseline, and the default policy (`-n auto`) with lookup or lookup and a model.

One process, one loaded model. What its first round takes is the prefill; a draft that reads the
prompt does so later, in decode time.
"""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

from worker import Answer, Ask, Message, serve, without_end

import paceline
from paceline import Request, StopConditions, create_draft, fixed, load, measured_policy
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.verify.chain import ChainVerifier

MODES = {
    "baseline": (),
    "auto-lookup": ("lookup",),
    "auto-lookup-draft": ("lookup", "model"),
}


def start(args: argparse.Namespace) -> tuple[Ask, dict[str, Any]]:
    shared: dict[str, Any] = {"threads": args.threads, "context_size": args.context}
    if args.dtype is not None:
        shared["dtype"] = args.dtype
    engine = load(args.model, **shared)
    wanted = {name for mode in args.modes for name in MODES[mode]}
    specs = {"lookup": "lookup", "model": args.draft}
    drafts = {
        name: create_draft(specs[name], engine, loader=lambda model: load(model, **shared))
        for name in sorted(wanted)
    }
    offers = {mode: {name: drafts[name] for name in MODES[mode]} for mode in args.modes}
    policies = {mode: measured_policy(engine, offer) for mode, offer in offers.items() if offer}
    tokenizer = engine.tokenizer
    end_tokens = sorted(tokenizer.end_tokens)
    empty = tuple(tokenizer.encode(""))

    def ask(mode: str, messages: list[Message], max_tokens: int) -> Answer:
        policy = policies[mode].fresh() if mode in policies else fixed(None, 0)
        decoder = Decoder(engine, offers[mode], ChainVerifier(), policy)
        prompt = tuple(tokenizer.encode_chat(messages))
        request = Request(prompt=prompt, stop=StopConditions(max_tokens=max_tokens))
        began = perf_counter()
        [done] = decode(decoder, [request])
        seconds = perf_counter() - began
        if done.error is not None:
            raise done.error
        stats = done.stats
        written = without_end(done.tokens, end_tokens)
        return Answer(
            prompt=prompt,
            output=done.tokens,
            prefill_s=stats.prefill_s,
            decode_s=seconds - stats.prefill_s,
            text=done.text,
            drafted=stats.proposed if mode in policies else None,
            accepted=stats.accepted if mode in policies else None,
            end_tokens=end_tokens,
            retokenised=tokenizer.encode(done.text)[len(empty) :] == written,
        )

    return ask, {"versions": _versions(), **engine.metadata()}


def _versions() -> dict[str, str]:
    found = {"paceline": paceline.__version__}
    for name in ("llama-cpp-python", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    serve(start)
