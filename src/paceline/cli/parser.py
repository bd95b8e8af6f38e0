"""An argument parser whose help opens with examples and whose errors are one line."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """`examples` stand first in the help; an error is one line and exit code 2.

    quoting    options whose value is a text of options, so that it may begin with a dash
    """

    quoting: tuple[str, ...] = ()

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_help(self) -> str:
        text = super().format_help()
        return f"{self.examples}\n\n{text}" if self.examples else text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        for place in range(len(words) - 2, -1, -1):
            if words[place] in self.quoting:
                words[place : place + 2] = [f"{words[place]}={words[place + 1]}"]
        return super().parse_known_args(words, namespace)

    def may_leave_out(self, name: str) -> None:
        """A positional argument that other verbs need, and this one can do without."""
        for action in self._actions:
            if action.dest == name:
                action.nargs, action.required = "?", False

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {_with_nearest(message)} See {self.prog} --help.\n")
        sys.exit(2)


def _with_nearest(message: str) -> str:
    """argparse's complaint about a choice, with the nearest one in place of the whole list."""
    found = re.search(r"invalid choice: '?([^' ]+)'? \(choose from (.+)\)", message)
    if not found:
        return f"{message[:1].upper()}{message[1:]}."
    name, known = found[1], [choice.strip(" '") for choice in found[2].split(",")]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
    return f"There is no {name!r}. {hint}"


def at_least(least: int) -> Callable[[str], int]:
    """An argument type: a whole number not below `least`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return convert


def number_above_zero(text: str) -> float:
    """An argument type: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def max_draft_tokens(text: str) -> int | None:
    """An argument type: a limit, or `auto` (None) for the policy's choice."""
    return None if text == "auto" else at_least(0)(text)


def several(convert: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """An argument type: values separated by commas, each kept once."""

    def split(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(convert(part) for part in text.split(",")))

    return split
