"""Ask servers every prompt, by a fixed number of clients, two servers in turns."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice

from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.bench.server.answer import Answer
from paceline.bench.server.client import ServerClient
from paceline.bench.server.file import ServerFile
from paceline.bench.server.result import FIRST, Asked, Segment, ServerBenchHeader, ServerResult
from paceline.errors import PacelineError, ServerError, SettingError
from paceline.monitor.counters import Counters, between
from paceline.types import Sampling

_FAILURES_IN_A_ROW = 10
_BLOCKS = 4  # at least so many, where the prompts suffice, so that servers take turns
_PROMPTS_A_CLIENT = (2, 4)  # in a block: at least, and of many; at its end clients are idle
_COUNTED_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Block:
    """Prompts that one server is asked in one go, before the other server's turn."""

    number: int
    concurrency: int
    prompts: tuple[WorkloadPrompt, ...]


def plan(workload: Workload, concurrency: Sequence[int], seed: int) -> list[Block]:
    """Every prompt once for each number of clients, in an order drawn by the seed; a later turn
    after all first ones. With one client a block is one prompt, so that two servers take turns
    prompt by prompt; with more it is as large as keeps them busy.

    Raises SettingError for more clients than there is ever anything to ask for at once.
    """
    turns = list(_turns(workload))
    _refuse_idle_clients(turns, concurrency)
    blocks: list[Block] = []
    for clients in concurrency:
        for prompts in turns:
            shuffled = random.Random(f"{seed} {clients}").sample(prompts, len(prompts))
            for some in _parts(shuffled, _block_count(len(prompts), clients)):
                blocks.append(Block(len(blocks), clients, tuple(some)))
    return blocks


async def run_load(
    endpoints: Mapping[str, ServerClient],
    blocks: Sequence[Block],
    file: ServerFile,
    *,
    seed: int = 0,
    on_answer: Callable[[Asked], None] = lambda _: None,
) -> ServerResult:
    """Ask what the file doesn't hold yet. Servers take turns block by block, in random order. A
    block of several clients that was begun and not ended is asked again whole, of all servers: its
    rest alone would be another load, and another moment, for one of them.

    on_answer    called with each request that has ended

    Raises ServerError when a server is gone, or has failed ten times in a row; DataError where
    the file can't grow. What was measured is in the file.
    """
    begun = {one.block for one in file.result.asked}
    for block in blocks:
        if block.concurrency > 1 and block.number in begun and not _is_ended(file.result, block):
            file.begin_again(block.number)
        order = list(endpoints)
        random.Random(f"{seed} {block.number}").shuffle(order)
        for server in order:
            todo = list(_todo(file, block, server))
            if todo:
                run = _Run(endpoints[server], server, block, file, on_answer)
                await run.measure(todo)
    return file.result


def _is_ended(result: ServerResult, block: Block) -> bool:
    """Whether each server was asked all of a block in one go, to its end."""
    ended = {s.server for s in result.segments if s.block == block.number and s.whole}
    asked = Counter(one.id for one in result.asked if one.block == block.number)
    left_out = {id for n, id in result.left_out if n == block.concurrency}
    return ended == set(result.servers) and all(
        asked[prompt.id] == len(result.servers) or prompt.id in left_out for prompt in block.prompts
    )


def _todo(file: ServerFile, block: Block, server: str) -> Iterator[WorkloadPrompt]:
    """Prompts of a block that this server wasn't asked yet, with the turn before in place."""
    result, clients = file.result, block.concurrency
    done = {one.id for one in result.asked if (one.server, one.block) == (server, block.number)}
    for prompt in block.prompts:
        if prompt.id in done or (clients, prompt.id) in result.left_out:
            continue
        if prompt.follows is None:
            yield prompt
        elif (answer := result.fixed_answer(prompt.follows)) is not None:
            yield replace(prompt.after(answer), follows=prompt.follows)
        else:
            why = f"the turn before it, {prompt.follows}, was not answered by the {FIRST}"
            file.leave_out(clients, prompt.id, why)


