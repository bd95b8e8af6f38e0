"""A plan as a `DynamoGraphDeployment`: NVIDIA Dynamo's frontend and the engine's workers.

The shapes are those of the templates that the ai-dynamo 1.6.1 wheel has in
`dynamo/profiler/templates/dgd` (v1beta1) and of the operator's deprecated v1alpha1.
`engine_checks/dynamo_graphs.py` holds what is written here against them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import SettingError, unknown_name
from paceline.export import cluster as parts
from paceline.export import manifest
from paceline.export.cluster import Cluster, Volume
from paceline.export.setup import Setup
from paceline.export.versions import TITLES

APIS = ("v1beta1", "v1alpha1")
VERSION = "1.6.1"

SHIPS = {"1.6.1": {"vllm": "0.31.0", "sglang": "0.5.21", "tensorrt-llm": "1.3.0rc29"}}
"""The engine versions in each Dynamo version's images: the pins of its wheel."""

ENGINES = tuple(SHIPS[VERSION])

NAME = 45 - len("Frontend")
"""Most characters of a graph's name: Grove, which lays out the pods, takes 45 of the graph's and a
component's names together, and no component here has a longer name than `Frontend`."""

_RUNTIMES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrtllm"}
_MODULES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
_PARALLEL = {
    "vllm": "--tensor-parallel-size",
    "sglang": "--tp-size",
    "tensorrt-llm": "--tensor-parallel-size",
}


def ships(engine: str, version: str = VERSION) -> str:
    """The version of an engine that a Dynamo version has in its image. Raises SettingError for a
    Dynamo that isn't known, and for an engine it hasn't."""
    if version not in SHIPS:
        raise unknown_name("Dynamo version", version, SHIPS)
    if engine not in SHIPS[version]:
        raise unknown_name("engine for Dynamo", engine, SHIPS[version])
    return SHIPS[version][engine]


def published_image(engine: str, version: str = VERSION) -> str:
    """The image with a Dynamo version and an engine."""
    ships(engine, version)
    return f"nvcr.io/nvidia/ai-dynamo/{_RUNTIMES[engine]}-runtime:{version}"


def dynamo(
    setup: Setup,
    cluster: Cluster,
    *,
    version: str = VERSION,
    api: str = APIS[0],
    disaggregated: bool = False,
    prefill_replicas: int = 1,
) -> str:
    """Manifests to be applied together, with the setup's remarks as comments.

    version          of Dynamo
    disaggregated    decode and prefill workers in place of workers that do both

    Raises SettingError for an engine version that this Dynamo hasn't, and for what it could not
    take.
    """
    objects = _objects(setup, cluster, version, api, disaggregated, prefill_replicas)
    notes = [*_heading(setup, cluster, version), *_roles(setup, disaggregated), *setup.notes]
    return manifest.written(objects, notes)


def _objects(
    setup: Setup, cluster: Cluster, version: str, api: str, disaggregated: bool, prefill: int
) -> list[dict[str, Any]]:
    if api not in APIS:
        raise unknown_name("API of DynamoGraphDeployment", api, APIS)
    _check_version(setup, version)
    _check_name(cluster)
    image = _image(setup, cluster, version)
    parts.check_models(setup, cluster)
    workers = _workers(setup, cluster, disaggregated, prefill)
    files = {name: text for worker in workers for name, text in worker.files.items()}
    maps = [parts.config_map(cluster, files)] if files else []
    graph = _v1beta1 if api == "v1beta1" else _v1alpha1
    for worker in workers:
        worker.volumes += [parts.file_volume(one) for one in maps if worker.files]
    return [*maps, graph(cluster, image, setup.engine, [_frontend(cluster), *workers])]


def _check_version(setup: Setup, version: str) -> None:
    shipped = ships(setup.engine, version)
    if setup.version != shipped:
        raise SettingError(
            f"Dynamo {version} has {TITLES[setup.engine]} {shipped} in its image, and this export "
            f"is for {setup.version}.",
            f"Leave --version out, or give {shipped}.",
        )


def _check_name(cluster: Cluster) -> None:
    if len(cluster.name) > NAME:
        raise SettingError(
            f"Name {cluster.name!r} has {len(cluster.name)} characters, and Dynamo's pods leave "
            f"room for {NAME}.",
            "Shorten it with --name.",
        )


def _image(setup: Setup, cluster: Cluster, version: str) -> str:
    """The image of all components. The operator reads the Dynamo version from its tag."""
    if cluster.image is None:
        image = published_image(setup.engine, version)
        parts.check_packages(setup, image)
        return image
    tag = manifest.image_tag(cluster.image) or ""
    if not re.fullmatch(rf"v?{re.escape(version)}([-+].*)?", tag):
        raise SettingError(
            f"Dynamo's operator reads its version from an image's tag, and {cluster.image!r} isn't "
            f"tagged {version}.",
            f"Tag it {version} or {version}-NAME.",
        )
    return cluster.image


