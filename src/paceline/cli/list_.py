"""`paceline list`: engines, drafts and verifiers, and what each needs."""

from __future__ import annotations

import argparse
import json

from paceline import plugins
from paceline.cli.parser import Parser
from paceline.errors import SettingError

EXAMPLES = """\
  paceline list
  paceline list --json"""

_LINE = {"engine": "needs", "draft": "summary", "verifier": "summary"}


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "list",
        examples=EXAMPLES,
        help="show engines, drafts and verifiers",
        description="Show what can be named on the command line, built in or installed.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = {
        kind: {name: _describe(kind, name) for name in plugins.names(kind)}
        for kind in plugins.KINDS
    }
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
        return 0
    for kind, entries in found.items():
        print(f"{kind}s")
        width = max(map(len, entries), default=0)
        for name, line in entries.items():
            print(f"  {name.ljust(width)}  {line}")
    return 0


def _describe(kind: str, name: str) -> str:
    try:
        found = plugins.find(kind, name)
        line = str(getattr(found, _LINE[kind]))
        if kind == "verifier" and found.lossy:
            return f"LOSSY, needs --lossy: {line}; gives up {found.gives_up}"
        return line
    except SettingError as error:
        return f"not usable here: {error}"