class _Run:
    """One block on one server."""

    def __init__(
        self,
        endpoint: ServerClient,
        server: str,
        block: Block,
        file: ServerFile,
        on_answer: Callable[[Asked], None],
    ) -> None:
        self._endpoint, self._server, self._block = endpoint, server, block
        self._file, self._on_answer = file, on_answer
        self._answers: list[Answer] = []

    async def measure(self, prompts: Sequence[WorkloadPrompt]) -> None:
        before = self._endpoint.counters()
        queue = iter(prompts)
        started, whole = time.perf_counter(), False
        try:
            async with asyncio.TaskGroup() as clients:
                for _ in range(self._clients(prompts)):
                    clients.create_task(self._client(queue))
            whole = True
        except BaseExceptionGroup as group:
            raise _worst(group) from None
        finally:
            wall_s = time.perf_counter() - started
            counted = await self._counted(before) if whole else None
            if self._answers:
                self._file.add_segment(self._segment(prompts, wall_s, before, counted, whole))

    def _clients(self, prompts: Sequence[WorkloadPrompt]) -> int:
        return min(self._block.concurrency, len(prompts))

    async def _client(self, queue: Iterator[WorkloadPrompt]) -> None:
        """Ask one prompt after another until there are none left."""
        for prompt in queue:
            answer = await self._endpoint.ask(prompt)
            asked = Asked(
                self._server,
                self._block.concurrency,
                self._block.number,
                prompt.id,
                prompt.category,
                prompt.follows is not None,
                answer,
            )
            self._answers.append(answer)
            self._file.add(asked)
            self._on_answer(asked)
            if _is_down(self._file.result, self._server):
                raise ServerError(
                    f"{self._endpoint.served.url} failed {_FAILURES_IN_A_ROW} times in a row; the "
                    f"last answer: {answer.failure}.",
                    "Repair that, then start the same command again: it goes on from there.",
                )

    async def _counted(self, before: Counters | None) -> Counters | None:
        """The counters once they hold our answers: some servers add a request a moment after its
        end."""
        tokens, deadline = self._tokens(), time.perf_counter() + _COUNTED_WITHIN_S
        while True:
            after = self._endpoint.counters()
            if before is None or after is None:
                return after
            grown = between(before, after)
            behind = (
                grown is not None
                and grown.generated is not None
                and tokens is not None
                and grown.generated < tokens
            )
            if not behind or not self._endpoint.counts_up:
                return after
            if time.perf_counter() > deadline:
                self._endpoint.counts_up = False  # it counts otherwise; no more waiting for it
                return after
            await asyncio.sleep(0.1)

    def _tokens(self) -> int | None:
        counts = [answer.output_tokens for answer in self._answers if answer.failure is None]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def _segment(
        self,
        prompts: Sequence[WorkloadPrompt],
        wall_s: float,
        before: Counters | None,
        after: Counters | None,
        whole: bool,
    ) -> Segment:
        grown = between(before, after) if before is not None and after is not None else None
        return Segment(
            server=self._server,
            concurrency=self._block.concurrency,
            clients=self._clients(prompts),
            block=self._block.number,
            categories=tuple(dict.fromkeys(prompt.category for prompt in prompts)),
            requests=len(self._answers),
            wall_s=wall_s,
            tokens=self._tokens(),
            counters=grown,
            restarted=before is not None and after is not None and grown is None,
            whole=whole,
        )


def _is_down(result: ServerResult, server: str) -> bool:
    """Whether a server's last requests all failed, and not for what was asked."""
    answers = (one.answer for one in reversed(result.asked) if one.server == server)
    last = list(islice(answers, _FAILURES_IN_A_ROW))
    failed = [a for a in last if a.failure is not None and a.failure_kind != "http 4xx"]
    return len(failed) == _FAILURES_IN_A_ROW


def _turns(workload: Workload) -> Iterator[list[WorkloadPrompt]]:
    """Prompts that need no answer, then those asked after them, and so on."""
    known: set[str] = set()
    left = list(workload.prompts)
    while left:
        ready = [prompt for prompt in left if prompt.follows is None or prompt.follows in known]
        if not ready:
            ready = left  # after prompts that aren't there: left out by name when their turn comes
        yield ready
        known.update(prompt.id for prompt in ready)
        left = [prompt for prompt in left if prompt.id not in known]


def _refuse_idle_clients(
    turns: Sequence[Sequence[WorkloadPrompt]], concurrency: Sequence[int]
) -> None:
    """A block is of one turn, and never smaller than `concurrency` where there are so many."""
    most, clients = min(map(len, turns), default=0), max(concurrency, default=0)
    if not turns or clients <= most:
        return
    what = f"there {'is' if most == 1 else 'are'} only {most}"
    if len(turns[0]) > most:
        what = f"only {most} later {'turn' if most == 1 else 'turns'} can be asked at once"
    raise SettingError(
        f"--concurrency is {clients}, which needs as many prompts, and {what}.",
        f"Give more prompts, or at most --concurrency {most}.",
    )


def _block_count(prompts: int, clients: int) -> int:
    if clients == 1:
        return prompts
    least, many = (prompts // (clients * each) for each in _PROMPTS_A_CLIENT)
    return max(min(least, max(_BLOCKS, many)), 1)


def _parts(prompts: Sequence[WorkloadPrompt], count: int) -> Iterator[Sequence[WorkloadPrompt]]:
    """So many parts, as even as they go."""
    for part in range(count):
        yield prompts[part * len(prompts) // count : (part + 1) * len(prompts) // count]


def _worst(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of several clients' errors, the one to tell: a fault of ours before the user's."""
    flat = list(_leaves(group))
    ours = [error for error in flat if not isinstance(error, PacelineError)]
    return (ours or flat)[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def header_of(
    servers: Mapping[str, ServerClient],
    workload: Workload,
    sampling: Sampling,
    *,
    max_tokens: int,
    concurrency: tuple[int, ...],
    seed: int,
    command: tuple[str, ...],
) -> ServerBenchHeader:
    """What holds for a whole run on these servers."""
    patience = next(iter(servers.values())).http.patience
    return ServerBenchHeader(
        command=command,
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        servers={name: server.served.as_json() for name, server in servers.items()},
        workload=workload.metadata(),
        prompts=tuple((p.id, p.category, p.follows) for p in workload.prompts),
        fields={name: dict(server.fields) for name, server in servers.items()},
        sampling=asdict(sampling),
        max_tokens=max_tokens,
        concurrency=concurrency,
        patience=asdict(patience),
        seed=seed,
    )
