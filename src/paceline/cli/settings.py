"""Verbs and their options, declared as frozen dataclasses: a field is an option, and a verb's `run`
gets an instance.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        \"""The description of the verb, as its help shows it.\"""

        target: TargetOptions = group(TargetOptions)
        max_tokens: int = whole("most tokens of the answer", 128, least=2)
        json: bool = flag("print one JSON document instead")

    VERB = Verb(Settings, run, EXAMPLES)

Help texts end with the default and "repeatable" by themselves. A class with a `title` gets a
heading of its own in the help.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from paceline.cli.parser import Parser
from paceline.errors import SettingError

S = TypeVar("S")
T = TypeVar("T")


# Fields.


def option(
    help: str = "",
    metavar: str | None = None,
    *,
    short: str | None = None,
    default: Any = None,
    repeat: bool = False,
    quoted: bool = False,
    **how: Any,
) -> Any:
    """A field given as `--field-name VALUE`.

    metavar   what the help calls its value; default: N or X for a number
    short     another spelling, such as -n
    repeat    it may be given several times, and the field is a tuple
    quoted    its value is a text of options, so it may begin with a dash
    how       further arguments of `add_argument`: type, choices …
    """
    if metavar := metavar or {int: "N", float: "X"}.get(how.get("type")):  # type: ignore[arg-type]
        how["metavar"] = metavar
    if repeat:
        default, how["action"] = default or (), "append"
    told = {"short": short, "quoted": quoted, "how": {"help": help, **how}}
    return field(default=default, metadata=told)


def whole(
    help: str = "",
    default: int | None = None,
    *,
    least: int = 1,
    short: str | None = None,
    metavar: str = "N",
) -> Any:
    """A field that is a whole number, not below `least`."""
    return option(help, metavar, short=short, default=default, type=at_least(least))


def flag(help: str) -> Any:
    """A field that is False unless `--field-name` is given."""
    return option(help, default=False, action="store_true")


def argument(help: str, metavar: str, **how: Any) -> Any:
    """A positional field; `nargs` may make it several."""
    how = {"help": help, "metavar": metavar, **how}
    default = () if how.get("nargs") == "+" else None
    return field(default=default, metadata={"positional": True, "how": how})


def group(kind: type[Any], **defaults: Any) -> Any:
    """A field that holds the settings of another class, with other defaults for some of them."""
    return field(
        default_factory=lambda: kind(**defaults), metadata={"kind": kind, "defaults": defaults}
    )


def add_options(
    parser: Parser,
    kind: type[Any],
    *,
    changes: bool = False,
    defaults: Mapping[str, Any] | None = None,
    place: argparse._ActionsContainer | None = None,
) -> None:
    """Declare the options of a settings class. What isn't given is absent from the namespace.

    changes     what is read are changes to other settings: positional arguments are options
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
            default = (defaults or {}).get(one.name, one.default)
            how: dict[str, Any] = {"default": argparse.SUPPRESS, **one.metadata["how"]}
            how["help"] = _help(how, None if how.get("required") else default)
            if one.metadata.get("positional") and not changes:
                parser.add_argument(one.name, **how)
                continue
            if one.metadata.get("quoted"):
                parser.quoting += (as_flag(one.name),)
            flags = filter(None, [one.metadata.get("short"), as_flag(one.name)])
            place.add_argument(*flags, dest=one.name, **how)


def _help(how: Mapping[str, Any], default: Any) -> str:
    """A help text, with what can be said of every option behind it."""
    text = str(how["help"])
    notes = ["repeatable"] if how.get("action") == "append" else []
    if default is not None and default is not False and default != () and "default" not in text:
        several = default if isinstance(default, tuple) else (default,)
        shown = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in several)
        notes.append(f"default: {shown}")
    if notes and re.search(r"\(default: [^()]*\)$", text):
        text = f"{text[:-1]}; {'; '.join(notes)})"
    elif notes:
        text = f"{text} ({'; '.join(notes)})".strip()
    return text.replace("%", "%%")


def _names(kind: type[Any]) -> Iterator[str]:
    """Of all options of a settings class."""
    for one in fields(kind):
        nested = one.metadata.get("kind")
        yield from _names(nested) if nested else (one.name,)


def as_flag(name: str) -> str:
    """A field's option as it is written."""
    return f"--{name.replace('_', '-')}"


def read_options(values: Mapping[str, Any], kind: type[S], base: S | None = None) -> S:
    """The settings that were given, else those of `base`, else the defaults."""
    base = kind() if base is None else base
    changed: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        if nested := one.metadata.get("kind"):
            changed[one.name] = read_options(values, nested, getattr(base, one.name))
        elif one.name in values:
            value = values[one.name]
            changed[one.name] = tuple(value) if isinstance(value, list) else value
    return replace(base, **changed)  # type: ignore[type-var]


# Verbs.


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its settings, what runs with them and returns the exit code, and its help.

    run            None where one of the actions has to be named
    description    default: the settings' docstring
    actions        verbs of its own, as in `paceline models pull`
    metavar        what these are
    """

    settings: type[Any]
    run: Callable[[Any], int] | None
    examples: str = ""
    description: str = ""
    epilog: str | None = None
    actions: Mapping[str, Verb] = field(default_factory=dict)
    metavar: str = "ACTION"

    def add(
        self,
        verbs: argparse._SubParsersAction[Parser],
        name: str,
        help: str = "",
        above: type[Any] | None = None,
    ) -> None:
        """Add it to a command line; the options of the verb above it are refused."""
        text = self.description or inspect.cleandoc(self.settings.__doc__ or "")
        first = text.partition("\n")[0].rstrip(".")
        parser = verbs.add_parser(
            name,
            examples=self.examples,
            help=help or f"{first[:1].lower()}{first[1:]}",
            description=text,
            epilog=self.epilog,
        )
        add_options(parser, self.settings)
        if run := self.run:
            others = set() if above is None else {*_names(above)} - {*_names(self.settings)}

            def with_settings(args: argparse.Namespace) -> int:
                for other in sorted(others & vars(args).keys()):
                    raise SettingError(
                        f"`{parser.prog}` has no option {as_flag(other)}.", "Leave it out."
                    )
                return run(read_options(vars(args), self.settings))

            parser.set_defaults(run=with_settings)
        if self.actions:
            inner = parser.add_subparsers(
                dest="action", required=run is None, metavar=self.metavar, parser_class=Parser
            )
            for name, action in self.actions.items():
                action.add(inner, name, above=self.settings)


# Argument types.


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


def pair(text: str) -> tuple[str, str]:
    """An argument type: NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} has no value; write NAME=VALUE")
    return name, value
