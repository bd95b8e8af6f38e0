"""A worker's end of the channel: requests in on stdin, answers out on stdout, one JSON a line.

Only the standard library, because each peer runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

Message = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What a peer made of one prompt.

    prompt         token ids that the peer read
    output         token ids it emitted, to the end token and with it
    prefill_s      seconds to the first token
    decode_s       seconds from there to the last one
    drafted        drafted tokens judged and accepted, by the peer's own counters; None where
    accepted       nothing drafts or nothing is counted
    end_tokens     ids that may end an answer
    retokenised    whether the text, encoded again, gives the same ids; False may only mean that
                   the model wrote a text in other tokens than its tokenizer would
    """

    prompt: Sequence[int]
    output: Sequence[int]
    prefill_s: float
    decode_s: float
    text: str
    drafted: int | None
    accepted: int | None
    end_tokens: Sequence[int]
    retokenised: bool

    def as_json(self) -> dict[str, Any]:
        ended = [place for place, token in enumerate(self.output) if token in self.end_tokens]
        if ended and ended[0] != len(self.output) - 1:
            raise ValueError(f"{len(self.output) - 1 - ended[0]} tokens stand after the end token")
        return {
            "prompt_tokens": len(self.prompt),
            "prompt_digest": digest(self.prompt),
            "output_tokens": len(self.output),
            "tokens": len(self.output) - 1,  # the first belongs to the prefill
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "text": self.text,
            "ended": bool(ended),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "retokenised": self.retokenised,
        }


Ask = Callable[[str, list[Message], int], Answer]
"""Answers a chat in a mode, in at most so many tokens, greedily."""

Start = Callable[[argparse.Namespace], tuple[Ask, dict[str, Any]]]
"""Loads everything; gives what answers and the peer's facts (versions, dtype, threads)."""


def digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:16]


def without_end(output: Sequence[int], end_tokens: Sequence[int]) -> list[int]:
    """An answer's ids without the end token, if it has one."""
    return list(output[:-1] if output and output[-1] in end_tokens else output)


def own_channel() -> tuple[TextIO, TextIO]:
    """This process's stdin and stdout for the protocol alone: whatever a library or a child of it
    prints goes to stderr from here on, and whatever it reads is empty."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def serve(start: Start) -> None:
    """Load, say so, and answer until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--modes", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--dtype")
    parser.add_argument("--eager", action="store_true", help="vLLM: don't compile the model")
    args = parser.parse_args()
    args.modes = args.modes.split(",")
    requests, answers = own_channel()

    def say(document: dict[str, Any]) -> None:
        print(json.dumps(document), file=answers, flush=True)

    try:
        ask, metadata = start(args)
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    say({"ready": {"python": platform.python_version(), **metadata}})
    for line in requests:
        request = json.loads(line)
        try:
            answer = ask(request["mode"], request["messages"], request["max_tokens"]).as_json()
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        say({"id": request["id"], **answer})
