"""The command line on the OpenVINO engine: each verb that runs a model, on a tiny one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("openvino")
pytest.importorskip("openvino_genai")
pytest.importorskip("llama_cpp")

import tiny_openvino as tiny

from paceline.cli.main import main
from paceline.engines.openvino import export as openvino_export

HERE = ("--engine", "openvino", "--precision", "strict", "--threads", "1")
TEXTS = ["the abba cab is a cab of abba, the abba cab", "one two three one two three one"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", tiny.folder())
    rows = [{"id": f"p{at}", "category": "copy", "prompt": text} for at, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(*words: str) -> int:
    try:
        return main(list(words))
    except SystemExit as exit_:
        return int(exit_.code or 0)


def test_check_finds_it_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run("check", tiny.model(), *HERE, "--context", "256")
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "openvino" in told.out


def test_profile_prices_its_forwards(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run("profile", tiny.model(), *HERE, "--context", "64", "--sweeps", "2", "--json")
    told = capsys.readouterr()
    assert code == 0, told.err
    found = json.loads(told.out)
    assert "openvino" in json.dumps(found["key"])
    assert {point["rows"] for point in found["points"]} >= {1, 2, 4}


def test_a_bench_of_two_engines_becomes_a_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("-d", "lookup:min_match=1", "-n", "2", "--prompts", "texts.jsonl")
    code = run(
        *(
            "bench",
            tiny.model(),
            "--engine",
            "llamacpp",
            "--threads",
            "1",
            "--context",
            "128",
            *given,
        ),
        *("--max-tokens", "24", "--also", "--engine openvino --precision strict", "-o", "b.jsonl"),
    )
    told = capsys.readouterr()
    assert code == 0, told.err
    assert run("plan", "b.jsonl") == 0
    plan = capsys.readouterr().out
    assert "llamacpp" in plan
    assert "openvino" in plan


def test_without_the_exporter_one_line_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("tiny_transformers")
    directory = transformers.model_directory("llama")
    monkeypatch.setattr(
        openvino_export, "_version", lambda name: None if name == "optimum-intel" else "1"
    )
    assert run("generate", str(directory), *HERE, "-p", "a") == 2
    told = capsys.readouterr().err
    assert "missing here: optimum-intel" in told
    assert "paceline[openvino-export]" in told


def test_a_directory_without_a_tokenizer_isnt_exported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    assert run("models", "export", "model") == 2
    told = capsys.readouterr().err
    assert "no tokenizer.json" in told
    assert "Exporting" not in told
