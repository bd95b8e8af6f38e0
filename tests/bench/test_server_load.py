"""Load on one server or two: turns, matched clients, files that grow, and what it adds up to."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

from fake_server import FakeServer, event, piece, send, serving, start_stream

from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.bench.server.answer import Answer, AnswerReading
from paceline.bench.server.client import connect
from paceline.bench.server.file import ServerFile, read_server_result
from paceline.bench.server.http import Patience
from paceline.bench.server.load import plan, run_load
from paceline.bench.server.result import (
    AGAINST,
    FIRST,
    Asked,
    Segment,
    ServerBenchHeader,
    ServerResult,
)
from paceline.bench.stats import Pair, speed_ratio
from paceline.bench.summary import server_summary
from paceline.errors import DataError, ServerError, SettingError
from paceline.monitor.counters import Counters

QUICK = Patience(connect_s=5, first_token_s=10, total_s=20, retries=1, pause_s=0.01)


def prompt(id: str, text: str = "", *, category: str = "all", follows: str | None = None):
    asked = [text or f"about {id}"] if follows is None else [f"about {follows}", text]
    messages = tuple({"role": "user", "content": one} for one in asked)
    return WorkloadPrompt(id, category, messages, follows=follows)


def some(count: int) -> Workload:
    return Workload("some", tuple(prompt(f"p{i}", category=f"c{i % 2}") for i in range(count)))


def header(workload: Workload, servers: dict[str, FakeServer], *clients: int) -> ServerBenchHeader:
    return ServerBenchHeader(
        servers={name: {"url": "http://x/v1", "model": "m"} for name in servers},
        workload=workload.metadata(),
        prompts=tuple((p.id, p.category, p.follows) for p in workload.prompts),
        sampling={"temperature": 0.0},
        max_tokens=64,
        concurrency=clients or (1,),
        client={},
    )


def measure(
    path: Path,
    workload: Workload,
    first: FakeServer,
    against: FakeServer | None = None,
    clients: tuple[int, ...] = (1,),
    on_answer: Callable[[Asked], None] = lambda _: None,
) -> ServerResult:
    servers = {FIRST: first} | ({AGAINST: against} if against else {})
    ours = header(workload, servers, *clients)

    async def go() -> ServerResult:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            endpoints = {}
            for name, server in servers.items():
                endpoint = await stack.enter_async_context(connect(server.url, patience=QUICK))
                endpoint.fields = {"max_tokens": 64, "temperature": 0.0}
                endpoints[name] = endpoint
            file = stack.enter_context(ServerFile.open(path, ours))
            blocks = plan(workload, ours.concurrency, ours.seed)
            return await run_load(endpoints, blocks, file, on_answer=on_answer)

    return asyncio.run(go())


def drafting_page(server: FakeServer) -> str:
    """Two of three tokens were drafted and accepted, in rounds of three; one drafted in vain."""
    rounds = server.tokens // 3
    return (
        f"vllm:generation_tokens_total {server.tokens}\n"
        f"vllm:spec_decode_num_drafts_total {rounds}\n"
        f"vllm:spec_decode_num_draft_tokens_total {3 * rounds}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {2 * rounds}\n"
        + "".join(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {n}\n'
            for i, n in enumerate((rounds, rounds, 0))
        )
    )


# Turns.


def test_each_prompt_is_asked_once_of_each_server_at_each_load(tmp_path: Path) -> None:
    with serving() as first, serving() as against:
        result = measure(tmp_path / "r.jsonl", some(6), first, against, (1, 2))
    asked = Counter((one.server, one.concurrency, one.id) for one in result.asked)
    assert set(asked.values()) == {1}
    assert len(asked) == 2 * 2 * 6
    assert result.complete


def test_servers_take_turns_prompt_by_prompt_in_random_order(tmp_path: Path) -> None:
    with serving() as first, serving() as against:
        result = measure(tmp_path / "r.jsonl", some(12), first, against)
    pairs = [result.asked[i : i + 2] for i in range(0, 24, 2)]
    assert all(a.id == b.id and a.server != b.server for a, b in pairs)
    began = Counter(a.server for a, _ in pairs)
    assert min(began[name] for name in (FIRST, AGAINST)) >= 2  # neither always goes first
    assert [a.id for a, _ in pairs] != [f"p{i}" for i in range(12)]


def test_the_load_is_matched_and_no_higher_than_asked(tmp_path: Path) -> None:
    with serving(pause_s=0.02) as first, serving(pause_s=0.02) as against:
        measure(tmp_path / "r.jsonl", some(12), first, against, (3,))
        assert first.most_running == against.most_running == 3


def test_blocks_keep_the_clients_busy_and_lose_no_prompt() -> None:
    for count in (4, 8, 17, 40):
        blocks = plan(some(count), (1, 4), 0)
        one, four = ([b for b in blocks if b.concurrency == n] for n in (1, 4))
        assert [len(b.prompts) for b in one] == [1] * count
        assert all(len(b.prompts) >= 8 for b in four) or len(four) == 1
        assert len(four) >= min(count // 8, 4)  # servers take turns where there is enough to ask
        for found in (one, four):
            assert sorted(p.id for b in found for p in b.prompts) == sorted(
                f"p{i}" for i in range(count)
            )


def test_more_clients_than_prompts_at_once_are_refused_with_the_number() -> None:
    with pytest.raises(SettingError, match=r"16, .* only 6\. .*at most --concurrency 6"):
        plan(some(6), (1, 16), 0)
    assert plan(some(16), (16,), 0)[0].concurrency == 16
    turns = (*(prompt(f"p{i}") for i in range(8)), prompt("b", "more", follows="p0"))
    with pytest.raises(SettingError, match="only 1 later turn can be asked at once"):
        plan(Workload("t", turns), (2,), 0)
    assert len(plan(Workload("t", turns), (1,), 0)) == 9


def test_a_block_of_too_few_clients_counts_for_no_speed(tmp_path: Path) -> None:
    """Where first turns fail, fewer later ones are left than there are clients."""

    def refuse(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 400, {"error": {"message": "no"}})

    turns = tuple(
        one
        for i in range(4)
        for one in (prompt(f"a{i}", category="first"), prompt(f"b{i}", "more", follows=f"a{i}"))
    )
    with serving(behave=[refuse, refuse]) as server, serving() as against:
        result = measure(tmp_path / "r.jsonl", Workload("t", turns), server, against, (4,))
    assert result.complete
    assert [(s.clients, len(s.categories)) for s in result.segments] == [(4, 1)] * 2 + [(2, 1)] * 2
    assert [s.categories for s in result.counted(FIRST, 4)] == [("first",)]
    assert len(result.counted(AGAINST, 4)) == 1


def test_a_later_turn_is_asked_after_the_first_servers_answer_of_both(tmp_path: Path) -> None:
    names = range(6)  # either server is the first to be asked some of them
    turns = tuple(
        one
        for i in names
        for one in (prompt(f"b{i}", "and then?", follows=f"a{i}"), prompt(f"a{i}"))
    )
    with (
        serving(words=lambda _: 2, per_piece=1) as first,
        serving(words=lambda _: 4) as against,
    ):
        result = measure(tmp_path / "r.jsonl", Workload("t", turns), first, against, (1, 2))
        for server in (first, against):
            second = [b["messages"] for b in server.seen if len(b["messages"]) == 3]
            assert len(second) == 2 * 6
            for messages in second:
                assert messages[1] == {"role": "assistant", "content": "w0 w1 "}
                assert messages[2]["content"] == "and then?"
    later = [one for one in result.asked if one.later_turn]
    assert {one.id for one in later} == {f"b{i}" for i in names}
    # A beginning that the server has seen would shorten its time to the first token.
    spread = result.load(FIRST, 1).ttft_s
    assert spread is not None
    assert spread.count == 6


def test_a_later_turn_without_its_first_is_left_out_by_name(tmp_path: Path) -> None:
    def refuse(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 400, {"error": {"message": "no"}})

    turns = (prompt("a"), prompt("b", "more", follows="a"))
    with serving(behave=[refuse]) as server:
        result = measure(tmp_path / "r.jsonl", Workload("t", turns), server)
    assert "a, was not answered" in result.left_out[1, "b"]
    assert result.complete
    assert "b: the turn before it" in server_summary(result)


# Files.


def test_a_file_grows_line_by_line_and_is_read_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    seen: list[int] = []

    def watch(_: Asked) -> None:
        seen.append(len(path.read_text(encoding="utf-8").splitlines()))

    with serving(metrics=drafting_page) as server:
        result = measure(path, some(3), server, on_answer=watch)
    assert seen == [2, 4, 6]  # a header, then a request and its stretch after each other
    again = read_server_result(str(path))
    assert again.asked == result.asked
    assert again.segments == result.segments
    assert json.dumps(again.as_document()) == json.dumps(result.as_document())


def test_a_second_start_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"

    def stop(asked: Asked) -> None:
        if len(server.seen) == 3:
            signal.raise_signal(signal.SIGINT)

    with serving() as server, serving() as against:
        with pytest.raises(KeyboardInterrupt):
            measure(path, some(6), server, against, on_answer=stop)
        before = read_server_result(str(path))
        assert not before.complete
        assert "Interrupted" in server_summary(before)
        text = path.read_text(encoding="utf-8")
        path.write_text(text + '{"request": {"serv', encoding="utf-8")  # killed while writing
        result = measure(path, some(6), server, against)
    assert result.complete
    assert path.read_text(encoding="utf-8").startswith(text)
    assert read_server_result(str(path)).asked == result.asked
    for one in (server, against):
        assert len(one.seen) == len({body["messages"][0]["content"] for body in one.seen}) == 6


@pytest.mark.parametrize("after", [3, 9, 13])
def test_a_torn_block_of_several_clients_is_asked_again_of_both(tmp_path: Path, after: int) -> None:
    """Stopped in the first server's turn, in the second's, and in the next block."""
    path, count = tmp_path / "r.jsonl", 0

    def stop(asked: Asked) -> None:
        nonlocal count
        count += 1
        if count == after:
            signal.raise_signal(signal.SIGINT)

    with serving(pause_s=0.002) as server, serving(pause_s=0.002) as against:
        with pytest.raises(KeyboardInterrupt):
            measure(path, some(12), server, against, (3,), on_answer=stop)
        torn = read_server_result(str(path))
        text = path.read_text(encoding="utf-8")
        seen = len(server.seen) + len(against.seen)
        result = measure(path, some(12), server, against, (3,))
    assert path.read_text(encoding="utf-8").startswith(text)
    assert result.complete
    assert Counter((one.server, one.id) for one in result.asked) == Counter(
        (name, f"p{i}") for name in (FIRST, AGAINST) for i in range(12)
    )
    assert all(s.whole and s.requests == 6 and s.clients == 3 for s in result.segments)
    assert len(result.segments) == len(result.counted(FIRST, 3)) * 2 == 4
    again = read_server_result(str(path))
    assert (again.asked, again.segments) == (result.asked, result.segments)
    kept = 12 if after > 12 else 0
    assert len(server.seen) + len(against.seen) - seen == 24 - kept
    assert not torn.complete


def test_an_unfinished_block_counts_for_the_speed_of_neither_server(tmp_path: Path) -> None:
    def stop(asked: Asked) -> None:
        if len(result_of(path).segments) == 1:
            signal.raise_signal(signal.SIGINT)

    path, result_of = tmp_path / "r.jsonl", lambda path: read_server_result(str(path))
    with serving() as server, serving() as against, pytest.raises(KeyboardInterrupt):
        measure(path, some(8), server, against, (4,), on_answer=stop)
    result = result_of(path)
    assert [s.whole for s in result.segments] == [True, False]
    assert all(result.load(name, 4).tok_per_s is None for name in (FIRST, AGAINST))


def test_a_full_disk_is_one_sentence_and_the_file_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "r.jsonl", os.write

    def full(descriptor: int, data: Any) -> int:
        if b'"p3"' in bytes(data) and b'"request"' in bytes(data):
            real(descriptor, bytes(data)[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    with serving() as server:
        monkeypatch.setattr("paceline.storage.os.write", full)
        with pytest.raises(DataError, match=r"No space left.*goes on from there"):
            measure(path, some(6), server)
        monkeypatch.undo()
        assert path.read_bytes().endswith(b"}\n")
        assert measure(path, some(6), server).complete


def test_two_runs_of_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    ours = header(some(2), {FIRST: None})  # type: ignore[dict-item]
    with ServerFile.open(path, ours), pytest.raises(DataError, match="written by another run"):
        ServerFile.open(path, ours)


def test_a_file_of_another_run_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with serving() as server:
        measure(path, some(2), server)
        before = path.read_bytes()
        with pytest.raises(DataError, match="holds another run"):
            measure(path, some(3), server)
        changed = Workload(
            "some",
            tuple(
                replace(p, messages=({"role": "user", "content": f"not {p.id}"},))
                for p in some(2).prompts
            ),
        )
        with pytest.raises(DataError, match="holds another run: its workload"):
            measure(path, changed, server)
    assert path.read_bytes() == before
    other = tmp_path / "other.json"
    other.write_text('{"kind": "paceline bench"}\n', encoding="utf-8")
    with serving() as server, pytest.raises(DataError, match="is not a paceline server bench file"):
        measure(other, some(2), server)


def test_an_interrupted_segment_counts_for_no_speed(tmp_path: Path) -> None:
    def stop(asked: Asked) -> None:
        if len(server.seen) >= 6:
            signal.raise_signal(signal.SIGINT)

    with serving(metrics=drafting_page) as server:
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path / "r.jsonl", some(40), server, clients=(4,), on_answer=stop)
        result = read_server_result(str(tmp_path / "r.jsonl"))
    assert result.asked
    assert [s.whole for s in result.segments] == [False]
    load = result.load(FIRST, 4)
    assert load.tok_per_s is None
    assert load.total_s is not None  # what each request took was measured all the same
    assert result.counters(FIRST, 4) is None


# Faults.


def test_failures_are_counted_and_never_zeros(tmp_path: Path) -> None:
    def busy(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 503, {"error": {"message": "full"}})

    def cut(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, piece(body, "half"))

    with serving(behave=[busy, busy, cut]) as first, serving() as against:
        result = measure(tmp_path / "r.jsonl", some(6), first, against)
    load = result.load(FIRST, 1)
    assert load.failures == {"http 503": 1, "cut off": 1}
    assert load.requests == 6
    assert load.output_tokens == 4 * 6  # of the four that were answered
    assert load.total_s is not None
    assert load.total_s.count == 4
    assert (
        len(result.comparison(1).prompts) == 4
    )  # a prompt that failed on one is judged on neither
    text = server_summary(result)
    assert "1 http 503, 1 cut off" in text
    assert "full" in text


def test_a_server_that_only_fails_ends_the_run(tmp_path: Path) -> None:
    def busy(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 500, {"error": {"message": "dead"}})

    path = tmp_path / "r.jsonl"
    with serving(behave=[busy] * 100) as server:
        with pytest.raises(ServerError, match="10 times in a row"):
            measure(path, some(30), server)
        with pytest.raises(ServerError, match="10 times in a row"):
            measure(tmp_path / "more.jsonl", some(60), server, clients=(4,))
    assert len(read_server_result(str(path)).asked) == 10


def test_prompts_that_are_refused_one_by_one_do_not_end_the_run(tmp_path: Path) -> None:
    def too_long(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 400, {"error": {"message": "too long"}})

    with serving(behave=[too_long] * 12) as server:
        result = measure(tmp_path / "r.jsonl", some(14), server)
    assert result.load(FIRST, 1).failures == {"http 4xx": 12}
    assert result.complete


def shedding(server: FakeServer, handler: Any, body: Any) -> None:
    send(handler, 503, {"error": {"message": "full"}}, Retry_After="0.1")


def test_a_server_that_sheds_load_does_not_win_by_it(tmp_path: Path) -> None:
    with serving(behave=[shedding] * 4, pause_s=0.01) as first, serving(pause_s=0.01) as against:
        result = measure(tmp_path / "r.jsonl", some(4), first, against, (4,))
    ratio = result.comparison(4).whole_ratio()
    assert ratio is not None
    assert ratio.value < 0.6
    load, other = result.load(FIRST, 4), result.load(AGAINST, 4)
    assert load.total_s is not None
    assert other.total_s is not None
    assert load.total_s.median > other.total_s.median + 0.09
    assert load.ttft_s is not None
    assert load.ttft_s.median < 0.09  # of the attempt that was answered
    text = server_summary(result)
    assert "The endpoint refused 4 of its answered requests at first" in text
    assert "waits and reading the prompt included: " in text


# Counters.


@pytest.mark.parametrize("clients", [1, 3])
def test_a_servers_counters_are_those_of_the_segments(tmp_path: Path, clients: int) -> None:
    with serving(metrics=drafting_page) as server:
        server.tokens = 900  # of others, before
        result = measure(tmp_path / "r.jsonl", some(6), server, clients=(clients,))
    counters = result.counters(FIRST, clients)
    assert counters is not None
    assert (counters.drafts, counters.drafted, counters.accepted) == (12, 36, 24)
    assert counters.generated == result.load(FIRST, clients).output_tokens == 36
    assert result.load(FIRST, clients).other_tokens == 0
    text = server_summary(result)
    assert (
        "acceptance rate 67% of 36 drafted tokens; mean accepted length (τ) 3.00 tokens per drafted"
        in text
    )
    assert "100% 100%" in text
    assert "vLLM counts a round only if a token was drafted in it" in text
    by_category = result.counters(FIRST, clients, "c0")
    assert (by_category is not None) == (clients == 1)  # with more, categories run together


def test_a_server_without_counters_has_none_and_not_zero(tmp_path: Path) -> None:
    with serving() as server:
        result = measure(tmp_path / "r.jsonl", some(2), server)
    assert result.counters(FIRST, 1) is None
    assert "drafts, endpoint: none counted" in server_summary(result)
    assert "0%" not in server_summary(result)


def test_a_restart_between_readings_is_told(tmp_path: Path) -> None:
    def restarting(server: FakeServer) -> str:
        return f"vllm:generation_tokens_total {max(100 - server.tokens, 0)}\n"

    with serving(metrics=restarting) as server:
        result = measure(tmp_path / "r.jsonl", some(2), server)
    assert result.counters(FIRST, 1) is None
    assert all(s.restarted for s in result.segments)
    assert "the server restarted meanwhile" in server_summary(result)


def test_tokens_of_others_are_noticed(tmp_path: Path) -> None:
    def shared(server: FakeServer) -> str:
        server.tokens += 50  # somebody else's, each time one looks
        return f"vllm:generation_tokens_total {server.tokens}\n"

    with serving(metrics=shared) as server:
        result = measure(tmp_path / "r.jsonl", some(2), server)
    assert result.load(FIRST, 1).other_tokens == 100
    assert "100 more tokens than these requests" in server_summary(result)


def test_counters_that_lag_behind_are_waited_for(tmp_path: Path) -> None:
    reads: list[int] = []

    def late(server: FakeServer) -> str:
        reads.append(server.tokens)
        lag = 0 if len(reads) % 3 == 0 else server.tokens
        return f"vllm:generation_tokens_total {server.tokens - lag if reads[-1] else 0}\n"

    with serving(metrics=late) as server:
        result = measure(tmp_path / "r.jsonl", some(1), server)
    assert result.segments[0].counters is not None
    assert result.segments[0].counters.generated == 6


def test_a_server_that_counts_otherwise_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.bench.server.load._COUNTED_WITHIN_S", 1.0)
    reads: list[int] = []

    def half(server: FakeServer) -> str:
        reads.append(server.tokens)
        return f"vllm:generation_tokens_total {server.tokens // 2}\n"

    with serving(metrics=half) as server:
        result = measure(tmp_path / "r.jsonl", some(6), server)
    assert [s.counters and s.counters.generated for s in result.segments] == [3] * 6
    assert reads.count(6) > 2  # after the first
    assert all(reads.count(6 * i) == 2 for i in range(2, 6))  # after one, and before the next


# Figures, on numbers that are known.


def answered(seconds: float, tokens: int, text: str = "x", **more: Any) -> Answer:
    return Answer(
        text=text,
        ttft_s=0.1,
        decode_s=seconds,
        total_s=seconds + 0.1,
        output_tokens=tokens,
        pieces=tokens,
        arrivals=tokens,
        finish_reason="stop",
        **more,
    )


def made(rows: list[tuple[str, float, float]], tokens: int = 11) -> ServerResult:
    """Two servers' answers: category, and decode seconds on each."""
    workload = Workload(
        "made", tuple(prompt(f"p{i}", category=c) for i, (c, *_) in enumerate(rows))
    )
    result = ServerResult(header(workload, {FIRST: None, AGAINST: None}))  # type: ignore[dict-item]
    for i, (category, ours, theirs) in enumerate(rows):
        for server, seconds in ((FIRST, ours), (AGAINST, theirs)):
            answer = answered(seconds, tokens)
            result.asked.append(Asked(server, 1, i, f"p{i}", category, False, answer))
            result.segments.append(
                Segment(server, 1, 1, i, (category,), 1, seconds + 0.1, tokens, None)
            )
    return result


