"""Names to classes: engines, drafts and verifiers, ours and those of other packages.

All are found through entry points (`paceline.engines`, `paceline.drafts`, `paceline.verifiers`);
a module is imported when its name is used, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from paceline.errors import SettingError, unknown_name

KINDS = {"engine": "paceline.engines", "draft": "paceline.drafts", "verifier": "paceline.verifiers"}


@cache
def _registered(kind: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    # Ours come last, so that another package can't quietly take a built-in's name.
    for entry in sorted(entry_points(group=KINDS[kind]), key=_is_ours):
        found[entry.name] = entry
    return found


def _is_ours(entry: EntryPoint) -> bool:
    return entry.value.startswith("paceline.")


def names(kind: str) -> list[str]:
    """Every registered name of a kind ("engine", "draft" or "verifier")."""
    return sorted(_registered(kind))


def find(kind: str, name: str) -> Any:
    """The class registered under a name.

    Raises SettingError for an unknown name (with the nearest known one) and for one whose package
    can't be imported (with what is missing).
    """
    registered = _registered(kind)
    if name not in registered:
        raise unknown_name(kind, name, registered)
    entry = registered[name]
    try:
        return entry.load()
    except Exception as error:  # whatever another package, or a library of ours, does on import
        extra = f"pip install 'paceline[{name}]'" if _is_ours(entry) else "Install it."
        raise SettingError(f"The {kind} {name!r} can't be imported: {error}.", extra) from error


def split_options(
    kind: str, name: str, written: str, taken: Collection[str] = ()
) -> tuple[dict[str, str], str]:
    """The options of `NAME:KEY=VALUE,…` as they are written, and what stands behind them.

    taken    arguments that are no options. Raises SettingError for one of them, or one given twice
    """
    options: dict[str, str] = {}
    while written:
        part, _, rest = written.partition(",")
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not key.isidentifier():
            break
        if key in taken:
            raise SettingError(f"The {kind} {name!r} has no option {key!r}.", "Leave it out.")
        if key in options:
            raise SettingError(f"{key} of the {kind} {name!r} is given twice.", "Give it once.")
        options[key] = value
        written = rest
    return options, written


def no_value(kind: str, spec: str, rest: str) -> SettingError:
    """For what stands behind the options of a specification that takes nothing else."""
    return SettingError(
        f"The {kind} {spec!r} has the option {rest.partition(',')[0]!r} without a value.",
        "Write NAME:KEY=VALUE.",
    )


def read_options(
    kind: str, name: str, written: Mapping[str, str], known: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """The values of a draft's or a verifier's options, as they are written behind its name.

    known    what reads each option: int, float, str or `yes_or_no`

    Raises SettingError for an option that is not known, or that can't be read.
    """
    found: dict[str, Any] = {}
    for option, value in written.items():
        if not known:
            raise SettingError(f"The {kind} {name!r} has no option {option!r}.", "Leave it out.")
        if option not in known:
            raise unknown_name(f"option of the {kind} {name!r}", option, known)
        try:
            found[option] = known[option](value)
        except ValueError:
            wanted = _KINDS_OF_VALUE.get(known[option], "yes or no")
            raise SettingError(f"{option} is {value!r}.", f"It must be {wanted}.") from None
    return found


_KINDS_OF_VALUE: dict[Any, str] = {int: "a whole number", float: "a number"}


def yes_or_no(value: str) -> bool:
    """The value of an option that is written yes or no. Raises ValueError for anything else."""
    if value not in ("yes", "no"):
        raise ValueError(value)
    return value == "yes"
