"""What a replay found: the document that `paceline replay --json` prints and `paceline plan` reads
(docs/replay.md has its fields), and how its speedups are predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from paceline.bench.profile.profile import costs_key
from paceline.bench.stats import Pair, Ratio, speed_ratio
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.policy.adaptive import LEAST_GAIN
from paceline.policy.costs import Costs
from paceline.simulate.record import is_replayable
from paceline.simulate.simulate import policy_named, seconds_of, simulate
from paceline.simulate.trace import Recording
from paceline.storage import decode_struct

KIND, VERSION = "paceline replay", 2
HINT = "`paceline replay … --costs FILE --json` prints such a document."
AUTO, BASELINE = "measured", "baseline"

T = TypeVar("T")


@dataclass(frozen=True)
class ByCategory(Generic[T]):
    """A figure of all answers together, and one of each category, which may have any name."""

    all: T
    categories: Mapping[str, T]

    def __getitem__(self, category: str | None) -> T:
        """Of a category; None is all answers."""
        return self.all if category is None else self.categories[category]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What always asking for the same number of tokens comes to. Pooled over rounds, those of the
    prompts apart; a rate of no rounds or tokens is None.

    tokens        emitted in these rounds
    acceptance    entry i: share of the rounds that offered more than i tokens in which drafted
                  tokens 0…i were all accepted
    offered       entry i: in how many rounds more than i tokens were offered
    """

    tokens: int
    rounds: int
    drafted_rounds: int
    proposed: int
    accepted: int
    acceptance: tuple[float, ...]
    offered: tuple[int, ...]
    tokens_per_round: float | None
    acceptance_rate: float | None


@dataclass(frozen=True, slots=True)
class ReplayedDraft:
    """A draft's metadata, and its outcomes by max_draft_tokens."""

    metadata: Mapping[str, Any]
    limits: Mapping[int, ByCategory[Outcome]]


@dataclass(frozen=True, slots=True)
class Price:
    """A policy's predicted gain.

    speedup    over ordinary decoding at the same batch size, with an interval over answers; None
               if nothing was decoded, or for want of a figure
    missing    what the costs lack, in words; None if nothing
    """

    speedup: Ratio | None
    missing: str | None = None

    @property
    def pays(self) -> bool | None:
        """Whether it is worth asking, as the default policy has it; None if it is not clear,
        because the interval reaches 1."""
        found = self.speedup
        if found is None:
            return None
        if found.value < LEAST_GAIN:
            return False
        return True if found.low is None or found.low > 1 else None


