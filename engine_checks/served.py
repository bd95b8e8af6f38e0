"""A server that an exported script starts, asked for greedy texts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS = (
    "Count: one two three one two three one two three one two",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n",
    "Rivers run to the sea because",
)
TOKENS = 48


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one script.

    texts       greedy, a prompt each
    drafted, accepted    tokens, as the engine counts them
    refused     why the server didn't start: the end of its log; None if it did
    """

    texts: tuple[str, ...] = ()
    drafted: int = 0
    accepted: int = 0
    refused: str | None = None


Ask = Callable[[str, str], tuple[str, int, int]]


def serve(
    script: Path, program: list[str], extra: list[str], ask: Ask, patience_s: float
) -> Served:
    """Run the script as it is, with a stand-in on the path that adds port and the like.

    program    what the script's program is on this machine
    """
    folder = script.parent
    port = _free_port()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("w+"))
        _stand_in(folder, script, [*program], [*extra, "--port", str(port)])
        environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
        process = subprocess.Popen(
            ["sh", script.name],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(_stop, process)
        url = f"http://127.0.0.1:{port}"
        if not _ready(process, url, patience_s):
            log.seek(0)
            return Served(refused=_why(log.read()))
        answers = [ask(url, prompt) for prompt in PROMPTS]
        return Served(
            texts=tuple(text for text, _, _ in answers),
            drafted=sum(drafted for _, drafted, _ in answers),
            accepted=sum(accepted for _, _, accepted in answers),
        )


def ask_vllm(url: str, prompt: str) -> tuple[str, int, int]:
    before = _counted(url)
    [model] = _get(f"{url}/v1/models")["data"]
    body = {"model": model["id"], "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    text = _post(f"{url}/v1/completions", body)["choices"][0]["text"]
    after = _counted(url)
    return text, after[0] - before[0], after[1] - before[1]


def ask_llama(url: str, prompt: str) -> tuple[str, int, int]:
    body = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "cache_prompt": False}
    answer = _post(f"{url}/completion", body)
    timings = answer["timings"]
    return answer["content"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


def _counted(url: str) -> tuple[int, int]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
        text = page.read().decode()

    def total(name: str) -> int:
        lines = re.findall(rf"^vllm:spec_decode_num_{name}_tokens_total\S* (\S+)$", text, re.M)
        return int(sum(map(float, lines)))

    return total("draft"), total("accepted")


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def _stand_in(folder: Path, script: Path, program: list[str], extra: list[str]) -> None:
    """On the path under the name that the script calls."""
    last = [line for line in script.read_text().splitlines() if line and line[0] not in "# "]
    name = re.sub(r"\s.*", "", last[-1])
    path = folder / name
    words = " ".join(f"'{word}'" for word in program)
    added = " ".join(f"'{word}'" for word in extra)
    path.write_text(f'#!/bin/sh\nexec {words} "$@" {added}\n')
    path.chmod(0o755)


def _ready(process: subprocess.Popen[bytes], url: str, patience_s: float) -> bool:
    until = time.monotonic() + patience_s
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return True
        time.sleep(0.5)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole group: a server's workers may outlive it."""
    for sent in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)


def _why(log: str) -> str:
    return "\n".join(list(_meaningful(log))[-6:])


def _meaningful(log: str) -> Iterator[str]:
    for line in log.splitlines():
        if re.search(r"error|refus|invalid|unknown|not found", line, re.IGNORECASE):
            yield line[:400]
