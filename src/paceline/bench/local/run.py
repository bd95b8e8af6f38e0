"""What a bench holds: how a prompt was decoded, and what came of it. Plain values, so that a file
can keep them and a report can be made without any model; docs/bench-file.md explains the fields."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import msgspec

from paceline.bench.local.divergence import FirstDifference
from paceline.decode.stats import DivergenceStats, Stats, pool_divergences, stats
from paceline.errors import DataError
from paceline.policy.stats import PolicyStats
from paceline.storage import decode_struct
from paceline.types import Divergence, Round, Sampling

BASELINE = "baseline"

ROUND_FIELDS = tuple(field.name for field in fields(Round))
"""Order of a round's values in a run's line."""

_SECONDS_DIGITS = 7  # a tenth of a microsecond, which is what clocks tell here


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One configuration of a bench.

    baseline    what it is compared with: same engine, same sampling. A baseline is its own
    target      the engine's facts
    max_draft_tokens       most tokens a round; None is left to the policy (`auto`)
    verifier    name; None for a baseline
    lossy       whether the verifier gives up the target's distribution, and `gives_up` what of it
    warm        whether a draft may remember earlier prompts
    chains_for_trees    whether the first branch may stand for a tree
    drafts      facts by the name that rounds use
    costs       what the policy went by when it began, as a costs file holds it
    recorded_costs    whether they were given, and kept to
    """

    name: str
    baseline: str = BASELINE
    target: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    max_draft_tokens: int | None = 0
    verifier: str | None = None
    lossy: bool = False
    gives_up: str = ""
    warm: bool = False
    chains_for_trees: bool = False
    drafts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    costs: Mapping[str, Any] | None = None
    recorded_costs: bool = False

    @property
    def is_baseline(self) -> bool:
        """Whether the others are compared with it."""
        return self.name == self.baseline

    @property
    def title(self) -> str:
        """The name, marked if the verifier is lossy."""
        return f"{self.name} (lossy)" if self.lossy else self.name

    @property
    def greedy(self) -> bool:
        """Whether it decodes at temperature 0."""
        return self.sampling.temperature == 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One prompt decoded once in one configuration.

    repeat               which time, from 0
    tokens               the output's ids, to the end token
    ends                 per token, how many characters of `text` stand there when it has come
    equal_to_baseline       whether the tokens are the baseline's; None when sampled
    divergences           see `Generation`
    policy_stats              the policy's, if it was asked
    cpu_s                processor seconds of the whole request, all threads
    others_cores         processors that other programs kept busy meanwhile, on average; None where
                         the system doesn't tell
    attempts             times it was decoded, because the others were disturbed
    disturbed            other programs took processors that it needed, in every attempt
    peak_memory_bytes    most resident memory of the process while it ran; None where the system
                         doesn't tell
    """

    configuration: str
    id: str
    category: str
    repeat: int = 0
    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str
    ends: tuple[int, ...] = ()
    finish_reason: str | None
    rounds: tuple[Round, ...]
    equal_to_baseline: bool | None = None
    first_difference: FirstDifference | None = None
    divergences: tuple[Divergence, ...] = ()
    policy_stats: PolicyStats | None = None
    cpu_s: float | None = None
    others_cores: float | None = None
    attempts: int = 1
    disturbed: bool = False
    peak_memory_bytes: int | None = None

    @cached_property
    def stats(self) -> Stats:
        """Pooled figures of its rounds."""
        return stats(self.rounds)

    @property
    def divergence(self) -> DivergenceStats | None:
        """How far a lossy verifier went, pooled; None where it can't tell, or was exact."""
        return (
            pool_divergences(self.divergences)
            if len(self.divergences) == len(self.tokens)
            else None
        )

    @property
    def key(self) -> tuple[str, str, int]:
        """What no two runs of a bench have in common."""
        return self.configuration, self.id, self.repeat

    def as_json(self) -> dict[str, Any]:
        """A line's values; a round is one list, in the order of ROUND_FIELDS."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        policy, rounds = values.pop("policy_stats"), values.pop("rounds")
        document: dict[str, Any] = msgspec.to_builtins(
            {**values, "policy": policy and policy.as_json(), "rounds": list(map(_row, rounds))}
        )
        return document

    @classmethod
    def from_json(cls, row: Mapping[str, Any], name: str, hint: str) -> Run:
        """A line's run. Raises DataError for what is none (`decode_struct`)."""
        parts = decode_struct(row, _Parts, name, hint)
        rounds = [dict(zip(ROUND_FIELDS, one, strict=False)) for one in parts.rounds]
        run = decode_struct({**row, "rounds": rounds}, cls, name, hint)
        policy = parts.policy.stats() if parts.policy is not None else None
        return replace(run, policy_stats=policy)


