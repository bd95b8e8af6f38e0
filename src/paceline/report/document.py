"""What a report says, before it is a page or a text: sections of paragraphs, tables, plots and
samples. Whoever renders it decides how marks look; nothing here is HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One run file, or what compares several."""

    title: str
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    parts: tuple[Part, ...] = field(default_factory=tuple)


def section(title: str, blocks: Sequence[Block | None]) -> Section | None:
    """A section of the blocks that there are; None without any."""
    kept = tuple(block for block in blocks if block is not None)
    return Section(title, kept) if kept else None
