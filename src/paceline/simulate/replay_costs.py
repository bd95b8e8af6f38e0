"""What recorded or replayed drafts would gain at several limits and batch sizes, by costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.bench.profile.profile import costs_key
from paceline.bench.stats import Pair, Ratio, speed_ratio
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.policy.adaptive import LEAST_GAIN
from paceline.policy.costs import Costs
from paceline.simulate.simulate import (
    SimulatedRequest,
    Simulation,
    policy_named,
    seconds_of,
    simulate,
)
from paceline.simulate.trace import Recording

AUTO, BASELINE = "measured", "baseline"


def whose(costs: Costs, target: Engine, drafts: Mapping[str, Draft]) -> list[str]:
    """A sentence for each model whose costs are another's, another machine's, or don't tell. None
    is refused: what another machine would gain is a fair question.

    target    its tokenizer is enough
    """
    pairs = [("target", costs, target)]
    pairs += [
        (f"draft {name!r}", costs.drafts[name], draft.engine)
        for name, draft in drafts.items()
        if draft.engine is not None and name in costs.drafts
    ]
    found = (_whose(what, theirs.key, costs_key(engine)) for what, theirs, engine in pairs)
    return [sentence for sentence in found if sentence]


def _whose(what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Threads, versions and the like are not compared: a target that never ran has none."""
    if not theirs.get("model"):
        return f"The costs don't say of which model they are, in place of this {what}."
    of = f"The costs are of {theirs['model']} on {_machine(theirs)}"
    if theirs.get("fingerprint") is None:
        return f"{of}; whether that is this {what}, {ours['model']}, they don't tell."
    if theirs["fingerprint"] != ours["fingerprint"]:
        return f"{of}, not of this {what}, {ours['model']}."
    if any(theirs.get(part) != ours[part] for part in ("cpu", "cores")):
        return f"{of}: this {what}, but not this machine."
    return ""


def _machine(key: Mapping[str, Any]) -> str:
    if key.get("device") not in (None, "cpu"):
        return str(key["device"])
    cores = f", {key['cores']} cores" if "cores" in key else ""
    return f"{key['cpu']}{cores}" if key.get("cpu") else "an unnamed machine"


@dataclass(frozen=True, slots=True)
class Price:
    """A policy's predicted gain.

    speedup    over ordinary decoding at the same batch size, with an interval over answers; None
                   if nothing was decoded, or for want of a figure
    missing        what the costs lack, in words; empty if nothing
    """

    speedup: Ratio | None
    missing: str = ""

    @property
    def pays(self) -> bool | None:
        """Whether it is worth asking, as the default policy has it; None if nobody can tell,
        because other answers of the same kind may well say otherwise."""
        found = self.speedup
        if found is None:
            return None
        if found.value < LEAST_GAIN:
            return False
        return True if found.low is None or found.low > 1 else None

    def as_json(self) -> dict[str, Any]:
        ratio = self.speedup and asdict(self.speedup)
        return {"speedup": ratio, "missing": self.missing or None}


Prices = dict[str, dict[str | None, Price]]
"""By policy (DRAFT:LIMIT, or `measured`), then by category; None is all answers together."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Policies to price on a recording, with batches of each of these sizes."""

    recording: Recording
    costs: Costs
    policies: Sequence[str]
    batches: Sequence[int]

    @property
    def simulations(self) -> int:
        """How many `prices_of` runs in all."""
        each = [len(list(self.parts(batch))) for batch in self.batches]
        return (len(self.policies) + 1) * sum(each)

    def parts(self, batch: int) -> Iterator[tuple[str | None, Recording]]:
        """What is served: all answers, and each category by itself. One at a time, requests don't
        share forwards, so that a category's seconds are among those of all."""
        yield None, self.recording
        if batch > 1 and len(self.recording.categories) > 1:
            for category in self.recording.categories:
                yield category, self.recording.of(category=category)


def prices_of(wanted: Wanted, batch: int, on_progress: Callable[[], None] = lambda: None) -> Prices:
    """Each policy's gain at one batch size. `on_progress` is called after every simulation."""
    prices: Prices = {spec: {} for spec in wanted.policies}
    for category, part in wanted.parts(batch):
        baseline = _served(part, wanted.costs, BASELINE, batch)
        on_progress()
        for spec in wanted.policies:
            mine = _served(part, wanted.costs, spec, batch)
            prices[spec][category] = _price(baseline, mine)
            if batch == 1 or len(part.categories) == 1:
                prices[spec] |= {name: _price(baseline, mine, name) for name in part.categories}
            on_progress()
    return prices


def _served(
    recording: Recording, costs: Costs, spec: str, batch: int
) -> tuple[SimulatedRequest, ...] | SettingError:
    if len(recording.traces) < batch:
        return SettingError(f"Fewer answers than a batch of {batch}.")
    policy = policy_named(spec, costs, recording.known_sources, recording.header.has_confidence)
    try:
        found: Simulation = simulate(recording, costs, policy, batch=batch)
    except SettingError as error:
        return error
    return found.served


def _price(
    baseline: tuple[SimulatedRequest, ...] | SettingError,
    mine: tuple[SimulatedRequest, ...] | SettingError,
    category: str | None = None,
) -> Price:
    for found in (baseline, mine):
        if isinstance(found, SettingError):
            return Price(None, found.fact)
    assert not isinstance(baseline, SettingError)
    assert not isinstance(mine, SettingError)
    both = [
        Pair(*_decoding(one), *_decoding(other))
        for one, other in zip(baseline, mine, strict=True)
        if category in (None, one.category)
    ]
    return Price(speed_ratio(both))


def _decoding(one: SimulatedRequest) -> tuple[float, int]:
    """Seconds and tokens of an answer's decoding."""
    rounds = [round for round in one.rounds if not round.prefill]
    return seconds_of(rounds), sum(round.emitted for round in rounds)


def best_of(
    prices: Prices, category: str | None, *, fixed: bool = False
) -> tuple[str, Price] | None:
    """The policy with the largest gain; None if none could be priced.

    fixed    only one of those that always ask the same draft for as many tokens
    """
    rated = [
        (price.speedup.value, spec, price)
        for spec, by_category in prices.items()
        if (price := by_category[category]).speedup is not None and (spec != AUTO or not fixed)
    ]
    if not rated:
        return None
    _, spec, price = max(rated, key=lambda one: one[0])
    return spec, price
