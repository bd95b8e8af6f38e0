"""The options that say which prompts are measured, for every verb that measures."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from paceline.bench.prompts.formats import find_workload
from paceline.bench.prompts.workload import Workload
from paceline.cli.parser import Parser, at_least
from paceline.cli.settings import add_options, flag, group, option, read_options
from paceline.errors import SettingError

PROMPTS_HELP = (
    'a JSONL file ("prompt" or chat "messages", request logs, Spec-Bench questions: '
    "docs/workloads.md), or built-in, demo, human-eval"
)
SHOWN = 10
"""Most broken lines that are told one by one; all of them are in a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """What chooses among prompts, and how they are read."""

    raw: bool = flag("prompts without the chat template")
    categories: str | None = option("only the prompts of these categories", metavar="NAME[,NAME…]")
    sample: int | None = option(
        "N prompts drawn by a seed, each category by its share (default: all)",
        type=at_least(1),
        metavar="N",
    )
    sample_seed: int | None = option("seed of --sample (default: 0)", type=at_least(0), metavar="N")

    def find(self, prompts: str, *, turns: bool = True) -> Workload:
        """The chosen prompts; what was left out, and what has to be known of them, goes to stderr.

        turns    the verb asks later turns too, behind a fixed answer to the first
        """
        if self.sample_seed is not None and self.sample is None:
            raise SettingError(
                f"--sample-seed is {self.sample_seed} without --sample.", "Add --sample N."
            )
        workload = find_workload(prompts, raw=self.raw)
        if self.categories:
            workload = workload.of_categories(self.categories.split(","))
        if self.sample is not None:
            workload = workload.sampled(self.sample, self.sample_seed or 0)
        if not turns:
            workload = workload.first_turns()
        for line in notes(workload):
            print(line, file=sys.stderr)
        return workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Which prompts are measured."""

    prompts: str = option(f"{PROMPTS_HELP} (default: %(default)s)", default="demo", metavar="SPEC")
    choice: ChoiceOptions = group(ChoiceOptions)

    def workload(self, *, turns: bool = True) -> Workload:
        """The prompts that were asked for; see `ChoiceOptions.find`."""
        return self.choice.find(self.prompts, turns=turns)


# Verbs that still read a Namespace.
def add_workload(parser: Parser, default: str = "demo") -> None:
    add_options(parser, PromptOptions, defaults={"prompts": default})


def add_choice(parser: Parser) -> None:
    add_options(parser, ChoiceOptions)


def workload_of(args: argparse.Namespace, *, turns: bool = True) -> Workload:
    return read_options(vars(args), ChoiceOptions).find(args.prompts, turns=turns)


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
