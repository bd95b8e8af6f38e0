"""What `engine_checks` calls passed, and which of its results are kept as those of a whole run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "python3 -m sglang.launch_server --model-path t --speculative-adaptive --breadth 1\n"
ANSWER = {"model_path": "t", "speculative_adaptive": True, "breadth": 1}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "engine_checks"))
    for name in ("run", "cases", "environments", "served"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import run

    yield run
    for name in ("run", "cases", "environments", "served"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "change",
    [
        {"breadth": None},
        {"breadth": 8},
        {"speculative_adaptive": False},
        {"refused": "no"},
        {"speculative_accept_threshold_acc": 0.9},
    ],
)
def test_a_flag_that_sglang_changed_or_does_not_show_fails(
    checks: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(SCRIPT)
    assert checks._as_written(script, ANSWER)
    answer = {key: value for key, value in (ANSWER | change).items() if value is not None}
    assert not checks._as_written(script, answer)


def test_a_partial_run_replaces_no_whole_one(
    checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(checks.environments, "CACHE", tmp_path / "cache")
    monkeypatch.setitem(checks.CHECKS, "sglang", lambda wanted, result: None)
    monkeypatch.setattr(sys, "argv", ["run.py", "sglang", "-k", "n-gram"])
    assert checks.main() == 0
    assert (tmp_path / "cache/partial/sglang.json").exists()
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr(sys, "argv", ["run.py", "sglang"])
    assert checks.main() == 0
    assert (tmp_path / "results/sglang.json").exists()
