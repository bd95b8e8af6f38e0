"""From evidence to a plan: what to run, if it pays, and what a server that runs it should show.

Whatever was measured is an `Evidence`; the rules are here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from paceline.bench.comparison import Comparison
from paceline.bench.stats import FEW_PROMPTS, Ratio
from paceline.bench.wording import LOSES, PAYS, interval_words, verdict
from paceline.errors import DataError, unknown_name
from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
    Step,
    Target,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One way to decode at one batch size.

    title     its name and the batch, where there are several
    gain      beside ordinary decoding; None where they can't be compared
    notes     what a reader must know of the evidence
    """

    measured: Measurement
    title: str = ""
    gain: Gain | None = None
    expected: Expected = field(default_factory=Expected)
    mean_draft_tokens: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way to decode.

    draft       what drafts; None: ordinary decoding. Raises SettingError where a plan can't name it
    family      candidates of one family differ in `max_draft_tokens` only
    points      by batch size
    unfit       why it is chosen only by name, to follow a colon; empty if it may be
    offer       of one that isn't up for choice: what it is, told where it gains more
    cautions    what to say where it is chosen
    """

    name: str
    points: Mapping[int, Figures]
    draft: Callable[[], PlannedDraft] | None = None
    family: str
    max_draft_tokens: int | None = 0
    unfit: str = ""
    offer: str = ""
    cautions: tuple[str, ...] = ()

    def gain(self, batch: int) -> Gain | None:
        """Its speedup; None where it has none at this batch."""
        point = self.points.get(batch)
        return None if point is None else point.gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured or predicted, by whom, how surely.

    ordinary      ordinary decoding, at every batch; named only where a user may choose it
    nothing       what to say where no candidate has a gain
    least_gain    what a gain must be beyond its interval
    single        what a gain without an interval rests on; empty: it is arithmetic, and has none
    about         what comes before all other notes
    """

    target: Target
    ordinary: Alternative
    candidates: tuple[Alternative, ...]
    nothing: DataError
    least_gain: float = 1.0
    single: str = "prompt"
    about: tuple[str, ...] = ()

    def pays(self, gain: Gain) -> bool:
        """Whether it is good enough to draft."""
        return (surely(gain) or not self.single) and gain.value >= self.least_gain

    def said(self, gain: Gain) -> str:
        """The gain in words."""
        return times(gain, self.single) if self.single else f"speedup {gain.value:.2f}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to run.

    batch     that the figures are of
    limits    by batch size, the best `max_draft_tokens`; 0 where it doesn't pay
    notes     why
    """

    candidate: Alternative
    batch: int = 1
    limits: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


NONE_FIT = "Ordinary decoding, because no configuration with a draft can be chosen."


def decide(
    evidence: Evidence, *, configuration: str | None = None, file: str | None = None
) -> PlanDocument:
    """The fit candidate with the largest gain that pays, at the smallest batch where any does;
    ordinary decoding where none does. The schedule has by the same rule its limit at each batch.

    configuration    decides for the user: it is taken whether it pays or not
    file             where the evidence lies, for the record

    Raises DataError where nothing can be compared, SettingError for a configuration that isn't
    there, or whose draft a plan can't name.
    """
    return document(evidence, choose(evidence, configuration), file)


def choose(evidence: Evidence, named: str | None = None) -> Decision:
    """What `decide` runs, and why."""
    if named is not None:
        return _named(evidence, named)
    rated = [one for one in evidence.candidates if not one.offer]
    found = {
        batch: best
        for batch in evidence.ordinary.points
        if (best := _best(evidence, [one for one in rated if not one.unfit], batch))
    }
    if not found:
        for batch in evidence.ordinary.points:
            if _best(evidence, rated, batch):
                notes = (NONE_FIT, *_passed_over(evidence, batch, 1.0))
                return Decision(evidence.ordinary, batch, notes=notes)
        raise evidence.nothing
    paying = [batch for batch, (_, gain) in found.items() if evidence.pays(gain)]
    batch = min(paying or found)
    one, gain = found[batch]
    if not paying:
        why = _why_ordinary(evidence, one.points[batch].title, gain)
        return Decision(evidence.ordinary, batch, notes=(why, *_passed_over(evidence, batch, 1.0)))
    limits = _limits(evidence, one, evidence.candidates)
    lost = [
        f"{one.points[n].title} isn't known to pay: {evidence.said(less)}."
        for n, limit in limits.items()
        if not limit and (less := one.gain(n)) is not None
    ]
    notes = (*lost, *_offers(evidence, batch, gain), *_passed_over(evidence, batch, gain.value))
    return Decision(one, batch, limits, (*notes, *one.cautions))


def _named(evidence: Evidence, named: str) -> Decision:
    every = [one for one in (evidence.ordinary, *evidence.candidates) if one.name]
    one = next((one for one in every if one.name == named), None)
    if one is None:
        raise unknown_name("configuration", named, [one.name for one in every])
    if one.draft is None:
        return Decision(one, min(one.points), notes=("Ordinary decoding was asked for.",))
    found = {batch: gain for batch in one.points if (gain := one.gain(batch)) is not None}
    if not found:
        raise evidence.nothing
    paying = [batch for batch, gain in found.items() if evidence.pays(gain)]
    batch = min(paying or found)
    said = f"{named} was asked for, though it isn't known to pay: {evidence.said(found[batch])}."
    return Decision(
        one, batch, _limits(evidence, one, [one]), (*([] if paying else [said]), *one.cautions)
    )


def _best(
    evidence: Evidence, candidates: Sequence[Alternative], batch: int
) -> tuple[Alternative, Gain] | None:
    """Of those that pay, or of all if none does, the one with the largest gain."""
    rated = [(one, gain) for one in candidates if (gain := one.gain(batch)) is not None]
    paying = [(one, gain) for one, gain in rated if evidence.pays(gain)]
    return max(paying or rated, key=lambda each: each[1].value, default=None)


def _passed_over(evidence: Evidence, batch: int, value: float) -> list[str]:
    """Why those that were faster are not chosen; where none is, those that seemed to pay."""
    rated = [
        (gain, one)
        for one in evidence.candidates
        if not one.offer and (gain := one.gain(batch)) is not None and gain.value > value
    ]
    return [
        f"Not chosen: {one.name}, {evidence.said(gain)}: {one.unfit or 'its interval reaches 1'}."
        for gain, one in sorted(rated, key=lambda each: -each[0].value)
        if one.unfit or value > 1
    ]


def _offers(evidence: Evidence, batch: int, chosen: Gain) -> list[str]:
    return [
        f"{one.offer}, has a speedup of {gain.value:.2f}; name it with --configuration {one.name}."
        for one in evidence.candidates
        if one.offer and (gain := one.gain(batch)) is not None and gain.value > chosen.value
    ]


def _limits(
    evidence: Evidence, chosen: Alternative, among: Sequence[Alternative]
) -> dict[int, int]:
    """By batch size the best limit of the same draft, none larger than the chosen one's; without
    sizes that have no figure. None of a policy, which chooses by itself."""
    most = chosen.max_draft_tokens
    if most is None:
        return {}
    able = [one for one in among if one.family == chosen.family]
    able = [one for one in able if (one.max_draft_tokens or most + 1) <= most]
    found = {}
    for batch in evidence.ordinary.points:
        best = _best(evidence, able, batch)
        if best is not None:
            found[batch] = (best[0].max_draft_tokens or 0) if evidence.pays(best[1]) else 0
    return found


def document(evidence: Evidence, choice: Decision, file: str | None = None) -> PlanDocument:
    """The plan of a choice."""
    one, limits, drafted = choice.candidate, choice.limits, choice.candidate.draft is not None
    point = one.points[choice.batch]
    unpriced = [str(batch) for batch in evidence.ordinary.points if limits and batch not in limits]
    return PlanDocument(
        target=evidence.target,
        draft=None if one.draft is None else one.draft(),
        max_draft_tokens=one.max_draft_tokens,
        mean_draft_tokens=point.mean_draft_tokens,
        schedule=schedule_of(limits) if any(limits.values()) else (),
        expected=point.expected,
        measured=replace(point.measured, file=file),
        notes=(
            *evidence.about,
            *choice.notes,
            *worst_category(point.expected.gain_by_category),
            *(
                [f"Not priced, so not in the schedule: batches of {', '.join(unpriced)}."]
                if unpriced
                else []
            ),
            *([batch_words(choice.batch)] if drafted and len(limits) < 2 else []),
            *point.notes,
        ),
    )


# What evidence shares: gains, schedules, words.


def gain_of(ratio: Ratio | None) -> Gain | None:
    """A measured speedup as a plan has it."""
    return None if ratio is None else Gain(value=ratio.value, low=ratio.low, high=ratio.high)


def gains_of(comparison: Comparison) -> dict[str, Gain]:
    """The same by category, where there is one."""
    found = {name: gain_of(comparison.ratio(name)) for name in comparison.categories}
    return {name: gain for name, gain in found.items() if gain is not None}


def surely(gain: Gain) -> bool:
    """Whether its interval is above 1; without one nobody can tell."""
    return verdict(_ratio(gain)) == PAYS


def times(gain: Gain, single: str = "prompt") -> str:
    """A gain in words.

    >>> times(Gain(value=1.5, low=1.2, high=1.8))
    'speedup 1.50 (95 % interval 1.20 to 1.80)'
    """
    return f"speedup {gain.value:.2f} ({interval_words(_ratio(gain), single=single)})"


def _ratio(gain: Gain) -> Ratio:
    return Ratio(gain.value, gain.low, gain.high)


def _why_ordinary(evidence: Evidence, name: str, gain: Gain) -> str:
    """Why the best is not chosen."""
    said = f"the best to choose from is {name}, {evidence.said(gain)}"
    if not evidence.single or surely(gain):
        why = "less than 5 % is more than predictions can tell"
    elif gain.low is None:
        why = f"one {evidence.single} is no evidence"
    elif verdict(_ratio(gain)) == LOSES:
        why = "no draft pays"
    else:
        why = "the interval reaches 1, which is no evidence"
    return f"Ordinary decoding, because {why}: {said}."


def worst_category(gains: Mapping[str, Gain]) -> list[str]:
    """A sentence on the category with the least gain, if there are several."""
    if len(gains) < 2:
        return []
    name = min(gains, key=lambda category: gains[category].value)
    return [f"Worst in {name}: {times(gains[name])}."]


def schedule_of(limits: Mapping[int, int]) -> tuple[Step, ...]:
    """Steps by batch size. A size between two that are known takes the limit of the larger, where
    a draft gains less; none if only one is known. Beyond the largest nothing is known, so that the
    last step ends there, unless drafting has stopped to pay: then it stays off.

    limits    the best limit by batch size, 0 where none pays

    >>> steps = schedule_of({1: 7, 4: 3, 8: 3, 16: 0})
    >>> [(s.from_batch, s.to_batch, s.max_draft_tokens) for s in steps]
    [(1, 1, 7), (2, 8, 3), (9, None, 0)]
    """
    if len(limits) < 2:
        return ()
    steps: list[Step] = []
    begin = 1
    for batch in sorted(limits):
        max_draft_tokens = limits[batch]
        if steps and steps[-1].max_draft_tokens == max_draft_tokens:
            steps[-1] = Step(
                from_batch=steps[-1].from_batch, to_batch=batch, max_draft_tokens=max_draft_tokens
            )
        else:
            steps.append(Step(from_batch=begin, to_batch=batch, max_draft_tokens=max_draft_tokens))
        begin = batch + 1
    last = steps[-1]
    if not last.max_draft_tokens:
        steps[-1] = Step(from_batch=last.from_batch, to_batch=None, max_draft_tokens=0)
    return tuple(steps)


def break_even_of(tokens_per_round: float, drafted_share: float, gain: float) -> float | None:
    """Tokens per drafted round from which drafting pays, where only the whole gain is known: rounds
    without a draft are taken to last as long as those of ordinary decoding.

    A round lasts tokens_per_round / gain of those on the mean, so a drafted one
    (that − (1 − share)) / share. None where nothing was drafted, or where the rest leaves drafted
    rounds no time at all, so that it can't be so.

    >>> break_even_of(2.0, 1.0, 1.6)
    1.25
    >>> round(break_even_of(1.5, 0.5, 1.2), 3)
    1.5
    """
    if not drafted_share:
        return None
    found = (tokens_per_round / gain - (1 - drafted_share)) / drafted_share
    return found if found > 0 else None


def batch_words(batch: int) -> str:
    """What a single batch size says of others."""
    if batch == 1:
        return (
            "It holds for one sequence at a time: a server that decodes many together has less to "
            "gain, and may lose."
        )
    return f"It holds for {batch} sequences at a time: with more there is less to gain."


def counted(count: int, what: str) -> str:
    """A count with its noun.

    >>> counted(1, "prompt"), counted(2, "prompt")
    ('1 prompt', '2 prompts')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def few_words(count: int, what: str = "prompts") -> list[str]:
    """A sentence where there are too few for their interval."""
    if not 1 < count < FEW_PROMPTS:
        return []
    return [f"{count} {what} are few: intervals of fewer than {FEW_PROMPTS} are too narrow."]


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names, cut after so many.

    >>> listed(["a", "b", "c"], most=2)
    'a, b, …'
    """
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


def sampling_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature, and whatever else is set: of `Sampling` as a mapping."""
    off = {
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "allowed_tokens": None,
        "seed": None,
    }
    set_ = {key: value for key, value in values.items() if value and value != off.get(key)}
    return {"temperature": values.get("temperature", 0.0), **set_}


def workload_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """With a count of the lines that were skipped, of which there may be many."""
    return {**metadata, "skipped": len(metadata.get("skipped") or ())}


def skipped_words(metadata: Mapping[str, Any]) -> list[str]:
    """A sentence where lines were skipped."""
    skipped = metadata.get("skipped") or ()
    return [f"Lines of the workload that were skipped: {len(skipped)}."] if skipped else []
