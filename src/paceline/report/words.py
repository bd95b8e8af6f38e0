"""Numbers and names as a report writes them. What was not measured is "–"."""

from __future__ import annotations

from collections.abc import Callable

from paceline.bench.local.run import Described
from paceline.bench.stats import Mean, Ratio
from paceline.report.document import LOSSY, Cell

NONE = "–"

_CONTROLS = dict.fromkeys(
    [*range(9), *range(0xB, 0x20), 0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "�"
)
"""Control characters but tab and line feed, and those that turn the direction of what follows."""


def shown(text: str) -> str:
    """Text of others, with a sign for each character that would change what stands beside it."""
    return text.translate(_CONTROLS)


def number(value: float | None, form: str = ".2f", unit: str = "") -> str:
    return NONE if value is None else f"{value:{form}}{unit}"


def percent(value: float | None, digits: int = 0) -> str:
    """
    >>> percent(0.254), percent(0.254, 1)
    ('25 %', '25.4 %')
    """
    return number(None if value is None else 100 * value, f".{digits}f", " %")


def interval(value: Ratio | Mean, form: str = ".2f") -> str:
    """
    >>> interval(Ratio(1.5, 1.2, 1.8))
    '1.20–1.80'
    >>> interval(Ratio(1.5, None, None))
    'no interval'
    """
    if value.low is None or value.high is None:
        return "no interval"
    return f"{value.low:{form}}–{value.high:{form}}"


def times(ratio: Ratio | None) -> str:
    """
    >>> times(Ratio(1.5, 1.2, 1.8))
    '1.50× (1.20–1.80)'
    """
    if ratio is None:
        return NONE
    return f"{ratio.value:.2f}× ({interval(ratio)})"


def short_times(ratio: Ratio) -> str:
    """
    >>> short_times(Ratio(1.5, 1.2, 1.8)), short_times(Ratio(0.9, None, None))
    ('1.50×', '0.90×, one prompt')
    """
    return f"{ratio.value:.2f}×{', one prompt' if ratio.low is None else ''}"


def long_interval(
    value: Ratio | Mean, words: Callable[[float], str] = lambda end: f"{end:.2f}"
) -> str:
    if value.low is None or value.high is None:
        return "one prompt: no interval"
    return f"95 % interval {words(value.low)} to {words(value.high)}"


def count(number: int, one: str, many: str = "") -> str:
    """
    >>> count(1, "prompt"), count(1200, "prompt")
    ('1 prompt', '1,200 prompts')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def bytes_words(value: float | None) -> str:
    """
    >>> bytes_words(3.2e9)
    '3.2 GB'
    """
    if value is None:
        return NONE
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def seconds_words(value: float | None) -> str:
    """
    >>> seconds_words(0.00123), seconds_words(75.0)
    ('1.23 ms', '75 s')
    """
    if value is None:
        return NONE
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def title(one: Described) -> str:
    """A configuration's name, LOSSY beside it where that is so."""
    return f"{one.name} (LOSSY)" if one.lossy else one.name


def name_cell(one: Described, *more: str) -> Cell:
    """With LOSSY where that is so, and more marks."""
    return Cell(one.name, marks=((LOSSY,) if one.lossy else ()) + more)


def scope_words(category: str | None) -> str:
    return category if category is not None else "all prompts"
