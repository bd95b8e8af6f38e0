"""A bench as evidence: figures are pooled over the rounds after the prompt was read, of prompts
that were decoded in all configurations. The same model on several engines is compared across them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import Described
from paceline.bench.stats import Ratio
from paceline.bench.wording import PAYS, interval_words, verdict
from paceline.errors import DataError
from paceline.plan.decide import (
    NONE_FIT,
    Alternative,
    Decision,
    Evidence,
    Figures,
    choose,
    counted,
    decide,
    document,
    few_words,
    gain_of,
    gains_of,
    listed,
    sampling_of,
    skipped_words,
    workload_of,
)
from paceline.plan.document import (
    Expected,
    Measurement,
    PlanDocument,
    PlannedDraft,
)
from paceline.plan.drafts import IDENTITY, draft_of, several, target_of, unknown_kind, unplaced
from paceline.types import Round

KEPT = (None, "as stored", "of the GGUF file", "float32", "bfloat16", "float16")
"""Weights that the openvino engine has as their source does, or each number only rounded. Any other
export is another model than the one it was made of."""


def decide_bench(
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
        baseline = done.configuration(done.configuration(configuration).baseline)
        return decide(_evidence(result, done, baseline), configuration=configuration, file=file)
    home = done.configuration(done.configurations[0].baseline)
    baselines = [home, *rivals_of(done, home)]
    every = [_evidence(result, done, one) for one in baselines]
    rated = [any(one.gain(1) for one in each.candidates) for each in every]
    if not any(rated):
        raise every[0].nothing
    choices = [
        choose(one) if some else Decision(one.ordinary, notes=(NONE_FIT,))
        for one, some in zip(every, rated, strict=True)
    ]
    best, notes = _fastest(done, choices)
    others = _other_baselines(done, baselines)
    return document(
        every[best], replace(choices[best], notes=(*choices[best].notes, *notes, *others)), file
    )


def _check(result: BenchResult, done: BenchResult) -> None:
    if not done.runs:
        failed = f" {counted(len(result.failed), 'prompt')} failed." if result.failed else ""
        disturbed = result.disturbances()
        if disturbed:
            raise DataError(
                f"No prompt of the bench is left: other programs disturbed {len(disturbed)}."
                + failed,
                "Measure again on a quiet machine.",
            )
        raise DataError(
            f"No prompt of the bench is finished in all configurations.{failed}",
            "Let it finish: the same command with -o goes on.",
        )
    if not done.drafted:
        raise DataError(
            "The bench holds ordinary decoding only, and there is nothing to choose.",
            "Measure with a draft (-d).",
        )


def _evidence(result: BenchResult, done: BenchResult, baseline: Described) -> Evidence:
    """What was drafted beside one baseline.

    result    as it lies in the file
    done      of it what is finished
    """
    drafted = [one for one in done.drafted if one.baseline == baseline.name]
    measured = _measurement(result, done, baseline)
    ordinary = Figures(measured=measured, notes=_notes(result, measured))
    return Evidence(
        target=target_of(baseline.target),
        ordinary=Alternative(name=baseline.name, family="", points={1: ordinary}),
        candidates=tuple(_candidate(result, done, one) for one in drafted),
        nothing=DataError(
            "No configuration and its baseline have a prompt that both decoded past its first "
            "token.",
            "Measure longer answers.",
        ),
    )


def _candidate(result: BenchResult, done: BenchResult, one: Described) -> Alternative:
    stats, faults = done.stats(one.name), _faults(done, one)
    expected = _expected(done, one)
    measured = _measurement(result, done, one)
    cautions = []
    if faults:
        cautions.append(
            f"A FAULT: in {counted(len(faults), 'run')} ({listed(faults)}) its text differs from "
            "the baseline's by more than rounding can explain."
        )
    if one.lossy:
        cautions.append(f"LOSSY ({one.verifier}): it gives up {one.gives_up}.")
    if one.warm:
        cautions.append("The drafts could remember earlier prompts; a server's may not.")
    point = Figures(
        title=one.name,
        gain=expected.gain,
        expected=expected,
        measured=measured,
        mean_draft_tokens=stats.proposed / stats.drafted_rounds if stats.drafted_rounds else None,
        notes=(*unplaced(one.drafts), *_notes(result, measured)),
    )
    return Alternative(
        name=one.name,
        family=one.name,
        draft=partial(_draft, one),
        max_draft_tokens=one.max_draft_tokens,
        points={1: point},
        unfit=_unfit(done, one),
        cautions=tuple(cautions),
    )


def _draft(one: Described) -> PlannedDraft:
    if one.max_draft_tokens is None:
        return several(one.drafts)
    return draft_of(*next(iter(one.drafts.items())))


def _unfit(done: BenchResult, one: Described) -> str:
    if one.lossy:
        return f"it is lossy and gives up {one.gives_up}"
    if _faults(done, one):
        return "its text differs from the baseline's by a fault"
    if not done.stats(one.name).drafted_rounds:
        return "it drafted nothing"
    return next((why for each in one.drafts.values() if (why := unknown_kind(each))), "")


def _faults(done: BenchResult, one: Described) -> list[str]:
    """Of an exact configuration; under a lossy verifier what isn't numeric need be no fault."""
    runs = () if one.lossy else done.runs_of(one.name)
    return [r.id for r in runs if r.first_difference and not r.first_difference.numeric]


