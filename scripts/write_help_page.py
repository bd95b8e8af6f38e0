"""Write docs/command-line.md from the program's own help, so that the two can't differ.

python scripts/write_help_page.py docs/command-line.md
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from paceline.cli.main import VERBS, parser

HEAD = """# Command line

This page is made from `--help` by `make docs`; a test compares them.

Exit codes: 0 done; 1 a check failed or the run was interrupted; 2 a fault you can fix, told in
one line on stderr. Text and documents go to stdout, figures and progress to stderr.
"""


def page() -> str:
    """The whole page: the top help, then one section a verb."""
    os.environ["COLUMNS"] = "100"
    whole = parser(*VERBS)
    [verbs] = [a for a in whole._actions if isinstance(a, argparse._SubParsersAction)]
    parts = [HEAD, section("paceline", parser().format_help())]
    parts += [
        section(f"paceline {name}", verb.format_help()) for name, verb in verbs.choices.items()
    ]
    return "\n".join(parts)


def section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
