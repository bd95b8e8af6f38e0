"""Reading a live server: windows without gaps, and everything that can come between."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")
sys.path.append(str(Path(__file__).parents[1] / "bench"))

from fake_server import FakeServer, serving

from paceline.errors import ServerError, SettingError
from paceline.monitor.watch import MetricsSource, Watched, WatchedWindow, find_metrics, watch
from paceline.monitor.window import Window

NAMES = {
    "vllm:generation_tokens_total": 30,
    "vllm:time_to_first_token_seconds_count": 0,
    "vllm:inter_token_latency_seconds_sum": 0.3,
    "vllm:inter_token_latency_seconds_count": 15,
    "vllm:iteration_tokens_total_count": 15,
    "vllm:spec_decode_num_drafts_total": 15,
    "vllm:spec_decode_num_draft_tokens_total": 30,
    "vllm:spec_decode_num_accepted_tokens_total": 15,
}
"""What a reading adds."""


class Pages:
    """Gives a page a reading.

    change    by the number of the reading: what is sent instead
    anew      the reading from which on the server counts from nothing
    """

    def __init__(
        self, change: dict[int, Callable[[str], str]] | None = None, anew: int = 10**9
    ) -> None:
        self.asked, self.change, self.anew = 0, change or {}, anew

    def __call__(self, _: FakeServer) -> str:
        self.asked += 1
        count = self.asked if self.asked < self.anew else self.asked - self.anew + 1
        text = "process_start_time_seconds 5\n" + "".join(
            f'{name}{{model_name="m"}} {count * each}\n' for name, each in NAMES.items()
        )
        return self.change.get(self.asked, lambda text: text)(text)


def windows(
    pages: Pages, most: int = 1, *, control: str | None = None, **how: Any
) -> tuple[list[Window], list[str], list[WatchedWindow]]:
    with serving(metrics=pages) as server:
        source = MetricsSource((f"{server.url}/metrics",), **how)
        other = None if control is None else MetricsSource((control,))
        seen, told = [], []
        for one in watch(source, control=other, window_s=0.3, interval_s=0.05):
            (told if isinstance(one, str) else seen).append(one)  # type: ignore[attr-defined]
            if len(seen) == most or len(told) > 20:
                break
    return [one.window for one in seen], told, seen


def test_windows_follow_each_other_without_a_gap() -> None:
    pages = Pages()
    (first, second), told, _ = windows(pages, 2)
    assert told == []
    assert first.tokens == 30 * len(first.parts)
    assert second.started == pytest.approx(first.started + first.seconds, abs=0.1)
    assert (first.tokens or 0) + (second.tokens or 0) == 30 * (pages.asked - 1)
    assert first.total.s_per_token == pytest.approx(0.01)
    assert first.total.tokens_per_round == 2


def test_a_restart_is_said_and_its_window_dropped() -> None:
    (window,), [told], _ = windows(Pages(anew=4))
    assert "went back from" in told
    assert "The window is dropped" in told
    assert window.tokens == 30 * len(window.parts)


def test_a_new_process_is_said() -> None:
    changed = {n: lambda text: text.replace("seconds 5", "seconds 6") for n in range(4, 99)}
    (window,), told, _ = windows(Pages(changed))
    assert told == [
        "Counts can't be compared: the server's process restarted. The window is dropped."
    ]
    assert window.tokens == 30 * len(window.parts)


def test_a_page_cut_off_is_left_out_and_the_window_goes_on() -> None:
    (window,), told, _ = windows(Pages({3: lambda text: text[:-3]}))
    [sentence] = told
    assert "is cut off: its last line doesn't end. That scrape is left out." in sentence
    assert window.tokens == 30 * (len(window.parts) + 1)


def test_a_page_cut_off_between_two_lines_is_no_lower_count() -> None:
    def short(text: str) -> str:
        return text[: text.rindex("vllm:spec_decode_num_accepted")]

    (window,), [gone, back], _ = windows(Pages({3: short}))
    assert "vllm:spec_decode_num_accepted_tokens_total is gone" in gone
    assert "vllm:spec_decode_num_accepted_tokens_total is back" in back
    assert window.total.accepted == 15 * len(window.parts)


def test_a_page_of_another_server_is_said() -> None:
    other = {3: lambda _: "llamacpp:tokens_predicted_total 5\n"}
    (_,), told, _ = windows(Pages(other))
    assert "the page is of llama.cpp now" in told[0]
    unknown = {3: lambda _: "up 1\n"}
    (_,), told, _ = windows(Pages(unknown))
    assert "no server that Paceline knows; it has up" in told[0]
    assert told[1] == "It answers again."


def test_a_server_that_is_gone_for_a_while_is_waited_for() -> None:
    class Gone(BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            Gone.asked += 1
            if Gone.asked in (3, 4, 5):
                self.connection.close()
                return
            data = "".join(f"{name} {Gone.asked * n}\n" for name, n in NAMES.items()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gone)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    source = MetricsSource((f"http://127.0.0.1:{server.server_address[1]}/metrics",))
    told: list[str] = []
    try:
        for one in watch(source, window_s=0.3, interval_s=0.05):
            if not isinstance(one, str):
                break
            told.append(one)
    finally:
        server.shutdown()
        server.server_close()
    assert told
    assert all("breaks off" in t or "left out" in t or t == "It answers again." for t in told)
    assert one.window.tokens is not None
    assert one.window.tokens >= 30 * (len(one.window.parts) + 3)


def test_a_body_shorter_than_promised_is_cut_off() -> None:
    class Short(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"vllm:generation_tokens_total 5\n")
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Short)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        with pytest.raises(ServerError, match="breaks off"):
            MetricsSource((f"http://127.0.0.1:{server.server_address[1]}/metrics",)).read()
    finally:
        server.shutdown()
        server.server_close()


def test_a_control_server_is_read_at_the_same_moments() -> None:
    with serving(metrics=Pages()) as control:
        (window,), _, [seen] = windows(Pages(), control=f"{control.url}/metrics")
    assert seen.control is not None
    assert len(seen.control.parts) == len(window.parts)
    assert seen.control.seconds == pytest.approx(window.seconds, rel=0.3)


def test_workers_with_a_page_each_add_up() -> None:
    with serving(metrics=Pages()) as one, serving(metrics=Pages()) as other:
        source = MetricsSource((f"{one.url}/metrics", f"{other.url}/metrics"))
        before, after = source.read(), source.read()
    assert after.counters.generated == 2 * (before.counters.generated or 0) == 120


def test_workers_are_counted_by_pages_and_by_their_labels() -> None:
    def dynamo(_: FakeServer) -> str:
        return "".join(
            f'vllm:generation_tokens_total{{model_name="m",worker_id="{n}"}} 3\n' for n in "123"
        )

    with serving(metrics=dynamo) as one, serving(metrics=Pages()) as other:
        assert MetricsSource((f"{one.url}/metrics",)).read().workers == 3
        scrape = MetricsSource((f"{one.url}/metrics", f"{other.url}/metrics")).read()
    assert scrape.workers == 4
    assert scrape.models == ("m",)


def test_patience_ends_where_no_whole_window_comes() -> None:
    cut = {n: lambda text: text[:-3] for n in range(4, 9999)}
    with serving(metrics=Pages(cut)) as server:
        source = MetricsSource((f"{server.url}/metrics",))
        told = list(watch(source, window_s=0.3, interval_s=0.05, patience_s=0.5))
    assert "is given up" in str(told[-1])
    assert all(isinstance(one, str) for one in told)


def test_pages_of_two_kinds_of_server_are_refused() -> None:
    with (
        serving(metrics=Pages()) as one,
        serving(metrics=lambda _: "llamacpp:tokens_predicted_total 5\n") as other,
        pytest.raises(SettingError, match=r"vLLM, another of llama\.cpp"),
    ):
        MetricsSource((f"{one.url}/metrics", f"{other.url}/metrics")).read()


def test_several_models_need_one_to_be_named() -> None:
    def metrics(_: FakeServer) -> str:
        return "".join(
            f'vllm:generation_tokens_total{{model_name="{name}"}} {n}\n'
            for name, n in (("a", 3), ("b", 9))
        )

    with serving(metrics=metrics) as server:
        where = (f"{server.url}/metrics",)
        with pytest.raises(SettingError, match="counts for a, b"):
            MetricsSource(where).read()
        assert MetricsSource(where, model="b").read().counters.generated == 9


def test_a_server_without_counters_of_drafts_is_said_once() -> None:
    def metrics(text: str) -> str:
        return "".join(
            f"{line}\n" for line in text.split("\n") if line and "spec_decode" not in line
        )

    (window,), told, _ = windows(Pages(dict.fromkeys(range(1, 99), metrics)))
    [sentence] = told
    assert "counts no drafts. It counts drafts only where they are configured" in sentence
    assert window.total.drafts is None


def test_it_stops_when_told() -> None:
    stop = threading.Event()
    with serving(metrics=Pages()) as server:
        found: Iterator[Watched] = watch(
            MetricsSource((f"{server.url}/metrics",)), window_s=0.3, interval_s=0.05, stop=stop
        )
        next(found)
        stop.set()
        assert list(found) == []


# Where the page is.


def test_the_page_is_found_behind_the_address() -> None:
    with serving(metrics=Pages()) as server:
        metrics = f"{server.url}/metrics"
        assert find_metrics([server.url]) == (metrics,)
        assert find_metrics([f"{server.url}/v1"]) == (metrics,)
        assert find_metrics([metrics]) == (metrics,)
        assert find_metrics([server.url.removeprefix("http://")]) == (metrics,)


def test_a_server_without_a_page_says_how_to_turn_it_on() -> None:
    with serving() as server, pytest.raises(ServerError, match="llama.cpp: --metrics"):
        find_metrics([server.url])
    with serving() as server, pytest.raises(ServerError, match="address of a page") as caught:
        MetricsSource((f"{server.url}/metrics",)).read()
    assert "--metrics" not in str(caught.value)  # no option of a watch


@pytest.mark.parametrize("key", ["sk-SECRET\nx", "sk-SECRÉT"])
def test_a_header_that_cannot_be_sent_is_not_repeated(key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    with (
        serving(metrics=Pages()) as server,
        pytest.raises(ServerError, match="can't be sent") as caught,
    ):
        MetricsSource((f"{server.url}/metrics",), headers=headers).read()
    assert "SECR" not in str(caught.value)


def test_nobody_at_the_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match="can't be reached"):
        find_metrics([f"http://127.0.0.1:{port}"])
