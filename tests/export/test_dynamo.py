"""Graphs of Dynamo read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_setups import (
    DRAFT,
    MEASURED,
    TARGET,
    UNDO,
    documents,
    llama_server,
    of_kind,
    paths,
    plain,
    received,
    sglang,
    tensorrt_llm,
    vllm,
)

from paceline.errors import SettingError
from paceline.export.dynamo import NAME, SHIPS, dynamo, published_image, ships
from paceline.export.kubernetes import Cluster
from paceline.export.setup import EngineSetup

KEYS = Path(__file__).parent / "manifest_keys.json"
SETUPS = {"vllm": vllm(), "sglang": sglang(), "tensorrt-llm": tensorrt_llm()}
NGRAMS = {
    "vllm": vllm(draft=None, method="ngram", num_speculative_tokens=4),
    "sglang": sglang("NGRAM", draft=None),
    "tensorrt-llm": tensorrt_llm("NGram", draft=None),
}
EVERYTHING: dict[str, Any] = {
    "name": "on",
    "namespace": "1e3",
    "replicas": 3,
    "gpus": 2,
    "cpu": "4",
    "memory": "64Gi",
    "model_volume": ("models", "/models"),
    "cache_volume": "cache",
    "hf_secret": "hf-token",
}


def cluster(**options: Any) -> Cluster:
    return Cluster(**{"name": "qwen", **options})


def graph(setup: EngineSetup, **options: Any) -> Any:
    return of_kind(dynamo(setup, cluster(), **options), "DynamoGraphDeployment")


def components(found: Any) -> dict[str, Any]:
    """By name: kind, replicas, pod and main container."""
    return dict(_components(found))


def _components(found: Any) -> Iterator[tuple[str, Any]]:
    for one in found["spec"]["components"]:
        pod = one["podTemplate"]["spec"]
        (main,) = (inner for inner in pod["containers"] if inner["name"] == "main")
        yield one["name"], {**one, "kind": one["type"], "pod": pod, "main": main}


def arguments(component: Any) -> list[str]:
    return received(component["main"]["args"])


# Shape.


@pytest.mark.parametrize("engine", SETUPS)
def test_a_graph_has_a_frontend_and_workers_that_do_both(engine: str) -> None:
    parts = components(graph(SETUPS[engine]))
    assert {name: one["kind"] for name, one in parts.items()} == {
        "Frontend": "frontend",
        "worker": "worker",
    }
    assert arguments(parts["Frontend"]) == ["-m", "dynamo.frontend"]
    for one in parts.values():
        assert one["main"]["image"] == published_image(engine)


@pytest.mark.parametrize("engine", SETUPS)
def test_a_disaggregated_graph_has_both_halves(engine: str) -> None:
    parts = components(graph(SETUPS[engine], disaggregated=True, prefill_replicas=2))
    assert [one["kind"] for one in parts.values()] == ["frontend", "decode", "prefill"]
    assert parts["prefill"]["replicas"] == 2
    for name in ("decode", "prefill"):
        told = arguments(parts[name])
        assert told[told.index("--disaggregation-mode") + 1] == name


def test_the_shape_is_that_of_its_api() -> None:
    found = graph(vllm(), disaggregated=True)
    assert found["apiVersion"] == "nvidia.com/v1beta1"
    assert found["spec"]["backendFramework"] == "vllm"
    worker = components(found)["decode"]["main"]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_everything_that_can_be_asked_for_is_there() -> None:
    text = dynamo(tensorrt_llm(), Cluster(**EVERYTHING))
    assert {one["metadata"]["namespace"] for one in documents(text)} == {"1e3"}
    parts = components(of_kind(text, "DynamoGraphDeployment"))
    assert parts["worker"]["replicas"] == 3
    assert "resources" not in parts["Frontend"]["main"]
    for one in parts.values():
        mounts = {mount["mountPath"]: mount["name"] for mount in one["main"]["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in one["pod"]["volumes"]}
        assert volumes[mounts["/models"]]["persistentVolumeClaim"]["claimName"] == "models"
        assert volumes[mounts["/cache"]]["persistentVolumeClaim"]["claimName"] == "cache"
        assert one["main"]["env"] == [{"name": "HF_HOME", "value": "/cache/models"}]


@pytest.mark.parametrize(
    ("engine", "option"),
    [
        ("vllm", "--tensor-parallel-size"),
        ("sglang", "--tp-size"),
        ("tensorrt-llm", "--tensor-parallel-size"),
    ],
)
def test_a_model_is_laid_over_the_gpus_that_are_asked_for(engine: str, option: str) -> None:
    def told(gpus: int) -> list[str]:
        text = dynamo(SETUPS[engine], cluster(gpus=gpus))
        return arguments(components(of_kind(text, "DynamoGraphDeployment"))["worker"])

    assert told(2)[told(2).index(option) + 1] == "2"
    assert option not in told(1)


# What the engine is told.


def test_vllm_is_told_the_plan_in_one_argument_of_json() -> None:
    told = arguments(components(graph(vllm()))["worker"])
    assert told[:2] == ["--model", TARGET]
    assert json.loads(told[told.index("--speculative-config") + 1]) == vllm().config


def test_sglang_is_told_its_flags_and_to_count() -> None:
    told = arguments(components(graph(sglang()))["worker"])
    setup = sglang()
    at = told.index(setup.arguments[0])
    assert tuple(told[at : at + len(setup.arguments)]) == setup.arguments
    assert told[-1] == "--enable-metrics"
    assert told[:4] == ["--model-path", TARGET, "--served-model-name", TARGET]


def test_tensorrt_llm_reads_a_file_that_is_mounted_where_it_looks() -> None:
    text = dynamo(tensorrt_llm(), cluster())
    worker = components(of_kind(text, "DynamoGraphDeployment"))["worker"]
    told = arguments(worker)
    settings = file_of(text, worker, told[told.index("--extra-engine-args") + 1])
    speculative = tensorrt_llm().config["speculative_config"]
    assert settings == {"speculative_config": speculative, "enable_iter_perf_stats": True}
    assert "--publish-metrics" in told
    assert "--config" not in told


def file_of(text: str, component: Any, path: str) -> Any:
    folder, name = path.rsplit("/", 1)
    mounts = {one["mountPath"]: one["name"] for one in component["main"]["volumeMounts"]}
    volumes = {one["name"]: one for one in component["pod"]["volumes"]}
    files = of_kind(text, "ConfigMap")
    assert volumes[mounts[folder]]["configMap"]["name"] == files["metadata"]["name"]
    return yaml.safe_load(files["data"][name])


def test_a_file_of_sglangs_is_mounted_too() -> None:
    setup = EngineSetup(
        engine="sglang",
        version="0.5.21",
        target=TARGET,
        arguments=("--speculative-algorithm", "EAGLE", "--speculative-adaptive-config", "a.json"),
        files={"a.json": '{"1": [3]}'},
    )
    text = dynamo(setup, cluster(), disaggregated=True)
    for name in ("decode", "prefill"):
        worker = components(of_kind(text, "DynamoGraphDeployment"))[name]
        path = arguments(worker)[arguments(worker).index("--speculative-adaptive-config") + 1]
        assert file_of(text, worker, path) == {"1": [3]}


def test_a_plan_without_a_draft_serves_plainly() -> None:
    for engine, version in SHIPS["1.6.1"].items():
        for disaggregated in (False, True):
            text = dynamo(plain(engine, version), cluster(), disaggregated=disaggregated)
            found = components(of_kind(text, "DynamoGraphDeployment"))
            told = [word for one in found.values() for word in arguments(one)]
            assert not any("spec" in word for word in told)
            assert "speculative" not in text


# Who drafts in a disaggregated graph.


def drafting(setup: EngineSetup, name: str) -> bool:
    text = dynamo(setup, cluster(), disaggregated=True)
    worker = components(of_kind(text, "DynamoGraphDeployment"))[name]
    if setup.engine == "tensorrt-llm":
        told = arguments(worker)
        return "speculative_config" in file_of(
            text, worker, told[told.index("--extra-engine-args") + 1]
        )
    return any(word.startswith("--speculative") for word in arguments(worker))


@pytest.mark.parametrize("engine", SETUPS)
def test_decode_workers_always_draft(engine: str) -> None:
    assert drafting(SETUPS[engine], "decode")
    assert drafting(NGRAMS[engine], "decode")


@pytest.mark.parametrize("engine", SETUPS)
def test_prefill_workers_draft_where_the_draft_keeps_something_of_the_prompt(engine: str) -> None:
    assert drafting(SETUPS[engine], "prefill")
    assert not drafting(NGRAMS[engine], "prefill")


@pytest.mark.parametrize("engine", SETUPS)
def test_a_comment_says_who_drafts(engine: str) -> None:
    both = dynamo(SETUPS[engine], cluster(), disaggregated=True)
    assert "# Prefill workers have the draft too" in both
    alone = dynamo(NGRAMS[engine], cluster(), disaggregated=True)
    assert "# Only decode workers have the draft" in alone
    assert "have the draft" not in dynamo(SETUPS[engine], cluster())


def test_sglang_hands_over_no_draft_models_state() -> None:
    with pytest.raises(SettingError, match=r"STANDALONE.*--disaggregated"):
        dynamo(sglang("STANDALONE"), cluster(), disaggregated=True)
    assert dynamo(sglang("STANDALONE"), cluster())


def test_the_halves_of_vllm_find_each_other() -> None:
    parts = components(graph(vllm(), disaggregated=True))
    roles = {}
    for name in ("decode", "prefill"):
        told = arguments(parts[name])
        transfer = json.loads(told[told.index("--kv-transfer-config") + 1])
        assert transfer["kv_connector"] == "NixlConnector"
        roles[name] = transfer["kv_role"]
    assert roles == {"decode": "kv_consumer", "prefill": "kv_producer"}


def test_the_halves_of_tensorrt_llm_find_each_other() -> None:
    text = dynamo(tensorrt_llm(), cluster(), disaggregated=True)
    parts = components(of_kind(text, "DynamoGraphDeployment"))
    settings = {}
    for name in ("decode", "prefill"):
        told = arguments(parts[name])
        settings[name] = file_of(text, parts[name], told[told.index("--extra-engine-args") + 1])
        assert settings[name]["cache_transceiver_config"] == {"backend": "DEFAULT"}
    assert settings["prefill"]["disable_overlap_scheduler"] is True
    assert "disable_overlap_scheduler" not in settings["decode"]


# Versions.


@pytest.mark.parametrize("engine", SHIPS["1.6.1"])
def test_an_engine_of_another_version_than_dynamos_is_refused_with_the_one_it_has(engine) -> None:
    setup = plain(engine, "9.9.9")
    shipped = SHIPS["1.6.1"][engine]
    with pytest.raises(
        SettingError, match=rf"Dynamo 1\.6\.1 has .* {re.escape(shipped)} .*9\.9\.9"
    ):
        dynamo(setup, cluster())
    assert ships(engine) == shipped


def test_what_dynamo_is_not_known_to_have_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"Dynamo version named '1\.6\.0'. Did you mean '1\.6\.1'"
    ):
        dynamo(vllm(), cluster(), version="1.6.0")
    with pytest.raises(SettingError, match="no engine for Dynamo named 'llama-server'"):
        dynamo(llama_server(), cluster())


def test_an_image_of_ones_own_says_which_dynamo_it_has() -> None:
    """The operator reads the version from the tag."""
    for image in ("mine", "mine:latest", "mine:1.6.0", "mine:11.6.1", "mine@sha256:" + "0" * 64):
        with pytest.raises(SettingError, match=r"isn't tagged 1\.6\.1"):
            dynamo(vllm(), cluster(image=image))
    for image in ("my.registry/mine:1.6.1", "mine:1.6.1-paceline"):
        parts = components(of_kind(dynamo(vllm(), cluster(image=image)), "DynamoGraphDeployment"))
        assert {one["main"]["image"] for one in parts.values()} == {image}


def test_a_draft_from_a_package_that_the_image_lacks_is_refused() -> None:
    setup = vllm(draft=None, method="suffix")
    with pytest.raises(SettingError, match=r"arctic-inference, which isn't in nvcr.io/.*:1\.6\.1"):
        dynamo(setup, cluster())
    assert dynamo(setup, cluster(image="mine:1.6.1"))


# Names and models.


def test_a_name_leaves_room_for_the_pods() -> None:
    """Grove takes 45 characters of a graph's and a component's names together."""
    text = dynamo(vllm(), cluster(name="a" * NAME), disaggregated=True)
    longest = max(map(len, components(of_kind(text, "DynamoGraphDeployment"))))
    assert NAME + longest == 45
    with pytest.raises(SettingError, match=rf"has {NAME + 1} characters.*--name"):
        dynamo(vllm(), cluster(name="a" * (NAME + 1)))


def test_a_path_is_served_from_the_volume_that_has_it() -> None:
    setup = vllm(target="/models/qwen", draft=DRAFT)
    assert dynamo(setup, cluster(model_volume=("models", "/models")))
    with pytest.raises(SettingError, match="mounts no volume"):
        dynamo(setup, cluster())


# The whole.


@pytest.mark.parametrize("engine", SETUPS)
def test_comments_say_what_was_measured_and_how_to_go_back(engine: str) -> None:
    text = dynamo(SETUPS[engine], cluster(namespace="prod"))
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("#")]
    assert MEASURED in comments
    assert UNDO in comments
    assert "To roll back: kubectl -n prod delete dynamographdeployment/qwen" in comments


@pytest.mark.parametrize("engine", SETUPS)
def test_every_key_is_one_that_the_templates_or_the_api_have(engine: str) -> None:
    """`engine_checks/dynamo_graphs.py` reads them from the wheel and writes the table down."""
    known = set(json.loads(KEYS.read_text(encoding="utf-8"))["dynamo"]["v1beta1"])
    for disaggregated in (False, True):
        text = dynamo(SETUPS[engine], Cluster(**EVERYTHING), disaggregated=disaggregated)
        assert paths(of_kind(text, "DynamoGraphDeployment")) <= known
