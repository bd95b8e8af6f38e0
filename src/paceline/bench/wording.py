"""What cards share: a ratio's verdict and interval in words, and tables of aligned columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.bench.stats import Mean, Ratio

PAYS, LOSES, UNCLEAR = "it pays", "it does not pay", "no clear difference"


def verdict(ratio: Ratio) -> str | None:
    """What its interval lets one say; None without one. What prints as 1.00 is no difference.

    >>> verdict(Ratio(1.5, 1.2, 1.8)), verdict(Ratio(1.1, 0.9, 1.3))
    ('it pays', 'no clear difference')
    """
    if ratio.low is None or ratio.high is None:
        return None
    shown = round(ratio.value, 2)
    if ratio.low > 1 and shown > 1:
        return PAYS
    return LOSES if ratio.high < 1 and shown < 1 else UNCLEAR


def interval_words(
    value: Ratio | Mean,
    end: Callable[[float], str] = lambda end: f"{end:.2f}",
    *,
    single: str = "prompt",
) -> str:
    """
    end      how a bound is written
    single   what there is only one of, where there is no interval

    >>> interval_words(Ratio(1.5, 1.2, 1.8))
    '95 % interval 1.20 to 1.80'
    >>> interval_words(Ratio(1.5, None, None))
    'one prompt: no interval'
    """
    if value.low is None or value.high is None:
        return f"one {single}: no interval"
    return f"95 % interval {end(value.low)} to {end(value.high)}"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table: the first so many columns to the left, the others to the right.

    >>> aligned([["a", "1"], ["bcd", "10"]])
    ['a     1', 'bcd  10']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [*map(str.ljust, row[:left], widths), *map(str.rjust, row[left:], widths[left:])]
        ).rstrip()
        for row in rows
    ]