def test_the_ratio_is_one_of_sums_with_an_interval_over_prompts() -> None:
    result = made([("a", 1, 2), ("a", 2, 3), ("b", 4, 3)])
    ratio = result.comparison(1).ratio()
    assert ratio is not None
    assert ratio.value == pytest.approx(8 / 7)
    assert ratio == speed_ratio([Pair(2, 10, 1, 10), Pair(3, 10, 2, 10), Pair(3, 10, 4, 10)])
    whole = result.comparison(1).whole_ratio()
    assert whole is not None
    assert whole.value == pytest.approx(8.3 / 7.3)
    worst, best = result.comparison(1).worst_first()
    assert (worst[0], best[0]) == ("b", "a")


def test_figures_are_per_token_after_the_first() -> None:
    load = made([("a", 1, 2), ("a", 2, 3)]).load(FIRST, 1)
    assert load.s_per_token is not None
    assert load.s_per_token.median == pytest.approx(0.15)
    assert load.s_per_token.p95 == pytest.approx(0.195)
    assert load.tok_per_s == pytest.approx(22 / 3.2)


def test_an_interval_of_a_sure_thing_is_a_verdict_and_of_noise_is_none() -> None:
    rng = random.Random(0)
    faster = made([("a", 1 + rng.random() / 10, 2) for _ in range(20)])
    assert "it pays" in server_summary(faster)
    slower = made([("a", 2, 1 + rng.random() / 10) for _ in range(20)])
    assert "it does not pay" in server_summary(slower)
    same = made([("a", rng.uniform(0.5, 1.5), rng.uniform(0.5, 1.5)) for _ in range(20)])
    assert "no clear difference" in server_summary(same)


