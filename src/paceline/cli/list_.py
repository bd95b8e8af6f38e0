"""`paceline list`: engines, drafts and verifiers, and what each needs."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from paceline import plugins
from paceline.cli.parser import Parser
from paceline.cli.settings import add_verb, flag
from paceline.errors import SettingError

EXAMPLES = """\
  paceline list
  paceline list --json"""

_LINE = {"engine": "needs", "draft": "summary", "verifier": "summary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of `paceline list`."""

    json: bool = flag("print one JSON document instead")


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the verb to the command line."""
    add_verb(
        verbs,
        "list",
        Settings,
        run,
        examples=EXAMPLES,
        description="Show what can be named on the command line, built in or installed.",
    )


def run(settings: Settings) -> int:
    """Print every plugin with its need or summary, and return the exit code."""
    found = {
        kind: {name: _describe(kind, name) for name in plugins.names(kind)}
        for kind in plugins.KINDS
    }
    if settings.json:
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
