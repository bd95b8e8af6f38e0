"""What a window looks like: in 80 columns, as JSON, in a file, and as a page for Prometheus."""

from __future__ import annotations

import json
import re
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from made_up_windows import window
from prometheus_client.parser import text_string_to_metric_families

from paceline.errors import DataError, SettingError
from paceline.monitor.counters import Counters
from paceline.monitor.exporter import GAUGES, Exporter
from paceline.monitor.text import block, document, warning
from paceline.monitor.verdict import STATES, judge
from paceline.monitor.window import Window, WindowFileHeader, read_windows, record_windows


def test_a_block_says_it_all_within_80_columns() -> None:
    baseline = window(4, drafts=False, spread=0.05, seconds=300)
    for cost, state in ((1.4, "paying"), (2.34, "breaking even"), (4.0, "losing")):
        one = window(3, cost=cost, spread=0.05, seconds=300)
        text = block(one, judge(one, baseline=[baseline]))
        assert f"  {state}: " in text.split("\n")[0], text
        assert max(map(len, text.split("\n"))) <= 80
        for label in ("load", "rounds", "accepted", "time", "why"):
            assert re.search(rf"^  {label} ", text, re.M), text


def test_an_unknown_verdict_with_a_value_is_called_unknown() -> None:
    one, baseline = window(3, cost=2.2, spread=0.6), window(4, drafts=False, spread=0.6)
    found = judge(one, baseline=[baseline])
    assert found.state == "unknown"
    assert "unknown: " in block(one, found).split("\n")[0]


def test_wide_numbers_and_long_drafts_stay_within_80_columns() -> None:
    one = window(3, max_draft_tokens=48, acceptance=0.97, spread=0.01)
    big = replace(one, total=replace(one.total, generated=12_345_678_901.0, drafted=9e12))
    text = block(replace(big, running=512.0, waiting=123_456.0), judge(big))
    assert max(map(len, text.split("\n"))) <= 80
    assert "…" in text


def test_what_is_not_known_is_not_shown_as_0() -> None:
    bare = Window(0.0, 60.0, Counters("llama.cpp", generated=500.0), ())
    text = block(bare, judge(bare))
    assert "no drafts counted" in text
    assert "0 %" not in text
    assert "ms a token" not in text
    told = document(bare, judge(bare))
    assert told["acceptance_rate"] is None
    assert told["seconds_per_token"] is None
    json.dumps(told)


def test_a_window_without_tokens_says_so() -> None:
    idle = window(0, seconds=0.001)
    still = replace(idle, seconds=60.0, total=replace(idle.total, generated=0.0, timed_tokens=0.0))
    text = block(still, judge(still, baseline=[window(4, drafts=False)]))
    assert "no tokens were counted" in text
    assert "0 tokens in this window; at least 200 are needed." in text


def test_a_gauge_of_the_last_interval_is_called_one() -> None:
    one = Window(0.0, 60.0, Counters("SGLang", recent={"tokens_per_round": 2.4}), ())
    assert "its gauge of now: 2.40" in block(one, judge(one))


def test_a_document_holds_the_verdict_and_its_numbers() -> None:
    one, baseline = window(3, cost=1.4), window(4, drafts=False)
    told = json.loads(json.dumps(document(one, judge(one, baseline=[baseline]))))
    assert told["verdict"]["state"] == "paying"
    assert told["verdict"]["speedup"]["low"] > 1
    assert told["baseline_seconds_per_token"] == pytest.approx(baseline.time.ratio)
    assert told["tokens_per_round"] == pytest.approx(one.total.tokens_per_round)


def test_warnings_wrap() -> None:
    assert max(map(len, warning("word " * 60).split("\n"))) <= 80


# The file.


def test_recorded_windows_are_read_back(tmp_path: Path) -> None:
    path, baseline = tmp_path / "off.jsonl", window(4, drafts=False)
    whose = WindowFileHeader(("http://a/metrics",), "vLLM", ("m",), {"engine": "0"})
    rows = [whose.as_json(), baseline.as_json(), baseline.as_json()]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    told, (first, second) = read_windows(path)
    assert told == whose
    assert first == second
    assert judge(window(3, cost=1.4), baseline=[first, second]).state == "paying"