def test_texts_are_compared_when_greedy_and_not_when_sampled() -> None:
    result = made([("a", 1, 1), ("a", 1, 1)])
    result.asked[0] = replace(result.asked[0], answer=answered(1, 11, "other"))
    assert result.comparison(1).equal == (1, 2)
    assert "Text equal on both in 1 of 2" in server_summary(result)
    result.header = replace(result.header, sampling={"temperature": 0.7})
    assert result.comparison(1).equal is None
    assert "not compared: sampled" in server_summary(result)


def test_bundled_pieces_are_told() -> None:
    result = made([("a", 1, 1)])
    assert "bundles" not in server_summary(result)
    few = replace(result.asked[0].answer, arrivals=2)
    result.asked[0] = replace(result.asked[0], answer=few)
    assert "The endpoint's pieces came 5.5 at a time" in server_summary(result)


def test_drafts_told_with_answers_stand_in_for_counters() -> None:
    result = made([("a", 1, 1)])
    result.asked[0] = replace(result.asked[0], answer=answered(1, 11, drafted=8, accepted=2))
    assert result.told_drafts(FIRST, 1) == (8, 2)
    assert result.told_drafts(AGAINST, 1) is None
    assert "acceptance rate 25% of 8 drafted tokens (told with the answers)" in server_summary(
        result
    )


