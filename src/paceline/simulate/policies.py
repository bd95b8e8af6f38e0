"""What each policy takes on a recording, as a document and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from paceline.bench.wording import aligned
from paceline.decode.round import Policy
from paceline.errors import SettingError
from paceline.policy.costs import Costs
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
from paceline.simulate.trace import Recording


def compare_policies(
    recorded: Recording,
    costs: Costs,
    specs: Sequence[str],
    *,
    configuration: str | None = None,
    batch: int = 1,
    arrivals_per_s: float | None = None,
    row_budget: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Simulate each policy on one configuration's answers (default: the first one's); beside them
    stand the recorded rounds' own seconds and the best policy in hindsight."""
    whole = imputed(recorded)
    name = configuration or whole.configurations[0]
    recording = whole.of(configuration=name)
    found = {
        spec: simulate(
            recording,
            costs,
            _policy(spec, costs, whole),
            batch=batch,
            arrivals_per_s=arrivals_per_s,
            row_budget=row_budget,
            seed=seed,
        )
        for spec in dict.fromkeys(["baseline", *specs])
    }
    return {
        "configuration": name,
        "batch": batch,
        "arrivals_per_s": arrivals_per_s,
        "budget": row_budget,
        "seed": seed,
        "policies": {
            spec: {**found[spec].as_json(), "speedup": _speedup(found, spec)} for spec in specs
        },
        "measured": _measured(whole, costs, [name] if configuration else whole.configurations),
        # A batch mixes categories: only one request at a time has seconds of its own.
        "hindsight": _hindsight(recording, costs, found, specs) if batch == 1 else {},
    }


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
    recording: Recording, costs: Costs, found: dict[str, Simulation], specs: Sequence[str]
) -> dict[str, Any]:
    best = best_fixed(recording, costs)
    regrets = {spec: regret(found[spec], best) for spec in specs}
    return {
        category: {**asdict(one), "regret": {spec: regrets[spec][category] for spec in specs}}
        for category, one in best.items()
    }


_HEADS = ("seconds", "ms/token", "speedup", "tokens/round", "drafted", "latency p95")


def comparison_text(document: dict[str, Any]) -> str:
    """The comparison of policies, as a table for a terminal."""
    policies = document["policies"]
    lines = aligned([("policy", *_HEADS), *((spec, *_row(one)) for spec, one in policies.items())])
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
