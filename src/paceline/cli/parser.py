"""An argument parser whose help opens with examples and whose errors are one line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """`examples` stand first in the help; an error is one line and exit code 2."""

    quoting: tuple[str, ...] = ()
    """Options whose value is a text of options, so that it may begin with a dash."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_help(self) -> str:
        """The help, examples first."""
        text = super().format_help()
        return f"{self.examples}\n\n{text}" if self.examples else text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse has it; the value of a quoting option may begin with a dash."""
        words = list(sys.argv[1:] if args is None else args)
        for place in range(len(words) - 2, -1, -1):
            if words[place] in self.quoting:
                words[place : place + 2] = [f"{words[place]}={words[place + 1]}"]
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Say the fault in one line, with the nearest option that exists, and exit with 2."""
        sys.stderr.write(f"{self.prog}: {_with_nearest(message)} See {self.prog} --help.\n")
        sys.exit(2)


def _with_nearest(message: str) -> str:
    """argparse's complaint about a choice, with the nearest one in place of the whole list."""
    found = re.search(r"invalid choice: '?([^' ]+)'? \(choose from (.+)\)", message)
    if not found:
        return f"{message[:1].upper()}{message[1:]}."
    import difflib

    name, known = found[1], [choice.strip(" '") for choice in found[2].split(",")]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
    return f"There is no {name!r}. {hint}"
