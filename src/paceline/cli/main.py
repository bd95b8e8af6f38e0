"""`paceline`: find the verb, run it, and turn faults into one line.

Exit codes: 0 done; 1 a check failed or the run was interrupted; 2 a fault the user can mend; 3 a
live server's drafts lose (`watch`).
"""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import threading
from collections.abc import Sequence

import paceline
from paceline.cli.parser import Parser
from paceline.errors import PacelineError

VERBS = (
    "generate",
    "bench",
    "report",
    "profile",
    "plan",
    "export",
    "check",
    "simulate",
    "replay",
    "watch",
    "derive",
    "inspect",
    "tune",
    "models",
    "list",
)
"""In the order of the help. Each has a module here of its name, which is imported when it is used:
all of them take half a second."""

EXAMPLES = """\
  paceline generate smollm2-135m -d lookup -p "Write a haiku about rivers."
  paceline bench smollm2-135m -d lookup --prompts prompts.jsonl"""


def parser(verbs: Sequence[str] = VERBS) -> Parser:
    """The whole command line, or just some verbs of it."""
    top = Parser(
        prog="paceline",
        examples=EXAMPLES,
        description="Decode language models with draft models: exactly, and only while it pays.",
    )
    top.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    places = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    for verb in verbs:
        name = {"inspect": "inspect_", "list": "list_", "plan": "break_even"}.get(verb, verb)
        importlib.import_module(f"paceline.cli.{name}").add(places)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal of few characters must not end a run
            stream.reconfigure(errors="replace")
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    _stop_as_interrupt()
    words = sys.argv[1:] if arguments is None else arguments
    args = parser(words[:1] if set(words[:1]) & set(VERBS) else VERBS).parse_args(words)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except PacelineError as error:
        print(f"paceline {args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\npaceline {args.verb}: interrupted.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; Python would complain at exit
        return 1


def _stop_as_interrupt() -> None:
    """Let a polite kill be what Ctrl-C is: what was measured is written first."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
