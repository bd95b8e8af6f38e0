"""A report as Markdown: the same sections, with each picture's numbers in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.report.document import (
    MARK_WORDS,
    Block,
    Cell,
    Code,
    Metadata,
    Paragraph,
    Part,
    Piece,
    Plot,
    Report,
    Sample,
    Samples,
    Table,
)
from paceline.report.words import shown

MARK = "<!-- paceline report -->"


def text(report: Report) -> str:
    lines = [MARK, "", f"# {escaped(report.title)}", ""]
    for part in report.parts:
        lines += _part(part, len(report.parts) > 1)
    return "\n".join(lines).rstrip() + "\n"


def escaped(words: str) -> str:
    r"""Words that Markdown and HTML leave alone, on one line.

    >>> print(escaped("a | <b> *c*"))
    a \| &lt;b&gt; \*c\*
    """
    words = shown(" ".join(words.split()))
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", words)


def _part(part: Part, several: bool) -> Iterator[str]:
    level = "##"
    if several:
        yield from (f"## {escaped(part.title)}", "")
        level = "###"
    for section in part.sections:
        yield from (f"{level} {escaped(section.title)}", "")
        for block in section.blocks:
            yield from _block(block)
            yield ""


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        words = escaped(block.text)
        yield {"lead": f"**{words}**", "warning": f"> ⚠ {words}"}.get(block.kind, words)
    elif isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Metadata):
        yield from (f"- {escaped(name)}: {escaped(value)}" for name, value in block.pairs)
    elif isinstance(block, Code):
        yield from fenced(block.text, "sh")
    elif isinstance(block, Plot):
        yield escaped(block.description)
        if block.table is not None:
            yield ""
            yield from _table(block.table)
    else:
        yield from _samples(block)


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield from (f"{escaped(table.caption)}:", "")
    yield _row(table.head)
    rules = ["---:" if table.is_number(place) else "---" for place in range(len(table.head))]
    yield f"| {' | '.join(rules)} |"
    yield from (_row(row) for row in table.rows)


def _row(cells: tuple[str | Cell, ...]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    marks = [MARK_WORDS[mark] for mark in cell.marks]
    return "<br>".join(escaped(part) for part in (cell.text, cell.small, *marks) if part)


def _samples(block: Samples) -> Iterator[str]:
    yield f"In ⟦ ⟧: drafted and accepted. The rest is the target's own.{block.note}"
    for sample in block.samples:
        yield from ("", f"{escaped(sample.title)}:", "")
        yield from fenced(_marked(sample))


def _marked(sample: Sample) -> str:
    return "".join(map(_piece, sample.pieces)) + (" …" if sample.cut else "")


def _piece(piece: Piece) -> str:
    return f"⟦{piece.text}⟧" if piece.drafted else piece.text


def fenced(words: str, language: str = "") -> Iterator[str]:
    """A block whose fence is longer than any in the words."""
    longest = max(map(len, re.findall("`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}{language}", shown(words), fence)
