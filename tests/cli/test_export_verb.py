"""`paceline export ENGINE`: what its options reach, where it writes, what a terminal is told."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest
import yaml

from paceline.plan.document import Measurement, PlanDocument, PlannedDraft, Step, Target


def made(tmp_path: Path, **changes: object) -> str:
    settings: dict[str, object] = {
        "target": Target(name="owner/target", engine="transformers"),
        "draft": PlannedDraft(kind="lookup", name="lookup"),
        "max_draft_tokens": 4,
        "measured": Measurement(source="bench"),
    }
    path = tmp_path / "plan.json"
    PlanDocument(**(settings | changes)).write(path)
    return str(path)


@pytest.fixture
def plan(tmp_path: Path) -> str:
    return made(tmp_path)


def started(script: str) -> list[str]:
    """The words of the command that a script ends in."""
    lines = [line for line in script.splitlines() if not line.startswith("#")]
    return shlex.split("\n".join(lines).replace(" \\\n", " "))


# Tensor parallelism.


@pytest.mark.parametrize(
    ("engine", "option"),
    [("vllm", "--tensor-parallel-size"), ("sglang", "--tp-size"), ("tensorrt-llm", "--tp_size")],
)
def test_a_target_over_several_gpus_is_started_so(run, plan: str, engine: str, option: str) -> None:
    code, out, _ = run("export", engine, plan, "--format", "flags", "--tensor-parallel", "4")
    words = started(out)
    assert code == 0
    assert words[words.index(option) + 1] == "4"
    for one in ((), ("--tensor-parallel", "1")):
        _, out, _ = run("export", engine, plan, "--format", "flags", *one)
        assert option not in out


def test_a_draft_over_several_gpus_has_its_target_so_too(run, tmp_path: Path) -> None:
    """vLLM refuses the one without the other."""
    path = made(tmp_path, draft=PlannedDraft(kind="model", name="d", model="owner/draft"))
    parallel = ("--tensor-parallel", "4", "--draft-tensor-parallel", "4")
    _, out, _ = run("export", "vllm", path, *parallel)
    words = started(out)
    assert words[words.index("--tensor-parallel-size") + 1] == "4"
    assert '"draft_tensor_parallel_size": 4' in out


def test_python_and_yaml_have_it_too(run, plan: str) -> None:
    _, out, _ = run("export", "vllm", plan, "--format", "python", "--tensor-parallel", "2")
    call = ast.parse(out).body[-1].value
    given = {one.arg: one.value for one in call.keywords}
    assert ast.literal_eval(given["tensor_parallel_size"]) == 2
    _, out, _ = run("export", "tensorrt-llm", plan, "--tensor-parallel", "2")
    assert "--tp_size 2" in out


def test_json_has_it_or_says_that_it_must_be_given(run, plan: str) -> None:
    json_of = ("--format", "json", "--tensor-parallel", "2")
    _, out, err = run("export", "sglang", plan, *json_of)
    words = json.loads(out)
    assert words[words.index("--tp-size") + 1] == "2"
    assert "--tp-size" not in err
    for engine, option in (("vllm", "--tensor-parallel-size"), ("tensorrt-llm", "--tp_size")):
        _, _, err = run("export", engine, plan, *json_of)
        assert f"Start the server with {option} 2" in err


def test_llama_server_has_none_to_be_told(run, tmp_path: Path) -> None:
    path = made(tmp_path, target=Target(name="t.gguf", engine="llamacpp"))
    code, out, err = run("export", "llama-server", path, "--tensor-parallel", "2")
    assert (code, out) == (2, "")
    assert "Unrecognized arguments: --tensor-parallel 2" in err


# Where it is written.


def test_nothing_of_pacelines_is_written_over(run, plan: str, tmp_path: Path) -> None:
    bench, costs = tmp_path / "bench.jsonl", tmp_path / "costs.json"
    bench.write_text('{"kind":"paceline bench","version":2}\n{"tokens": 3}\n')
    costs.write_text('{\n "version": 1,\n "kind": "paceline costs"\n}\n')
    other = tmp_path / "other.json"
    other.write_bytes(Path(plan).read_bytes())
    link = tmp_path / "link"
    link.symlink_to(plan)
    for out, says in (
        (Path(plan), "is the plan itself"),
        (link, "is the plan itself"),
        (other, "a paceline plan"),
        (bench, "a paceline bench"),
        (costs, "a paceline costs"),
    ):
        before = out.read_bytes()
        for place in (("vllm",), ("kubernetes", "--engine", "vllm")):
            code, _, err = run("export", place[0], plan, *place[1:], "-o", str(out))
            assert code == 2
            assert says in err
            assert out.read_bytes() == before


def test_an_export_is_written_over_by_the_next(run, plan: str, tmp_path: Path) -> None:
    out = tmp_path / "serve.sh"
    for max_draft_tokens in ("3", "2"):
        assert (
            run("export", "vllm", plan, "--max-draft-tokens", max_draft_tokens, "-o", str(out))[0]
            == 0
        )
        assert f'"num_speculative_tokens": {max_draft_tokens}' in out.read_text()


def test_the_start_line_names_the_file_that_was_written(run, plan: str, tmp_path: Path) -> None:
    out = tmp_path / "my settings.yaml"
    assert run("export", "tensorrt-llm", plan, "-o", str(out))[0] == 0
    lines = out.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("# Start: "))
    end = next(end for end in range(at, len(lines)) if not lines[end].startswith("#"))
    words = shlex.split(" ".join(line[2:] for line in lines[at:end]).removeprefix("Start: "))
    assert words[words.index("--config") + 1] == str(out)
    assert yaml.safe_load(out.read_text())["speculative_config"]["decoding_type"] == "NGram"
    _, printed, _ = run("export", "tensorrt-llm", plan)
    assert "THIS_FILE" in printed
    assert "paceline-trtllm" not in printed


def test_arguments_alone_do_not_name_a_file_that_nobody_wrote(run, tmp_path: Path) -> None:
    steps = (
        Step(from_batch=1, to_batch=8, max_draft_tokens=4),
        Step(from_batch=9, to_batch=None, max_draft_tokens=0),
    )
    draft = PlannedDraft(kind="eagle3", name="e", model="owner/eagle")
    path = made(tmp_path, draft=draft, schedule=steps)
    code, out, err = run("export", "sglang", path, "--format", "json")
    assert (code, out) == (2, "")
    assert "name paceline-adaptive.json, which a list of them can't hold" in err
    _, out, _ = run("export", "sglang", path)
    assert "cat > paceline-adaptive.json" in out


# What a terminal is told.


def test_what_a_received_plan_says_reaches_no_terminal_raw(run, tmp_path: Path) -> None:
    evil = "run\x1b]0;mine\x07\x1b[2J\nrun.jsonl"
    path = made(tmp_path, measured=Measurement(source="bench", file=evil))
    for form in (("--format", "json"), ()):
        code, out, err = run("export", "vllm", path, *form)
        assert code == 0
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
    _, _, err = run("export", "vllm", path, "--format", "json")
    assert "run?]0;mine?" in err
