"""`paceline report`: what a bench found, as a page for a sceptical colleague."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.cli.parser import Parser
from paceline.errors import PacelineError, SettingError
from paceline.report.make import check_out, summaries_of, verdicts_of, write

EXAMPLES = """\
  paceline report bench.jsonl -o report.html
  paceline report laptop.jsonl server.jsonl -o both.html -o both.md -o rows.csv"""

DEFAULT = "paceline-report.html"

_OBJECTS = 100_000
"""So many more before garbage is looked for; 700 is usual."""


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "report",
        examples=EXAMPLES,
        help="make a page of what a bench found",
        description=(
            "Make one self-contained page of what `paceline bench -o RUN` measured, in process or "
            "on live\nservers, with no model: the verdict, its doubts, pictures, samples and how "
            "to measure it\nagain. Several runs stand side by side and are never pooled."
        ),
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a file of `paceline bench` (repeatable)"
    )
    parser.add_argument(
        "-o",
        "--out",
        action="append",
        metavar="FILE",
        help="where it goes; .html, .md, or the figures as rows: .csv, .json (repeatable; "
        f"default: {DEFAULT})",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with _rare_collection():
        return _run(args)


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Rounds and pictures are a million objects of which hardly one is garbage before the end:
    looking for it as often as usual takes a tenth of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _run(args: argparse.Namespace) -> int:
    given = args.out or [DEFAULT]
    for name in given:
        if given.count(name) > 1:
            raise SettingError(f"-o {name} is given twice.", "Give it once.")
    outs = [check_out(Path(name)) for name in given]
    summaries = summaries_of(args.runs)
    for summary in summaries:
        for verdict in verdicts_of(summary):
            before = f"{summary.source}: " if len(summaries) > 1 else ""
            print("\n".join([f"{before}{verdict.sentence}", *verdict.doubts]))
    faults = []
    for out in outs:
        try:
            write(summaries, out)
            print(f"The report is in {out}.", file=sys.stderr)
        except PacelineError as error:  # the others are written first
            faults.append(error)
    if faults:
        raise faults[0]
    return 0