@dataclass(frozen=True, slots=True)
class BestPolicy:
    """The policy with the largest predicted gain, and whether it pays (`Price.pays`)."""

    policy: str
    pays: bool | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted gains at one batch size.

    policies    by name: DRAFT:LIMIT, or `measured`, the default policy with all drafts
    best        the one with the largest gain; None if none could be priced
    """

    policies: Mapping[str, ByCategory[Price]]
    best: ByCategory[BestPolicy | None]

    def best_of(self, category: str | None, *, fixed: bool = False) -> tuple[str, Price] | None:
        """The policy with the largest gain; None if none could be priced.

        fixed    only one of those that always ask the same draft for as many tokens
        """
        return _best(self.policies, category, fixed=fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """How many answers were replayed, and what they are.

    tokens        output tokens of those replayed
    unanswered    prompts left out, without an answer or with an empty one
    cut           ended by their room, not by the model
    respelled     names of those whose tokens don't spell the logged text
    failed        a sentence for each prompt that couldn't be replayed
    """

    replayed: int
    tokens: int
    unanswered: int
    cut: int
    respelled: tuple[str, ...]
    failed: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class ReplayDocument:
    """What is known once drafts were replayed; nothing in it is a measured time.

    complete     false after an interrupt: what there is was found all the same
    target       the engine's metadata, of its tokenizer alone
    drafts       by name
    costs        where they come from; None without
    predicted    by batch size; empty without costs
    notes        what a reader of the figures must know, one sentence each
    """

    kind: str = KIND
    version: int = VERSION
    command: tuple[str, ...] = ()
    complete: bool
    target: Mapping[str, Any]
    workload: Mapping[str, Any]
    temperature: float
    answers: AnswerCounts
    drafts: dict[str, ReplayedDraft]
    costs: str | None
    predicted: dict[int, Prediction] = field(default_factory=dict)
    notes: list[str]

    @property
    def categories(self) -> list[str]:
        """Of the answers that were replayed, the one with fewest tokens per round first."""
        limits = next((draft.limits for draft in self.drafts.values()), {})
        if not limits:
            return []
        widest = limits[max(limits)].categories
        return sorted(widest, key=lambda name: widest[name].tokens_per_round or 0.0)

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def decode_replay(document: Any, name: str) -> ReplayDocument:
    """A replay from its JSON. Raises DataError for a document that is none, or of another version,
    naming it."""
    return decode_struct(document, ReplayDocument, name, HINT, kind=KIND, version=VERSION)


def temperature_notes(temperature: float, drafts: Mapping[str, Draft]) -> list[str]:
    """What the temperature of logged answers means for the figures."""
    if not temperature:
        return ["The answers are taken for greedily decoded ones (else: --temperature)."]
    notes = []
    if any(is_replayable(draft) for draft in drafts.values()):
        notes.append(
            f"Sampled at temperature {temperature:g}: what a lookup gets right in these answers "
            "is what it would get right in new ones, but for sampling noise."
        )
    if any(draft.teacher_forced for draft in drafts.values()):
        notes.append(
            f"Sampled at temperature {temperature:g}: a model draft is judged as if it offered its "
            "likeliest tokens. One that draws them as the target does is accepted otherwise; only "
            "`paceline bench` tells how often."
        )
    return notes


# Predicting.


def predict(
    recording: Recording,
    costs: Costs,
    policies: Sequence[str],
    batch: int,
    on_progress: Callable[[], None] = lambda: None,
) -> Prediction:
    """Each policy's gain at one batch size. `on_progress` is called after every simulation, of
    which there are `simulations_of`."""
    prices: dict[str, dict[str | None, Price]] = {spec: {} for spec in policies}
    for category, part in _parts(recording, batch).items():
        baseline = _decoded(part, costs, BASELINE, batch)
        on_progress()
        for spec in policies:
            mine = _decoded(part, costs, spec, batch)
            within = part.categories if batch == 1 or len(part.categories) == 1 else ()
            prices[spec] |= {name: _price(baseline, mine, name) for name in within}
            prices[spec][category] = _price(baseline, mine)
            on_progress()
    parted = {spec: _parted(found) for spec, found in prices.items()}
    best = {
        category: found and BestPolicy(found[0], found[1].pays)
        for category in (None, *recording.categories)
        for found in [_best(parted, category)]
    }
    return Prediction(parted, _parted(best))


def fill_predictions(
    document: ReplayDocument,
    recording: Recording,
    costs: Costs,
    limits: Sequence[int],
    batches: Sequence[int],
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """What the policy and each draft at each limit gain, by batch size. `on_progress` gets the
    number of simulations after each of them."""
    sources = recording.header.sources
    priced = [name for name, free in sources.items() if free or name in costs.drafts]
    document.notes += [
        f"The costs have no figures of the draft {name!r}, so it isn't priced; they have: "
        f"{', '.join(costs.drafts) or 'none'}."
        for name in sources
        if name not in priced
    ]
    most = max(costs.sequences)
    if max(batches) > most:
        document.notes.append(
            f"The costs were measured with at most {most} sequences at once; beyond, a forward is "
            "priced as if its rows were theirs."
        )
    if not priced:
        return
    policies = [AUTO, *(f"{name}:{limit}" for name in priced for limit in limits)]
    total = sum(simulations_of(recording, policies, batch) for batch in batches)
    for batch in batches:
        document.predicted[batch] = predict(
            recording, costs, policies, batch, partial(on_progress, total)
        )


def simulations_of(recording: Recording, policies: Sequence[str], batch: int) -> int:
    """How many simulations `predict` runs."""
    return (len(policies) + 1) * len(_parts(recording, batch))


def _parts(recording: Recording, batch: int) -> dict[str | None, Recording]:
    """What is served: all answers, and each category by itself. One at a time, requests don't share
    forwards, so that a category's seconds are among those of all."""
    names = recording.categories
    alone = names if batch > 1 and len(names) > 1 else []
    return {None: recording} | {name: recording.of(category=name) for name in alone}


def _parted(found: Mapping[str | None, T]) -> ByCategory[T]:
    return ByCategory(found[None], {name: one for name, one in found.items() if name is not None})


def _best(
    prices: Mapping[str, ByCategory[Price]], category: str | None, *, fixed: bool = False
) -> tuple[str, Price] | None:
    gains = {
        spec: price.speedup.value
        for spec, found in prices.items()
        if (price := found[category]).speedup is not None and not (fixed and spec == AUTO)
    }
    best = max(gains, key=gains.__getitem__, default=None)
    return None if best is None else (best, prices[best][category])


_Decoding = list[tuple[str, float, int]]
"""Of each answer its category, and its decoding's seconds and tokens."""


def _decoded(recording: Recording, costs: Costs, spec: str, batch: int) -> _Decoding | str:
    """A string says why it is not known."""
    if len(recording.traces) < batch:
        return f"Fewer answers than a batch of {batch}."
    policy = policy_named(spec, costs, recording.known_sources, recording.header.has_confidence)
    try:
        served = simulate(recording, costs, policy, batch=batch).served
    except SettingError as error:
        return error.fact
    return [
        (one.trace.category, seconds_of(one.decoding), sum(r.emitted for r in one.decoding))
        for one in served
    ]


def _price(baseline: _Decoding | str, mine: _Decoding | str, category: str | None = None) -> Price:
    if isinstance(baseline, str):
        return Price(None, baseline)
    if isinstance(mine, str):
        return Price(None, mine)
    pairs = [
        Pair(baseline_s, baseline_tokens, drafted_s, drafted_tokens)
        for (its, baseline_s, baseline_tokens), (_, drafted_s, drafted_tokens) in zip(
            baseline, mine, strict=True
        )
        if category in (None, its)
    ]
    return Price(speed_ratio(pairs))


# Whose costs they are.


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
        return f"{of}; they don't say whether that is this {what}, {ours['model']}."
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
