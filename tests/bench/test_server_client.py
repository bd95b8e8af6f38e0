"""A client of one server: what it measures of an answer, and how every fault ends."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

pytest.importorskip("httpx")

from fake_server import FakeServer, event, piece, send, serving, start_stream

from paceline.bench.prompts.workload import WorkloadPrompt
from paceline.bench.server.answer import Answer, Events
from paceline.bench.server.client import ServerClient, connect, sampling_fields
from paceline.bench.server.http import Address, Patience
from paceline.errors import ModelError, ServerError, SettingError
from paceline.types import Sampling

QUICK = Patience(connect_s=5, first_token_s=10, total_s=20, retries=2, pause_s=0.01)
HASTY = replace(QUICK, first_token_s=0.3, total_s=0.6)
PROMPT = WorkloadPrompt("a", "all", ({"role": "user", "content": "hello"},))


def ask(server: FakeServer, prompt: WorkloadPrompt = PROMPT, **how: Any) -> Answer:
    """One measured answer."""
    how.setdefault("patience", QUICK)

    async def one() -> Answer:
        async with connect(server.url, **how) as endpoint:
            return await endpoint.ask(prompt, {"max_tokens": 64})

    return asyncio.run(one())


def introduce(server_url: str, *, warm: bool = False, **how: Any) -> ServerClient:
    how.setdefault("patience", QUICK)

    async def one() -> ServerClient:
        async with connect(server_url, **how) as endpoint:
            if warm:
                await endpoint.warm_up()
            return endpoint

    return asyncio.run(one())


# What an answer says.


def test_times_are_per_token_and_never_per_piece() -> None:
    with serving(words=lambda _: 9, per_piece=3, pause_s=0.1) as server:
        answer = ask(server)
    assert answer.text.split() == [f"w{i}" for i in range(9)]
    assert (answer.output_tokens, answer.pieces, answer.finish_reason) == (9, 3, "stop")
    assert answer.ttft_s is not None
    assert answer.ttft_s >= 0.02
    # Two pauses lie between the first piece and the last; eight tokens share them.
    assert answer.decode_s is not None
    assert answer.decode_s >= 0.15  # the first may have been late
    assert answer.s_per_token == pytest.approx(answer.decode_s / 8)
    assert answer.total_s is not None
    assert answer.total_s >= answer.ttft_s + answer.decode_s


def test_thinking_counts_as_output_and_stands_apart() -> None:
    with serving(words=lambda _: 6, per_piece=2, reasoning=4, pause_s=0.1) as server:
        answer = ask(server)
    assert answer.reasoning.split() == ["w0", "w1", "w2", "w3"]
    assert answer.text.split() == ["w4", "w5"]
    assert answer.pieces == 3
    # The thought is the first token: two pieces come after it.
    assert answer.decode_s is not None
    assert answer.decode_s >= 0.15  # the first may have been late


def test_an_answer_that_comes_at_one_moment_has_no_time_per_token() -> None:
    def bundled(server: FakeServer, handler: Any, body: Any) -> None:
        pieces = [piece(body, f"w{i} ") for i in range(6)]
        pieces += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
        pieces += [{"choices": [], "usage": {"completion_tokens": 7}}]
        start_stream(handler)
        handler.wfile.write("".join(f"data: {json.dumps(p)}\n\n" for p in pieces).encode())

    with serving(behave=[bundled]) as server:
        answer = ask(server)
    assert answer.failure is None
    assert (answer.pieces, answer.arrivals, answer.output_tokens) == (6, 1, 7)
    assert answer.decode_s is None
    assert answer.later_tokens == 0
    assert answer.ttft_s is not None


def test_halves_of_a_character_are_joined_and_a_lone_half_is_replaced() -> None:
    def halved(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        for half in ("a\ud83d", "\ude00b", "\ud83d", "\ude00\ude00"):
            event(handler, piece(body, half))
        event(handler, {"choices": [{"delta": {}, "finish_reason": "stop\ud83d"}]})
        event(handler, "[DONE]")

    def whole(server: FakeServer, handler: Any, body: Any) -> None:
        choice = {"message": {"content": "\ud83d"}, "finish_reason": "stop"}
        send(handler, 200, {"choices": [choice]})

    with serving(behave=[halved, whole]) as server:
        answer, other = ask(server), ask(server)
    assert answer.failure is None
    assert (answer.text, answer.finish_reason) == ("a😀b😀\ufffd", "stop\ufffd")
    assert other.text == "\ufffd"
    json.dumps(asdict(answer), ensure_ascii=False).encode()


def test_raw_prompts_go_to_completions() -> None:
    with serving() as server:
        answer = ask(server, replace(PROMPT, raw=True))
    assert server.seen[-1]["prompt"] == "hello"
    assert "messages" not in server.seen[-1]
    assert answer.output_tokens == 6
    assert answer.text.startswith("w0 w1")


def test_a_server_that_counts_no_tokens_gives_no_time_per_token() -> None:
    with serving(usage=False) as server:
        answer = ask(server)
    assert answer.output_tokens is None
    assert answer.s_per_token is None
    assert answer.ttft_s is not None
    assert answer.failure is None


def test_a_server_that_does_not_stream_gives_whole_times_only() -> None:
    def whole(server: FakeServer, handler: Any, body: Any) -> None:
        choice = {"message": {"content": "all at once"}, "finish_reason": "stop"}
        send(handler, 200, {"choices": [choice], "usage": {"completion_tokens": 3}})

    with serving(behave=[whole]) as server:
        answer = ask(server)
    assert (answer.text, answer.output_tokens, answer.streamed) == ("all at once", 3, False)
    assert answer.ttft_s is None
    assert answer.decode_s is None
    assert answer.s_per_token is None
    assert answer.total_s is not None
    assert answer.failure is None


def test_drafts_that_a_server_tells_with_its_answer_are_kept() -> None:
    def told(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, piece(body, "x"))
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        event(handler, last | {"timings": {"draft_n": 25, "draft_n_accepted": 3}})
        event(handler, "[DONE]")

    with serving(behave=[told]) as server:
        answer = ask(server)
        assert (answer.drafted, answer.accepted) == (25, 3)
        baseline = ask(server)
    assert (baseline.drafted, baseline.accepted) == (None, None)


def test_events_are_cut_at_newlines_only_and_survive_any_cut_of_the_bytes() -> None:
    text = (
        'data: {"a": "one\u2028two\x85"}\r\n\r\n: a comment\ndata: x\ndata: y\n\ndata: [DONE]\n\n'
    )
    expected = [("", '{"a": "one\u2028two\x85"}'), ("", "x\ny"), ("", "[DONE]")]
    data = text.encode()
    for size in range(1, len(data) + 1):
        events = Events()
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        assert [found for part in parts for found in events.feed(part)] == expected


# What goes wrong.


def test_passing_refusals_are_tried_again_and_the_wait_is_the_servers() -> None:
    def busy(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 429, {"error": {"message": "slow down"}}, Retry_After="0.05")

    def broken(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 503, {"error": {"message": "loading"}})

    with serving(behave=[busy, broken]) as server:
        answer = ask(server)
    assert answer.failure is None
    assert answer.retries == 2
    assert 0.05 <= answer.waited_s < 0.5  # what was asked for, and a pause of ours
    assert answer.total_s is not None
    assert answer.ttft_s is not None
    assert answer.total_s > answer.waited_s + answer.ttft_s


def test_what_keeps_being_refused_is_a_failure_and_no_zero() -> None:
    def busy(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 500, {"error": {"message": "out of memory"}})

    with serving(behave=[busy] * 3) as server:
        answer = ask(server)
        assert len(server.seen) == 3
    assert answer.failure == "answered 500: 'out of memory'"
    assert answer.failure_kind == "http 500"
    assert answer.ttft_s is None
    assert answer.output_tokens is None
    assert answer.total_s is None


def test_a_wait_beyond_all_patience_is_not_waited_for() -> None:
    def busy(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 429, {}, Retry_After="3600")

    with serving(behave=[busy] * 3) as server:
        started = time.monotonic()
        answer = ask(server)
        assert time.monotonic() - started < 30
        assert len(server.seen) == 1
    assert answer.failure_kind == "http 429"


def test_a_refused_prompt_fails_alone_and_is_not_tried_again() -> None:
    def too_long(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 400, {"error": {"message": "prompt of 9000 tokens"}})

    with serving(behave=[too_long]) as server:
        answer = ask(server)
        assert len(server.seen) == 1
    assert answer.failure_kind == "http 4xx"
    assert "9000 tokens" in (answer.failure or "")


def test_a_slow_first_token_and_a_slow_rest_are_told_apart() -> None:
    def silent(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(0.6)

    def dripping(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        for i in range(20):
            event(handler, piece(body, f"w{i} "))
            time.sleep(0.1)

    with serving(behave=[silent, dripping]) as server:
        first, rest = (ask(server, patience=HASTY) for _ in range(2))
    assert first.failure == "no token within 0.3 s"
    assert first.failure_kind == "timeout"
    assert rest.failure == "not finished within 0.6 s"
    assert rest.text.startswith("w0 w1")
    assert rest.output_tokens is None
    assert rest.s_per_token is None


def test_a_stream_that_is_cut_off_is_a_failure_that_keeps_its_text() -> None:
    def cut(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, piece(body, "half a "))

    def torn(server: FakeServer, handler: Any, body: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        event(handler, piece(body, "half a "))
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    with serving(behave=[cut, torn]) as server:
        for answer in (ask(server), ask(server)):
            assert answer.failure_kind == "cut off"
            assert answer.text == "half a "


def test_an_error_in_the_stream_is_a_failure_in_the_servers_words() -> None:
    def failing(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, piece(body, "half a "))
        event(handler, {"error": {"message": "engine died", "code": 500}})

    with serving(behave=[failing]) as server:
        answer = ask(server)
    assert answer.failure_kind == "error event"
    assert "engine died" in (answer.failure or "")


def test_what_is_no_json_is_a_failure() -> None:
    def metrics(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 200, "<html><body>Hello</body></html>")

    def garbled(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, "{half")

    with serving(behave=[metrics, garbled]) as server:
        first, second = ask(server), ask(server)
    assert first.failure == "answered with an HTML page, not with JSON"
    assert second.failure_kind == "not JSON"


@pytest.mark.parametrize(
    "document",
    [
        {"choices": ["text"]},
        {"choices": 3},
        {"choices": [{"delta": ["x"]}]},
        {"choices": [], "metrics": ["x"]},
        ["x"],
    ],
)
def test_json_in_another_form_is_a_failure_and_no_crash(document: Any) -> None:
    def strange(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, document)

    def strange_whole(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 200, document)

    with serving(behave=[strange, strange_whole]) as server:
        for answer in (ask(server), ask(server)):
            assert answer.failure is not None


def test_counts_that_are_no_numbers_are_none() -> None:
    def strange(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, piece(body, "x"))
        event(handler, {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": ["x"]})
        event(handler, {"choices": [], "usage": {"completion_tokens": "7"}})

    with serving(behave=[strange]) as server:
        answer = ask(server)
    assert answer.failure is None
    assert answer.output_tokens is None


def test_an_end_without_text_or_reason_is_no_answer() -> None:
    def empty(server: FakeServer, handler: Any, body: Any) -> None:
        start_stream(handler)
        event(handler, "[DONE]")

    with serving(behave=[empty]) as server:
        assert ask(server).failure_kind == "cut off"


def test_a_missing_library_is_named_with_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "paceline.bench.server.client.find_spec",
        lambda name: None if name == "prometheus_client" else name,
    )
    with pytest.raises(SettingError, match=r"prometheus_client.*paceline\[endpoint\]"):
        introduce("http://127.0.0.1:9")


def test_nobody_there_is_one_sentence() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(ServerError, match="can't be reached"):
        introduce(url)


def test_a_server_that_takes_the_call_and_says_nothing_is_not_waited_for_forever() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        patience = replace(QUICK, look_s=0.2, retries=0)
        with pytest.raises(ServerError, match="ReadTimeout"):
            introduce(f"http://127.0.0.1:{deaf.getsockname()[1]}", patience=patience)


def test_a_server_that_goes_away_ends_the_run() -> None:
    async def one() -> None:
        with serving() as server:
            async with connect(server.url, patience=QUICK) as endpoint:
                endpoint.http.address = Address.of("http://127.0.0.1:9")  # nobody listens there
                await endpoint.ask(PROMPT)

    with pytest.raises(ServerError, match="can't be reached"):
        asyncio.run(one())


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_stops_at_once_and_is_never_shown(status: int) -> None:
    def refuse(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, status, {"error": {"message": "Incorrect API key: sk-secret"}})

    with serving(behave=[refuse]) as server, pytest.raises(ServerError) as caught:
        ask(server, key="sk-secret")
    assert "sk-secret" not in str(caught.value)
    assert "***" in str(caught.value)
    assert len(server.seen) == 1
    assert server.headers[-1]["Authorization"] == "Bearer sk-secret"


def test_a_wrong_key_is_noticed_before_anything_is_asked() -> None:
    with (
        serving(models_status=401, models={"error": {"message": "no"}}) as server,
        pytest.raises(ServerError, match="without a key"),
    ):
        introduce(server.url)


def test_a_key_goes_to_its_own_server_only() -> None:
    metrics = lambda _: "vllm:generation_tokens_total 1\n"  # noqa: E731
    with serving(metrics=metrics) as server, serving(metrics=metrics) as other:
        introduce(server.url, key="k", metrics=f"{other.url}/metrics")
        assert all("Authorization" not in headers for headers in other.headers)
        introduce(server.url, key="k")
        assert all("Authorization" in headers for headers in server.headers)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://host:port",
        "http://[host",
        "http://user:pw@host",
        "http://host?key=secret",
    ],
)
def test_what_is_no_address_or_holds_a_password_is_refused(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        Address.of(url)
    assert "pw" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "api", "root"),
    [
        ("host:8000", "http://host:8000/v1", "http://host:8000"),
        ("http://host:8000/", "http://host:8000/v1", "http://host:8000"),
        ("http://host/v1/", "http://host/v1", "http://host"),
        (
            "https://host/openai/v1/chat/completions",
            "https://host/openai/v1",
            "https://host/openai",
        ),
    ],
)
def test_addresses_are_taken_as_people_write_them(written: str, api: str, root: str) -> None:
    assert Address.of(written) == Address(api, root)


# Models.


def test_the_only_model_is_taken_and_of_several_one_must_be_named() -> None:
    with serving() as server:
        served = introduce(server.url).served
    assert (served.model, served.server) == ("m", "vLLM")
    two = {"data": [{"id": "big"}, {"id": "small", "aliases": ["tiny"]}]}
    with serving(models=two) as server:
        with pytest.raises(ModelError, match="big, small"):
            introduce(server.url)
        assert introduce(server.url, model="tiny").served.model == "tiny"


def test_a_model_that_is_not_there_is_refused_with_those_that_are() -> None:
    with serving() as server, pytest.raises(ModelError, match=r"no model 'x'; it has: m\."):
        introduce(server.url, model="x")


def test_a_model_refused_when_asked_offers_the_list_too() -> None:
    def unknown(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 404, {"error": {"message": "The model `m` does not exist."}})

    with serving(behave=[unknown]) as server, pytest.raises(ModelError, match="it has: m"):
        ask(server)


def test_a_server_without_a_list_takes_the_model_that_was_named() -> None:
    with serving(models_status=404, models={}) as server:
        assert introduce(server.url, model="x").served.model == "x"
        with pytest.raises(ModelError, match="none that it lists"):
            introduce(server.url)


def test_a_web_page_is_no_server() -> None:
    with (
        serving(models="<html></html>") as server,
        pytest.raises(ServerError, match="HTML page"),
    ):
        introduce(server.url)


def test_a_server_that_is_still_loading_is_waited_for() -> None:
    with serving(models_status=503, models={"error": {"message": "Loading model"}}) as server:
        with pytest.raises(ServerError, match="Loading model"):
            introduce(server.url)
        assert len(server.headers) == QUICK.retries + 1


def test_a_first_request_that_is_refused_ends_it_before_anything_is_measured() -> None:
    def refuse(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 400, {"error": {"message": "min_p is not supported"}})

    with serving(behave=[refuse]) as server, pytest.raises(ServerError, match="min_p is not"):
        introduce(server.url, warm=True)


def test_an_old_server_without_stream_options_is_asked_without() -> None:
    def refuse(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 422, {"detail": "stream_options: extra fields not permitted"})

    with serving(behave=[refuse]) as server:
        endpoint = introduce(server.url, warm=True)
    assert "stream_options" not in server.seen[-1]
    assert not endpoint.counts_tokens


# Counters.


def test_counters_are_found_and_their_lack_has_a_reason() -> None:
    with serving(metrics=lambda _: "vllm:generation_tokens_total 41\n") as server:
        endpoint = introduce(server.url)
        counters = endpoint.counters()
    assert counters is not None
    assert counters.generated == 41
    assert not counters.has_drafts
    with serving(models={"data": [{"id": "m", "owned_by": "sglang"}]}) as server:
        served = introduce(server.url).served
    assert served.metrics is None
    assert "--enable-metrics" in (served.no_metrics or "")


def test_a_page_that_was_named_and_is_none_is_refused() -> None:
    with serving() as server, pytest.raises(ServerError, match="404"):
        introduce(server.url, metrics=f"{server.url}/nothing")


def test_a_password_in_the_address_of_the_counters_is_refused() -> None:
    with serving() as server, pytest.raises(SettingError, match="--metrics has more") as caught:
        introduce(server.url, metrics="http://user:pw@host/metrics")
    assert "pw" not in str(caught.value)


# Settings.


def test_settings_are_sent_whole_or_refused_by_name() -> None:
    body = sampling_fields(Sampling(temperature=0.5, seed=3), 64, None)
    assert body["temperature"] == 0.5
    assert body["seed"] == 3
    assert body["max_tokens"] == 64
    for name, value in {"top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1}.items():
        some = Sampling(**{name: value})
        with pytest.raises(SettingError, match=f"--{name.replace('_', '-')}"):
            sampling_fields(some, 64, None)
        for server in ("vLLM", "SGLang"):
            assert sampling_fields(some, 64, server)[name] == value
    llama = sampling_fields(Sampling(repetition_penalty=1.1), 64, "llama.cpp")
    assert llama["repeat_penalty"] == 1.1
    assert llama["repeat_last_n"] == -1
    for some in (Sampling(banned_tokens=(3,)), Sampling(allowed_tokens=(3,))):
        with pytest.raises(SettingError):
            sampling_fields(some, 64, "vLLM")


def test_a_servers_own_defaults_are_switched_off() -> None:
    """llama.cpp's server would take top-k 40 and min-p 0.05 where nothing is said."""
    assert sampling_fields(Sampling(temperature=1), 64, "llama.cpp")["top_k"] == 0
    assert sampling_fields(Sampling(temperature=1), 64, "llama.cpp")["min_p"] == 0
    assert sampling_fields(Sampling(temperature=1), 64, "vLLM")["top_k"] == -1
