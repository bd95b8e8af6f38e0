"""What a run comes to: which configuration to use, or whether a server's drafts pay, in a sentence,
and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.bench.comparison import Comparison
from paceline.bench.local.run import Described
from paceline.bench.server.result import FIRST, clients_words
from paceline.bench.stats import FEW_PROMPTS, Ratio
from paceline.bench.wording import interval_words, verdict
from paceline.report.document import NONE, count, seconds_words, short_times, times
from paceline.report.summary import (
    BenchSummary,
    Group,
    ServerSummary,
    Summary,
    is_slower,
    is_unclear,
)


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    """`doubts` are sentences that a reader must not miss."""

    sentence: str
    doubts: tuple[str, ...] = ()


def verdicts(summary: Summary) -> list[ReportVerdict]:
    """Of a bench one for each baseline: times of different engines or samplings are not compared.
    Of live servers one for each number of clients."""
    if isinstance(summary, ServerSummary):
        return _of_servers(summary)
    if not summary.result.runs:
        return [_nothing(summary)]
    return [_of_group(summary, group) for group in summary.groups]


def slower_prompts(one: Comparison) -> str:
    """How many prompts were slower than the baseline's, and which most."""
    ratios = one.prompt_ratios()
    slower = {id: ratio.value for id, ratio in ratios.items() if is_slower(ratio)}
    if not ratios:
        return NONE
    if not slower:
        return f"0 of {len(ratios)}"
    id = min(slower, key=slower.__getitem__)
    return f"{len(slower)} of {len(ratios)}; most {id}, {slower[id]:.2f}×"


def _speedup(ratio: Ratio, prompts: int, of: str = "") -> str:
    interval = "" if ratio.low is None else f"{interval_words(ratio)}, "
    behind = f"({interval or 'no interval, '}{count(prompts, 'prompt')})"
    return f"a speedup of {ratio.value:.2f}×{of} {behind}"


def _slower_in(one: Comparison, subject: str, ratio: Ratio | None) -> Iterator[str]:
    """Where it loses, unless it loses as a whole."""
    slower = [(name, each) for name, each in one.worst_first() if is_slower(each)]
    if slower and not (ratio and is_slower(ratio)):
        words = ", ".join(f"{name} ({short_times(each)})" for name, each in slower)
        yield f"{subject} is slower than the baseline in {words}."


def _few(prompts: int) -> Iterator[str]:
    if 1 < prompts < FEW_PROMPTS:
        yield (
            f"{count(prompts, 'prompt')} are few: intervals of fewer than {FEW_PROMPTS} prompts "
            "are too narrow."
        )


# A local bench.


def _nothing(summary: BenchSummary) -> ReportVerdict:
    asked, failed = len(summary.result.header.prompts), len(summary.result.failed)
    if failed and failed == asked:
        return ReportVerdict(f"Nothing was measured: all {count(failed, 'prompt')} failed.")
    if summary.disturbances and not summary.missing:
        return ReportVerdict(
            "Nothing can be said: other programs disturbed every prompt. Measure again on a quiet "
            "machine."
        )
    return ReportVerdict("Nothing was measured: no prompt is finished in all configurations yet.")


def _of_group(summary: BenchSummary, group: Group) -> ReportVerdict:
    assert group.baseline is not None
    said = _choice(summary, group)
    if len(summary.groups) > 1:
        said = f"Against {group.baseline.name}: {said[0].lower()}{said[1:]}"
    return ReportVerdict(said, tuple(_bench_doubts(summary, group)))


def _choice(summary: BenchSummary, group: Group) -> str:
    assert group.baseline is not None
    [prompts] = summary.prompts(group)
    rated = summary.rated(group)
    if not rated:
        ms = summary.stats(group.baseline.name).ms_per_token
        if not group.drafted and ms is not None:
            return (
                f"Only the baseline was measured: {ms:.1f} ms per token on "
                f"{count(prompts, 'prompt')}. There is nothing to choose."
            )
        return "Nothing can be compared: no prompt was decoded past its first token in both."
    sound = [pair for pair in rated if summary.sound(pair[0])]
    if not sound:
        return (
            "Use the baseline: every configuration with a draft is lossy, or its text differs "
            f"from the baseline's by a fault. The fastest of them, {rated[0][0].title}, has "
            f"{_speedup(rated[0][1], prompts)}."
        )
    one, ratio = sound[0]
    said = _sound_choice(one, ratio, prompts)
    fastest, best = rated[0]
    if fastest.lossy and best.value > ratio.value:
        said += f" {fastest.name} has a speedup of {best.value:.2f}×, but is LOSSY."
    return said


def _sound_choice(one: Described, ratio: Ratio, prompts: int) -> str:
    measured = _speedup(ratio, prompts)
    if ratio.low is None:
        side = "slower" if is_slower(ratio) else "faster" if ratio.value >= 1.005 else "as fast"
        return (
            f"On the one prompt measured {one.name}, the fastest draft, was {side}: {measured}. "
            "A single prompt says nothing of others."
        )
    if is_slower(ratio):
        return f"The baseline is best. The fastest draft, {one.name}, has {measured}."
    if is_unclear(ratio):
        return f"No clear difference. The fastest draft, {one.name}, has {measured}."
    return f"Use {one.name}: {measured}."


