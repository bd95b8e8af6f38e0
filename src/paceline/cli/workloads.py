"""The options that say which prompts are measured, for every verb that measures."""

from __future__ import annotations

import argparse
import sys

from paceline.bench.prompts.formats import find_workload
from paceline.bench.prompts.workload import Workload
from paceline.cli.parser import Parser, at_least
from paceline.errors import SettingError

PROMPTS_HELP = (
    'a JSONL file ("prompt" or chat "messages", request logs, Spec-Bench questions: '
    "docs/workloads.md), or built-in, demo, human-eval"
)
SHOWN = 10
"""Most broken lines that are told one by one; all of them are in a result."""


def add_workload(parser: Parser, default: str = "demo") -> None:
    """Add --prompts, and what chooses among them.

    default    what is measured without --prompts
    """
    parser.add_argument(
        "--prompts",
        metavar="SPEC",
        default=default,
        help=f"{PROMPTS_HELP} (default: {default})",
    )
    add_choice(parser)


def add_choice(parser: Parser) -> None:
    """Add what chooses among prompts, and how they are read."""
    parser.add_argument("--raw", action="store_true", help="prompts without the chat template")
    parser.add_argument(
        "--categories", metavar="NAME[,NAME…]", help="only the prompts of these categories"
    )
    parser.add_argument(
        "--sample",
        type=at_least(1),
        metavar="N",
        help="N prompts drawn by a seed, each category by its share (default: all)",
    )
    parser.add_argument(
        "--sample-seed", type=at_least(0), metavar="N", help="seed of --sample (default: 0)"
    )


def workload_of(args: argparse.Namespace, *, turns: bool = True) -> Workload:
    """The prompts that the options ask for; what was left out, and what has to be known of them,
    goes to stderr.

    turns    the verb asks later turns too, behind a fixed answer to the first
    """
    if args.sample_seed is not None and args.sample is None:
        raise SettingError(
            f"--sample-seed is {args.sample_seed} without --sample.", "Add --sample N."
        )
    workload = find_workload(args.prompts, raw=args.raw)
    if args.categories:
        workload = workload.of_categories(args.categories.split(","))
    if args.sample is not None:
        workload = workload.sampled(args.sample, args.sample_seed or 0)
    if not turns:
        workload = workload.first_turns()
    for line in notes(workload):
        print(line, file=sys.stderr)
    return workload


def notes(workload: Workload) -> list[str]:
    """One line for each thing that was left out or has to be known."""
    lines = [f"{workload.name}: {sentence} Left out." for sentence in workload.skipped[:SHOWN]]
    if len(workload.skipped) > SHOWN:
        more = len(workload.skipped) - SHOWN
        lines.append(f"{workload.name}: {more} more lines are left out.")
    if workload.repeated:
        lines.append(
            f"{workload.name}: Prompts that repeat an earlier one: {workload.repeated}. They count "
            "again, and flatter a draft that remembers."
        )
    return lines + [f"{workload.name}: {sentence}" for sentence in workload.notes]
