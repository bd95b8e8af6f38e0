"""Replay a recording without a model: other costs, policies, batch sizes, arrivals and budgets.

The same policies run as in real decoding, over streams that show what was recorded (`server`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from paceline.decode.round import Policy, fixed
from paceline.errors import SettingError, unknown_name
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.costs import Costs
from paceline.policy.live import LiveCosts
from paceline.simulate.impute import imputed
from paceline.simulate.server import SimulatedServer, SimulatedStream, stream_of
from paceline.simulate.trace import Recording, Trace
from paceline.types import Round

LIMITS = (*range(1, 17), 24, 31)
"""Limits that are tried in hindsight."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a policy came to. Figures are pooled over rounds, the prompts' apart, as in
    `decode.stats`; a figure of no rounds is None.

    total_s    from the first moment to the last token, prompts and idle time included
    """

    total_s: float
    served: tuple[SimulatedStream, ...]

    @property
    def rounds(self) -> list[Round]:
        """Of all requests, without those that read prompts."""
        return [round for one in self.served for round in one.decoding]

    @property
    def decode_s(self) -> float:
        """Seconds of these rounds."""
        return seconds_of(self.rounds)

    @property
    def ms_per_token(self) -> float | None:
        """Pooled: decode milliseconds over the tokens that came of them (TPOT)."""
        return _ms_per_token(self.rounds)

    @property
    def request_ms_per_token(self) -> float | None:
        """Mean over requests, as their users see it: from the first token to the last."""
        found = [
            1e3 * (one.ended_s - one.first_s) / tokens
            for one in self.served
            if (tokens := _emitted(one.decoding))
        ]
        return fmean(found) if found else None

    @property
    def by_category(self) -> dict[str, float]:
        """Decode seconds by category."""
        found: dict[str, float] = {}
        for one in self.served:
            category = one.trace.category
            found[category] = found.get(category, 0.0) + seconds_of(one.decoding)
        return found

    def as_json(self) -> dict[str, Any]:
        """Seconds from a request's arrival are `ttft_s` (to its first token) and `latency_s`."""
        rounds = self.rounds
        tokens = sum(_emitted(one.rounds) for one in self.served)
        latencies = [one.ended_s - one.arrived_s for one in self.served]
        by_category: dict[str, list[Round]] = {one.trace.category: [] for one in self.served}
        for one in self.served:
            by_category[one.trace.category] += one.decoding
        return {
            "requests": len(self.served),
            "total_s": self.total_s,
            "decode_s": self.decode_s,
            "tokens": tokens,
            "tok_per_s": tokens / self.total_s,
            "ms_per_token": self.ms_per_token,
            "request_ms_per_token": self.request_ms_per_token,
            "ttft_s_median": median(one.first_s - one.arrived_s for one in self.served),
            "latency_s_p50": float(np.percentile(latencies, 50)),
            "latency_s_p95": float(np.percentile(latencies, 95)),
            "rounds": len(rounds),
            "drafted_rounds": sum(round.width > 1 for round in rounds),
            "tokens_per_round": _ratio(_emitted(rounds), len(rounds)),
            "acceptance_rate": _ratio(
                sum(round.accepted for round in rounds), sum(round.proposed for round in rounds)
            ),
            "ms_per_token_by_category": {
                category: _ms_per_token(by_category[category]) for category in sorted(by_category)
            },
        }


def seconds_of(rounds: Sequence[Round]) -> float:
    """What rounds took, or would take."""
    return sum(round.draft_s + round.verify_s + round.other_s for round in rounds)


def _emitted(rounds: Sequence[Round]) -> int:
    return sum(round.emitted for round in rounds)


def _ms_per_token(rounds: Sequence[Round]) -> float | None:
    return _ratio(1e3 * seconds_of(rounds), _emitted(rounds))


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def simulate(
    recording: Recording,
    costs: Costs,
    policy: Policy,
    *,
    batch: int = 1,
    arrivals_per_s: float | None = None,
    row_budget: int | None = None,
    seed: int = 0,
) -> Simulation:
    """Serve every request of a recording (`Recording.of` picks some).

    policy            fresh, if it learns
    batch             most requests at once; the others wait in their order
    arrivals_per_s    mean of a Poisson process, drawn from the seed; None has all waiting at once
    row_budget        most rows of a forward, prompts included; None has no bound

    Raises SettingError for settings out of range, rows that the costs have no figure for, and
    drafts without recorded proposals or without costs.
    """
    _check(batch, arrivals_per_s, row_budget, seed)
    recording = imputed(recording)
    temperature = recording.header.temperature
    arrivals = np.zeros(len(recording.traces))
    if arrivals_per_s is not None:
        gaps = np.random.default_rng(seed).exponential(1 / arrivals_per_s, len(arrivals))
        arrivals = gaps.cumsum()
    streams = [
        stream_of(trace, temperature, float(second))
        for trace, second in zip(recording.traces, arrivals, strict=True)
    ]
    free = [name for name, previewable in recording.header.sources.items() if previewable]
    server = SimulatedServer(costs, policy, free=free, batch=batch, budget=row_budget)
    return Simulation(server.run(streams), tuple(streams))


