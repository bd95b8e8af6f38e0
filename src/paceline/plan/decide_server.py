"""From a run on two live servers, with drafts and without, to a plan. What drafts there, servers
don't tell: who ran them has to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.bench.server.notes import clients_words, notes
from paceline.bench.server.result import AGAINST, FIRST, EndpointResult
from paceline.errors import DataError, SettingError
from paceline.monitor.counters import Counters
from paceline.plan.decide_parts import (
    batch_words,
    break_even_of,
    counted,
    few_words,
    gain_of,
    listed,
    pays,
    sampling_of,
    schedule_of,
    skipped_words,
    times,
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
    Target,
)

_ORDER = "Measure the server with drafts as URL, against the same without (--against)."


def decide_endpoint(
    result: EndpointResult, draft: PlannedDraft, max_draft_tokens: int, *, file: str | None = None
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
    found = {n: gain_of(r) for n in result.header.concurrency if (r := result.ratio(n)) is not None}
    gains = dict(sorted(found.items()))
    if not gains:
        raise DataError("No prompt was answered by both servers.", "Let the run finish.")
    paying = [n for n, gain in gains.items() if pays(gain)]
    batch = min(paying or gains)
    limits = {n: max_draft_tokens if n in paying else 0 for n in gains}
    return _Plan(
        result, draft, max_draft_tokens, batch, gains[batch], bool(paying), limits
    ).document(file)


def _check_counters(result: EndpointResult, max_draft_tokens: int) -> None:
    for n in result.header.concurrency:
        first, against = (_counted(result, server, n) for server in (FIRST, AGAINST))
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


def _counted(result: EndpointResult, server: str, concurrency: int) -> Counters | None:
    return result.counters(server, concurrency)


def _drafts(counters: Counters) -> bool:
    """Whether it drafted anything. A server that counts steps does so where drafts are on."""
    return any(bool(x) for x in (counters.drafts, counters.drafted, counters.steps))


@dataclass(frozen=True, slots=True)
class _Plan:
    """
    batch     clients at once that the figures are of
    limits    by number of clients; 0 where it doesn't pay
    """

    result: EndpointResult
    draft: PlannedDraft
    max_draft_tokens: int
    batch: int
    gain: Gain
    paying: bool
    limits: Mapping[int, int]

    def document(self, file: str | None) -> PlanDocument:
        header = self.result.header
        served = header.servers[FIRST]
        load = self.result.load(FIRST, self.batch)
        expected = self._expected() if self.paying else Expected()
        return PlanDocument(
            target=Target(
                name=str(served["model"]), engine=str(served["server"] or "an unnamed server")
            ),
            draft=self.draft if self.paying else None,
            max_draft_tokens=self.max_draft_tokens if self.paying else 0,
            mean_draft_tokens=self._mean_limit() if self.paying else None,
            schedule=schedule_of(self.limits) if self.paying else (),
            expected=expected,
            measured=Measurement(
                source="endpoint",
                file=file,
                when=header.started,
                machine={
                    "server": served["server"],
                    "version": served["version"],
                    "client": dict(header.client),
                },
                workload=workload_of(header.workload),
                sampling=sampling_of(header.sampling),
                prompts=len(self.result.pairs(self.batch)),
                tokens=max((load.output_tokens or 0) - (load.requests - load.failed), 0),
                batch=self.batch,
            ),
            notes=(*self._why(), *worst_category(expected.gain_by_category), *self._notes()),
        )

    @property
    def _counters(self) -> Counters | None:
        return _counted(self.result, FIRST, self.batch)

    def _mean_limit(self) -> float | None:
        counters = self._counters
        if counters is None or not counters.drafts or counters.drafted is None:
            return None
        return counters.drafted / counters.drafts

    def _expected(self) -> Expected:
        by_category = {
            name: gain_of(ratio)
            for name in self.result.categories
            if (ratio := self.result.ratio(self.batch, name)) is not None
        }
        counters = self._counters or Counters()
        told = self.result.told_drafts(FIRST, self.batch)
        rate = counters.acceptance_rate
        if rate is None and told is not None and told[0]:
            rate = told[1] / told[0]
        rounds = self._rounds(counters)
        per_round = counters.tokens_per_round
        if per_round is None and rounds:
            per_round = 1 + (counters.accepted or 0) / rounds
        share = _drafted_share(counters, rounds)
        return Expected(
            acceptance_at=_acceptance_at(counters),
            tokens_per_round=per_round,
            tokens_per_drafted_round=counters.tokens_per_drafted_round,
            acceptance_rate=rate,
            break_even_tokens=(
                break_even_of(per_round, share, self.gain.value) if per_round else None
            ),
            gain=self.gain,
            gain_by_category=by_category,
        )

    def _rounds(self, counters: Counters) -> float | None:
        """All rounds, drafted or not: each gave one token that was not drafted, but for the first
        tokens of answers, which come with their prompts."""
        if counters.steps is not None:
            return counters.steps
        if counters.generated is None or counters.accepted is None:
            return None
        load = self.result.load(FIRST, self.batch)
        return max(counters.generated - counters.accepted - (load.requests - load.failed), 0.0)

    def _why(self) -> list[str]:
        if not self.paying:
            return [why_baseline(f"{self.draft.name} with {clients_words(self.batch)}", self.gain)]
        lost = [n for n, max_draft_tokens in self.limits.items() if not max_draft_tokens]
        return [
            f"With {clients_words(n)} it isn't known to pay: {times(gain_of(ratio))}."
            for n in lost
            if (ratio := self.result.ratio(n)) is not None
        ]

    def _whole_answers(self) -> list[str]:
        """What a gain per token leaves out, and whether texts were the same."""
        said, whole = [], self.result.whole_ratio(self.batch)
        if self.paying and whole is not None:
            said.append(f"Whole answers, prompts and waits included: {times(gain_of(whole))}.")
        equal = self.result.equal_texts(self.batch)
        if equal is not None and equal[0] < equal[1]:
            said.append(
                f"Texts were equal on both servers in {equal[0]} of {equal[1]} prompts; a "
                "difference may be numeric, it isn't judged."
            )
        return said

    def _notes(self) -> list[str]:
        header, said = self.result.header, []
        if self.paying:
            said.append("What drafted is as the user described it: servers don't tell.")
            if self._counters is None or not self._counters.has_drafts:
                said.append("The server counted no drafts, so acceptance is not known.")
            if len(self.limits) == 1:
                said.append(batch_words(self.batch))
        said += _unlike(header.servers)
        said += few_words(len(self.result.pairs(self.batch)))
        if not self.result.complete:
            said.append("The run is not finished: these are the requests so far.")
        failed = list(dict.fromkeys(one.id for one in self.result.asked if one.answer.failure))
        if failed:
            said.append(
                f"Failed on a server and left out: {counted(len(failed), 'prompt')} "
                f"({listed(failed)})."
            )
        turns = list(dict.fromkeys(id for _, id in self.result.left_out))
        if turns:
            said.append(f"Left out: {counted(len(turns), 'later turn')} ({listed(turns)}).")
        said += [*self._whole_answers(), *skipped_words(header.workload)]
        return [*said, *notes(self.result)]


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
