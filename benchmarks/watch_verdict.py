"""Does `paceline watch` say what a client measures? A server with drafts and its twin without get
the same requests in turns; the watch's verdict on each window is held against the client's times.

Two set-ups: copying with n-gram drafts pays; a target that drafts for itself at temperature 1
loses. The truth of a set-up is the client's time per token after the first, of all its requests,
with a paired bootstrap, and it must be what the set-up is called. A window agrees if its verdict is
the truth's, is unknown, or is wrong; the command fails if one is wrong, or none agrees.

    python benchmarks/watch_verdict.py llamacpp MODEL.gguf --peer-python PYTHON
    python benchmarks/watch_verdict.py vllm MODEL_DIRECTORY --peer-python PYTHON

PYTHON is an interpreter of an environment with xllamacpp, or with vLLM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from common import prompts, write

from paceline.bench.stats import Pair, speed_ratio
from paceline.monitor.spread import Interval
from paceline.monitor.text import block
from paceline.monitor.verdict import UNKNOWN, WatchVerdict, judge, state_of
from paceline.monitor.watch import MetricsSource, watch
from paceline.monitor.window import Window

SET_UPS = ("paying", "losing")
LLAMACPP = r"""
import json, sys, time
import xllamacpp as x
model, port, setup, threads, at_once = sys.argv[1:6]
params = x.CommonParams()
params.model.path, params.port = model, int(port)
params.n_ctx, params.n_parallel = 2048 * int(at_once), int(at_once)
params.hostnames, params.server_metrics = ["127.0.0.1"], True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
speculative, types = params.speculative, x.common_speculative_type
if setup == "paying":
    speculative.types = [types.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
if setup == "losing":
    speculative.types = [types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    speculative.draft.mparams.path = model
    draft = speculative.draft
    draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = int(threads)
server = x.Server(params)
time.sleep(86400)
"""
VLLM: dict[str, dict[str, Any] | None] = {
    "paying": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    "losing": {"method": "draft_model", "num_speculative_tokens": 3},
    "baseline": None,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Prompts on both servers: when (by a clock that never goes back), and what they took."""

    at_s: float
    pair: Pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=("llamacpp", "vllm"))
    parser.add_argument("model")
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--set-ups", default=",".join(SET_UPS))
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--window", type=float, default=60.0, help="seconds")
    parser.add_argument("--interval", type=float, default=3.0, help="seconds")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--at-once", type=int, default=1, help="requests of a server")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", action="store_true", help="write no result file")
    args = parser.parse_args()
    # A polite kill must not leave servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = {name: set_up(args, name) for name in args.set_ups.split(",")}
    summary = {
        name: {key: one[key] for key in ("truth", "holds", "agree", "unknown", "wrong", "of")}
        for name, one in found.items()
    }
    print(json.dumps(summary, indent=1))
    if not args.keep:
        model = Path(args.model).stem.lower()
        part = "" if set(found) == set(SET_UPS) else f"-{'-'.join(found)}"
        write(
            f"watch-verdict-{args.engine}{part}",
            {"model": model, "threads": args.threads, "summary": summary, "set_ups": found},
        )
    faults = [fault for name, one in found.items() if (fault := fault_of(name, one))]
    if faults:
        sys.exit("\n".join(faults))


def fault_of(name: str, one: dict[str, Any]) -> str | None:
    """Why a set-up shows nothing, or shows the watch to be wrong; None if it is right."""
    if not one["holds"]:
        return f"{name}: the client measured {one['truth']['state']}, so this set-up shows nothing"
    if one["wrong"] or not one["agree"]:
        return f"{name}: {one['wrong']} windows of {one['of']} are wrong, {one['agree']} agree"
    return None


def set_up(args: argparse.Namespace, name: str) -> dict[str, Any]:
    with servers(args, name) as (on, off):
        done, asked, stop = [], list[Asked](), threading.Event()
        client = threading.Thread(target=ask_in_turns, args=(args, name, on, off, asked, stop))
        for url in (on, off):
            ask(args, name, url, 0)  # warm up
        client.start()
        try:
            done = list(windows(args, on, off, stop))
        finally:
            stop.set()
            client.join()
    return compared(name, done, asked)


def windows(
    args: argparse.Namespace, on: str, off: str, stop: threading.Event
) -> Iterator[tuple[float, float, Window, WatchVerdict]]:
    """Each with the times between which it was counted."""
    source, control = MetricsSource((f"{on}/metrics",)), MetricsSource((f"{off}/metrics",))
    count, began = 0, time.monotonic()
    for seen in watch(
        source, control=control, window_s=args.window, interval_s=args.interval, stop=stop
    ):
        if isinstance(seen, str):
            print(seen, file=sys.stderr)
            continue
        assert seen.control is not None
        verdict = judge(seen.window, baseline=[seen.control], together=True)
        print(block(seen.window, verdict), flush=True)
        ended = time.monotonic()
        yield began, ended, seen.window, verdict
        began, count = ended, count + 1
        if count == args.windows:
            return


