"""What a report says, before it is a page or a text: sections of paragraphs, tables, plots and
samples. Whoever renders it decides how marks look; nothing here is HTML. Then numbers as a report
writes them: what was not measured is "–"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.bench.stats import Ratio

BEST, SLOWER, UNCLEAR, LOSSY, FAULT = "best", "slower", "unclear", "lossy", "fault"

MARK_WORDS = {
    BEST: "★ best",
    SLOWER: "▼ slower",
    UNCLEAR: "≈ unclear",
    LOSSY: "LOSSY",
    FAULT: "✗ FAULT",
}
"""Marks by a sign and a word: never by colour alone."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell: what is said, what is said smaller beneath it, and marks."""

    text: str
    small: str = ""
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` begin with what names the row. The first `words` columns hold words, the others
    numbers; None is all words."""

    head: tuple[str | Cell, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    caption: str = ""
    words: int | None = 1

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return self.words is not None and column >= self.words


@dataclass(frozen=True, slots=True)
class Paragraph:
    """`kind` is "lead" for a verdict, "warning" for what a reader must not miss, else ""."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Names and what they are."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """To be copied as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture, and the same in words and numbers for who doesn't see it.

    draw    makes the matplotlib figure; only called where a picture can be shown
    table   its numbers; None where a table beside it has them
    """

    title: str
    description: str
    draw: Callable[[], Any]
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a text, all drafted and accepted or none of it."""

    text: str
    drafted: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer with its accepted drafted tokens; `cut` if it goes on."""

    title: str
    pieces: tuple[Piece, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Samples:
    """`note` says what is not shown."""

    samples: tuple[Sample, ...]
    note: str = ""


Block: TypeAlias = Paragraph | Table | Metadata | Code | Plot | Samples


@dataclass(frozen=True, slots=True)
class Section:
    """A title, and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One run file, or what compares several."""

    title: str
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report."""

    title: str
    parts: tuple[Part, ...] = ()


Titled: TypeAlias = tuple[str, Sequence[Block | None]]
"""A section's title and blocks; None stands for one that there isn't."""


def part(title: str, sections: Sequence[Titled]) -> Part:
    """Of titles and blocks. Blocks that are None are left out, and sections without any."""
    kept = [(name, tuple(one for one in blocks if one is not None)) for name, blocks in sections]
    return Part(title, tuple(Section(name, blocks) for name, blocks in kept if blocks))


Row: TypeAlias = dict[str | Cell, str | Cell]
"""A table's cells by their columns' heads."""


def table_of(rows: Sequence[Row], caption: str = "", words: int | None = 1) -> Table | None:
    """A table of rows with the same columns; None without any."""
    if not rows:
        return None
    return Table(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), caption, words)


MOST_NAMED = 20


def named(rows: Sequence[Row]) -> Table | None:
    """A table of words: the first rows, and how many more there are. None without any."""
    kept, more = [*rows[:MOST_NAMED]], len(rows) - MOST_NAMED
    if more > 0:
        words = [f"… and {more} more", *("",) * (len(rows[0]) - 1)]
        kept.append(dict(zip(rows[0], words, strict=True)))
    return table_of(kept, words=None)


# Numbers and names.

NONE = "–"

_CONTROLS = dict.fromkeys(
    [*range(9), *range(0xB, 0x20), 0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "�"
)
"""Control characters but tab and line feed, and those that turn the direction of what follows."""


def shown(text: str) -> str:
    """Text of others, with a sign for each character that would change what stands beside it."""
    return text.translate(_CONTROLS)


def number(value: float | None, form: str = ".2f", unit: str = "") -> str:
    """A number in that form with its unit behind it."""
    return NONE if value is None else f"{value:{form}}{unit}"


def three_digits(value: float | None) -> str:
    """Without an exponent.

    >>> three_digits(1234.5), three_digits(0.01234)
    ('1,234', '0.0123')
    """
    return number(value, ",.0f" if value is not None and value >= 100 else ".3g")


def percent(value: float | None, digits: int = 0) -> str:
    """
    >>> percent(0.254), percent(0.254, 1)
    ('25 %', '25.4 %')
    """
    return number(None if value is None else 100 * value, f".{digits}f", " %")


def interval(ratio: Ratio) -> str:
    """
    >>> interval(Ratio(1.5, 1.2, 1.8)), interval(Ratio(1.5, None, None))
    ('1.20–1.80', 'no interval')
    """
    if ratio.low is None or ratio.high is None:
        return "no interval"
    return f"{ratio.low:.2f}–{ratio.high:.2f}"


def times(ratio: Ratio | None) -> str:
    """
    >>> times(Ratio(1.5, 1.2, 1.8))
    '1.50× (1.20–1.80)'
    """
    return NONE if ratio is None else f"{ratio.value:.2f}× ({interval(ratio)})"


def short_times(ratio: Ratio) -> str:
    """
    >>> short_times(Ratio(1.5, 1.2, 1.8)), short_times(Ratio(0.9, None, None))
    ('1.50×', '0.90×, one prompt')
    """
    return f"{ratio.value:.2f}×{', one prompt' if ratio.low is None else ''}"


def count(number: int, one: str) -> str:
    """
    >>> count(1, "prompt"), count(1200, "prompt")
    ('1 prompt', '1,200 prompts')
    """
    return f"{number:,} {one if number == 1 else f'{one}s'}"


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


def scope_words(category: str | None) -> str:
    """A category's name, or that all prompts are meant."""
    return "all prompts" if category is None else category


def first_of(drawn: int, known: int) -> str:
    """What a description adds where there isn't room for all."""
    return "" if drawn >= known else f" The first {drawn} of {known} are shown."
