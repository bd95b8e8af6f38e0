"""What a bench comes to: which configuration to use, in a sentence, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.local.run import Described
from paceline.bench.stats import FEW_PROMPTS, Ratio
from paceline.report.summary import Group, Summary, is_slower, is_unclear
from paceline.report.words import count, long_interval, number, short_times, title


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    """`doubts` are sentences that a reader must not miss."""

    sentence: str
    doubts: tuple[str, ...] = ()


def verdicts(summary: Summary) -> list[ReportVerdict]:
    """One for each group: times of different engines or samplings are not compared."""
    if not summary.result.runs:
        return [_nothing(summary)]
    several = len(summary.groups) > 1
    return [_verdict(summary, group, several) for group in summary.groups]


def _nothing(summary: Summary) -> ReportVerdict:
    asked, failed = len(summary.result.header.prompts), len(summary.result.failed)
    if failed and failed == asked:
        return ReportVerdict(f"Nothing was measured: all {count(failed, 'prompt')} failed.")
    return ReportVerdict("Nothing was measured: no prompt is finished in all configurations yet.")


def _verdict(summary: Summary, group: Group, several: bool) -> ReportVerdict:
    said = _choice(summary, group)
    sentence = f"Against {group.baseline.name}: {said}" if several else said
    return ReportVerdict(sentence, tuple(_doubts(summary, group)))


def _choice(summary: Summary, group: Group) -> str:
    prompts = count(_prompts(summary, group.baseline), "prompt")
    rated = summary.rated(group)
    if not rated:
        baseline = summary.stats(group.baseline.name).ms_per_token
        if not group.drafted and baseline is not None:
            return (
                f"Only plain decoding was measured: {baseline:.1f} ms per token on {prompts}. "
                "There is nothing to choose."
            )
        return "Nothing can be compared: no prompt was decoded past its first token in both."
    sound = [pair for pair in rated if summary.sound(pair[0])]
    if not sound:
        return (
            "Use plain decoding: every configuration with a draft is lossy, or its text differs "
            f"from plain's by a fault. The fastest of them, {title(rated[0][0])}, is "
            f"{_measured(rated[0][1], prompts)}."
        )
    one, ratio = sound[0]
    return " ".join([_sound_choice(one, ratio, prompts), *_lossy_choice(rated, ratio)])


def _sound_choice(one: Described, ratio: Ratio, prompts: str) -> str:
    measured = _measured(ratio, prompts)
    if ratio.low is None:
        side = "slower" if is_slower(ratio) else "faster" if ratio.value >= 1.005 else "as fast"
        return (
            f"On the one prompt measured {one.name}, the fastest draft, was {side}: {measured}. "
            "A single prompt says nothing of others."
        )
    if is_slower(ratio):
        return f"Plain decoding is best. The fastest draft, {one.name}, is {measured}."
    if is_unclear(ratio):
        return f"No clear difference. The fastest draft, {one.name}, is {measured}."
    return f"Use {one.name}: {measured}."


def _lossy_choice(rated: list[tuple[Described, Ratio]], sound: Ratio) -> list[str]:
    one, ratio = rated[0]
    if not one.lossy or ratio.value <= sound.value:
        return []
    return [f"{one.name} is {ratio.value:.2f} times as fast as plain, but LOSSY."]


def _measured(ratio: Ratio, prompts: str) -> str:
    return f"{ratio.value:.2f} times as fast as plain decoding ({_spread(ratio, prompts)})"


def _spread(ratio: Ratio, prompts: str) -> str:
    return "no interval" if ratio.low is None else f"{long_interval(ratio)}, {prompts}"


def _prompts(summary: Summary, one: Described) -> int:
    return len({run.id for run in summary.runs(one.name)})


def _doubts(summary: Summary, group: Group) -> list[str]:
    said = [*_of_the_choice(summary, group), *_of_the_texts(summary, group)]
    prompts = _prompts(summary, group.baseline)
    if group.drafted and 1 < prompts < FEW_PROMPTS:
        said.append(
            f"{count(prompts, 'prompt')} are few: intervals of fewer than {FEW_PROMPTS} prompts "
            "are too narrow."
        )
    if summary.missing:
        said.append(_incomplete(summary))
    return said


def _of_the_choice(summary: Summary, group: Group) -> list[str]:
    said = []
    for one in group.drafted:
        if one.lossy:
            said.append(f"{one.name} is LOSSY: it gives up {one.gives_up}.")
        faults = summary.faults(one.name)
        if faults:
            said.append(
                f"{one.name} has a fault: in {count(len(faults), 'run')} its text differs from "
                "plain's by more than rounding can explain. Its speed counts for nothing before "
                "that is understood."
            )
        elif summary.runs(one.name) and not summary.drafted(one.name):
            said.append(f"{one.name} never drafted: all its rounds were plain ones.")
    sound = [pair for pair in summary.rated(group) if summary.sound(pair[0])]
    if sound and not is_slower(sound[0][1]):
        said += _slower_in(summary, sound[0][0])
    if len(sound) > 1:
        said += _next(summary, sound[0], sound[1])
    return said


def _slower_in(summary: Summary, one: Described) -> list[str]:
    """Where the recommended one loses."""
    found = {
        category: ratio
        for category in summary.categories
        if (ratio := summary.ratio(one.name, category)) is not None and is_slower(ratio)
    }
    if not found:
        return []
    worst = sorted(found.items(), key=lambda each: each[1].value)
    words = ", ".join(f"{category} ({short_times(ratio)})" for category, ratio in worst)
    return [f"{one.name} is slower than plain decoding in {words}."]


def _next(
    summary: Summary, first: tuple[Described, Ratio], second: tuple[Described, Ratio]
) -> list[str]:
    """Whether the fastest is clearly faster than the one behind it."""
    if is_slower(first[1]) or is_unclear(first[1]):
        return []
    beside = summary.beside(first[0].name, second[0].name)
    if beside is None or beside.low is None or beside.low > 1:
        return []
    return [
        f"{first[0].name} is not clearly faster than {second[0].name}: {beside.value:.2f} times "
        f"({long_interval(beside)})."
    ]


def _of_the_texts(summary: Summary, group: Group) -> list[str]:
    loops, runs = summary.looping(group), summary.runs(group.baseline.name)
    if not loops or not group.drafted:
        return []
    where = ", ".join(dict.fromkeys(run.category for run in loops))
    said = (
        f"{len(loops)} of {count(len(runs), 'plain answer')} repeat themselves ({where}): such "
        "text is easy to draft, and flatters every draft."
    )
    if 2 * len(loops) > len(runs):
        said += " Most answers here do, so these figures say little of sound text."
    return [said]


def _incomplete(summary: Summary) -> str:
    header = summary.result.header
    asked = len(header.prompts) * header.repeats
    said = (
        f"The run is not complete: {summary.missing} of {count(asked, 'prompt')} "
        f"{'is' if summary.missing == 1 else 'are'} still to be measured."
    )
    if header.repeats > 1:
        said = said.replace("prompt", "prompt (repeats counted)", 1)
    if summary.begun:
        runs = count(summary.begun, "run")
        said += f" {runs} of prompts that were only begun {_are(summary.begun)} left out."
    return said


def _are(amount: int) -> str:
    return "is" if amount == 1 else "are"


def slower_sentence(summary: Summary, one: Described) -> str:
    """How many prompts lost by a configuration, and which most."""
    ratios = summary.prompt_ratios(one.name)
    slower = {id: ratio.value for id, ratio in ratios.items() if is_slower(ratio)}
    if not ratios:
        return number(None)
    if not slower:
        return f"0 of {len(ratios)}"
    id = min(slower, key=slower.__getitem__)
    return f"{len(slower)} of {len(ratios)}; most {id}, {slower[id]:.2f}×"
