"""`paceline simulate`: replay a recording without a model, under other costs and policies."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cli.options import COSTS_HELP, Output
from paceline.cli.settings import Verb, argument, group, option, whole
from paceline.policy.costs import read_costs
from paceline.simulate.policies import compare_policies, comparison_text
from paceline.simulate.trace import read_recording

EXAMPLES = """\
  paceline simulate rounds.jsonl --costs costs.json
  paceline simulate rounds.jsonl --costs costs.json --policy measured,lookup:3 --batch 8"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Run what `bench --record` or `replay -o` recorded, without a model, and print what each
    policy would take. The recorded rounds' own seconds stand beside their prediction."""

    rounds: str = argument("a file of `bench --record` or `replay -o`", "ROUNDS")
    costs: str = option(COSTS_HELP, "FILE", required=True)
    policy: str = option(
        "measured, baseline, or DRAFT:LIMIT as in lookup:3",
        "NAME[,NAME…]",
        default="measured,baseline",
    )
    batch: int = whole("most requests at once", 1)
    arrivals: float | None = option(
        "requests that arrive per second, at random (default: all wait at the start)",
        "PER_S",
        type=float,
    )
    budget: int | None = whole(
        "most rows of a forward, prompts included (default: no bound)", metavar="ROWS"
    )
    seed: int = whole("seed of the arrivals", 0, least=0)
    configuration: str | None = option(
        "whose answers are simulated, by its name in the bench (default: the first)", "NAME"
    )
    output: Output = group(Output)


def run(settings: Settings) -> int:
    """Simulate each policy, print what it takes, and return the exit code."""
    costs = read_costs(settings.costs)
    found = compare_policies(
        read_recording(settings.rounds),
        costs,
        list(dict.fromkeys(settings.policy.split(","))),
        configuration=settings.configuration,
        batch=settings.batch,
        arrivals_per_s=settings.arrivals,
        row_budget=settings.budget,
        seed=settings.seed,
    )
    given = {"kind": "paceline simulation", "recording": settings.rounds, "costs": settings.costs}
    settings.output.show(lambda: given | found, lambda: comparison_text(found))
    return 0


VERB = Verb(Settings, run, EXAMPLES)
