"""From a bench to a plan: what to run, if it pays, and what a server that runs it should show.

Figures are pooled over the rounds after the prompt was read, of prompts that were decoded in all
configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import Described
from paceline.errors import DataError
from paceline.plan.decide_engines import Decision, fastest, rivals_of
from paceline.plan.decide_parts import (
    asked_for,
    batch_words,
    counted,
    draft_of,
    few_words,
    gain_of,
    listed,
    machine_of,
    pays,
    sampling_of,
    several,
    skipped_words,
    strange_kinds,
    target_of,
    times,
    unplaced,
    why_baseline,
    workload_of,
    worst_category,
)
from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
)
from paceline.types import Round


def decide(
    result: BenchResult, *, configuration: str | None = None, file: str | None = None
) -> PlanDocument:
    """The fastest sound configuration whose gain has an interval above 1; ordinary decoding where
    there is none. Only those with the baseline of the first configuration are compared, and where
    other engines ran the same model, what is best on each of them.

    result           finished or not
    configuration    decides for the user: it is taken whether it pays or not
    file             where the result lies, for the record

    Raises DataError where nothing can be compared, SettingError for a configuration that isn't
    there, or whose draft a plan can't name.
    """
    done = result.finished
    _check(result, done)
    if configuration is not None:
        choice = _named(done, done.configuration(configuration))
    else:
        choice = _best(done)
    return _document(result, done, choice, file)


def _check(result: BenchResult, done: BenchResult) -> None:
    if not done.runs:
        failed = f" {counted(len(result.failed), 'prompt')} failed." if result.failed else ""
        raise DataError(
            f"No prompt of the bench is finished in all configurations.{failed}",
            "Let it finish: the same command with -o goes on.",
        )
    if not done.drafted:
        raise DataError(
            "The bench holds ordinary decoding only, and there is nothing to choose.",
            "Measure with a draft (-d).",
        )


def _gain(done: BenchResult, one: Described, category: str | None = None) -> Gain | None:
    ratio = done.ratio(one.name, category)
    return None if ratio is None else gain_of(ratio)


def _named(done: BenchResult, one: Described) -> Decision:
    if one.is_baseline:
        return Decision(one, ("Ordinary decoding was asked for.",))
    gain, said = _gain(done, one), []
    if gain is None:
        raise DataError(
            f"{one.name} and {one.baseline} have no prompt that both decoded past its first token.",
            "Measure longer answers.",
        )
    if not pays(gain):
        said.append(asked_for(one.name, gain))
    said += _faults(done, one)
    if one.lossy:
        said.append(f"LOSSY ({one.verifier}): it gives up {one.gives_up}.")
    return Decision(one, tuple(said))


def _best(done: BenchResult) -> Decision:
    first = done.configuration(done.configurations[0].baseline)
    rivals = rivals_of(done, first)
    others = _other_baselines(done, [first, *rivals])
    if not any(_rated(done, baseline) for baseline in (first, *rivals)):
        raise DataError(
            "No configuration and its baseline have a prompt that both decoded past its first "
            "token.",
            "Measure longer answers.",
        )
    chosen = fastest(done, _best_on(done, first), [_best_on(done, rival) for rival in rivals])
    return Decision(chosen.one, (*chosen.notes, *others))


def _rated(done: BenchResult, baseline: Described) -> list[tuple[Gain, Described]]:
    """What drafted beside a plain configuration, with its gain, the largest first."""
    rated = [
        (gain, one)
        for one in done.drafted
        if one.baseline == baseline.name and (gain := _gain(done, one)) is not None
    ]
    return sorted(rated, key=lambda pair: -pair[0].value)


def _best_on(done: BenchResult, baseline: Described) -> Decision:
    rated = _rated(done, baseline)
    unfit = {one.name: why for _, one in rated if (why := _unfit(done, one))}
    sound = [(gain, one) for gain, one in rated if one.name not in unfit]
    paying = [(gain, one) for gain, one in sound if pays(gain)]
    if not paying:
        why = "Ordinary decoding, because no configuration with a draft can be chosen."
        if sound:
            why = why_baseline(sound[0][1].name, sound[0][0])
        return Decision(baseline, (why, *_passed_over(rated, 1.0, unfit)))
    gain, one = paying[0]
    return Decision(one, tuple(_passed_over(rated, gain.value, unfit)))


def _passed_over(
    rated: Sequence[tuple[Gain, Described]], value: float, unfit: Mapping[str, str]
) -> list[str]:
    """Why those that were faster are not chosen; where none is, those that seemed to pay."""
    return [
        f"Not chosen: {one.name}, {times(gain)}: {unfit.get(one.name, 'its interval reaches 1')}."
        for gain, one in rated
        if gain.value > value and (one.name in unfit or value > 1)
    ]


def _other_baselines(done: BenchResult, compared: Sequence[Described]) -> list[str]:
    baseline = {one.name for one in compared}
    names = [one.name for one in done.drafted if one.baseline not in baseline]
    if not names:
        return []
    return [
        f"Not compared, because of another target or sampling: {listed(names)}. Name one with "
        "--configuration."
    ]


def _unfit(done: BenchResult, one: Described) -> str:
    """Why a configuration is chosen only by name; empty if it may be."""
    if one.lossy:
        return f"it is lossy and gives up {one.gives_up}"
    if _faults(done, one):
        return "its text differs from plain's by a fault"
    if not done.stats(one.name).drafted_rounds:
        return "it drafted nothing"
    strange = [kind for metadata in one.drafts.values() for kind in strange_kinds(metadata)]
    return f"no engine but Paceline knows the draft {strange[0]!r}" if strange else ""


def _faults(done: BenchResult, one: Described) -> list[str]:
    """Of an exact configuration; under a lossy verifier what isn't numeric need be no fault."""
    found = [
        r.id
        for r in done.runs_of(one.name)
        if r.first_difference and not r.first_difference.numeric
    ]
    if one.lossy or not found:
        return []
    return [
        f"A FAULT: in {counted(len(found), 'run')} ({listed(found)}) its text differs from "
        "plain's by more than rounding can explain."
    ]


