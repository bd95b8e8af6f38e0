"""`paceline simulate`: replay a recording without a model, under other costs and policies."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import Any

from paceline.cli.parser import Parser, at_least
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


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "simulate",
        examples=EXAMPLES,
        help="replay recorded rounds under other costs, policies and batch sizes",
        description=(
            "Replay what `bench --record` wrote, without a model, and print what each policy "
            "would take.\nThe recorded rounds' own seconds stand beside their prediction."
        ),
    )
    parser.add_argument("rounds", metavar="ROUNDS", help="the file of `bench --record`")
    parser.add_argument(
        "--costs",
        required=True,
        metavar="FILE",
        help=f"costs of `paceline profile`, or shipped ones: {', '.join(shipped_costs())}",
    )
    parser.add_argument(
        "--policy",
        default="measured,baseline",
        metavar="NAME[,NAME…]",
        help="measured, baseline, or DRAFT:LIMIT as in lookup:3 (default: measured,baseline)",
    )
    parser.add_argument(
        "--batch",
        type=at_least(1),
        default=1,
        metavar="N",
        help="most requests at once (default: 1)",
    )
    parser.add_argument(
        "--arrivals",
        type=float,
        metavar="PER_S",
        help="requests that arrive per second, at random (default: all wait at the start)",
    )
    parser.add_argument(
        "--budget",
        type=at_least(1),
        metavar="ROWS",
        help="most rows of a forward, prompts included (default: no bound)",
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="of the arrivals (default: 0)"
    )
    parser.add_argument(
        "--configuration",
        metavar="NAME",
        help="whose answers are replayed, by its name in the bench (default: the first)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    costs = read_costs(args.costs)
    whole = imputed(read_recording(args.rounds))
    name = args.configuration or whole.configurations[0]
    recording = whole.of(configuration=name)
    specs = list(dict.fromkeys(args.policy.split(",")))
    policies = {spec: _policy(spec, costs, whole) for spec in specs}
    found = {
        spec: simulate(
            recording,
            costs,
            policy,
            batch=args.batch,
            arrivals_per_s=args.arrivals,
            row_budget=args.budget,
            seed=args.seed,
        )
        for spec, policy in ({"baseline": _policy("baseline", costs, whole)} | policies).items()
    }
    document = {
        "kind": "paceline simulation",
        "recording": args.rounds,
        "costs": args.costs,
        "configuration": name,
        "batch": args.batch,
        "arrivals_per_s": args.arrivals,
        "budget": args.budget,
        "seed": args.seed,
        "policies": {
            spec: {**found[spec].as_json(), "speedup": _speedup(found, spec)} for spec in specs
        },
        "measured": _measured(whole, costs, [name] if args.configuration else whole.configurations),
        # A batch mixes categories: only one request at a time has seconds of its own.
        "hindsight": _hindsight(recording, costs, found, specs) if args.batch == 1 else {},
    }
    print(json.dumps(document, ensure_ascii=False) if args.json else _text(document))
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
    rows = [("policy", *_HEADS), *((spec, *_row(one)) for spec, one in policies.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
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
