"""Command lines declared as frozen dataclasses: a field is an option, and a verb gets an instance.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        target: TargetOptions = group(TargetOptions)
        max_tokens: int = option("most tokens an answer", default=128, type=at_least(2))
        json: bool = flag("print one JSON document instead")

A class with a `title` gets a heading of its own in the help.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from paceline.cli.parser import Parser

S = TypeVar("S")


def option(
    help: str = "",
    short: str | None = None,
    *,
    default: Any = None,
    repeat: bool = False,
    **how: Any,
) -> Any:
    """A field given as `--field-name VALUE`; its help may hold `%(default)s`.

    short     another spelling, such as -n
    repeat    it may be given several times, and the field is a tuple
    how       further arguments of `add_argument`: type, metavar, choices …
    """
    if repeat:
        default, how["action"] = (), "append"
    return field(default=default, metadata={"short": short, "how": {"help": help, **how}})


def flag(help: str) -> Any:
    """A field that is False unless `--field-name` is given."""
    return option(help, default=False, action="store_true")


def argument(help: str, **how: Any) -> Any:
    """A positional field; `nargs` may make it several."""
    return field(default=None, metadata={"positional": True, "how": {"help": help, **how}})


def group(kind: type[Any], **defaults: Any) -> Any:
    """A field that holds the settings of another class, with other defaults for some of them."""
    return field(
        default_factory=lambda: kind(**defaults), metadata={"kind": kind, "defaults": defaults}
    )


def add_options(
    parser: argparse.ArgumentParser,
    kind: type[Any],
    *,
    changes: bool = False,
    defaults: Mapping[str, Any] | None = None,
    place: argparse._ActionsContainer | None = None,
) -> None:
    """Declare the options of a settings class.

    changes     what is read are changes to other settings: nothing has a default, and positional
                arguments are options
    defaults    of fields, in place of the class's own
    place       where to add untitled ones; default: the parser
    """
    place = place or parser
    if title := getattr(kind, "title", None):
        place = parser.add_argument_group(title)
    for one in fields(kind):
        if nested := one.metadata.get("kind"):
            inner = one.metadata["defaults"]
            add_options(parser, nested, changes=changes, defaults=inner, place=place)
        elif one.metadata:
            how: dict[str, Any] = dict(one.metadata["how"])
            default = (defaults or {}).get(one.name, one.default)
            how["default"] = argparse.SUPPRESS if changes else default
            if how.get("action") == "append" and not changes:
                how["default"] = list(default)
            if one.metadata.get("positional") and not changes:
                parser.add_argument(one.name, **how)
                continue
            flags = [one.metadata.get("short"), f"--{one.name.replace('_', '-')}"]
            place.add_argument(*filter(None, flags), dest=one.name, **how)


def read_options(values: Mapping[str, Any], kind: type[S], base: S | None = None) -> S:
    """The settings that were given, else those of `base`, else the defaults."""
    found: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        was = getattr(base, one.name, None)
        if nested := one.metadata.get("kind"):
            found[one.name] = read_options(values, nested, was)
        elif one.name in values:
            value = values[one.name]
            found[one.name] = tuple(value) if isinstance(value, list) else value
        elif base is not None:
            found[one.name] = was
    return kind(**found)


def add_verb(
    verbs: argparse._SubParsersAction[Parser],
    name: str,
    kind: type[S],
    run: Callable[[S], int],
    *,
    examples: str = "",
    description: str,
) -> Parser:
    """A verb whose `run` gets its settings and returns the exit code."""
    parser = verbs.add_parser(name, examples=examples, description=description)
    add_options(parser, kind)
    parser.set_defaults(run=lambda args: run(read_options(vars(args), kind)))
    return parser
