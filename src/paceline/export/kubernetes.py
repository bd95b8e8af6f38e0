"""A plan as Kubernetes objects: a Deployment of an engine's own image, its Service, a ConfigMap
where the engine reads a file, and a PodMonitor for its counters (`templates/kubernetes.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from paceline.errors import SettingError, unknown_name
from paceline.export.cluster import (
    SHARED_MEMORY,
    Cluster,
    check_models,
    check_packages,
    fill,
    literal,
    manifests,
    read_template,
    with_places,
)
from paceline.export.setup import ENGINES, EngineSetup
from paceline.export.text import target_words

STARTUP_MINUTES = 60
"""How long a server may take to fetch its models, load them and capture its graphs."""


def kubernetes(
    setup: EngineSetup,
    cluster: Cluster,
    *,
    startup_minutes: int = STARTUP_MINUTES,
    pod_monitor: bool = True,
    monitor_labels: Mapping[str, str] | None = None,
) -> str:
    """Manifests to be applied together, with the setup's notes as comments.

    monitor_labels   of the PodMonitor: what a Prometheus selects its monitors by

    Raises SettingError for what a container could not find or be told.
    """
    if setup.engine not in ENGINES:
        raise unknown_name("engine for Kubernetes", setup.engine, ENGINES)
    profile = ENGINES[setup.engine]
    check_models(setup, cluster)
    labels = {"app.kubernetes.io/name": setup.engine, "app.kubernetes.io/instance": cluster.name}
    arguments = (
        *target_words(setup),
        *("--host", "0.0.0.0", "--port", str(profile.port)),
        *profile.split(cluster.gpus),
        *with_places(setup.arguments, setup.files),
        *setup.metrics,
    )
    shared = profile.shared_memory
    values = cluster.values(setup.files, profile.cache_variable) | {
        "labels": labels,
        "monitor_labels": {**labels, **(monitor_labels or {})},
        "image": cluster.image or published_image(setup),
        "command": None if profile.own_entry_point else list(profile.program),
        "args": literal(arguments),
        "port": profile.port,
        "metrics_path": profile.metrics_path,
        "health_seconds": profile.health_seconds,
        "startup_failures": startup_minutes * 6,
        "shared_memory": shared,
        "shared_memory_path": SHARED_MEMORY if shared else None,
    }
    templates = read_template("kubernetes")
    if not setup.files:
        del templates["ConfigMap"]
    if not pod_monitor:
        del templates["PodMonitor"]
    objects = [fill(template, values) for template in templates.values()]
    return manifests(objects, [*_heading(setup, cluster), *setup.notes])


def published_image(setup: EngineSetup) -> str:
    """The image that an engine's makers publish of its version. Raises SettingError if there is
    none, or one without a package that the drafts need."""
    if setup.engine == "llama-server" and not re.fullmatch(r"b\d+", setup.version):
        raise SettingError(
            f"llama.cpp publishes images of numbered builds, and {setup.version} isn't one.",
            "Name an image of yours with --image.",
        )
    return check_packages(setup, ENGINES[setup.engine].image.format(version=setup.version))


def _heading(setup: EngineSetup, cluster: Cluster) -> list[str]:
    """A command a note, so that none is broken."""
    profile, deployment = ENGINES[setup.engine], f"deployment/{cluster.name}"
    return [
        f"{profile.title} {setup.version} serves {setup.target}.",
        f"Check: {cluster.kubectl('apply --dry-run=server -f THIS_FILE')}",
        "Apply: kubectl apply -f THIS_FILE",
        f"To roll back: {cluster.kubectl(f'rollout undo {deployment}')}",
        f"Watch: {cluster.kubectl(f'port-forward {deployment} {profile.port}')}",
        f"and: paceline watch http://127.0.0.1:{profile.port}{profile.metrics_path}",
    ]