def _bench_doubts(summary: BenchSummary, group: Group) -> Iterator[str]:
    for one in group.drafted:
        yield from _of_one(summary, one)
    sound = [pair for pair in summary.rated(group) if summary.sound(pair[0])]
    if sound:
        (first, ratio), *others = sound
        yield from _slower_in(summary.comparison(first), first.name, ratio)
        if others and not is_slower(ratio) and not is_unclear(ratio):
            yield from _beside(summary, first, others[0][0])
    if group.drafted:
        yield from _loops(summary, group)
        yield from _few(*summary.prompts(group))
    if summary.missing:
        yield _incomplete(summary)
    if summary.disturbances:
        yield (
            f"Other programs disturbed {count(len(summary.disturbances), 'prompt')}, which "
            f"{_are(len(summary.disturbances))} left out. Measure again on a quiet machine."
        )


def _of_one(summary: BenchSummary, one: Described) -> Iterator[str]:
    if one.lossy:
        yield f"{one.name} is LOSSY: it gives up {one.gives_up}."
    if faults := summary.faults(one):
        yield (
            f"{one.name} has a fault: in {count(len(faults), 'run')} its text differs from the "
            "baseline's by more than rounding can explain. Its speed counts for nothing before "
            "that is understood."
        )
    elif summary.runs(one.name) and not summary.stats(one.name).drafted_rounds:
        yield f"{one.name} never drafted: each of its rounds was ordinary decoding."


def _beside(summary: BenchSummary, first: Described, second: Described) -> Iterator[str]:
    """Whether the fastest is clearly faster than the one behind it."""
    ratio = summary.beside(first, second)
    if ratio is not None and ratio.low is not None and ratio.low <= 1:
        yield (
            f"{first.name} is not clearly faster than {second.name}: {ratio.value:.2f}× beside it "
            f"({interval_words(ratio)})."
        )


def _loops(summary: BenchSummary, group: Group) -> Iterator[str]:
    loops, runs = summary.looping(group), summary.runs(group.every[0].name)
    if loops:
        where = ", ".join(dict.fromkeys(run.category for run in loops))
        said = (
            f"{len(loops)} of {count(len(runs), 'baseline answer')} repeat themselves ({where}): "
            "such text is easy to draft, and flatters every draft."
        )
        if 2 * len(loops) > len(runs):
            said += " Most answers here do, so these figures say little of sound text."
        yield said


def _incomplete(summary: BenchSummary) -> str:
    header = summary.result.header
    asked = len(header.prompts) * header.repeats
    repeats = " (repeats counted)" if header.repeats > 1 else ""
    said = (
        f"The run is not complete: {summary.missing} of {count(asked, 'prompt')}{repeats} "
        f"{_are(summary.missing)} still to be measured."
    )
    if summary.begun:
        runs = count(summary.begun, "run")
        said += f" {runs} of prompts that were only begun {_are(summary.begun)} left out."
    return said


def _are(amount: int) -> str:
    return "is" if amount == 1 else "are"


# Live servers.


def _of_servers(summary: ServerSummary) -> list[ReportVerdict]:
    if not any(one.answer.failure is None for one in summary.result.asked):
        return [ReportVerdict("Nothing was measured: no request was answered.")]
    found = []
    for place, n in enumerate(summary.clients):
        said = _compared(summary.comparisons[n]) if summary.several else _alone(summary, n)
        doubts = [*(_of_all(summary) if not place else ()), *_server_doubts(summary, n)]
        found.append(ReportVerdict(f"{clients_words(n).capitalize()}: {said}", tuple(doubts)))
    return found


def _compared(one: Comparison) -> str:
    ratio, of = one.ratio(), " per token after the first"
    if ratio is None:
        ratio, of = one.whole_ratio(), " for whole answers"
    if ratio is None:
        return "nothing was measured on both servers."
    said = verdict(ratio)
    if said is None:
        return (
            f"a speedup of {ratio.value:.2f}×{of}, on one prompt. A single prompt says nothing of "
            "others."
        )
    return f"{said}. The endpoint has {_speedup(ratio, len(one.prompts), of)}."


def _alone(summary: ServerSummary, clients: int) -> str:
    load = summary.load(clients, FIRST)
    parts = [
        f"TTFT {seconds_words(load.ttft_s.median)}" if load.ttft_s else "",
        f"TPOT {seconds_words(load.s_per_token.median)}" if load.s_per_token else "",
        f"{seconds_words(load.total_s.median)} per answer" if load.total_s else "",
    ]
    said = f"{', '.join(part for part in parts if part)} (medians of "
    said += f"{count(load.requests - load.failed, 'answer')})"
    if load.tok_per_s is not None:
        said += f"; {load.tok_per_s:.1f} tokens per second, all clients together"
    return f"{said}."


def _of_all(summary: ServerSummary) -> Iterator[str]:
    if not summary.several:
        yield (
            "Only one server was measured, so nothing can be said of a gain. Measure it beside the "
            "same server without drafts: --against URL."
        )
    if not summary.complete:
        yield "The run is not complete: these are the requests so far."


def _server_doubts(summary: ServerSummary, clients: int) -> Iterator[str]:
    where = clients_words(clients)
    if summary.several:
        one = summary.comparisons[clients]
        ratio, whole = one.ratio(), one.whole_ratio()
        if ratio is not None and whole is not None and verdict(ratio) != verdict(whole):
            yield (
                "Whole answers, waits and reading the prompt included, say otherwise: "
                f"{verdict(whole)}, {times(whole)}."
            )
        yield from _slower_in(one, f"With {where} the endpoint", ratio)
        yield from _few(len(one.prompts))
    for server in summary.result.servers:
        load = summary.load(clients, server)
        if load.failed:
            kinds = ", ".join(f"{amount} {kind}" for kind, amount in load.failures.items())
            left_out = " What is compared leaves such prompts out." if summary.several else ""
            yield (
                f"{summary.name(server).capitalize()}: {load.failed} of "
                f"{count(load.requests, 'request')} failed ({kinds}), with {where}.{left_out}"
            )