# The document.


def _document(
    result: BenchResult, done: BenchResult, choice: Decision, file: str | None
) -> PlanDocument:
    one = choice.one
    drafted = not one.is_baseline
    expected = _expected(done, one) if drafted else Expected()
    stats = done.stats(one.name)
    ids = dict.fromkeys(run.id for run in done.runs_of(one.name))
    return PlanDocument(
        target=target_of(one.target),
        draft=_draft(one) if drafted else None,
        max_draft_tokens=one.max_draft_tokens if drafted else 0,
        mean_draft_tokens=stats.proposed / stats.drafted_rounds if stats.drafted_rounds else None,
        expected=expected,
        measured=Measurement(
            source="bench",
            file=file,
            when=result.header.started,
            machine=machine_of(result.header.machine, one.target),
            workload=workload_of(result.header.workload),
            sampling=sampling_of(asdict(one.sampling)),
            prompts=len(ids),
            tokens=stats.tokens,
            exact=not one.lossy,
            configuration=one.name,
            verifier=one.verifier,
        ),
        notes=(
            *choice.notes,
            *worst_category(expected.gain_by_category),
            *(_of_the_draft(one) if drafted else ()),
            *_of_the_bench(result, len(ids)),
            *([batch_words(1)] if drafted else ()),
        ),
    )


def _draft(one: Described) -> PlannedDraft:
    return (
        several(one.drafts)
        if one.max_draft_tokens is None
        else draft_of(*next(iter(one.drafts.items())))
    )


def _expected(done: BenchResult, one: Described) -> Expected:
    stats = done.stats(one.name)
    drafted = [round for round in done.rounds_of(one.name) if round.width > 1]
    baseline = [round for round in done.rounds_of(one.baseline) if not round.prefill]
    by_category = {name: _gain(done, one, name) for name in done.categories}
    return Expected(
        acceptance_at=acceptance_at(drafted),
        tokens_per_round=stats.tokens_per_round,
        tokens_per_drafted_round=1 + stats.accepted / len(drafted) if drafted else None,
        acceptance_rate=stats.acceptance_rate,
        break_even_tokens=_mean_s(drafted) / _mean_s(baseline) if drafted and baseline else None,
        gain=_gain(done, one),
        gain_by_category={name: gain for name, gain in by_category.items() if gain is not None},
    )


def acceptance_at(drafted: Sequence[Round]) -> tuple[float, ...]:
    """By position, the share of these rounds that accepted a token there. A tree's positions are
    depths, of which only those are known that something was accepted at."""
    most = max((r.proposed if r.path is None else r.accepted for r in drafted), default=0)
    return tuple(sum(r.accepted > at for r in drafted) / len(drafted) for at in range(most))


def _mean_s(rounds: Sequence[Round]) -> float:
    return sum(r.draft_s + r.verify_s + r.other_s for r in rounds) / len(rounds)


def _of_the_draft(one: Described) -> list[str]:
    said = []
    if one.warm:
        said.append("The drafts could remember earlier prompts; a server's may not.")
    return [*said, *unplaced(one.drafts)]


def _of_the_bench(result: BenchResult, prompts: int) -> list[str]:
    said = few_words(prompts)
    missing = {id for id, _ in result.missing()}
    if missing:
        said.append(
            f"The bench is not finished: left out are {len(missing)} of "
            f"{counted(len(result.header.prompts), 'prompt')}."
        )
    failed = list(result.failed)
    if failed:
        said.append(f"Failed and left out: {counted(len(failed), 'prompt')} ({listed(failed)}).")
    return said + skipped_words(result.header.workload)