HEADER = json.dumps(WindowFileHeader(("a",), "vLLM").as_json()) + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a paceline watch windows file"),
        ("{}\n", "is not a paceline watch windows file"),
        ("hello\n", "is not JSON"),
        ('{"kind":"paceline watch windows","version":9}\n', "has version 9"),
        (
            '{"kind":"paceline watch windows","version":2}\n',
            "can't be read: Object missing required field `pages`",
        ),
        (HEADER.replace('["a"]', "[1]"), r"can't be read: pages\[0\] is 1: expected `str`"),
        (HEADER, "holds no window yet"),
        (HEADER + '{"a":1}\n', "line 2 can't be read"),
        (HEADER + "[]\n", "line 2 can't be read"),
        (HEADER + "[" * 100_000 + "\n", "line 2 can't be read"),
        ("[" * 100_000 + "\n", "is not JSON"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=why):
        read_windows(path)
    with pytest.raises(DataError, match="can't be read"):
        read_windows(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("total", "drafted"), "x"),
        (("total", "server"), 3),
        (("total", "timed_s"), float("nan")),
        (("total", "accepted_by_position"), ["x"]),
        (("parts", 0, "timed_s"), "x"),
        (("parts", 0, "timed_tokens"), True),
        (("running",), []),
        (("seconds",), 0),
        (("workers",), 0),
        (("parts",), 5),
    ],
)
def test_windows_with_what_is_no_number_are_refused(
    tmp_path: Path, place: tuple[Any, ...], value: object
) -> None:
    row = json.loads(json.dumps(window(4, drafts=False).as_json()))
    inner = row
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path = tmp_path / "x.jsonl"
    path.write_text(f"{HEADER}{json.dumps(row)}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 2 (can't be read|is not JSON)"):
        read_windows(path)


# The page.


def scraped(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_the_page_holds_the_verdict() -> None:
    one = window(3, cost=1.4)
    with Exporter("127.0.0.1", 0, {"server": "s", "model": "m"}) as exporter:
        assert scraped(exporter.port) == {}  # nothing is known yet
        exporter.show(one, judge(one, baseline=[window(4, drafts=False)]))
        metrics = scraped(exporter.port)
    verdicts = {labels["state"]: value for labels, value in metrics["paceline_watch_verdict"]}
    assert verdicts == {state: float(state == "paying") for state in STATES}
    assert set(metrics) - {"paceline_watch_verdict", "paceline_watch_accepted_share"} == {
        f"paceline_watch_{name}" for name in GAUGES
    }
    [(labels, rate)] = metrics["paceline_watch_acceptance_rate"]
    assert labels == {"server": "s", "model": "m"}
    assert rate == one.total.acceptance_rate
    assert len(metrics["paceline_watch_accepted_share"]) == 4


def test_the_page_has_no_series_of_what_is_not_known() -> None:
    bare = Window(0.0, 60.0, Counters("llama.cpp"), ())
    with Exporter("127.0.0.1", 0, {"server": "s"}) as exporter:
        exporter.show(bare, judge(bare))
        metrics = scraped(exporter.port)
    assert "paceline_watch_acceptance_rate" not in metrics
    assert "paceline_watch_speedup" not in metrics
    assert {v for _, v in metrics["paceline_watch_verdict"]} == {0.0, 1.0}


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with (
        Exporter("127.0.0.1", 0, {}) as first,
        pytest.raises(SettingError, match="can't listen"),
    ):
        Exporter("127.0.0.1", first.port, {})


def test_a_recording_goes_on_behind_its_last_whole_line_and_over_no_other_file(
    tmp_path: Path,
) -> None:
    path, header = tmp_path / "w.jsonl", WindowFileHeader(("http://a/metrics",), "vLLM")
    with record_windows(path, header) as file:
        file.write({"a": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"torn')
    record_windows(path, header).close()
    assert path.read_bytes() == whole
    path.write_bytes(whole[:20])
    record_windows(path, header).close()
    assert path.read_bytes() == whole.splitlines(keepends=True)[0]
    path.write_bytes(b"my notes")
    with pytest.raises(DataError, match="is not a paceline watch"):
        record_windows(path, header)
    assert path.read_bytes() == b"my notes"
