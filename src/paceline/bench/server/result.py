"""What was measured over a server's API, on one server or on two, and what it adds up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from operator import add
from typing import Any

import msgspec
import numpy as np

from paceline.bench.comparison import ComparedPrompt, Comparison
from paceline.bench.machine import machine_metadata
from paceline.bench.server.answer import Answer
from paceline.bench.stats import Pair
from paceline.monitor.counters import Counters

KIND, VERSION = "paceline server bench", 4
FIRST, AGAINST = "endpoint", "against"
"""The server that is judged, and the one it is held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBenchHeader:
    """What holds for a whole run.

    servers        by FIRST and perhaps AGAINST, what each says of itself
    workload       facts of the prompts, a digest of all that they ask among them
    prompts        id, category, and the id of the prompt it is asked after or None, in order
    fields         what each server was sent beside the prompt
    seed           of the order of prompts and servers
    """

    command: tuple[str, ...] = ()
    started: str = ""
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    prompts: tuple[tuple[str, str, str | None], ...] = ()
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 0
    concurrency: tuple[int, ...] = (1,)
    patience: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    client: Mapping[str, Any] = field(default_factory=machine_metadata)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what was asked of which server, among how many clients, and its answer."""

    server: str
    concurrency: int
    block: int
    id: str
    category: str
    later_turn: bool
    answer: Answer


@dataclass(frozen=True, slots=True)
class Segment:
    """Some prompts asked of one server in one go.

    clients      how many asked: fewer than `concurrency` says where later turns were left out
    categories   of its prompts
    wall_s       from the first request to the end of the last answer
    tokens       output tokens of its answers; None where the server didn't count those of some
    counters     what the server counted meanwhile; None if it doesn't, or restarted
    whole        false if it was interrupted, so that neither time nor counters mean much
    """

    server: str
    concurrency: int
    clients: int
    block: int
    categories: tuple[str, ...]
    requests: int
    wall_s: float
    tokens: int | None
    counters: Counters | None
    restarted: bool = False
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a time over requests: the median, and what 95 % stay below. `count` are behind it."""

    median: float
    p95: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are known; None where there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        median, p95 = np.quantile(known, (0.5, 0.95))
        return cls(float(median), float(p95), len(known))


@dataclass(frozen=True, slots=True)
class Load:
    """One server under one load. A figure that wasn't measured is None.

    tok_per_s    output tokens over the wall time of stretches that count (`ServerResult.counted`)
    other_tokens tokens that the server generated meanwhile for others, if it counts its tokens
    """

    requests: int
    failures: Mapping[str, int]
    retries: int
    output_tokens: int | None
    wall_s: float | None
    tok_per_s: float | None
    ttft_s: Spread | None
    s_per_token: Spread | None
    total_s: Spread | None
    tokens_per_piece: float | None
    other_tokens: float | None

    @property
    def failed(self) -> int:
        """How many requests failed."""
        return sum(self.failures.values())


