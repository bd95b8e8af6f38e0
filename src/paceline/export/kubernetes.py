"""A plan as plain Kubernetes objects: a Deployment of an engine's own image, its Service, a
ConfigMap where the engine reads a file, and a PodMonitor for its counters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import SettingError, unknown_name
from paceline.export import cluster as parts
from paceline.export import manifest
from paceline.export.cluster import Cluster, Volume
from paceline.export.setup import Setup
from paceline.export.text import laid_over
from paceline.export.versions import TITLES

PORT = "http"
"""The name of the port that requests, probes and scrapes go to."""

STARTUP_MINUTES = 60
"""How long a server may take to fetch its models, load them and capture its graphs."""

SCRAPE_SECONDS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """How an engine's image is run.

    image           of a version
    command         None: the image's own entry point
    model           the arguments that name the target
    port            its default one
    metrics         where its Prometheus page is
    health_seconds  how long an answer of /health may take
    cache           the variable that says where fetched models go
    shared_memory   of /dev/shm, which its processes talk through; None: there is one process
    """

    image: Callable[[str], str]
    command: tuple[str, ...] | None
    model: Callable[[str], tuple[str, ...]]
    port: int
    metrics: str = "/metrics"
    health_seconds: int = 10
    cache: str = "HF_HOME"
    shared_memory: str | None = "8Gi"


def _llama_cpp_image(version: str) -> str:
    if not re.fullmatch(r"b\d+", version):
        raise SettingError(
            f"llama.cpp publishes images of numbered builds, and {version} is none.",
            "Name an image of yours with --image.",
        )
    return f"ghcr.io/ggml-org/llama.cpp:server-cuda-{version}"


_SERVERS = {
    "vllm": _Server(
        image=lambda version: f"vllm/vllm-openai:v{version}",
        command=("vllm", "serve"),
        model=lambda target: (target,),
        port=8000,
    ),
    "sglang": _Server(
        image=lambda version: f"lmsysorg/sglang:v{version}",
        command=("python3", "-m", "sglang.launch_server"),
        model=lambda target: ("--model-path", target),
        port=30000,
        # Its /health waits up to 20 s for a generated token (SGLANG_HEALTH_CHECK_TIMEOUT).
        health_seconds=25,
    ),
    "tensorrt-llm": _Server(
        image=lambda version: f"nvcr.io/nvidia/tensorrt-llm/release:{version}",
        command=("trtllm-serve",),
        model=lambda target: (target,),
        port=8000,
        metrics="/prometheus/metrics",  # its /metrics is JSON
    ),
    "llama-server": _Server(
        image=_llama_cpp_image,
        command=None,
        model=lambda target: ("-m" if parts.is_path(target) else "-hf", target),
        port=8080,
        cache="LLAMA_CACHE",
        shared_memory=None,
    ),
}

ENGINES = tuple(_SERVERS)


def published_image(setup: Setup) -> str:
    """The image that an engine's makers publish of its version. Raises SettingError if there is
    none, or one without a package that the drafts need."""
    image = _server(setup.engine).image(setup.version)
    parts.check_packages(setup, image)
    return image


def kubernetes(
    setup: Setup,
    cluster: Cluster,
    *,
    startup_minutes: int = STARTUP_MINUTES,
    pod_monitor: bool = True,
    monitor_labels: Mapping[str, str] | None = None,
) -> str:
    """Manifests to be applied together, with the setup's remarks as comments.

    monitor_labels   of the PodMonitor: what a Prometheus selects its monitors by

    Raises SettingError for what the cluster, or a container in it, could not take.
    """
    objects = _objects(setup, cluster, startup_minutes, pod_monitor, monitor_labels or {})
    return manifest.written(objects, [*_heading(setup, cluster), *setup.notes])


def _objects(
    setup: Setup,
    cluster: Cluster,
    startup_minutes: int,
    pod_monitor: bool,
    monitor_labels: Mapping[str, str],
) -> list[dict[str, Any]]:
    server = _server(setup.engine)
    parts.check_models(setup, cluster)
    image = cluster.image or published_image(setup)
    labels = {"app.kubernetes.io/name": setup.engine, "app.kubernetes.io/instance": cluster.name}
    objects: list[dict[str, Any]] = []
    volumes = parts.model_volumes(cluster)
    if setup.files:
        files = parts.config_map(cluster, setup.files)
        objects.append(files)
        volumes.append(parts.file_volume(files))
    if server.shared_memory:
        source = {"emptyDir": {"medium": "Memory", "sizeLimit": server.shared_memory}}
        volumes.append(Volume("shared-memory", parts.SHARED_MEMORY, source))
    container = _container(setup, cluster, image, volumes, startup_minutes)
    objects += [
        _deployment(cluster, labels, container, volumes),
        _service(cluster, labels, server),
    ]
    if pod_monitor:
        objects.append(_pod_monitor(cluster, labels, server, monitor_labels))
    return objects


def _server(engine: str) -> _Server:
    if engine not in _SERVERS:
        raise unknown_name("engine for Kubernetes", engine, _SERVERS)
    return _SERVERS[engine]


def _heading(setup: Setup, cluster: Cluster) -> list[str]:
    """A command a remark, so that none is broken."""
    server = _server(setup.engine)
    deployment = f"deployment/{cluster.name}"
    return [
        f"{TITLES[setup.engine]} {setup.version} serves {setup.target}.",
        "Apply: kubectl apply -f THIS_FILE",
        f"Back to what ran before: {cluster.kubectl(f'rollout undo {deployment}')}",
        f"Watch: {cluster.kubectl(f'port-forward {deployment} {server.port}')}",
        f"and: paceline watch http://127.0.0.1:{server.port}{server.metrics}",
    ]


def _deployment(
    cluster: Cluster,
    labels: Mapping[str, str],
    container: Mapping[str, Any],
    volumes: list[Volume],
) -> dict[str, Any]:
    pod: dict[str, Any] = {
        # A Service named `vllm` would otherwise set VLLM_PORT, which vLLM reads as its own.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if volumes:
        pod["volumes"] = [volume.as_volume() for volume in volumes]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": cluster.metadata(labels=dict(labels)),
        "spec": {
            "replicas": cluster.replicas,
            # A new pod would wait for GPUs that the old ones hold.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def _container(
    setup: Setup, cluster: Cluster, image: str, volumes: list[Volume], startup_minutes: int
) -> dict[str, Any]:
    server = _server(setup.engine)
    arguments = (
        *server.model(setup.target),
        *("--host", "0.0.0.0", "--port", str(server.port)),
        *laid_over(setup.engine, cluster.gpus),
        *parts.with_places(setup.arguments, setup.files),
        *setup.metrics,
    )
    container: dict[str, Any] = {"name": "server", "image": image}
    if server.command:
        container["command"] = list(server.command)
    container["args"] = manifest.literal(arguments)
    optional = {
        "env": parts.cache_environment(cluster, server.cache),
        "envFrom": parts.token_environment(cluster),
        "resources": cluster.resources(),
        "volumeMounts": [volume.as_mount() for volume in volumes],
    }
    container["ports"] = [{"name": PORT, "containerPort": server.port}]
    container |= {key: value for key, value in optional.items() if value}
    return container | _probes(server, startup_minutes)


def _probes(server: _Server, startup_minutes: int) -> dict[str, Any]:
    """Probes of /health, which all these engines have. Until the first one passes the other two
    wait. A server under load answers late: it is taken from the Service after three such answers,
    and ended only after five minutes of them."""
    health = {
        "httpGet": {"path": "/health", "port": PORT},
        "timeoutSeconds": server.health_seconds,
    }
    return {
        "startupProbe": {**health, "periodSeconds": 10, "failureThreshold": startup_minutes * 6},
        "readinessProbe": {**health, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 30, "failureThreshold": 10},
    }


def _service(cluster: Cluster, labels: Mapping[str, str], server: _Server) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": cluster.metadata(labels=dict(labels)),
        "spec": {
            "selector": dict(labels),
            "ports": [{"name": PORT, "port": server.port, "targetPort": PORT}],
        },
    }


def _pod_monitor(
    cluster: Cluster, labels: Mapping[str, str], server: _Server, monitor_labels: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": cluster.metadata(labels={**labels, **monitor_labels}),
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "podMetricsEndpoints": [
                {"port": PORT, "path": server.metrics, "interval": f"{SCRAPE_SECONDS}s"}
            ],
        },
    }
