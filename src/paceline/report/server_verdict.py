"""What a run on live servers comes to, in a sentence a number of clients, and what speaks against
it."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.server.result import FIRST, clients_words
from paceline.bench.stats import FEW_PROMPTS
from paceline.bench.wording import interval_words, verdict
from paceline.report.server_summary import ServerSummary
from paceline.report.summary import is_slower
from paceline.report.verdict import ReportVerdict
from paceline.report.words import count, seconds_words, times


def verdicts(summary: ServerSummary) -> list[ReportVerdict]:
    """One for each number of clients."""
    if not any(one.answer.failure is None for one in summary.result.asked):
        return [ReportVerdict("Nothing was measured: no request was answered.")]
    sentence = _compared if summary.several else _alone
    found = [
        ReportVerdict(
            f"{clients_words(n).capitalize()}: {sentence(summary, n)}", tuple(_doubts(summary, n))
        )
        for n in summary.clients
    ]
    first = found[0]
    return [ReportVerdict(first.sentence, (*_of_all(summary), *first.doubts)), *found[1:]]


def _clients(clients: int) -> str:
    return clients_words(clients).capitalize()


def _compared(summary: ServerSummary, clients: int) -> str:
    prompts = count(len(summary.result.comparison(clients).prompts), "prompt")
    ratio, of = summary.ratio(clients), "per token after the first"
    if ratio is None:
        ratio, of = summary.whole_ratio(clients), "for whole answers"
    if ratio is None:
        return "nothing was measured on both servers."
    said = verdict(ratio)
    words = f"the endpoint is {ratio.value:.2f} times as fast as the other {of}"
    if said is None:
        return f"{words}, on one prompt. A single prompt says nothing of others."
    return f"{said}. The{words.removeprefix('the')} ({interval_words(ratio)}, {prompts})."


def _alone(summary: ServerSummary, clients: int) -> str:
    load = summary.load(clients, FIRST)
    parts = [
        f"{seconds_words(load.ttft_s.median)} to the first token" if load.ttft_s else "",
        f"{seconds_words(load.s_per_token.median)} per token after it" if load.s_per_token else "",
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
    if not summary.result.complete:
        yield "The run is not complete: these are the requests so far."


def _doubts(summary: ServerSummary, clients: int) -> Iterator[str]:
    if summary.several:
        yield from _of_the_ratio(summary, clients)
    for server in summary.result.servers:
        load = summary.load(clients, server)
        if load.failed:
            kinds = ", ".join(f"{amount} {kind}" for kind, amount in load.failures.items())
            left_out = " What is compared leaves such prompts out." if summary.several else ""
            yield (
                f"{summary.name(server).capitalize()}: {load.failed} of "
                f"{count(load.requests, 'request')} failed ({kinds}), with "
                f"{clients_words(clients)}.{left_out}"
            )


def _of_the_ratio(summary: ServerSummary, clients: int) -> Iterator[str]:
    per_token, whole = summary.ratio(clients), summary.whole_ratio(clients)
    if per_token is not None and whole is not None and verdict(per_token) != verdict(whole):
        yield (
            "Whole answers, waits and reading the prompt included, say otherwise: "
            f"{verdict(whole)}, {times(whole)}."
        )
    slower = [
        (name, ratio)
        for name in summary.worst_first
        if (ratio := summary.ratio(clients, name)) is not None and is_slower(ratio)
    ]
    if slower and not (per_token and is_slower(per_token)):
        words = ", ".join(f"{name} ({ratio.value:.2f}×)" for name, ratio in slower)
        yield f"With {clients_words(clients)} the endpoint is slower than the other in {words}."
    pairs = len(summary.result.comparison(clients).prompts)
    if 1 < pairs < FEW_PROMPTS:
        yield (
            f"{count(pairs, 'prompt')} are few: intervals of fewer than {FEW_PROMPTS} prompts are "
            "too narrow."
        )
