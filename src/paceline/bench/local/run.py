"""What a bench holds: how a prompt was decoded, and what came of it. Plain values, so that a file
can keep them and a report can be made without any model; docs/bench-file.md explains the fields."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from paceline.bench.local.divergence import FirstDifference
from paceline.decode.stats import DivergenceStats, Stats, pool_divergences, stats
from paceline.policy.stats import PolicyStats
from paceline.types import Divergence, Round, Sampling

BASELINE = "baseline"

ROUND_FIELDS = tuple(field.name for field in fields(Round))
"""Order of a round's values in a run's line."""

_SECONDS_DIGITS = 7  # a tenth of a microsecond, which is what clocks tell here


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One configuration of a bench.

    baseline    the plain configuration that it is compared with: same engine, same sampling. A
                plain one is its own
    target      the engine's facts
    max_draft_tokens       most tokens a round; None is left to the policy (`auto`)
    verifier    name; None for a plain one
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
        return self.name == self.baseline

    @property
    def title(self) -> str:
        """The name, marked if the verifier is lossy."""
        return f"{self.name} (lossy)" if self.lossy else self.name

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature == 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "max_draft_tokens": "auto" if self.max_draft_tokens is None else self.max_draft_tokens
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Described:
        """Raises KeyError, TypeError or ValueError for what is no such thing."""
        max_draft_tokens = row["max_draft_tokens"]
        return cls(
            **{
                **row,
                "sampling": _sampling(row["sampling"]),
                "max_draft_tokens": None if max_draft_tokens == "auto" else int(max_draft_tokens),
            }
        )


def _sampling(row: Mapping[str, Any]) -> Sampling:
    values = dict(row)
    values["logit_bias"] = {int(token): x for token, x in row["logit_bias"].items()}
    values["banned_tokens"] = tuple(row["banned_tokens"])
    values["allowed_tokens"] = row["allowed_tokens"] and tuple(row["allowed_tokens"])
    values["banned_sequences"] = tuple(tuple(part) for part in row["banned_sequences"])
    return Sampling(**values)


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
    peak_memory_bytes: int | None = None

    @cached_property
    def stats(self) -> Stats:
        return stats(self.rounds)

    @property
    def divergence(self) -> DivergenceStats | None:
        """How far a lossy verifier went, pooled; None where it can't tell, or was exact."""
        return (
            pool_divergences(self.divergences)
            if len(self.divergences) == len(self.tokens)
            else None
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "configuration": self.configuration,
            "id": self.id,
            "category": self.category,
            "repeat": self.repeat,
            "prompt_tokens": self.prompt_tokens,
            "finish_reason": self.finish_reason,
            "equal_to_baseline": self.equal_to_baseline,
            "first_difference": self.first_difference and asdict(self.first_difference),
            "policy": self.policy_stats and self.policy_stats.as_json(),
            "cpu_s": self.cpu_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "tokens": self.tokens,
            "ends": self.ends,
            "text": self.text,
            "divergences": self.divergences,
            "rounds": [_row(round) for round in self.rounds],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Run:
        """Raises KeyError, TypeError or ValueError for what is no such thing."""
        rest = dict(row)
        found, policy_stats = rest["first_difference"], rest.pop("policy")
        return cls(
            **{
                **rest,
                "tokens": tuple(map(int, row["tokens"])),
                "ends": tuple(map(int, row["ends"])),
                "first_difference": found and FirstDifference(**found),
                "policy_stats": policy_stats and PolicyStats.from_json(policy_stats),
                "divergences": tuple(Divergence(*pair) for pair in row["divergences"]),
                "rounds": tuple(map(_round, row["rounds"])),
            }
        )


def _row(round: Round) -> list[Any]:
    fields = ROUND_FIELDS if round.path is not None else ROUND_FIELDS[:-1]
    return [getattr(round, name) for name in fields]


def as_kept(measured: Round) -> Round:
    """A round with its seconds as a file keeps them, so that what is shown at once and what a file
    says later are the same."""
    return replace(
        measured,
        draft_s=round(measured.draft_s, _SECONDS_DIGITS),
        verify_s=round(measured.verify_s, _SECONDS_DIGITS),
        other_s=round(measured.other_s, _SECONDS_DIGITS),
    )


def _round(row: Sequence[Any]) -> Round:
    values = dict(zip(ROUND_FIELDS, row, strict=False))
    if values.get("path") is not None:
        values["path"] = tuple(values["path"])
    return Round(**values)


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
