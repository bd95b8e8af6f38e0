"""A report as one HTML page that asks nothing of the network: styles and pictures are inside, and
there is no script. Whatever comes from prompts, names or texts is escaped by the template."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import paceline
from paceline.errors import SettingError
from paceline.report.document import MARK_WORDS, Cell, Report
from paceline.report.svg import HINT, svg_of
from paceline.report.words import shown

MARK = '<meta name="generator" content="paceline report'


def html(report: Report) -> str:
    """Raises SettingError where Jinja or matplotlib is not installed."""
    environment = _environment()
    style = files("paceline.report").joinpath("page.css").read_text(encoding="utf-8")
    names = _names()
    environment.globals.update(
        marks=MARK_WORDS,
        svg=lambda plot: environment.filters["safe"](svg_of(plot, next(names))),
        kind=lambda block: type(block).__name__.lower(),
        cell=lambda value: value if isinstance(value, Cell) else Cell(value),
    )
    template = environment.get_template("page.html")
    text: str = template.render(report=report, style=style, version=paceline.__version__)
    return text


def _names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"plot{number}"


def _environment() -> Any:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError:
        raise SettingError(
            "A page needs Jinja, which is not installed.",
            HINT,
        ) from None
    here = files("paceline.report")
    return Environment(
        loader=FunctionLoader(lambda name: here.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: shown(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