def _expected(done: BenchResult, one: Described) -> Expected:
    stats = done.stats(one.name)
    drafted = [round for round in done.rounds_of(one.name) if round.width > 1]
    others = [round for round in done.rounds_of(one.baseline) if not round.prefill]
    beside = done.comparison(one.name)
    return Expected(
        acceptance_at=acceptance_at(drafted),
        tokens_per_round=stats.tokens_per_round,
        tokens_per_drafted_round=1 + stats.accepted / len(drafted) if drafted else None,
        acceptance_rate=stats.acceptance_rate,
        break_even_tokens=_mean_s(drafted) / _mean_s(others) if drafted and others else None,
        gain=gain_of(beside.ratio()),
        gain_by_category=gains_of(beside),
    )


def _measurement(result: BenchResult, done: BenchResult, one: Described) -> Measurement:
    header = result.header
    engine = {key: value for key, value in one.target.items() if key not in IDENTITY}
    return Measurement(
        source="bench",
        when=header.started,
        machine={**header.machine, **engine},
        workload=workload_of(header.workload),
        sampling=sampling_of(asdict(one.sampling)),
        prompts=len({run.id for run in done.runs_of(one.name)}),
        tokens=done.stats(one.name).tokens,
        exact=not one.lossy,
        configuration=one.name,
        verifier=one.verifier,
    )


def _notes(result: BenchResult, measured: Measurement) -> tuple[str, ...]:
    said, missing = few_words(measured.prompts), {id for id, _ in result.missing()}
    if missing:
        every = counted(len(result.header.prompts), "prompt")
        said.append(f"The bench is not finished: left out are {len(missing)} of {every}.")
    disturbed = result.disturbances()
    if disturbed:
        said.append(f"Disturbed by other programs and left out: {'; '.join(disturbed)}.")
    failed = list(result.failed)
    if failed:
        said.append(f"Failed and left out: {counted(len(failed), 'prompt')} ({listed(failed)}).")
    return (*said, *skipped_words(result.header.workload))


def acceptance_at(drafted: Sequence[Round]) -> tuple[float, ...]:
    """By position, the share of these rounds that accepted a token there. A tree's positions are
    depths, of which only those are known that something was accepted at."""
    most = max((r.proposed if r.path is None else r.accepted for r in drafted), default=0)
    return tuple(sum(r.accepted > at for r in drafted) / len(drafted) for at in range(most))


def _mean_s(rounds: Sequence[Round]) -> float:
    return sum(r.draft_s + r.verify_s + r.other_s for r in rounds) / len(rounds)


# The same model on several engines, each with what is best on it: which is the fastest?


def rivals_of(done: BenchResult, baseline: Described) -> list[Described]:
    """Baselines of the same model and sampling on other engines."""
    return [
        one
        for one in done.configurations
        if one.is_baseline
        and one.sampling == baseline.sampling
        and one.target.get("engine") != baseline.target.get("engine")
        and same_model(one, baseline)
    ]


def same_model(one: Described, other: Described) -> bool:
    """Whether two targets are read from one place, or are called the same where one has none, have
    the same tokens, and neither was quantised on the way."""
    mine, theirs = one.target, other.target
    if mine.get("vocabulary_hash") != theirs.get("vocabulary_hash"):
        return False
    if not {mine.get("weights"), theirs.get("weights")} <= set(KEPT):
        return False
    if mine.get("path") and theirs.get("path"):
        return bool(mine["path"] == theirs["path"])
    return bool(mine.get("model") and mine.get("model") == theirs.get("model"))


def _fastest(done: BenchResult, choices: Sequence[Decision]) -> tuple[int, list[str]]:
    """Of what is best on each engine the place of the fastest, and what is said of all. Another
    engine than the first is chosen only where it is faster with a 95 % interval above 1."""
    if len(choices) == 1:
        return 0, []
    run = [done.configuration(choice.candidate.name) for choice in choices]
    best, most, said, home = 0, 1.0, [], run[0]
    for at, here in enumerate(run[1:], start=1):
        ratio = done.comparison(here.name, beside=home.name).ratio()
        if ratio is None:
            said.append(
                f"{placed(here)} and {placed(home)} have no prompt that both decoded past its "
                "first token, so they aren't compared."
            )
            continue
        said.append(sentence(here, home, ratio))
        if verdict(ratio) == PAYS and ratio.value > most:
            best, most = at, ratio.value
    if len({one.target.get("dtype") for one in run}) > 1:
        said.append("The engines compute in other numbers, so their texts can differ.")
    others = [
        f"On {run[at].target.get('engine')}: {note}"
        for at, choice in enumerate(choices)
        if at != best
        for note in choice.notes
    ]
    return best, [*said, *others]


def sentence(one: Described, other: Described, ratio: Ratio) -> str:
    """Which of two is how much faster, on which engines."""
    return (
        f"{placed(one)} is {ratio.value:.2f} times as fast as {placed(other)} "
        f"({interval_words(ratio)})."
    )


def placed(one: Described) -> str:
    """A configuration with its engine, where its name doesn't say that."""
    engine = str(one.target.get("engine"))
    return one.name if engine in one.name else f"{one.name} on {engine}"


def _other_baselines(done: BenchResult, compared: Sequence[Described]) -> list[str]:
    baselines = {one.name for one in compared}
    names = [one.name for one in done.drafted if one.baseline not in baselines]
    if not names:
        return []
    return [
        f"Not compared, because of another target or sampling: {listed(names)}. Name one with "
        "--configuration."
    ]
