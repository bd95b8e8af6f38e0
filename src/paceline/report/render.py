"""A report as one HTML page that asks nothing of the network (styles and pictures are inside, there
is no script, the template escapes whatever comes from prompts, names or texts); and as Markdown,
with each picture's numbers in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import count
from typing import Any

import paceline
from paceline.errors import SettingError
from paceline.report.canvas import HINT, svg_of
from paceline.report.document import (
    MARK_WORDS,
    Block,
    Cell,
    Code,
    Metadata,
    Paragraph,
    Plot,
    Report,
    Sample,
    Table,
    shown,
)

HTML_MARK = '<meta name="generator" content="paceline report'
MARKDOWN_MARK = "<!-- paceline report -->"


def html(report: Report) -> str:
    """The page. Raises SettingError where Jinja or matplotlib is not installed."""
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError:
        raise SettingError("A page needs Jinja, which is not installed.", HINT) from None
    here, numbers = files("paceline.report"), count(1)
    environment = Environment(
        loader=FunctionLoader(lambda name: here.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: shown(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    safe: Any = environment.filters["safe"]
    environment.globals.update(
        marks=MARK_WORDS,
        svg=lambda plot: safe(svg_of(plot, f"plot{next(numbers)}")),
        kind=lambda block: type(block).__name__.lower(),
        cell=lambda value: value if isinstance(value, Cell) else Cell(value),
    )
    text: str = environment.get_template("page.html").render(
        report=report,
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        version=paceline.__version__,
    )
    return text


def markdown(report: Report) -> str:
    """The same sections as text."""
    several = len(report.parts) > 1
    lines = [MARKDOWN_MARK, "", f"# {escaped(report.title)}", ""]
    for part in report.parts:
        lines += [f"## {escaped(part.title)}", ""] if several else []
        for section in part.sections:
            lines += [f"##{'#' * several} {escaped(section.title)}", ""]
            for block in section.blocks:
                lines += [*_block(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def escaped(words: str) -> str:
    r"""Words that Markdown and HTML leave alone, on one line.

    >>> print(escaped("a | <b> *c*"))
    a \| &lt;b&gt; \*c\*
    """
    words = shown(" ".join(words.split()))
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", words)


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        words = escaped(block.text)
        yield {"lead": f"**{words}**", "warning": f"> ⚠ {words}"}.get(block.kind, words)
    elif isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Metadata):
        yield from (f"- {escaped(name)}: {escaped(value)}" for name, value in block.pairs)
    elif isinstance(block, Code):
        yield from _fenced(block.text, "sh")
    elif isinstance(block, Plot):
        yield escaped(block.description)
        if block.table is not None:
            yield ""
            yield from _table(block.table)
    else:
        yield f"In ⟦ ⟧: drafted and accepted. The rest is the target's own.{block.note}"
        for sample in block.samples:
            yield from ("", f"{escaped(sample.title)}:", "")
            yield from _fenced(_marked(sample))


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


def _marked(sample: Sample) -> str:
    pieces = (f"⟦{one.text}⟧" if one.drafted else one.text for one in sample.pieces)
    return "".join(pieces) + (" …" if sample.cut else "")


def _fenced(words: str, language: str = "") -> Iterator[str]:
    """A block whose fence is longer than any in the words."""
    longest = max(map(len, re.findall("`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}{language}", shown(words), fence)
