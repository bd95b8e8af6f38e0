"""Manifests read back: what they mean to a cluster, whatever they look like."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some
from made_setups import (
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
from paceline.export.kubernetes import Cluster, kubernetes
from paceline.export.setup import EngineSetup

SETUPS = {
    "vllm": vllm(),
    "sglang": sglang(),
    "tensorrt-llm": tensorrt_llm(),
    "llama-server": llama_server(),
}
KEYS = Path(__file__).parent / "manifest_keys.json"
EVERYTHING: dict[str, Any] = {
    "name": "on",
    "namespace": "1e3",
    "replicas": 2,
    "gpus": 4,
    "cpu": "4",
    "memory": "64Gi",
    "model_volume": ("models", "/models"),
    "cache_volume": "cache",
    "hf_secret": "hf-token",
}


def cluster(**options: Any) -> Cluster:
    return Cluster(**{"name": "qwen", "model_volume": ("models", "/models"), **options})


def pod_of(text: str) -> Any:
    return of_kind(text, "Deployment")["spec"]["template"]["spec"]


def container_of(text: str) -> Any:
    (container,) = pod_of(text)["containers"]
    return container


def arguments_of(text: str) -> list[str]:
    return received(container_of(text)["args"], HF_HOME="expanded")


# What the engine is told.


def test_vllm_is_told_the_plan_in_one_argument_of_json() -> None:
    text = kubernetes(SETUPS["vllm"], cluster())
    arguments = arguments_of(text)
    assert container_of(text)["command"] == ["vllm", "serve"]
    assert arguments[0] == TARGET
    told = arguments[arguments.index("--speculative-config") + 1]
    assert json.loads(told) == SETUPS["vllm"].config


@pytest.mark.parametrize("engine", SETUPS)
def test_an_engine_gets_its_own_arguments_and_counters_in_order(engine: str) -> None:
    setup = SETUPS[engine]
    arguments = arguments_of(kubernetes(setup, cluster()))
    wanted = [*setup.arguments, *setup.metrics]
    wanted = [
        "/etc/paceline/speculative.yaml" if one == "speculative.yaml" else one for one in wanted
    ]
    assert arguments[-len(wanted) :] == wanted
    assert setup.target in arguments
    assert arguments[arguments.index("--host") + 1] == "0.0.0.0"


@settings(deadline=None)
@given(some.text(some.characters(min_codepoint=32, max_codepoint=126), max_size=30))
def test_whatever_an_argument_holds_reaches_the_engine(text: str) -> None:
    setup = EngineSetup(engine="vllm", version="0.31.0", target=TARGET, arguments=("--x", text))
    assert arguments_of(kubernetes(setup, cluster()))[-2:] == ["--x", text]


def test_a_file_that_is_named_lies_where_the_engine_looks() -> None:
    setup = SETUPS["tensorrt-llm"]
    text = kubernetes(setup, cluster())
    files = of_kind(text, "ConfigMap")
    path = arguments_of(text)[-1]
    assert arguments_of(text)[-2] == "--config"
    volume = volume_at(text, path.rsplit("/", 1)[0])
    assert volume["configMap"]["name"] == files["metadata"]["name"]
    assert yaml.safe_load(files["data"][path.rsplit("/", 1)[1]]) == setup.config


def volume_at(text: str, folder: str) -> Any:
    pod = pod_of(text)
    mounts = {one["mountPath"]: one["name"] for one in container_of(text)["volumeMounts"]}
    return {one["name"]: one for one in pod["volumes"]}[mounts[folder]]


def test_other_files_have_another_name_so_that_pods_start_anew() -> None:
    def name(setup: EngineSetup) -> str:
        return str(of_kind(kubernetes(setup, cluster()), "ConfigMap")["metadata"]["name"])

    assert name(tensorrt_llm("NGram")) != name(tensorrt_llm("SA"))
    assert name(tensorrt_llm("NGram")) == name(tensorrt_llm("NGram"))


def test_a_plan_without_a_draft_serves_plainly() -> None:
    text = kubernetes(plain(), cluster())
    assert "spec" not in " ".join(arguments_of(text))
    assert "# No draft pays." in text


# Images.


@pytest.mark.parametrize(
    ("engine", "image"),
    [
        ("vllm", "vllm/vllm-openai:v0.31.0"),
        ("sglang", "lmsysorg/sglang:v0.5.21"),
        ("tensorrt-llm", "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc29"),
        ("llama-server", "ghcr.io/ggml-org/llama.cpp:server-cuda-b11549"),
    ],
)
def test_an_engine_comes_from_its_published_image_of_that_version(engine: str, image: str) -> None:
    assert container_of(kubernetes(SETUPS[engine], cluster()))["image"] == image


def test_an_image_of_ones_own_is_taken() -> None:
    text = kubernetes(SETUPS["vllm"], cluster(image="my.registry:5000/vllm:mine"))
    assert container_of(text)["image"] == "my.registry:5000/vllm:mine"


def test_a_commit_of_llama_cpp_has_no_image() -> None:
    setup = EngineSetup(engine="llama-server", version="0c1e57098", target="a/b")
    with pytest.raises(SettingError, match=r"numbered builds, and 0c1e57098 isn't one.*--image"):
        kubernetes(setup, cluster())
    assert kubernetes(setup, cluster(image="mine:1"))


@pytest.mark.parametrize(
    ("config", "package"),
    [
        ({"method": "suffix"}, "arctic-inference"),
        ({"method": "custom_class", "model": "paceline.integrations.vllm.Proposer"}, "paceline"),
    ],
)
def test_a_draft_from_a_package_that_the_image_lacks_is_refused(config, package: str) -> None:
    setup = vllm(draft=None, **config)
    with pytest.raises(
        SettingError, match=rf"needs the package {package}, which isn't in vllm/.*--image"
    ):
        kubernetes(setup, cluster())
    assert kubernetes(setup, cluster(image="mine:1"))


def test_an_engine_that_is_not_known_is_named() -> None:
    with pytest.raises(SettingError, match="Did you mean 'vllm'"):
        kubernetes(EngineSetup(engine="vlm", version="1", target="a/b"), cluster())


# What finds what.


@pytest.mark.parametrize("engine", SETUPS)
def test_probes_service_and_monitor_find_the_pods_and_their_port(engine: str) -> None:
    text = kubernetes(SETUPS[engine], cluster())
    deployment, service = of_kind(text, "Deployment"), of_kind(text, "Service")
    monitor, container = of_kind(text, "PodMonitor"), container_of(text)
    (port,) = container["ports"]
    arguments = arguments_of(text)
    assert arguments[arguments.index("--port") + 1] == str(port["containerPort"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    (offered,) = service["spec"]["ports"]
    assert offered["targetPort"] == port["name"]
    (scraped,) = monitor["spec"]["podMetricsEndpoints"]
    assert scraped["port"] == port["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        monitor["spec"]["selector"]["matchLabels"],
    ):
        assert selector
        assert selector.items() <= labels


def test_two_deployments_do_not_select_each_others_pods() -> None:
    one, other = (of_kind(kubernetes(vllm(), cluster(name=name)), "Service") for name in "ab")
    assert not one["spec"]["selector"].items() <= other["metadata"]["labels"].items()


def test_trtllm_serve_has_its_prometheus_page_elsewhere() -> None:
    monitor = of_kind(kubernetes(tensorrt_llm(), cluster()), "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["path"] == "/prometheus/metrics"


def test_a_monitor_has_the_labels_that_a_prometheus_looks_for_and_may_be_left_out() -> None:
    text = kubernetes(vllm(), cluster(), monitor_labels={"release": "on"})
    assert of_kind(text, "PodMonitor")["metadata"]["labels"]["release"] == "on"
    assert "release" not in of_kind(text, "PodMonitor")["spec"]["selector"]["matchLabels"]
    kinds = [one["kind"] for one in documents(kubernetes(vllm(), cluster(), pod_monitor=False))]
    assert kinds == ["Deployment", "Service"]


# What is asked of a node.


def test_everything_that_can_be_asked_for_is_there() -> None:
    text = kubernetes(vllm(), Cluster(**EVERYTHING))
    container = container_of(text)
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": "4", "memory": "64Gi"},
        "requests": {"cpu": "4", "memory": "64Gi"},
    }
    assert of_kind(text, "Deployment")["spec"]["replicas"] == 2
    assert {one["metadata"]["namespace"] for one in documents(text)} == {"1e3"}
    assert {one["metadata"]["name"] for one in documents(text)} == {"on"}
    assert container["envFrom"] == [{"secretRef": {"name": "hf-token"}}]
    assert volume_at(text, "/models")["persistentVolumeClaim"]["claimName"] == "models"
    (cache,) = container["env"]
    assert cache["name"] == "HF_HOME"
    assert cache["value"].startswith("/cache/")
    assert volume_at(text, "/cache")["persistentVolumeClaim"]["claimName"] == "cache"


@pytest.mark.parametrize(
    ("engine", "option"),
    [("vllm", "--tensor-parallel-size"), ("sglang", "--tp-size"), ("tensorrt-llm", "--tp_size")],
)
def test_a_model_is_laid_over_the_gpus_that_are_asked_for(engine: str, option: str) -> None:
    arguments = arguments_of(kubernetes(SETUPS[engine], cluster(gpus=2)))
    assert arguments[arguments.index(option) + 1] == "2"
    assert option not in arguments_of(kubernetes(SETUPS[engine], cluster(gpus=1)))


def test_without_gpus_there_is_no_limit() -> None:
    assert "resources" not in container_of(kubernetes(vllm(), cluster(gpus=0)))


def test_a_server_may_take_the_minutes_it_is_given_and_longer_than_its_health_takes() -> None:
    container = container_of(kubernetes(sglang(), cluster(), startup_minutes=90))
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 90 * 60
    assert all(container[name]["timeoutSeconds"] > 20 for name in container if "Probe" in name)
    alive = container["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 300


def test_a_service_sets_no_variables_that_engines_take_for_theirs() -> None:
    """A Service named `vllm` would set VLLM_PORT to an address, at which vLLM ends."""
    assert pod_of(kubernetes(vllm(), cluster(name="vllm")))["enableServiceLinks"] is False


def test_a_new_pod_does_not_wait_for_the_gpus_of_the_old_one() -> None:
    strategy = of_kind(kubernetes(vllm(), cluster()), "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxSurge"] == 0


# Models.


def test_a_path_is_served_from_the_volume_that_has_it() -> None:
    text = kubernetes(vllm(target="/models/qwen", draft="/models/small"), cluster())
    assert arguments_of(text)[0] == "/models/qwen"
    mounts = container_of(text)["volumeMounts"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in mounts


@pytest.mark.parametrize("model", ["/home/me/qwen", "/models", "/models/../etc", "./q", "a/b/c"])
def test_a_path_that_no_container_has_is_refused(model: str) -> None:
    with pytest.raises(SettingError, match=rf"The target {model} is a path outside /models"):
        kubernetes(vllm(target=model), cluster())
    with pytest.raises(SettingError, match=r"The draft .* is a path outside .*--draft-model"):
        kubernetes(vllm(draft=model), cluster())


def test_a_path_without_a_volume_is_refused() -> None:
    with pytest.raises(SettingError, match=r"mounts no volume.*--model-volume"):
        kubernetes(vllm(target="/home/me/qwen"), Cluster(name="a"))


def test_llama_server_fetches_a_repository_and_opens_a_file() -> None:
    fetched = arguments_of(kubernetes(llama_server(), cluster()))
    assert fetched[:2] == ["-hf", "ggml-org/Qwen3-8B-GGUF:Q4_K_M"]
    opened = arguments_of(kubernetes(llama_server("/models/q.gguf"), cluster()))
    assert opened[:2] == ["--model", "/models/q.gguf"]


# What is refused.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"memory": "512m"}, "thousandths of a byte"),
        ({"model_volume": ("m", "models")}, "'models' is not a place to mount"),
        ({"model_volume": ("m", "/")}, "'/' is not a place to mount"),
        ({"model_volume": ("m", "/a/../b")}, "not a place to mount"),
        ({"model_volume": ("m", "/a:b")}, "not a place to mount"),
    ],
)
def test_what_kubernetes_takes_and_means_otherwise_is_refused_here(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(says)):
        cluster(**options)


def test_a_mount_must_not_hide_another() -> None:
    for path in ("/cache", "/etc/paceline/x", "/dev/shm", "/dev"):
        with pytest.raises(SettingError, match="is taken"):
            cluster(model_volume=("m", path))


# The whole.


@pytest.mark.parametrize("engine", SETUPS)
def test_comments_say_what_was_measured_and_how_to_go_back(engine: str) -> None:
    lines = kubernetes(SETUPS[engine], cluster(namespace="prod")).splitlines()
    comments = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    assert MEASURED in comments
    assert UNDO in comments
    assert "To roll back: kubectl -n prod rollout undo deployment/qwen" in comments
    assert "Check: kubectl -n prod apply --dry-run=server -f THIS_FILE" in comments


def test_a_note_cannot_become_an_object() -> None:
    setup = EngineSetup(
        engine="vllm", version="1", target="a/b", notes=("x\n---\nkind: Secret\u2028kind: Pod",)
    )
    kinds = [one["kind"] for one in documents(kubernetes(setup, cluster()))]
    assert kinds == ["Deployment", "Service", "PodMonitor"]


@pytest.mark.parametrize("engine", SETUPS)
def test_every_key_is_one_that_was_checked_against_the_schemas(engine: str) -> None:
    """`engine_checks/manifests.py` validates and writes the table down; a key that it has never
    seen means that it must run again."""
    checked = json.loads(KEYS.read_text(encoding="utf-8"))["kubernetes"]["paths"]
    for options in ({"name": "a"}, EVERYTHING):
        text = kubernetes(
            SETUPS[engine], Cluster(**{**options, **{"model_volume": ("m", "/models")}})
        )
        for one in documents(text):
            assert paths(one) <= set(checked[one["kind"]])
