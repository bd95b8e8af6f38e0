"""`paceline simulate`: replay a recording without a model, under other costs and policies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.cli.options import Output, table
from paceline.cli.settings import Verb, argument, group, option, whole
from paceline.decode.round import Policy
from paceline.errors import SettingError
from paceline.policy.costs import Costs, read_costs, shipped_costs
from paceline.simulate.impute import imputed
from paceline.simulate.simulate import (
    Simulation,
    best_fixed,
    policy_named,
    policy_of,
    regret,
    seconds_of,
    simulate,
)
from paceline.simulate.trace import Recording, read_recording

EXAMPLES = """\
  paceline simulate rounds.jsonl --costs costs.json
  paceline simulate rounds.jsonl --costs costs.json --policy measured,lookup:3 --batch 8"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Run what `bench --record` or `replay -o` recorded, without a model, and print what each
    policy would take. The recorded rounds' own seconds stand beside their prediction."""

    rounds: str = argument("a file of `bench --record` or `replay -o`", "ROUNDS")
    costs: str = option(
        f"costs of `paceline profile`, or shipped ones: {', '.join(shipped_costs())}",
        "FILE",
        required=True,
    )
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
    seed: int = whole("of the arrivals", 0, least=0)
    configuration: str | None = option(
        "whose answers are simulated, by its name in the bench (default: the first)", "NAME"
    )
    output: Output = group(Output)


def run(settings: Settings) -> int:
    """Simulate each policy, print what it takes, and return the exit code."""
    costs = read_costs(settings.costs)
    filled = imputed(read_recording(settings.rounds))
    name = settings.configuration or filled.configurations[0]
    names = [name] if settings.configuration else filled.configurations
    recording = filled.of(configuration=name)
    specs = list(dict.fromkeys(settings.policy.split(",")))
    policies = {spec: _policy(spec, costs, filled) for spec in specs}
    found = {
        spec: simulate(
            recording,
            costs,
            policy,
            batch=settings.batch,
            arrivals_per_s=settings.arrivals,
            row_budget=settings.budget,
            seed=settings.seed,
        )
        for spec, policy in ({"baseline": _policy("baseline", costs, filled)} | policies).items()
    }
    document = {
        "kind": "paceline simulation",
        "recording": settings.rounds,
        "costs": settings.costs,
        "configuration": name,
        "batch": settings.batch,
        "arrivals_per_s": settings.arrivals,
        "budget": settings.budget,
        "seed": settings.seed,
        "policies": {
            spec: {**found[spec].as_json(), "speedup": _speedup(found, spec)} for spec in specs
        },
        "measured": _measured(filled, costs, names),
        # A batch mixes categories: only one request at a time has seconds of its own.
        "hindsight": _hindsight(recording, costs, found, specs) if settings.batch == 1 else {},
    }
    settings.output.show(lambda: document, lambda: _text(document))
    return 0


def _policy(spec: str, costs: Costs, recording: Recording) -> Policy:
    draft = spec.rpartition(":")[0]
    known = recording.known_sources
    if draft in recording.header.sources and draft not in known:
        raise SettingError(
            f"The recording never asked the draft {draft!r}, so what it would have got right is "
            "unknown.",
            "Record a run that asks it.",
        )
    return policy_named(spec, costs, known, recording.header.has_confidence)


def _speedup(found: dict[str, Simulation], spec: str) -> float | None:
    baseline, mine = found["baseline"].ms_per_token, found[spec].ms_per_token
    return baseline / mine if baseline and mine else None


def _measured(recording: Recording, costs: Costs, names: list[str]) -> dict[str, Any]:
    """Each configuration's recorded decoding seconds, and what the simulator makes of the same
    policy on the same answers."""
    rows = {}
    for name in names:
        mine = recording.of(configuration=name)
        rounds = [round for trace in mine.traces for round in trace.rounds]
        measured_s = seconds_of([round for round in rounds if not round.prefill])
        if not measured_s:
            continue
        spec = policy_of(mine.traces)
        # One request after another, each with a policy that has counted nothing, as in a bench.
        predicted_s = sum(
            simulate(replace(mine, traces=(one,)), costs, _policy(spec, costs, recording)).decode_s
            for one in mine.traces
            if one.rounds
        )
        rows[name] = {
            "policy": spec,
            "decode_s": measured_s,
            "predicted_s": predicted_s,
            "predicted_over_measured": predicted_s / measured_s,
        }
    return rows


def _hindsight(
    recording: Recording, costs: Costs, found: dict[str, Simulation], specs: list[str]
) -> dict[str, Any]:
    best = best_fixed(recording, costs)
    regrets = {spec: regret(found[spec], best) for spec in specs}
    return {
        category: {**asdict(one), "regret": {spec: regrets[spec][category] for spec in specs}}
        for category, one in best.items()
    }


# The document as text.

_HEADS = ("seconds", "ms/token", "speedup", "tokens/round", "drafted", "latency p95")


def _text(document: dict[str, Any]) -> str:
    policies = document["policies"]
    lines = [table([("policy", *_HEADS), *((spec, *_row(one)) for spec, one in policies.items())])]
    if document["measured"]:
        lines.append("")
    for name, one in document["measured"].items():
        lines.append(
            f"measured   {name}: {one['decode_s']:.2f} s of decoding; predicted as "
            f"{one['policy']}: {one['predicted_s']:.2f} s, "
            f"{one['predicted_over_measured']:.2f} times the measured"
        )
    if document["hindsight"]:
        lines.append("")
    for category, one in document["hindsight"].items():
        told = [f"{spec} {_more(value)}" for spec, value in one["regret"].items()]
        lines.append(f"hindsight  {category}: best fixed is {one['policy']}; {', '.join(told)}")
    return "\n".join(lines)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    drafted = one["drafted_rounds"] / one["rounds"] if one["rounds"] else None
    return (
        f"{one['total_s']:.2f}",
        _number(one["ms_per_token"], ".2f"),
        _number(one["speedup"], ".2f"),
        _number(one["tokens_per_round"], ".2f"),
        _number(drafted, ".0%"),
        f"{one['latency_s_p95']:.2f} s",
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _more(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


VERB = Verb(Settings, run, EXAMPLES)