class _PolicyRow(msgspec.Struct):
    rounds: int
    rounds_asked: int
    limits: dict[int, int]
    spent_s: float
    baseline_s_by_costs: float

    def stats(self) -> PolicyStats:
        limits = Counter(self.limits)
        spent_s, baseline_s = self.spent_s, self.baseline_s_by_costs
        return PolicyStats(self.rounds, self.rounds_asked, limits, spent_s, baseline_s)


class _Parts(msgspec.Struct):
    """What of a run's line isn't as in `Run`."""

    rounds: list[list[Any]]
    policy: _PolicyRow | None = None


def _row(round: Round) -> list[Any]:
    names = ROUND_FIELDS if round.path is not None else ROUND_FIELDS[:-1]
    return [getattr(round, name) for name in names]


def as_kept(measured: Round) -> Round:
    """A round with its seconds as a file keeps them, so that what is shown at once and what a file
    says later are the same."""
    return replace(
        measured,
        draft_s=round(measured.draft_s, _SECONDS_DIGITS),
        verify_s=round(measured.verify_s, _SECONDS_DIGITS),
        other_s=round(measured.other_s, _SECONDS_DIGITS),
    )


def ends_of(pieces: Iterable[bytes], length: int) -> tuple[int, ...]:
    """How many characters have come after each token.

    pieces    the bytes that each adds; a character may be spread over several
    length    of the text, which may end before they do (a stop string)
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    ends, total = [], 0
    for piece in pieces:
        total += len(decoder.decode(piece))
        ends.append(min(total, length))
    return tuple(ends)


def check_run(run: Run, where: str = "") -> None:
    """What a run's counters must add up to: one that breaks this says nothing about speed. Raises
    DataError for the first identity that doesn't hold.

    where    what is said of the run's place: a line of a file
    """
    for broken in _broken(run):
        place = where or "The run"
        raise DataError(
            f"{place}, {run.id} in {run.configuration}, doesn't add up: {broken}.",
            "It was not measured rightly, or changed since: measure it again.",
        )


def _broken(run: Run) -> Iterator[str]:
    emitted = sum(round.emitted for round in run.rounds)
    if emitted != len(run.tokens):
        yield f"its rounds emitted {emitted} tokens, and it has {len(run.tokens)}"
    if run.ends and len(run.ends) != len(run.tokens):
        yield f"{len(run.ends)} tokens have an end in its text, of {len(run.tokens)}"
    if run.divergences and len(run.divergences) != len(run.tokens):
        yield f"{len(run.divergences)} tokens have a divergence, of {len(run.tokens)}"
    if sum(round.prefill for round in run.rounds) != min(1, len(run.rounds)):
        yield "it didn't read its prompt in exactly one round"
    context = run.prompt_tokens
    for number, round in enumerate(run.rounds):
        if round.context != context:
            yield f"round {number} began at {round.context} tokens, not {context}"
        context += round.emitted
        for broken in _broken_round(round, last=number == len(run.rounds) - 1):
            yield f"round {number} {broken}"


def _broken_round(round: Round, *, last: bool) -> Iterator[str]:
    if round.emitted < 1:
        yield "emitted nothing"
    if not 0 <= round.accepted <= round.proposed:
        yield f"accepted {round.accepted} of {round.proposed} drafted tokens"
    # A stop inside the drafted tokens leaves no bonus, and judges no token behind it.
    wanted = {round.accepted + 1} | ({round.accepted} if last else set())
    if round.emitted not in wanted:
        yield f"accepted {round.accepted} tokens and emitted {round.emitted}"
    if round.proposed > round.width - 1 or (not last and round.proposed != round.width - 1):
        yield f"judged {round.proposed} drafted tokens in a pass of {round.width} rows"
    if round.width - 1 > round.max_draft_tokens:
        yield f"drafted {round.width - 1} tokens where {round.max_draft_tokens} were the limit"
    if round.source is None and round.width > 1:
        yield "drafted without a draft"
    if round.path is not None and len(round.path) != round.accepted:
        yield f"accepted {round.accepted} tokens along a path of {len(round.path)}"
    if min(round.draft_s, round.verify_s, round.other_s) < 0:
        yield "took less than no time"