@dataclass(slots=True, kw_only=True)
class _Component:
    """A part of the graph.

    kind    as v1beta1 has it: `frontend`, `worker`, `decode`, `prefill`
    files   that the arguments name, by name: their text
    """

    name: str
    kind: str
    replicas: int
    command: list[str]
    arguments: tuple[str, ...]
    gpus: bool = True
    volumes: list[Volume] = field(default_factory=list)
    files: Mapping[str, str] = field(default_factory=dict)


def _frontend(cluster: Cluster) -> _Component:
    """It reads the tokenizer, hence the models' volumes."""
    return _Component(
        name="Frontend",
        kind="frontend",
        replicas=1,
        command=["python3"],
        arguments=("-m", "dynamo.frontend"),
        gpus=False,
        volumes=parts.model_volumes(cluster),
    )


def _workers(setup: Setup, cluster: Cluster, disaggregated: bool, prefill: int) -> list[_Component]:
    if not disaggregated:
        return [_worker(setup, cluster, "worker", cluster.replicas, drafts=True)]
    both = _prefill_drafts(setup)
    return [
        _worker(setup, cluster, "decode", cluster.replicas, drafts=True),
        _worker(setup, cluster, "prefill", prefill, drafts=both),
    ]


def _worker(
    setup: Setup, cluster: Cluster, kind: str, replicas: int, *, drafts: bool
) -> _Component:
    spread = (_PARALLEL[setup.engine], str(cluster.gpus)) if cluster.gpus > 1 else ()
    arguments, files = _drafting(setup, kind, drafts)
    return _Component(
        name=kind,
        kind=kind,
        replicas=replicas,
        command=["python3", "-m", f"dynamo.{_MODULES[setup.engine]}"],
        arguments=(
            *_model(setup),
            *spread,
            *_mode(setup.engine, kind),
            *arguments,
            *_metrics(setup),
        ),
        volumes=parts.model_volumes(cluster),
        files=files,
    )


def _model(setup: Setup) -> tuple[str, ...]:
    if setup.engine == "vllm":
        return ("--model", setup.target)
    return ("--model-path", setup.target, "--served-model-name", setup.target)


def _mode(engine: str, kind: str) -> tuple[str, ...]:
    """A worker's half of the work, and how the halves reach each other."""
    if kind == "worker":
        return ()
    mode = ("--disaggregation-mode", kind)
    if engine == "vllm":
        # The 1.6.1 templates tell only prefill workers; its profiler adds the other half
        # (profiler/utils/config_modifiers/vllm.py), without which a decode worker fetches nothing.
        role = "kv_producer" if kind == "prefill" else "kv_consumer"
        told = f'{{"kv_connector":"NixlConnector","kv_role":"{role}"}}'
        return (*mode, "--kv-transfer-config", told)
    if engine == "sglang":
        transfer = ("--disaggregation-transfer-backend", "nixl")
        meeting = ("--disaggregation-bootstrap-port", "12345", "--host", "0.0.0.0")
        return (*mode, *transfer, *meeting)
    return mode


def _metrics(setup: Setup) -> tuple[str, ...]:
    """What turns the engine's counters on. The operator opens the port that they are read at."""
    return ("--publish-metrics",) if setup.engine == "tensorrt-llm" else setup.metrics