def compared(
    name: str, done: Sequence[tuple[float, float, Window, WatchVerdict]], asked: Sequence[Asked]
) -> dict[str, Any]:
    truth = told(asked)
    rows = []
    for began, ended, window, verdict in done:
        mine = told([one for one in asked if began <= one.at_s < ended])
        rows.append(
            {
                "verdict": verdict.state,
                "speedup": verdict.speedup and asdict(verdict.speedup),
                "change": verdict.change,
                "client": mine,
                "tokens": window.tokens,
                "acceptance_rate": window.total.acceptance_rate,
                "tokens_per_round": window.tokens_per_round,
            }
        )
    holds = truth["state"] == name
    unknown = sum(row["verdict"] == UNKNOWN for row in rows)
    agree = sum(row["verdict"] == name for row in rows) if holds else 0
    wrong = len(rows) - unknown - agree if holds else 0
    print(
        f"{name}: the client measured {truth}; of {len(rows)} windows {agree} agree, "
        f"{unknown} are unknown, {wrong} are wrong"
    )
    return {
        "truth": truth,
        "holds": holds,
        "agree": agree,
        "unknown": unknown,
        "wrong": wrong,
        "of": len(rows),
        "requests": len(asked),
        "rows": rows,
    }


def told(asked: Sequence[Asked]) -> dict[str, Any]:
    """What the client's own times say."""
    ratio = speed_ratio([one.pair for one in asked])
    if ratio is None or ratio.low is None or ratio.high is None:
        return {"state": "unknown", "speedup": ratio and ratio.value}
    state = state_of(Interval(ratio.value, ratio.low, ratio.high))
    return {"state": state, "speedup": ratio.value, "low": ratio.low, "high": ratio.high}


# Requests.


def ask_in_turns(
    args: argparse.Namespace,
    name: str,
    on: str,
    off: str,
    asked: list[Asked],
    stop: threading.Event,
) -> None:
    """Each prompt of both servers, strictly in turns, so that a window holds about as much of
    either."""
    with ThreadPoolExecutor(args.at_once) as pool:
        for first in itertools.count(0, args.at_once):
            if stop.is_set():
                return
            numbers = range(first, first + args.at_once)
            took: dict[str, list[tuple[float, int]]] = {}
            for url in (on, off):
                took[url] = list(pool.map(partial(ask, args, name, url), numbers))
            # Answers at once share their steps, so they are one observation.
            (on_s, on_tokens), (off_s, off_tokens) = (
                map(sum, zip(*took[url], strict=True)) for url in (on, off)
            )
            asked.append(Asked(time.monotonic(), Pair(off_s, off_tokens, on_s, on_tokens)))


def ask(args: argparse.Namespace, name: str, url: str, number: int) -> tuple[float, int]:
    """Seconds from the first piece of text to the last, and the tokens after the first."""
    chosen = TEXTS[number % len(TEXTS)]
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": args.tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "seed": number,
        "prompt": f"{chosen}\n{chosen}\n{chosen}\n" if name == "paying" else f"{chosen}\n",
        "temperature": 0.0 if name == "paying" else 1.0,
        "top_k": 0,
        "top_p": 1.0,
    }
    if args.engine == "llamacpp":
        body |= {"cache_prompt": False, "min_p": 0.0}
    first = last = 0.0
    tokens = 0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if any(choice.get("text") for choice in event.get("choices") or ()):
                last = time.monotonic()
                first = first or last
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return last - first, tokens - 1


TEXTS = [one.messages[-1]["content"][:200] for one in prompts()]


# Servers.


@contextmanager
def servers(args: argparse.Namespace, name: str) -> Iterator[tuple[str, str]]:
    """The set-up's server and its twin without drafts, both ready."""
    ports = [free_port(), free_port()]
    running = [
        start(args, kind, port) for kind, port in zip((name, "baseline"), ports, strict=True)
    ]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        for url, process in zip(urls, running, strict=True):
            wait_for(url, process)
        yield urls[0], urls[1]
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start(args: argparse.Namespace, kind: str, port: int) -> subprocess.Popen[bytes]:
    command = [args.peer_python]
    environment = {**os.environ, "GOMP_SPINCOUNT": "1000", "OMP_WAIT_POLICY": "passive"}
    if args.engine == "llamacpp":
        command += ["-c", LLAMACPP, args.model, str(port), kind]
        command += [str(args.threads), str(args.at_once)]
    else:
        cores = sorted(os.sched_getaffinity(0))[: args.threads]
        environment |= {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        command += ["-m", "vllm.entrypoints.openai.api_server", "--model", args.model]
        command += [
            "--dtype",
            "float32",
            "--max-model-len",
            "1024",
            "--max-num-seqs",
            str(args.at_once),
        ]
        command += ["--enforce-eager", "--no-enable-prefix-caching", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--served-model-name", "m"]
        speculative = VLLM[kind]
        if speculative is not None:
            if speculative["method"] == "draft_model":
                speculative = {**speculative, "model": args.model}
            command += ["--speculative-config", json.dumps(speculative)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
    )


def wait_for(url: str, process: subprocess.Popen[bytes], most_s: float = 300.0) -> None:
    until = time.monotonic() + most_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server of {url} ended with {process.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"the server of {url} did not start in {most_s:.0f} s")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
