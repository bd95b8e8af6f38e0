"""`paceline list`: engines, drafts and verifiers, and what each needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline import plugins
from paceline.bench.wording import aligned
from paceline.cli.options import Output
from paceline.cli.settings import Verb, group
from paceline.errors import SettingError

EXAMPLES = """\
  paceline list
  paceline list --json"""

_LINE = {"engine": "needs", "draft": "summary", "verifier": "summary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Show what can be named on the command line, built in or installed."""

    output: Output = group(Output)


def run(settings: Settings) -> int:
    """Print every plugin with its need or summary, and return the exit code."""
    found = {
        kind: {name: _describe(kind, name) for name in plugins.names(kind)}
        for kind in plugins.KINDS
    }
    settings.output.show(lambda: found, lambda: "\n".join(_lines(found)))
    return 0


def _lines(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for kind, entries in found.items():
        yield f"{kind}s"
        yield from aligned([(f"  {name}", line) for name, line in entries.items()], left=2)


def _describe(kind: str, name: str) -> str:
    try:
        found = plugins.find(kind, name)
        line = str(getattr(found, _LINE[kind]))
        if kind == "verifier" and found.lossy:
            return f"LOSSY, needs --lossy: {line}; gives up {found.gives_up}"
        return line
    except SettingError as error:
        return f"not usable here: {error}"


VERB = Verb(Settings, run, EXAMPLES)
