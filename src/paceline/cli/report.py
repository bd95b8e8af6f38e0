"""`paceline report`: what a bench found, as a page for a sceptical colleague."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.options import say
from paceline.cli.settings import Verb, argument, option
from paceline.errors import PacelineError, SettingError
from paceline.report.make import check_out, summaries_of, write
from paceline.report.verdict import verdicts

EXAMPLES = """\
  paceline report bench.jsonl -o report.html
  paceline report laptop.jsonl server.jsonl -o both.html -o both.md -o rows.csv"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Make one self-contained page of what `bench` or `bench-server` measured, without a model:
    the verdict, its doubts, plots, samples and how to measure it again. Several runs stand side
    by side and are never pooled."""

    runs: tuple[str, ...] = argument(
        "a file of `paceline bench` or `bench-server` (repeatable)", "RUN", nargs="+"
    )
    out: tuple[str, ...] = option(
        "where it goes: .html, .md, or the figures as rows: .csv, .json",
        "FILE",
        short="-o",
        default=("paceline-report.html",),
        repeat=True,
    )


def run(settings: Settings) -> int:
    """Print the verdicts, write the report, and return the exit code."""
    # Rounds and plots are a million objects of which hardly one is garbage before the end: looking
    # for it after every 700, as usual, takes a tenth of the time.
    gc.set_threshold(100_000)
    for name in settings.out:
        if settings.out.count(name) > 1:
            raise SettingError(f"-o {name} is given twice.", "Give it once.")
    outs = [check_out(Path(name)) for name in settings.out]
    summaries = summaries_of(settings.runs)
    for summary in summaries:
        for verdict in verdicts(summary):
            before = f"{summary.source}: " if len(summaries) > 1 else ""
            print("\n".join([f"{before}{verdict.sentence}", *verdict.doubts]))
    faults = []
    for out in outs:
        try:
            write(summaries, out)
            say(f"The report is in {out}.")
        except PacelineError as error:  # the others are written first
            faults.append(error)
    if faults:
        raise faults[0]
    return 0


VERB = Verb(Settings, run, EXAMPLES)
