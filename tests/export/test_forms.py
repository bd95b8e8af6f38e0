"""The forms of a setup: they read back as what was meant, whatever the names."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from plans import plan, steps

from paceline.cli.main import main
from paceline.errors import SettingError
from paceline.export.make import make_setup
from paceline.export.setup import ENGINES, EngineSetup, ExportOptions
from paceline.export.text import command, unwritten, written

FORMATS = {engine: profile.formats for engine, profile in ENGINES.items()}

NASTY = """o'w"n$(touch x)er/`na`m e; rm -rf # é: {a} & *b !c"""


def setup(engine: str, kind: str = "model", name: str = NASTY, **changes: object) -> EngineSetup:
    suffix = ".gguf" if engine == "llama-server" else ""
    options = ExportOptions(target=name + suffix, draft_model=f"{name}d{suffix}")
    return make_setup(engine, plan(kind, **changes), options)


@pytest.mark.parametrize("engine", FORMATS)
def test_a_shell_reads_the_command_as_it_was_meant(engine: str, tmp_path: Path) -> None:
    """A real one: what it hands to the program is what the setup has."""
    made = setup(engine, notes=("A line\nrm -rf / \x00 'quote",))
    script = written(made, "flags")
    program = tmp_path / command(made)[0]
    program.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["sh"],
        input=script,
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\0")[:-1] == command(made)[1:]
    assert not (tmp_path / "x").exists()
    for name, text in made.files.items():
        assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("engine", FORMATS)
def test_shlex_reads_it_too(engine: str) -> None:
    made = setup(engine, "eagle3")
    script = written(made, "flags")
    start = script.rindex("\n" + command(made)[0]) + 1
    assert shlex.split(script[start:].replace(" \\\n", "")) == command(made)


def test_vllms_json_is_the_dict() -> None:
    made = setup("vllm")
    assert json.loads(written(made, "json")) == made.config
    assert json.loads(made.arguments[1]) == made.config


def test_an_adaptive_schedule_is_written_beside_the_command() -> None:
    made = setup("sglang", "eagle3", schedule=steps((1, 8, 4), (9, None, 0)))
    [(name, text)] = made.files.items()
    script = written(made)
    assert f"cat > {name} <<" in script
    assert text.strip() in script


def test_a_file_may_have_any_line(tmp_path: Path) -> None:
    text = "a\nPACELINE\nrm -rf /\n"
    made = replace(setup("sglang"), files={"a file": text})
    script = written(made).replace("python3 -m", "true")
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    assert (tmp_path / "a file").read_text() == text


def test_python_is_python() -> None:
    made = setup("vllm")
    lines = ast.parse(written(made, "python")).body
    assigned = [line for line in lines if isinstance(line, ast.Assign)]
    assert ast.literal_eval(assigned[0].value) == made.config
    call = assigned[1].value
    assert isinstance(call, ast.Call)
    assert ast.literal_eval(call.keywords[0].value) == NASTY


@pytest.mark.parametrize("name", [NASTY, "yes", "1e3", "null", "a: b", "# a", "012", "'", "@x"])
def test_yaml_reads_back_as_it_was_meant(name: str) -> None:
    made = setup("tensorrt-llm", name=name)
    assert yaml.safe_load(written(made)) == made.config
    assert made.config["speculative_config"]["speculative_model"] == f"{name}d"


@pytest.mark.parametrize("engine", FORMATS)
def test_every_form_with_comments_has_every_note(engine: str) -> None:
    made = setup(engine, name="owner/name")
    for form in FORMATS[engine]:
        text = written(made, form)
        plain = " ".join(line.removeprefix("# ") for line in text.splitlines() if line[:1] == "#")
        assert unwritten(made, form) == (made.notes if form == "json" else ())
        for note in made.notes if form != "json" else ():
            assert note in plain
        if form == "json":
            json.loads(text)


def test_comments_fit_80_columns() -> None:
    for engine, forms in FORMATS.items():
        for form in forms:
            for line in written(setup(engine, name="owner/name"), form).splitlines():
                assert len(line) <= 80 or not line.startswith("#")


def test_an_unknown_form_names_the_nearest() -> None:
    with pytest.raises(SettingError, match="'json'"):
        written(setup("vllm"), "jsn")


# The verb


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    plan().write(path)
    return path


def test_the_verb_prints_settings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "vllm", str(file), "--version", "0.32.0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# vLLM 0.32.0.")
    assert "vllm serve owner/target" in out


def test_json_has_its_notes_on_stderr(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "vllm", str(file), "--format", "json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["method"] == "ngram"
    assert "speedup 1.62×" in streams.err


def test_it_is_written_where_that_is_asked(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "serve.sh"
    assert main(["export", "sglang", str(file), "-o", str(out)]) == 0
    assert "NGRAM" in out.read_text()
    assert capsys.readouterr().out == ""
    assert main(["export", "sglang", str(file), "-o", str(tmp_path / "no" / "serve.sh")]) == 2
    assert "can't be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["vlm"], "'vllm'"),
        (["vllm", "--version", "9"], "0.33.0"),
        (["vllm", "--format", "jsn"], "'json'"),
        (["kubernetes", "--engine", "vlm"], "'vllm'"),
    ],
)
def test_faults_are_one_line_and_name_the_nearest(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    try:
        code = main(["export", words[0], str(file), *words[1:]])
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code == 2
    streams = capsys.readouterr()
    assert named in streams.err
    assert len(streams.err.splitlines()) == 1


def test_a_file_that_is_no_plan_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no.json"
    path.write_text("{}")
    assert main(["export", "vllm", str(path)]) == 2
    assert "is not a paceline plan file" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["kubernetes", "dynamo"])
def test_deployments_come_of_the_same_setup(
    file: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    assert main(["export", place, str(file), "--engine", "vllm"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert '"method": "ngram"' in str(documents) or "ngram" in str(documents)
