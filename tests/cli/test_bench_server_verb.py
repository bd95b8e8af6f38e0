"""`paceline bench-server`: a live server as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
sys.path.append(str(Path(__file__).parents[1] / "bench"))

from fake_server import FakeServer, send, serving

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    rows = [{"prompt": f"Question {i}?", "id": f"q{i}", "category": f"c{i % 2}"} for i in range(4)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def test_two_servers_are_compared_on_a_card_and_in_a_file(
    run: Run, prompts: str, tmp_path: Path
) -> None:
    with serving(pause_s=0.01) as first, serving(pause_s=0.1) as against:
        code, out, err = run(
            "bench-server", first.url, "--against", against.url, "--prompts", prompts,
            "--concurrency", "1,2", "-o", "r.jsonl",
        )  # fmt: skip
    assert code == 0, err
    assert out.startswith(f"{first.url}/v1 (vLLM, m)\nagainst {against.url}/v1 (vLLM, m)")
    assert "Speedup: it pays, " in out
    assert "One client" in out
    assert "2 clients at once" in out
    assert "Text equal on both in 4 of 4 prompts." in out
    assert "drafts, endpoint: none counted" in out
    assert len(first.seen) == 2 * 4 + 1  # and the warm-up, which is in no figure
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert rows[0]["kind"] == "paceline server bench"
    assert sum("request" in row for row in rows) == 16


def test_the_same_figures_as_json(run: Run, prompts: str) -> None:
    with serving() as server:
        code, out, _ = run(
            "bench-server", server.url, "--prompts", prompts, "--json", "-o", "r.jsonl"
        )
    document = json.loads(out)
    assert code == 0
    assert document["complete"]
    assert document["loads"][0]["output_tokens"] == 24
    assert document["loads"][0]["counters"] is None


def test_a_second_start_measures_nothing_again(run: Run, prompts: str) -> None:
    with serving() as server:
        command = ("bench-server", server.url, "--prompts", prompts, "-o", "r.jsonl")
        assert run(*command)[0] == 0
        asked = len(server.prompts())
        code, out, _ = run(*command)
    assert code == 0
    assert "output tokens" in out
    assert len(server.prompts()) == asked == 4


def test_a_key_comes_from_the_environment_and_goes_nowhere_else(
    run: Run, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with serving() as server, serving() as against:
        code, out, err = run(
            "bench-server", server.url, "--against", against.url, "--prompts", prompts,
            "--api-key-env", "MY_KEY", "-o", "r.jsonl",
        )  # fmt: skip
        assert code == 0
        assert all(h.get("Authorization") == "Bearer sk-secret" for h in server.headers)
        assert not any("Authorization" in h for h in against.headers)
    assert "sk-secret" not in out + err + (tmp_path / "r.jsonl").read_text()
    code, _, err = run("bench-server", "http://x", "--api-key-env", "NOT_THERE")
    assert code == 2
    assert "NOT_THERE, which is not set" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: URL"),
        (["http://a", "-d", "lookup"], "nrecognized arguments: -d"),
        (["ftp://x"], "Write http://HOST:PORT"),
        (["http://a", "--against-model", "m"], "given without --against"),
        (["http://a", "--against", "http://a"], "the server that is measured"),
        (["http://a", "--concurrency", "0"], "0 is below 1"),
        (["http://a", "--timeout", "0"], "not above 0"),
        (["http://a", "--ban-text", "x"], "--ban-text is 'x'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run("bench-server", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_more_clients_than_prompts_are_refused_before_anything_is_asked(
    run: Run, prompts: str
) -> None:
    with serving() as server:
        code, out, err = run(
            "bench-server", server.url, "--prompts", prompts, "--concurrency", "1,16"
        )
        assert server.headers == []
    assert (code, out) == (2, "")
    assert "--concurrency is 16" in err
    assert "at most --concurrency 4" in err


@pytest.mark.parametrize("setting", ["--top-k", "--min-p", "--repetition-penalty"])
def test_settings_that_a_server_is_not_known_to_take_are_refused(
    run: Run, prompts: str, setting: str
) -> None:
    command = ("--prompts", prompts, setting, "1" if setting == "--top-k" else "0.5")
    with serving(models={"data": [{"id": "m", "owned_by": "somebody"}]}) as server:
        code, _, err = run("bench-server", server.url, *command)
        assert code == 2
        assert f"{setting} is" in err
        assert not server.seen
    with serving() as server:
        assert run("bench-server", server.url, *command)[0] == 0
        assert setting.strip("-").replace("-", "_") in server.seen[-1]


def test_nobody_there_a_wrong_model_and_a_web_page_are_one_line_each(
    run: Run, prompts: str
) -> None:
    with serving() as gone:
        pass
    with serving() as server, serving(models="<html></html>") as metrics:
        for arguments in (
            [gone.url, "--retries", "0"],
            [server.url, "--model", "x"],
            [metrics.url],
        ):
            code, out, err = run("bench-server", *arguments, "--prompts", prompts)
            assert (code, out) == (2, "")
            assert err.count("\n") == 1
            assert err.startswith("paceline bench-server: ")


def test_when_every_prompt_fails_the_reason_is_told(run: Run, prompts: str) -> None:
    def refuse(server: FakeServer, handler: Any, body: Any) -> None:
        if body["max_tokens"] == 8:
            server.behave.insert(0, refuse)
            from fake_server import stream

            stream(server, handler, body)
        else:
            send(handler, 400, {"error": {"message": "too long by far"}})

    with serving(behave=[refuse] * 10) as server:
        code, _, err = run("bench-server", server.url, "--prompts", prompts)
    assert code == 2
    assert "No prompt was answered" in err
    assert "too long by far" in err


def test_what_was_measured_before_a_server_died_is_told(
    run: Run, prompts: str, tmp_path: Path
) -> None:
    def moved(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 401, {"error": {"message": "key expired"}})

    from fake_server import stream

    with serving(behave=[stream, stream, stream, moved]) as server:
        command = ("bench-server", server.url, "--prompts", prompts, "-o", "r.jsonl")
        code, out, err = run(*command)
        assert code == 2
        assert "output tokens" in out
        assert "Interrupted" in out
        assert "key expired" in err
        assert run(*command)[0] == 0  # and goes on
    assert len(server.prompts()) == 4 + 1


def test_a_run_that_measured_nothing_leaves_no_file(run: Run, prompts: str, tmp_path: Path) -> None:
    def refuse(server: FakeServer, handler: Any, body: Any) -> None:
        send(handler, 400, {"error": {"message": "no chat template"}})

    with serving(behave=[refuse]) as server:
        command = ("bench-server", server.url, "--prompts", prompts, "-o", "r.jsonl")
        code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert "no chat template" in err
    assert not (tmp_path / "r.jsonl").exists()


def test_raw_prompts_are_warmed_up_raw(run: Run, prompts: str) -> None:
    with serving() as server:
        assert run("bench-server", server.url, "--prompts", prompts, "--raw")[0] == 0
    assert len(server.seen) == 5
    assert all("prompt" in body for body in server.seen)


def test_an_interrupt_keeps_what_was_measured(prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    with serving(pause_s=0.2) as server:
        command = [
            sys.executable, "-m", "paceline.cli.main", "bench-server", server.url,
            "--prompts", prompts, "-o", str(out),
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(600):
            if len(server.prompts()) >= 2:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        text, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "Interrupted: these are the requests so far." in text
    assert "The same command goes on from there." in err
    assert "Traceback" not in err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert 1 <= sum("request" in row for row in rows) < 4


@pytest.mark.parametrize("key", ["sk-SECRET\nx", "sk-SECRÉT"])
def test_a_key_that_no_header_holds_is_refused_and_not_repeated(
    run: Run, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    code, _, err = run("bench-server", "http://127.0.0.1:9", "--api-key-env", "MY_KEY")
    assert code == 2
    assert "printable ASCII" in err
    assert "SECR" not in err
