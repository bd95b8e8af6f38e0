"""Our default policy beside llama.cpp's own server in all its drafting modes, on the same prompts.

Every side decodes a prompt before any goes on to the next, in an order that rotates; each peer mode
is a server in a process of its own, idle while another works. Decode seconds only.

    python benchmarks/beside_llamacpp_server.py qwen2.5-coder-1.5b qwen2.5-coder-0.5b \\
        --peer-python PYTHON --tokens 256

PYTHON is an interpreter of an environment with xllamacpp.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from common import prompts, write

from paceline import Request, StopConditions, create_draft, fixed, load, measured_policy
from paceline.bench.prompts.workload import WorkloadPrompt
from paceline.bench.stats import Pair, speed_ratio
from paceline.decode.generate import decode
from paceline.decode.stats import stats
from paceline.decode.step import Decoder
from paceline.engines.load import resolve
from paceline.verify.chain import ChainVerifier

MODES = ("baseline", "ngram-simple", "ngram-cache", "ngram-mod", "draft")
PEER = r"""
import json, sys
import xllamacpp as x
model, mode, draft, threads = sys.argv[1:5]
types = {"ngram-simple": "NGRAM_SIMPLE", "ngram-cache": "NGRAM_CACHE", "ngram-mod": "NGRAM_MOD",
         "draft": "DRAFT_SIMPLE"}
params = x.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.port = model, 2048, 1, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
if mode != "plain":
    kind = getattr(x.common_speculative_type, "COMMON_SPECULATIVE_TYPE_" + types[mode])
    params.speculative.types = [kind]
if mode == "draft":
    params.speculative.draft.mparams.path = draft
    params.speculative.draft.cpuparams.n_threads = int(threads)
server = x.Server(params)
out = open(int(sys.argv[5]), "w")
print("ready", file=out, flush=True)
for line in sys.stdin:
    row = json.loads(line)
    answer = server.handle_completions(
        dict(prompt=row["tokens"], n_predict=row["n"], temperature=0, cache_prompt=False))
    timing = answer["timings"]
    text = answer.get("content") or answer["choices"][0]["text"]
    print(json.dumps(dict(tokens=timing["predicted_n"], decode_s=timing["predicted_ms"] / 1e3,
                          drafted=timing.get("draft_n"), accepted=timing.get("draft_n_accepted"),
                          text=text)), file=out, flush=True)
"""

Side = Callable[[WorkloadPrompt], dict[str, Any]]


class Peer:
    """llama.cpp's server in one mode."""

    def __init__(self, python: str, model: str, mode: str, draft: str, threads: int) -> None:
        import os

        read, written = os.pipe()
        self.process = subprocess.Popen(
            [python, "-c", PEER, model, mode, draft, str(threads), str(written)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[written],
            text=True,
        )
        os.close(written)
        self.answers = os.fdopen(read)
        assert self.answers.readline().strip() == "ready", f"{mode} did not start"

    def ask(self, tokens: list[int], count: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(json.dumps({"tokens": tokens, "n": count}), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.answers.readline())
        return found

    def close(self) -> None:
        self.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("draft")
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--categories")
    parser.add_argument("--modes", default=",".join(MODES))
    args = parser.parse_args()
    engine = load(args.model, context_size=2048)
    threads = engine.metadata()["threads"]
    drafts = {
        "lookup": create_draft("lookup", engine),
        args.draft: create_draft(args.draft, engine, context_size=2048),
    }
    policy = measured_policy(engine, drafts)

    def ours(drafting: bool) -> Side:
        def side(prompt: WorkloadPrompt) -> dict[str, Any]:
            chosen = policy.fresh() if drafting else fixed(None, 0)
            decoder = Decoder(engine, drafts, ChainVerifier(), chosen)
            stop = StopConditions(max_tokens=args.tokens)
            [done] = decode(decoder, [Request(prompt=prompt.tokens(engine), stop=stop)])
            pooled = stats(done.rounds)
            return {
                "tokens": pooled.tokens,
                "decode_s": pooled.decode_s,
                "drafted": pooled.proposed,
                "accepted": pooled.accepted,
                "text": done.text,
            }

        return side

    paths = resolve(args.model), resolve(args.draft)
    modes = args.modes.split(",")
    peers = {mode: Peer(args.peer_python, paths[0], mode, paths[1], threads) for mode in modes}

    def theirs(mode: str) -> Side:
        def side(prompt: WorkloadPrompt) -> dict[str, Any]:
            answer = peers[mode].ask(list(prompt.tokens(engine)), args.tokens)
            # The first token belongs to the prompt on both sides.
            return {**answer, "tokens": answer["tokens"] - 1}

        return side

    sides = {"paceline plain": ours(False), "paceline policy": ours(True)}
    sides |= {f"llama.cpp {mode}": theirs(mode) for mode in modes}
    chosen = prompts(args.categories.split(",") if args.categories else None)
    rows = []
    try:
        for number, prompt in enumerate(chosen):
            turn = number % len(sides)
            names = [*sides][turn:] + [*sides][:turn]
            for name in names:
                row = {"id": prompt.id, "category": prompt.category, "side": name}
                rows.append(row | sides[name](prompt))
                shown = {k: v for k, v in rows[-1].items() if k != "text"}
                print(json.dumps(shown), file=sys.stderr, flush=True)
    finally:
        for peer in peers.values():
            peer.close()
        result = summary(rows, [*sides])
        write(
            f"beside-llamacpp-server-{args.model}",
            {"tokens": args.tokens, "target": engine.metadata(), **result, "rows": rows},
        )
        print(json.dumps(result, indent=1))


def summary(rows: list[dict[str, Any]], sides: list[str]) -> dict[str, Any]:
    """Milliseconds per token by category, and the policy's times each side."""
    categories = [*dict.fromkeys(row["category"] for row in rows), None]
    return {
        "ms_per_token": {
            category or "all": {side: ms(picked(rows, side, category)) for side in sides}
            for category in categories
        },
        "policy_times": {
            category or "all": {
                side: times(picked(rows, side, category), picked(rows, "paceline policy", category))
                for side in sides
                if side != "paceline policy"
            }
            for category in categories
        },
    }


def picked(
    rows: list[dict[str, Any]], side: str, category: str | None
) -> dict[str, dict[str, Any]]:
    return {
        row["id"]: row
        for row in rows
        if row["side"] == side and category in (None, row["category"])
    }


def ms(found: dict[str, dict[str, Any]]) -> float | None:
    tokens = sum(row["tokens"] for row in found.values())
    return 1e3 * sum(row["decode_s"] for row in found.values()) / tokens if tokens else None


def times(
    theirs: dict[str, dict[str, Any]], mine: dict[str, dict[str, Any]]
) -> dict[str, float | None] | None:
    pairs = [
        Pair(
            theirs[name]["decode_s"],
            theirs[name]["tokens"],
            mine[name]["decode_s"],
            mine[name]["tokens"],
        )
        for name in theirs
        if name in mine
    ]
    ratio = speed_ratio(pairs)
    return None if ratio is None else {"value": ratio.value, "low": ratio.low, "high": ratio.high}


if __name__ == "__main__":
    main()