def test_counters_of_one_segment_that_are_missing_spoil_the_sum_and_say_so() -> None:
    result = made([("a", 1, 1), ("a", 1, 1)])
    for i in (0, 1):
        result.segments[i] = replace(result.segments[i], counters=Counters("vLLM", drafts=1.0))
    assert result.counters(FIRST, 1) is None


# Streams of real servers.


def test_a_real_vllm_stream_is_read_token_by_token() -> None:
    path = Path(__file__).parent / "streams" / "vllm-0.32-ngram.sse"
    answer = read_stream(path)
    assert (answer.output_tokens, answer.prompt_tokens, answer.finish_reason) == (60, 49, "length")
    assert answer.pieces == 15  # 12 rounds with a draft, 3 without
    assert len(answer.text.split()) == 60


def test_a_real_llamacpp_stream_tells_its_drafts() -> None:
    answer = read_stream(Path(__file__).parent / "streams" / "llamacpp-ngram-simple.sse")
    assert (answer.output_tokens, answer.drafted, answer.accepted) == (100, 25, 0)
    assert answer.text.startswith("b c")


def read_stream(path: Path) -> Answer:
    scrape = AnswerReading(0.0)
    scrape.take_bytes(path.read_bytes(), 1.0)
    assert scrape.complete
    return scrape.answer(1.0)