@dataclass(slots=True)
class ServerResult:
    """A header and all requests and stretches so far. `left_out` has a sentence for each prompt
    that couldn't be asked, by concurrency and id."""

    header: ServerBenchHeader
    asked: list[Asked] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    left_out: dict[tuple[int, str], str] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the servers that were measured."""
        return tuple(self.header.servers)

    @property
    def greedy(self) -> bool:
        """Whether requests asked for temperature 0."""
        return self.header.sampling.get("temperature") == 0

    @property
    def complete(self) -> bool:
        """Whether every prompt was answered by each server, or left out."""
        done = Counter((one.concurrency, one.id) for one in self.asked)
        return all(
            done[n, id] == len(self.servers) or (n, id) in self.left_out
            for n in self.header.concurrency
            for id, _, _ in self.header.prompts
        )

    def fixed_answer(self, id: str) -> str | None:
        """What a later turn is asked after, of both servers and at every concurrency: the first
        server's first answer to the turn before. None if there is none."""
        found = (one.answer for one in self.asked if one.server == FIRST and one.id == id)
        return next((answer.text for answer in found if answer.failure is None), None)

    def begin_again(self, block: int) -> None:
        """Forget what was asked in a block."""
        self.asked[:] = [one for one in self.asked if one.block != block]
        self.segments[:] = [one for one in self.segments if one.block != block]

    def of(self, server: str, concurrency: int, category: str | None = None) -> list[Asked]:
        """Answers of a server at a concurrency, in one category or all."""
        return [
            one
            for one in self.asked
            if (one.server, one.concurrency) == (server, concurrency)
            and category in (None, one.category)
        ]

    @property
    def categories(self) -> list[str]:
        """The prompts' categories, in the order of their answers."""
        return list(dict.fromkeys(one.category for one in self.asked))

    def load(self, server: str, concurrency: int, category: str | None = None) -> Load:
        """One server's figures. Times to the first token are of first turns only: a later turn's
        beginning may be in the server's cache."""
        asked = self.of(server, concurrency, category)
        good = [one.answer for one in asked if one.answer.failure is None]
        whole = self.counted(server, concurrency, category)
        wall_s = sum(s.wall_s for s in whole) or None
        produced = _sum([s.tokens for s in whole])
        pieces = [(a.output_tokens, a.pieces) for a in good if a.output_tokens and a.pieces]
        return Load(
            requests=len(asked),
            failures=Counter(
                one.answer.failure_kind or "failed" for one in asked if one.answer.failure
            ),
            retries=sum(one.answer.retries for one in asked),
            output_tokens=_sum([answer.output_tokens for answer in good]),
            wall_s=wall_s,
            tok_per_s=produced / wall_s if wall_s and produced is not None else None,
            ttft_s=Spread.of(
                one.answer.ttft_s
                for one in asked
                if one.answer.failure is None and not one.later_turn
            ),
            s_per_token=Spread.of(answer.s_per_token for answer in good),
            total_s=Spread.of(answer.total_s for answer in good),
            tokens_per_piece=(
                sum(t for t, _ in pieces) / sum(p for _, p in pieces) if pieces else None
            ),
            other_tokens=self._other_tokens(whole),
        )

    def counted(self, server: str, concurrency: int, category: str | None = None) -> list[Segment]:
        """Stretches of all the clients and to their end, where they were so on every server. Of a
        category those of it alone; none if categories were mixed."""
        full = [
            s
            for s in self.segments
            if s.concurrency == concurrency and s.clients == concurrency and s.whole
        ]
        on = Counter(s.block for s in full)
        return [
            s
            for s in full
            if s.server == server
            and on[s.block] == len(self.servers)
            and (category is None or s.categories == (category,))
        ]

    @staticmethod
    def _other_tokens(whole: Sequence[Segment]) -> float | None:
        known = [
            s.counters.generated - s.tokens
            for s in whole
            if s.counters is not None and s.counters.generated is not None and s.tokens is not None
        ]
        return sum(known) if whole and len(known) == len(whole) else None

    def counters(
        self, server: str, concurrency: int, category: str | None = None
    ) -> Counters | None:
        """What the server counted over stretches that count; None if it counts nothing, restarted
        in one of them, or (of a category) if its requests ran among others."""
        whole = self.counted(server, concurrency, category)
        found = [s.counters for s in whole if s.counters is not None]
        return reduce(add, found) if found and len(found) == len(whole) else None

    def told_drafts(self, server: str, concurrency: int) -> tuple[int, int] | None:
        """Drafted and accepted tokens as the server tells them with its answers; None if it doesn't
        with any."""
        told = [
            (one.answer.drafted, one.answer.accepted or 0)
            for one in self.of(server, concurrency)
            if one.answer.drafted is not None
        ]
        return (sum(d for d, _ in told), sum(a for _, a in told)) if told else None

    # Two servers.

    def comparison(self, concurrency: int) -> Comparison:
        """The first server beside the other, by prompts that both answered; empty without another.
        Texts are compared where both decode greedily."""
        first, against = (
            {one.id: one for one in self.of(server, concurrency) if one.answer.failure is None}
            for server in (FIRST, AGAINST)
        )
        both = [(first[id], against[id].answer) for id in first if id in against]
        equal = sum((a.answer.text, a.answer.reasoning) == (b.text, b.reasoning) for a, b in both)
        return Comparison(
            candidate=FIRST,
            title=clients_words(concurrency),
            baseline=AGAINST,
            prompts=tuple(
                ComparedPrompt(
                    a.id,
                    a.category,
                    _pair(b.decode_s, b.later_tokens, a.answer.decode_s, a.answer.later_tokens),
                    _pair(b.total_s, b.output_tokens, a.answer.total_s, a.answer.output_tokens),
                )
                for a, b in both
            ),
            equal=(equal, len(both)) if self.greedy else None,
        )

    def comparisons(self) -> list[Comparison]:
        """For each number of clients; none of a single server."""
        if AGAINST not in self.servers:
            return []
        return [self.comparison(n) for n in self.header.concurrency]

    def as_document(self) -> dict[str, Any]:
        """Everything that was measured and what it adds up to, as JSON values."""
        document: dict[str, Any] = msgspec.to_builtins(
            {
                "kind": KIND,
                "version": VERSION,
                **{one.name: getattr(self.header, one.name) for one in fields(self.header)},
                "complete": self.complete,
                "loads": [self._load_document(n, server) for n, server in self._measured()],
                "comparisons": [
                    {"concurrency": n, **one.as_json(), "whole_answers": one.whole_ratio()}
                    for n, one in zip(self.header.concurrency, self.comparisons(), strict=False)
                ],
                "left_out": [
                    {"concurrency": n, "id": id, "reason": why}
                    for (n, id), why in self.left_out.items()
                ],
                "requests": self.asked,
                "segments": self.segments,
            },
            str_keys=True,
        )
        return document

    def _measured(self) -> list[tuple[int, str]]:
        return [
            (n, server)
            for n in self.header.concurrency
            for server in self.servers
            if self.of(server, n)
        ]

    def _load_document(self, concurrency: int, server: str) -> dict[str, Any]:
        counters = self.counters(server, concurrency)
        told = self.told_drafts(server, concurrency)
        return {
            "server": server,
            "concurrency": concurrency,
            **asdict(self.load(server, concurrency)),
            "counters": counters and counters.as_json(),
            "acceptance_rate": counters and counters.acceptance_rate,
            "tokens_per_drafted_round": counters and counters.tokens_per_drafted_round,
            "tokens_per_round": counters and counters.tokens_per_round,
            "accepted_at": list(counters.accepted_at) if counters else None,
            "told_with_answers": told and {"drafted": told[0], "accepted": told[1]},
        }


def clients_words(concurrency: int) -> str:
    """How many ask at once."""
    return "one client" if concurrency == 1 else f"{concurrency} clients at once"


def _pair(
    other_s: float | None, other_tokens: int | None, seconds: float | None, tokens: int | None
) -> Pair:
    return Pair(other_s or 0.0, other_tokens or 0, seconds or 0.0, tokens or 0)


def _sum(values: Sequence[int | None]) -> int | None:
    """None if one of them is, or there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
