"""`paceline watch` as a user meets it."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")
sys.path.append(str(Path(__file__).parents[1] / "bench"))

from fake_server import FakeServer, serving

from paceline.plan.document import Expected, Measurement, PlanDocument, PlannedDraft, Target

Run = Callable[..., tuple[int, str, str]]
QUICK = ("--window", "0.25", "--interval", "0.05", "--once")


class Server:
    """Counts on by the clock, as vLLM does: one sequence at a time, so many ms a token.

    accepted    of two drafted tokens a round; None: it has no drafts
    """

    def __init__(self, ms: float, accepted: float | None = None, model: str = "m") -> None:
        self.ms, self.accepted, self.model = ms, accepted, model
        self.since = time.monotonic()

    def __call__(self, _: FakeServer) -> str:
        tokens = int((time.monotonic() - self.since) * 100_000 / self.ms)
        rounds = int(tokens / (1 + (self.accepted or 0)))
        counts = {
            "generation_tokens_total": tokens,
            "time_to_first_token_seconds_count": 0,
            "inter_token_latency_seconds_sum": tokens * self.ms / 1e3,
            "inter_token_latency_seconds_count": rounds,
            "iteration_tokens_total_count": rounds,
        }
        if self.accepted is not None:
            counts |= {
                "spec_decode_num_drafts_total": rounds,
                "spec_decode_num_draft_tokens_total": 2 * rounds,
                "spec_decode_num_accepted_tokens_total": int(self.accepted * rounds),
            }
        return "".join(
            f'vllm:{name}{{engine="0",model_name="{self.model}"}} {n}\n'
            for name, n in counts.items()
        )


@contextmanager
def two(on: Server, off: Server) -> Iterator[tuple[str, str]]:
    with serving(metrics=on) as first, serving(metrics=off) as second:
        yield first.url, second.url


def test_a_losing_server_beside_its_control_server_exits_with_3(run: Run) -> None:
    with two(Server(30, 0.2), Server(20)) as (on, off):
        code, out, err = run("watch", on, "--baseline", off, *QUICK)
    assert (code, err) == (3, "")
    assert "losing: speedup 0.67×" in out
    assert "20.00 ms a token without drafts over 30.00 with them" in out
    assert max(map(len, out.split("\n"))) <= 80


def test_a_paying_server_exits_with_0(run: Run) -> None:
    with two(Server(10, 1.5), Server(20)) as (on, off):
        code, out, _ = run("watch", on, "--baseline", off, *QUICK)
    assert code == 0
    assert "paying: speedup 2.00×" in out


def test_an_even_server_exits_with_0(run: Run) -> None:
    with two(Server(20, 0.5), Server(20)) as (on, off):
        code, out, _ = run("watch", on, "--baseline", off, *QUICK)
    assert code == 0
    assert "breaking even" in out


def test_without_anything_to_judge_by_it_is_unknown(run: Run) -> None:
    with serving(metrics=Server(20, 0.5)) as server:
        code, out, _ = run("watch", server.url, *QUICK)
    assert code == 1
    assert "unknown" in out
    assert "--baseline" in out


def test_windows_are_recorded_and_are_a_baseline_later(run: Run, tmp_path: Path) -> None:
    with serving(metrics=Server(20)) as server:
        code, out, _ = run("watch", server.url, "--record", "off.jsonl", *QUICK)
        assert code == 0
        assert "recorded" in out
        run("watch", server.url, "--record", "off.jsonl", *QUICK)
    lines = (tmp_path / "off.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    with serving(metrics=Server(30, 0.2)) as server:
        code, out, _ = run("watch", server.url, "--baseline", "off.jsonl", *QUICK)
    assert code == 3, out


def test_windows_of_another_model_are_not_added_to_a_file(run: Run, tmp_path: Path) -> None:
    servers = {"small": Server(20, model="small"), "big": Server(40, model="big")}
    now = ["small"]
    with serving(metrics=lambda s: servers[now[0]](s)) as server:
        assert run("watch", server.url, "--record", "off.jsonl", *QUICK)[0] == 0
        written = (tmp_path / "off.jsonl").read_text(encoding="utf-8")
        now[0] = "big"
        code, out, err = run("watch", server.url, "--record", "off.jsonl", *QUICK)
    assert (code, out) == (2, "")
    assert "its models are small, and here are big" in err
    assert (tmp_path / "off.jsonl").read_text(encoding="utf-8") == written


def test_a_baseline_of_another_model_is_refused_unless_it_is_named(run: Run) -> None:
    with serving(metrics=Server(20, model="small")) as server:
        run("watch", server.url, "--record", "off.jsonl", *QUICK)
    with two(Server(30, 0.2, model="big"), Server(20, model="small")) as (on, off):
        for baseline in ("off.jsonl", off):
            code, out, err = run("watch", on, "--baseline", baseline, *QUICK)
            assert (code, out) == (2, ""), baseline
            assert "is of small, and this is big" in err
            words = ("--baseline", baseline, "--baseline-model", "small")
            assert run("watch", on, *words, *QUICK)[0] == 3, baseline
        words = ("--baseline", "off.jsonl", "--baseline-model", "other")
        assert "is of small, and this is other" in run("watch", on, *words, *QUICK)[2]


def test_once_ends_when_the_server_stops_answering(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.watch._PATIENCE_S", 0.0)
    metrics, asked = Server(20, 0.5), [0]

    def dying(server: FakeServer) -> str:
        asked[0] += 1
        return metrics(server) if asked[0] < 6 else "gone\n"

    with serving(metrics=dying) as server:
        began = time.monotonic()
        code, out, _ = run("watch", server.url, *QUICK)
    assert code == 1
    assert time.monotonic() - began < 20
    assert "it is given up" in out


def test_an_address_without_http_is_a_control_server(run: Run) -> None:
    with two(Server(30, 0.2), Server(20)) as (on, off):
        code, out, _ = run("watch", on, "--baseline", off.removeprefix("http://"), *QUICK)
    assert code == 3, out


def test_a_label_is_of_both_unless_the_baseline_has_its_own(run: Run) -> None:
    def both(fast: Server, slow: Server) -> Callable[[FakeServer], str]:
        return lambda s: fast(s) + slow(s).replace('engine="0"', 'engine="1"')

    with (
        serving(metrics=both(Server(30, 0.2), Server(10, 1.5))) as on,
        serving(metrics=both(Server(20), Server(90))) as off,
    ):
        words = ("watch", on.url, "--baseline", off.url, "--label", "engine=0")
        _, out, _ = run(*words, *QUICK)
        assert "losing: speedup 0.67×" in out
        _, out, _ = run(*words, "--baseline-label", "engine=1", *QUICK)
        assert "paying: speedup 3.00×" in out


def test_a_plan_judges_too(run: Run, tmp_path: Path) -> None:
    PlanDocument(
        target=Target(name="t", engine="vllm"),
        draft=PlannedDraft(kind="ngram", name="ngram"),
        max_draft_tokens=2,
        expected=Expected(break_even_tokens=1.6),
        measured=Measurement(source="bench"),
    ).write(tmp_path / "plan.json")
    with serving(metrics=Server(20, 1.5)) as server:
        code, out, _ = run("watch", server.url, "--plan", "plan.json", *QUICK)
    assert code == 0, out
    assert "paying: speedup 1.56×" in out
    with serving(metrics=Server(20, 0.2)) as server:
        code, out, _ = run("watch", server.url, "--plan", "plan.json", *QUICK)
    assert code == 3, out


def test_json_is_one_document_a_line(run: Run) -> None:
    with two(Server(10, 1.5), Server(20)) as (on, off):
        code, out, _ = run(
            "watch", on, "--baseline", off, "--json", *QUICK[:4], "--windows", "2"
        )  # fmt: skip
    documents = [json.loads(line) for line in out.splitlines()]
    assert [one["event"] for one in documents] == ["window", "window"]
    assert documents[0]["verdict"]["state"] == "paying"
    assert documents[0]["seconds_per_token"] == pytest.approx(0.01, rel=0.01)
    assert code == 0


def test_it_ends_when_it_has_lost_for_long_enough(run: Run) -> None:
    with two(Server(30, 0.2), Server(20)) as (on, off):
        code, out, _ = run("watch", on, "--baseline", off, *QUICK[:4], "--until-losing", "2")
    assert code == 3
    assert out.count("losing:") == 2


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler: a parent that runs tests in the background has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_it_with_1(run: Run) -> None:
    threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
    with serving(metrics=Server(20, 0.5)) as server:
        code, _, err = run("watch", server.url, *QUICK[:4], "--windows", "40")
    assert code == 1
    assert "interrupted" in err


def test_the_verdict_is_exported(run: Run) -> None:
    import socket
    import urllib.request

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pages: list[str] = []

    def scrape() -> None:
        for _ in range(100):
            time.sleep(0.1)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    pages.append(answer.read().decode())
            except OSError:
                continue
            if 'state="paying"} 1.0' in pages[-1]:
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    with two(Server(10, 1.5), Server(20)) as (on, off):
        run(
            "watch", on, "--baseline", off, *QUICK[:4], "--windows", "3", "--export", str(port)
        )  # fmt: skip
    thread.join()
    assert any('state="paying"} 1.0' in metrics for metrics in pages)


# Faults: one sentence, nothing measured, exit code 2.


def test_drafts_that_are_off_are_named_at_once(run: Run) -> None:
    with serving(metrics=Server(20)) as server:
        code, out, err = run("watch", server.url, *QUICK)
    assert (code, out) == (2, "")
    assert "counts no drafts" in err
    assert "--speculative-config" in err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("up 1\nfoo_total 3\n", "the page of no server that Paceline knows; it has foo_total, up"),
        ("<html></html>\n", "not a page of metrics"),
        ("vllm:generation_tokens_total 3\nvllm:gen", "is cut off"),
        ('vllm:generation_tokens_total{x="1', "not a page of metrics"),
    ],
)
def test_other_pages_are_refused_by_name(run: Run, text: str, why: str) -> None:
    with serving(metrics=lambda _: text) as server:
        code, out, err = run("watch", f"{server.url}/metrics", *QUICK)
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1


def test_several_models_are_named(run: Run) -> None:
    both = lambda s: Server(20, 0.5, "a")(s) + Server(20, 0.5, "b")(s)  # noqa: E731
    with serving(metrics=both) as server:
        code, _, err = run("watch", server.url, *QUICK)
        assert code == 2
        assert "counts for a, b" in err
        assert "--model" in err
        code, _, err = run("watch", server.url, "--model", "c", *QUICK)
        assert (code, "no series with model_name=c; model_name is a, b" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--model", "n"), "has no series with model_name=n; model_name is m"),
        (("--label", "engine=7"), "has no series with engine=7; engine is 0"),
        (("--label", "colour=red"), "has no series with colour=red; colour is on none"),
    ],
)
def test_a_model_or_label_that_no_series_has_is_refused(
    run: Run, words: tuple[str, ...], why: str
) -> None:
    with serving(metrics=Server(20, 0.5)) as server:
        code, out, err = run("watch", server.url, *words, *QUICK)
    assert (code, out) == (2, "")
    assert why in err


def test_a_label_chooses(run: Run) -> None:
    with serving(metrics=Server(20, 0.5)) as server:
        code, out, _ = run("watch", server.url, "--model", "m", "--label", "engine=0", *QUICK)
    assert code == 1
    assert "with a draft" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--window", "1", "--interval", "0.5"), "has 2.0 scrapes"),
        (("--window", "0"), "not between"),
        (("--record", "x", "--plan", "p.json"), "judges nothing"),
        (("--once", "--windows", "3"), "--once is one window"),
        (("--baseline", "none.jsonl"), "none.jsonl can't be read"),
        (("--plan", "none.json"), "none.json can't be read"),
        (("--baseline", "http://a", "--baseline", "b.jsonl"), "addresses and files"),
        (("--baseline-model", "m"), "without --baseline"),
        (("--baseline-label", "a=b", "--baseline", "x"), "without a --baseline URL"),
        (("--baseline", "none:x"), "none:x can't be read"),
        (("--api-key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY"),
        (("--label", "x"), "write NAME=VALUE"),
        (("--export", "x"), "is not a port"),
    ],
)
def test_settings_that_say_nothing_are_refused(run: Run, words: tuple[str, ...], why: str) -> None:
    code, out, err = run("watch", "http://127.0.0.1:9", *words)
    assert (code, out) == (2, "")
    assert why in err


def test_an_address_with_a_password_is_refused_and_not_repeated(run: Run) -> None:
    code, _, err = run("watch", "http://me:secret@host/metrics", *QUICK)
    assert code == 2
    assert "secret" not in err


def test_a_file_of_something_else_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine\n", encoding="utf-8")
    with serving(metrics=Server(20)) as server:
        code, _, err = run("watch", server.url, "--record", "notes.txt", *QUICK)
    assert code == 2
    assert "is not JSON" in err
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine\n"


def test_the_key_goes_to_its_own_server_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    with serving(metrics=Server(10, 1.5)) as on, serving(metrics=Server(20)) as off:
        code, out, err = run(
            "watch", on.url, "--baseline", off.url, "--api-key-env", "MY_KEY", *QUICK
        )
    assert code == 0
    assert all(h.get("authorization") == "Bearer s3cret" for h in map(lowered, on.headers))
    assert not any("authorization" in h for h in map(lowered, off.headers))
    assert "s3cret" not in out + err


@pytest.mark.parametrize("key", ["sk-SECRET\nx", "sk-SECRET\x7f", "sk-SECRÉT"])
@pytest.mark.parametrize("option", ["--api-key-env", "--baseline-api-key-env"])
def test_a_key_that_no_header_holds_is_refused_and_not_repeated(
    run: Run, monkeypatch: pytest.MonkeyPatch, key: str, option: str
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with serving(metrics=Server(20, 0.5)) as server:
        code, out, err = run(
            "watch", server.url, "--baseline", server.url, option, "MY_KEY", *QUICK
        )
    assert (code, out) == (2, "")
    assert "MY_KEY" in err
    assert "SECR" not in err


def lowered(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_help_fits_in_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("watch", "--help")
    assert code == 0
    assert max(map(len, out.split("\n"))) <= 80
    assert "exit codes: 0 paying" in out
