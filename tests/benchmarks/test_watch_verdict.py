"""What the benchmark of `paceline watch` calls agreement."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")

from paceline.bench.stats import Pair
from paceline.monitor.counters import Counters
from paceline.monitor.verdict import WatchVerdict
from paceline.monitor.window import Window


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("watch_verdict")
    for name in ("watch_verdict", "common"):
        sys.modules.pop(name, None)


def compared(module: Any, name: str, verdicts: list[str], ratio: float) -> dict[str, Any]:
    """The client measured `ratio` speedup."""
    asked = [module.Asked(i, Pair(ratio * (1 + i % 3 / 50), 50, 1.0, 50)) for i in range(30)]
    empty = Window(0.0, 60.0, Counters("vLLM"), ())
    done = [(0.0, 100.0, empty, WatchVerdict(state, ())) for state in verdicts]
    found: dict[str, Any] = module.compared(name, done, asked)
    return found


def test_unknown_windows_agree_with_nothing(benchmark_module: Any) -> None:
    verdicts = ["paying", "unknown", "losing"]
    found = compared(benchmark_module, "paying", verdicts, 1.5)
    assert {name: found[name] for name in ("holds", "agree", "unknown", "wrong")} == {
        "holds": True,
        "agree": 1,
        "unknown": 1,
        "wrong": 1,
    }
    assert "1 windows of 3 are wrong" in benchmark_module.fault_of("paying", found)


@pytest.mark.parametrize(
    ("verdicts", "ratio", "fault"),
    [
        (["paying", "unknown"], 1.5, None),
        (["unknown", "unknown"], 1.5, "0 agree"),
        (["losing", "losing"], 0.5, "the client measured losing, so this set-up shows nothing"),
        (["breaking even"], 1.0, "so this set-up shows nothing"),
    ],
)
def test_a_set_up_must_be_what_it_is_called(
    benchmark_module: Any, verdicts: list[str], ratio: float, fault: str | None
) -> None:
    found = compared(benchmark_module, "paying", verdicts, ratio)
    told = benchmark_module.fault_of("paying", found)
    assert told is None if fault is None else fault in told