def _check(batch: int, arrivals_per_s: float | None, row_budget: int | None, seed: int) -> None:
    if batch < 1:
        raise SettingError(f"The batch is {batch}.", "It must be 1 or more.")
    if arrivals_per_s is not None and not 0 < arrivals_per_s < math.inf:
        raise SettingError(f"The arrivals are {arrivals_per_s} a second.", "Give more than 0.")
    if row_budget is not None and row_budget < batch:
        raise SettingError(
            f"The budget of {row_budget} rows is below the batch of {batch}.",
            "Every request needs one row: raise the budget or lower the batch.",
        )
    if seed < 0:
        raise SettingError(f"The seed is {seed}.", "It must be 0 or more.")


# Policies by name.


def policy_named(
    spec: str,
    costs: Costs,
    sources: Mapping[str, bool],
    has_confidence: Collection[str] | None = None,
) -> Policy:
    """A fresh policy: "measured" (the default policy, with costs kept as they are), "baseline", or
    "DRAFT:LIMIT" for the same draft and limit in every round.

    sources    the recorded drafts, and whether each is previewable. "measured" leaves out those
               that are neither that nor in the costs.
    has_confidence    those whose confidence counts; unless given, all previewable ones
    """
    if spec == "baseline":
        return fixed(None, 0)
    if spec == "measured":
        offered = [
            Source(
                name,
                previewable,
                previewable if has_confidence is None else name in has_confidence,
                None if previewable else costs.drafts[name],
            )
            for name, previewable in sources.items()
            if previewable or name in costs.drafts
        ]
        return MeasuredPolicy(LiveCosts(costs, frozen=True), offered, say=lambda _: None)
    name, colon, limit = spec.rpartition(":")
    if not colon:
        raise unknown_name("policy", spec, ["measured", "baseline", *(f"{s}:3" for s in sources)])
    if name not in sources:
        raise unknown_name("recorded draft", name, sources)
    if not limit.isdecimal() or int(limit) < 1:
        raise SettingError(
            f"The limit of the policy {spec!r} is {limit!r}.",
            "It must be a number, 1 or more.",
        )
    return fixed(name, int(limit))


def policy_of(traces: Sequence[Trace]) -> str:
    """The name of the policy that the recorded rounds look like: a fixed one if every round has
    its draft and limit, as far as the answer had room."""
    rounds = [(t, round) for t in traces for round in t.rounds if not round.prefill]
    limit = max((round.max_draft_tokens for _, round in rounds), default=0)
    if limit == 0:
        return "baseline"
    asked = {round.source for _, round in rounds if round.max_draft_tokens}
    fixed = all(
        round.max_draft_tokens == min(limit, t.most_tokens - (round.context - t.prompt_tokens) - 1)
        for t, round in rounds
    )
    return f"{asked.pop()}:{limit}" if fixed and len(asked) == 1 else "measured"


# Hindsight.


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The best fixed choice for the requests of one category, one at a time."""

    policy: str
    decode_s: float


def best_fixed(
    recording: Recording,
    costs: Costs,
    *,
    sources: Sequence[str] | None = None,
) -> dict[str, Hindsight]:
    """By category, the fastest of ordinary decoding and every recorded draft with every one of
    `LIMITS` whose width was measured, known only afterwards.

    sources    drafts to try; unless given, all that are previewable or in the costs
    """
    recording = imputed(recording)
    known = recording.known_sources
    if sources is None:
        sources = [name for name, free in known.items() if free or name in costs.drafts]
    widest = len(costs.table()) - 1
    specs = ["baseline", *(f"{s}:{n}" for s in sources for n in LIMITS if n < widest)]
    best: dict[str, Hindsight] = {}
    for spec in specs:
        found = simulate(recording, costs, policy_named(spec, costs, known)).by_category
        for category, decode_s in found.items():
            if category not in best or decode_s < best[category].decode_s:
                best[category] = Hindsight(spec, decode_s)
    return best


def regret(simulation: Simulation, best: Mapping[str, Hindsight]) -> dict[str, float | None]:
    """By category, how much longer a policy took than the best fixed choice: the ratio less 1,
    below 0 if it was faster. Only for simulations of one request at a time."""
    seconds = simulation.by_category
    return {
        category: None if not found.decode_s else seconds[category] / found.decode_s - 1
        for category, found in best.items()
    }
