"""`paceline export kubernetes` and `dynamo`: from a plan's file to manifests, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.plan.document import Expected, Gain, Measurement, PlanDocument, PlannedDraft, Target


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """A bench's plan to draft by lookup."""
    path = tmp_path / "plan.json"
    PlanDocument(
        target=Target(name="Qwen/Qwen3-8B", engine="transformers", vocabulary_size=151936),
        draft=PlannedDraft(kind="lookup", name="lookup"),
        max_draft_tokens=4,
        expected=Expected(gain=Gain(value=1.42, low=1.31, high=1.55)),
        measured=Measurement(source="bench", file="bench.jsonl", prompts=40, tokens=5120),
    ).write(path)
    return str(path)


def objects(text: str) -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def container(found: dict[str, Any]) -> Any:
    return found["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def worker(found: dict[str, Any]) -> Any:
    component = found["DynamoGraphDeployment"]["spec"]["components"][1]
    return component["podTemplate"]["spec"]["containers"][0]


def test_a_plan_becomes_a_deployment_with_its_evidence(run, plan: str) -> None:
    code, out, err = run("export", "kubernetes", plan, "--engine", "vllm")
    assert (code, err) == (0, "")
    found = objects(out)
    assert found.keys() == {"Deployment", "Service", "PodMonitor"}
    assert found["Deployment"]["metadata"]["name"] == "qwen3-8b"
    told = container(found)["args"]
    assert json.loads(told[told.index("--speculative-config") + 1])["method"] == "ngram"
    notes = " ".join(line[2:] for line in out.splitlines() if line.startswith("# "))
    assert "speedup 1.42× (1.31 to 1.55)" in notes


def test_it_is_written_to_a_file_as_it_is_printed(run, plan: str, tmp_path: Path) -> None:
    _, out, _ = run("export", "kubernetes", plan, "--engine", "sglang")
    code, nothing, _ = run("export", "kubernetes", plan, "--engine", "sglang", "-o", "m.yaml")
    assert (code, nothing) == (0, "")
    assert (tmp_path / "m.yaml").read_text(encoding="utf-8") == out


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_dynamo_takes_the_version_of_the_engine_that_it_has(run, plan: str, engine: str) -> None:
    code, out, err = run("export", "dynamo", plan, "--engine", engine, "--disaggregated")
    assert (code, err) == (0, "")
    names = [one["name"] for one in objects(out)["DynamoGraphDeployment"]["spec"]["components"]]
    assert names == ["Frontend", "decode", "prefill"]


def test_options_reach_the_objects(run, plan: str) -> None:
    code, out, _ = run(
        *("export", "kubernetes", plan, "--engine", "vllm", "--name", "on", "--replicas", "3"),
        *("--namespace", "prod", "--gpus", "2", "--cpu", "4", "--memory", "64Gi"),
        *("--model-volume", "models:/models", "--target", "/models/qwen"),
        *("--cache-volume", "cache", "--hf-secret", "hf-token", "--startup-minutes", "5"),
        *("--monitor-label", "release=prom", "--monitor-label", "a=b", "--image", "mine:1"),
    )
    assert code == 0
    found = objects(out)
    assert found["Deployment"]["metadata"]["namespace"] == "prod"
    assert found["Deployment"]["spec"]["replicas"] == 3
    assert container(found)["image"] == "mine:1"
    assert container(found)["args"][0] == "/models/qwen"
    assert container(found)["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "64Gi"}
    assert container(found)["startupProbe"]["failureThreshold"] == 30
    labels = found["PodMonitor"]["metadata"]["labels"]
    assert (labels["release"], labels["a"]) == ("prom", "b")


def test_a_cluster_without_the_prometheus_operator_gets_no_monitor(run, plan: str) -> None:
    _, out, _ = run("export", "kubernetes", plan, "--engine", "vllm", "--no-pod-monitor")
    assert objects(out).keys() == {"Deployment", "Service"}


def test_a_long_target_gives_a_name_that_fits(run, plan: str) -> None:
    target = f"owner/{'long-' * 20}name"
    for place, kind in (("kubernetes", "Deployment"), ("dynamo", "DynamoGraphDeployment")):
        code, out, _ = run("export", place, plan, "--engine", "vllm", "--target", target)
        assert code == 0
        name = objects(out)[kind]["metadata"]["name"]
        assert name.startswith("long-")
        assert len(name) <= 63


def test_gpus_and_tensor_parallelism_are_one_number(run, plan: str) -> None:
    for option in ("--gpus", "--tensor-parallel"):
        _, out, _ = run("export", "kubernetes", plan, "--engine", "vllm", option, "4")
        told = container(objects(out))["args"]
        assert told[told.index("--tensor-parallel-size") + 1] == "4"
        assert container(objects(out))["resources"]["limits"]["nvidia.com/gpu"] == "4"
    _, out, _ = run("export", "dynamo", plan, "--engine", "vllm", "--tensor-parallel", "4")
    assert worker(objects(out))["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_a_server_may_have_no_gpu(run, plan: str) -> None:
    _, out, _ = run("export", "kubernetes", plan, "--engine", "vllm", "--gpus", "0")
    assert "resources" not in container(objects(out))
    assert "--tensor-parallel-size" not in container(objects(out))["args"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("kubernetes",), "--engine"),
        (("kubernetes", "--engine", "vlm"), "Did you mean 'vllm'?"),
        (("dynamo", "--engine", "llama-server"), "There is no 'llama-server'"),
        (("dynamo", "--engine", "vllm", "--version", "0.33.0"), "Dynamo 1.6.1 has vLLM 0.31.0"),
        (("dynamo", "--engine", "vllm", "--dynamo-version", "1.6.0"), "Did you mean '1.6.1'?"),
        (("dynamo", "--engine", "vllm", "--prefill-replicas", "2"), "without --disaggregated"),
        (("kubernetes", "--engine", "vllm", "--target", "/m/q"), "mounts no volume"),
        (("kubernetes", "--engine", "vllm", "--model-volume", "m"), "'m' is not CLAIM:/PATH"),
        (("kubernetes", "--engine", "vllm", "--monitor-label", "a"), "Label 'a' has no value"),
        (
            ("kubernetes", "--engine", "vllm", "--no-pod-monitor", "--monitor-label", "a=b"),
            "--monitor-label is given with --no-pod-monitor",
        ),
        (
            ("kubernetes", "--engine", "vllm", "--gpus", "4", "--tensor-parallel", "2"),
            "--tensor-parallel is 2 and --gpus 4",
        ),
        (
            ("kubernetes", "--engine", "vllm", *2 * ("--monitor-label", "a=b")),
            "--monitor-label gives 'a' twice",
        ),
        (("kubernetes", "--engine", "vllm", "--replicas", "-1"), "-1 is below 0"),
    ],
)
def test_what_cannot_be_deployed_is_one_line(run, plan: str, options, says: str) -> None:
    place, *rest = options
    code, out, err = run("export", place, plan, *rest)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
