"""A run on two live servers, with drafts and without, as evidence. What drafts there, servers don't
tell: who ran them has to."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.bench.comparison import Comparison
from paceline.bench.server.notes import notes
from paceline.bench.server.result import AGAINST, FIRST, ServerResult, clients_words
from paceline.errors import DataError, SettingError
from paceline.monitor.counters import Counters
from paceline.plan.decide import (
    Alternative,
    Evidence,
    Figures,
    break_even_of,
    counted,
    decide,
    few_words,
    gain_of,
    gains_of,
    listed,
    sampling_of,
    skipped_words,
    times,
    workload_of,
)
from paceline.plan.document import (
    Expected,
    Measurement,
    PlanDocument,
    PlannedDraft,
    Target,
)

_ORDER = "Measure the server with drafts as URL, against the same without (--against)."


def decide_servers(
    result: ServerResult, draft: PlannedDraft, max_draft_tokens: int, *, file: str | None = None
) -> PlanDocument:
    """Whether the draft that the first server ran pays, at the smallest number of clients where it
    does; the schedule says at which it does.

    draft, limit    what the first server ran

    Raises DataError where nothing can be compared, or where what the servers counted isn't that of
    one with drafts and one without, SettingError for a limit that the counters contradict.
    """
    if AGAINST not in result.servers:
        raise DataError("The run is on one server, so there is no gain.", _ORDER)
    _check_counters(result, max_draft_tokens)
    return decide(_evidence(result, draft, max_draft_tokens), file=file)


def _check_counters(result: ServerResult, max_draft_tokens: int) -> None:
    for n in result.header.concurrency:
        first, against = (result.counters(server, n) for server in (FIRST, AGAINST))
        if against is not None and _drafts(against):
            other = " and the endpoint didn't" if first is not None and not _drafts(first) else ""
            raise DataError(
                f"The server without drafts drafted{other}, by its counters with "
                f"{clients_words(n)}.",
                _ORDER,
            )
        if first is None:
            continue
        if first.has_drafts and not _drafts(first):
            raise DataError(
                f"The endpoint drafted nothing with {clients_words(n)}, by its counters.", _ORDER
            )
        ran = _limit_words(first, max_draft_tokens)
        if ran:
            raise SettingError(
                f"--max-draft-tokens is {max_draft_tokens}, and the endpoint {ran}.",
                "Give the limit that it ran with.",
            )


def _limit_words(counters: Counters, max_draft_tokens: int) -> str:
    """What the counters say against a limit; empty if nothing."""
    at = counters.accepted_by_position
    longest = max((place for place, count in enumerate(at, 1) if count), default=0)
    if longest > max_draft_tokens:
        return f"accepted tokens at position {longest} of a draft"
    if counters.drafts and counters.drafted is not None:
        mean = counters.drafted / counters.drafts
        if mean > max_draft_tokens:
            return f"drafted {mean:.2f} tokens a drafted round"
    if (
        counters.server == "vLLM" and at and len(at) != max_draft_tokens
    ):  # it has a series for each place
        return f"counts {len(at)} positions of a draft"
    return ""


def _drafts(counters: Counters) -> bool:
    """Whether it drafted anything. A server that counts steps does so where drafts are on."""
    return any(bool(x) for x in (counters.drafts, counters.drafted, counters.steps))


def _evidence(result: ServerResult, draft: PlannedDraft, limit: int) -> Evidence:
    """One candidate at several numbers of clients, and the other server."""
    served = result.header.servers[FIRST]
    clients = sorted(result.header.concurrency)
    measured = {n: _measurement(result, n) for n in clients}
    return Evidence(
        target=Target(
            name=str(served["model"]), engine=str(served["server"] or "an unnamed server")
        ),
        ordinary=Alternative(
            name="",
            family="",
            points={n: Figures(measured=measured[n], notes=_notes(result, n)) for n in clients},
        ),
        candidates=(
            Alternative(
                name=draft.name,
                family=draft.name,
                draft=lambda: draft,
                max_draft_tokens=limit,
                points={n: _point(result, draft, n, measured[n]) for n in clients},
            ),
        ),
        nothing=DataError("No prompt was answered by both servers.", "Let the run finish."),
    )


def _point(result: ServerResult, draft: PlannedDraft, n: int, measured: Measurement) -> Figures:
    counters = result.counters(FIRST, n) or Counters()
    said = ["What drafted is as the user described it: servers don't tell."]
    if not counters.has_drafts:
        said.append("The server counted no drafts, so acceptance is not known.")
    beside = result.comparison(n)
    whole, expected = gain_of(beside.whole_ratio()), _expected(result, n, counters, beside)
    if whole is not None:
        said.append(f"Whole answers, prompts and waits included: {times(whole)}.")
    return Figures(
        title=f"{draft.name} with {clients_words(n)}",
        gain=expected.gain,
        expected=expected,
        measured=measured,
        mean_draft_tokens=_mean(counters),
        notes=(*said, *_notes(result, n)),
    )


def _mean(counters: Counters) -> float | None:
    if not counters.drafts or counters.drafted is None:
        return None
    return counters.drafted / counters.drafts


def _measurement(result: ServerResult, n: int) -> Measurement:
    header, load = result.header, result.load(FIRST, n)
    served = header.servers[FIRST]
    return Measurement(
        source="endpoint",
        when=header.started,
        machine={
            "server": served["server"],
            "version": served["version"],
            "client": dict(header.client),
        },
        workload=workload_of(header.workload),
        sampling=sampling_of(header.sampling),
        prompts=len(result.comparison(n).prompts),
        tokens=max((load.output_tokens or 0) - (load.requests - load.failed), 0),
        batch=n,
    )


def _expected(result: ServerResult, n: int, counters: Counters, beside: Comparison) -> Expected:
    gain, told = gain_of(beside.ratio()), result.told_drafts(FIRST, n)
    rate = counters.acceptance_rate
    if rate is None and told is not None and told[0]:
        rate = told[1] / told[0]
    rounds, per_round = _rounds(result, n, counters), counters.tokens_per_round
    if per_round is None and rounds:
        per_round = 1 + (counters.accepted or 0) / rounds
    share = _drafted_share(counters, rounds)
    return Expected(
        acceptance_at=_acceptance_at(counters),
        tokens_per_round=per_round,
        tokens_per_drafted_round=counters.tokens_per_drafted_round,
        acceptance_rate=rate,
        break_even_tokens=break_even_of(per_round, share, gain.value)
        if per_round and gain
        else None,
        gain=gain,
        gain_by_category=gains_of(beside),
    )


def _rounds(result: ServerResult, n: int, counters: Counters) -> float | None:
    """All rounds, drafted or not: each gave one token that was not drafted, but for the first
    tokens of answers, which come with their prompts."""
    if counters.steps is not None:
        return counters.steps
    if counters.generated is None or counters.accepted is None:
        return None
    load = result.load(FIRST, n)
    return max(counters.generated - counters.accepted - (load.requests - load.failed), 0.0)


def _notes(result: ServerResult, n: int) -> tuple[str, ...]:
    said = [*_unlike(result.header.servers), *few_words(len(result.comparison(n).prompts))]
    if not result.complete:
        said.append("The run is not finished: these are the requests so far.")
    failed = list(dict.fromkeys(one.id for one in result.asked if one.answer.failure))
    if failed:
        count = counted(len(failed), "prompt")
        said.append(f"Failed on a server and left out: {count} ({listed(failed)}).")
    turns = list(dict.fromkeys(id for _, id in result.left_out))
    if turns:
        said.append(f"Left out: {counted(len(turns), 'later turn')} ({listed(turns)}).")
    equal = result.comparison(n).equal
    if equal is not None and equal[0] < equal[1]:
        said.append(
            f"Texts were equal on both servers in {equal[0]} of {equal[1]} prompts; a difference "
            "may be numeric, it isn't judged."
        )
    return (*said, *skipped_words(result.header.workload), *notes(result))


def _drafted_share(counters: Counters, rounds: float | None) -> float:
    """Of all rounds; 0 if it isn't known. A server that counts verified steps alone is taken to
    draft in each."""
    if counters.drafts is None:
        return 1.0 if counters.steps else 0.0
    return min(counters.drafts / rounds, 1.0) if rounds else 0.0


def _acceptance_at(counters: Counters) -> tuple[float, ...]:
    """By position, over all drafted rounds; empty where the server doesn't tell. A server counts
    what an end token cut off, so that more can be accepted than its rounds: no share is above 1."""
    if not counters.drafts:
        return ()
    return tuple(min(x / counters.drafts, 1.0) for x in counters.accepted_by_position)


def _unlike(servers: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What makes the gain more than the drafts' alone."""
    first, against = servers[FIRST], servers[AGAINST]
    differ = [
        f"{what} is {first.get(what)} and {against.get(what)}"
        for what in ("server", "version", "model")
        if first.get(what) != against.get(what)
    ]
    if not differ:
        return []
    return [f"The servers differ, so the gain is not the drafts' alone: {', '.join(differ)}."]
