"""Options of a draft, as they are written behind its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import SettingError, unknown_name

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}


def read_options(
    draft: str, written: Mapping[str, str], known: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """The values of options by name.

    known    what reads each option: int, float, str or `yes_or_no`

    Raises SettingError for an option that is not known, or that can't be read.
    """
    found: dict[str, Any] = {}
    for name, value in written.items():
        if name not in known:
            raise unknown_name(f"option of the draft {draft!r}", name, known)
        try:
            found[name] = known[name](value)
        except ValueError:
            kind = _KINDS.get(known[name], "yes or no")
            raise SettingError(f"{name} is {value!r}.", f"It must be {kind}.") from None
    return found


def yes_or_no(value: str) -> bool:
    """Raises ValueError for anything else."""
    if value not in ("yes", "no"):
        raise ValueError(value)
    return value == "yes"