def _drafting(setup: Setup, kind: str, drafts: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """The arguments of a worker about its drafts, and the files that they name."""
    if setup.engine == "tensorrt-llm":
        settings = _settings(setup, kind, drafts)
        name = f"{kind}.yaml"
        named = ("--extra-engine-args", f"{parts.FILES}/{name}")
        return (named, {name: manifest.as_yaml(settings)}) if settings else ((), {})
    if not drafts:
        return (), {}
    return parts.with_places(setup.arguments, setup.files), dict(setup.files)


def _settings(setup: Setup, kind: str, drafts: bool) -> dict[str, Any]:
    """TensorRT-LLM's settings of a worker. The two of a disaggregated graph are as in the engine's
    examples: a cache transceiver, and no overlap in prefill workers, which don't support it.
    `return_perf_metrics` is left off, as Dynamo has it: nothing there reads what it costs time to
    write."""
    found = dict(setup.config)
    found.pop("return_perf_metrics", None)
    if not drafts:
        found.pop("speculative_config", None)
    if kind == "prefill":
        found["disable_overlap_scheduler"] = True
    if kind != "worker":
        found["cache_transceiver_config"] = {"backend": "DEFAULT"}
    return found


_FROM_TEXT = {
    "vllm": {"ngram", "ngram_gpu", "suffix", "custom_class"},
    "sglang": {"NGRAM"},
    "tensorrt-llm": {"NGram", "SA"},
}
"""Methods that draft from tokens alone: prefill workers have no state of theirs to hand over."""


def _method(setup: Setup) -> str | None:
    """What the engine calls the kind of its drafts; None without drafts."""
    if setup.engine == "sglang":
        named = dict(zip(setup.arguments, setup.arguments[1:], strict=False))
        return named.get("--speculative-algorithm")
    config = setup.config.get("speculative_config", setup.config)
    found = config.get("decoding_type" if setup.engine == "tensorrt-llm" else "method")
    return None if found is None else str(found)


def _prefill_drafts(setup: Setup) -> bool:
    """Whether prefill workers need the drafts too: a draft with a cache of its own must have read
    the prompt. Raises SettingError where an engine can't hand that over."""
    method = _method(setup)
    if setup.engine == "sglang" and method == "STANDALONE":
        raise SettingError(
            "SGLang hands no state of a draft model (STANDALONE) from prefill to decode workers.",
            "Leave --disaggregated out, or plan with lookup or an EAGLE draft.",
        )
    return method is not None and method not in _FROM_TEXT[setup.engine]


def _heading(setup: Setup, cluster: Cluster, version: str) -> list[str]:
    graph = f"dynamographdeployment/{cluster.name}"
    return [
        f"Dynamo {version} serves {setup.target} with {TITLES[setup.engine]} {setup.version}.",
        "Apply: kubectl apply -f THIS_FILE",
        "Back to what ran before: apply the file of that.",
        f"Take it away: {cluster.kubectl(f'delete {graph}')}",
        "Metrics: the operator opens each worker's at port `system` (9090), and the PodMonitor "
        "`dynamo-worker` of Dynamo's platform chart scrapes it.",
        f"Watch: {cluster.kubectl('port-forward POD_OF_A_WORKER 9090')}",
        "and: paceline watch http://127.0.0.1:9090/metrics",
    ]


def _roles(setup: Setup, disaggregated: bool) -> list[str]:
    if not disaggregated or _method(setup) is None:
        return []
    if _prefill_drafts(setup):
        return [
            "Prefill workers have the draft too: what it kept of the prompt is handed over with "
            "what the target kept."
        ]
    return ["Only decode workers have the draft: it drafts from the text alone."]


def _v1beta1(
    cluster: Cluster, image: str, engine: str, components: list[_Component]
) -> dict[str, Any]:
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": cluster.metadata(),
        "spec": {
            "backendFramework": _MODULES[engine],
            "components": [
                {
                    "name": one.name,
                    "type": one.kind,
                    "replicas": one.replicas,
                    "podTemplate": {"spec": _pod(one, _container(one, cluster, image))},
                }
                for one in components
            ],
        },
    }


def _pod(component: _Component, container: Mapping[str, Any]) -> dict[str, Any]:
    volumes = [volume.as_volume() for volume in component.volumes]
    return {"containers": [container], **({"volumes": volumes} if volumes else {})}


def _container(component: _Component, cluster: Cluster, image: str) -> dict[str, Any]:
    """The container that the operator fills in: it finds it by the name `main`."""
    optional = {
        "envFrom": parts.token_environment(cluster),
        "resources": cluster.resources() if component.gpus else {},
    }
    return {
        "name": "main",
        **_program(component, cluster, image),
        **{key: value for key, value in optional.items() if value},
    }


def _program(component: _Component, cluster: Cluster, image: str) -> dict[str, Any]:
    optional = {
        "env": parts.cache_environment(cluster),
        "volumeMounts": [volume.as_mount() for volume in component.volumes],
    }
    return {
        "image": image,
        "command": component.command,
        "args": manifest.literal(component.arguments),
        **{key: value for key, value in optional.items() if value},
    }


def _v1alpha1(
    cluster: Cluster, image: str, engine: str, components: list[_Component]
) -> dict[str, Any]:
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": cluster.metadata(),
        "spec": {
            "backendFramework": _MODULES[engine],
            "services": {one.name: _alpha_service(one, cluster, image) for one in components},
        },
    }


def _alpha_service(component: _Component, cluster: Cluster, image: str) -> dict[str, Any]:
    """The same in the older shape, where workers have a kind within their kind, and resources,
    environment and volumes stand beside the pod."""
    half = component.kind if component.kind in ("decode", "prefill") else None
    volumes = [volume.as_volume() for volume in component.volumes]
    optional: dict[str, Any] = {
        "subComponentType": half,
        "envFromSecret": cluster.hf_secret,
        "resources": cluster.resources("gpu") if component.gpus else None,
    }
    pod = {"volumes": volumes} if volumes else {}
    return {
        "componentType": "worker" if half else component.kind,
        "replicas": component.replicas,
        **{key: value for key, value in optional.items() if value},
        "extraPodSpec": {**pod, "mainContainer": _program(component, cluster, image)},
    }
