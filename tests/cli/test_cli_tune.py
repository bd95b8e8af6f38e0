"""`paceline tune` as a user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "engines"))

import tiny_transformers as tiny

from paceline.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    lines = [json.dumps({"id": f"p{i}", "prompt": f"the cab {i}"}) for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))

    def command(verb: str, *arguments: str) -> tuple[int, str, str]:
        target = (str(tiny.model_directory("llama")), "--threads", "1", "--dtype", "float32")
        try:
            code = main([verb, *target, *arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


QUICK = ("--prompts", "prompts.jsonl", "--raw", "--budget", "2", "--max-tokens", "12")
FIT = ("--fit-head", "h.safetensors", "--layers", "2", "--rank", "4", "--fit-steps", "8")


def test_it_writes_a_setting_that_generate_takes(run) -> None:
    code, out, err = run("tune", *QUICK, "-o", "s.json")
    assert code == 0
    assert out.splitlines()[0].split(":")[0] in (
        "It pays", "No setting pays here", "No setting clearly pays here",
    )  # fmt: skip
    assert "baseline " in out
    assert "-d early-exit:setting=s.json" in err
    assert json.loads(Path("s.json").read_text())["kind"] == "paceline early-exit setting"
    baseline = run("generate", "--raw", "-p", "the cab", "--max-tokens", "16")
    draft = ("-d", "early-exit:setting=s.json", "-n", "3")
    drafted = run("generate", "--raw", "-p", "the cab", "--max-tokens", "16", *draft)
    assert baseline[0] == drafted[0] == 0
    assert drafted[1] == baseline[1]


def test_json_is_what_the_file_says_was_measured(run) -> None:
    _, out, _ = run("tune", *QUICK, "--json", "-o", "s.json")
    assert json.loads(out) == json.loads(Path("s.json").read_text())["measured"]


def test_a_head_is_fitted_told_and_tried(run) -> None:
    code, out, err = run("tune", *QUICK, *FIT, "-o", "s.json")
    assert code == 0
    assert "held-out acceptance" in err
    assert "head=h.safetensors" in out
    assert not Path("h.safetensors.part").exists()
    assert json.loads(Path("s.json").read_text())["measured"]["prompts"] >= 1
    again = run("tune", *QUICK, "--head", "h.safetensors", "-o", "t.json")
    assert "head=h.safetensors" in again[1]


def test_an_interrupted_fit_goes_on(run, monkeypatch) -> None:
    from paceline.train.exit_head import HeadFit

    step, calls = HeadFit._step, []

    def interrupted(self, *arguments) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        step(self, *arguments)

    monkeypatch.setattr(HeadFit, "_step", interrupted)
    code, out, err = run("tune", *QUICK, *FIT)
    assert (code, out) == (1, "")
    assert "the same command goes on" in err
    assert Path("h.safetensors.part").exists()
    code, _, err = run("tune", *QUICK, *FIT)
    assert code == 0
    assert "Going on from h.safetensors.part" in err
    assert Path("h.safetensors").exists()


def test_an_interrupted_search_keeps_what_it_found(run, monkeypatch) -> None:
    from paceline.train.tune import Tuner

    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tuner, "_measure", interrupt)
    code, out, err = run("tune", *QUICK, "-o", "s.json")
    assert code == 1
    assert "an estimate" in out
    assert "what was found is kept" in err
    assert Path("s.json").exists()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--layers", "2"), "--layers is 2, and no head is to be fitted"),
        (("-o", "none/s.json"), "none/s.json can't be written"),
        (("--fit-head", "none/h"), "none/h can't be written"),
        (("--head", "prompts.jsonl"), "prompts.jsonl can't be read"),
        (("--fit-head", "h", "--layers", "3"), "stand behind 3 layers"),
    ],
)
def test_what_can_t_be_done_is_refused_before_anything_is_measured(run, arguments, fact) -> None:
    code, out, err = run("tune", *QUICK, *arguments)
    assert (code, out) == (2, "")
    assert fact in err
    assert not Path("paceline-early-exit.json").exists()


def test_a_target_of_another_engine_is_refused(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "toy:3"]) == 2
    assert "by the engine toy" in capsys.readouterr().err
