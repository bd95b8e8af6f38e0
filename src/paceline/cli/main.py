"""`paceline`: find the verb, run it, and turn errors into one line.

Exit codes: 0 done; 1 a check failed or the run was interrupted; 2 a fault the user can fix; 3 the
drafts of a live server lose (`watch`).
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

VERBS = {
    "generate": "decode a prompt and stream its text",
    "bench": "compare decoding with and without drafts on your prompts",
    "bench-server": "measure a live server on your prompts, or two in turns",
    "report": "make a page of what a bench found",
    "profile": "measure what width, batch and context cost here",
    "break-even": "say whether a draft can pay here, and from which acceptance rate on",
    "plan": "decide from what was measured: which draft, and how far",
    "export": "write a plan as the settings of an engine, or as a deployment",
    "check": "test a target and a draft before relying on them",
    "simulate": "run recorded rounds under other costs, policies and batch sizes",
    "replay": "judge drafts on logged answers, without the target",
    "watch": "judge a live server's drafts by its own counters, window by window",
    "derive": "make a draft model from its target: fewer layers, fewer tokens",
    "inspect": "show what a trained draft is, which engines load it, and what is wrong",
    "tune": "find which of a target's own layers should draft for it",
    "models": "list and pull the demo models",
    "list": "show engines, drafts and verifiers",
}
"""What each verb does, in the order of the help. Each has a module of its name here, imported only
when the verb is used: all of them take half a second."""

_MODULES = {"inspect": "inspect_", "list": "list_"}

EXAMPLES = """\
  paceline generate smollm2-135m -d lookup -p "Write a haiku about rivers."
  paceline bench smollm2-135m -d lookup --prompts prompts.jsonl"""


def parser(*verbs: str) -> Parser:
    """The command line, with the options of these verbs; of the others it knows the names."""
    top = Parser(
        prog="paceline",
        examples=EXAMPLES,
        description="Decode language models with draft models: exactly, and only when it is "
        "faster.",
    )
    top.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    places = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    for verb, summary in VERBS.items():
        if verb in verbs:
            name = _MODULES.get(verb, verb.replace("-", "_"))
            importlib.import_module(f"paceline.cli.{name}").VERB.add(places, verb, summary)
        else:
            places.add_parser(verb, help=summary)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code is 0, 1 for a negative answer, or 2 for an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal of few characters must not end a run
            stream.reconfigure(errors="replace")
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    _stop_as_interrupt()
    words = sys.argv[1:] if arguments is None else arguments
    args = parser(*words[:1]).parse_args(words)
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
    """Treat SIGTERM like Ctrl-C, so that what was measured is written first."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
