"""What is asked of a cluster besides the engine (names, replicas, GPUs, volumes, a secret), and the
parts of a pod that follow from it."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import SettingError
from paceline.export import manifest
from paceline.export.setup import Setup

GPU = "nvidia.com/gpu"
FILES = "/etc/paceline"
"""Where a container finds the files that its engine's arguments name."""
CACHE = "/cache"
"""Where it keeps the models that it fetches."""
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is asked of a cluster. Raises SettingError for what Kubernetes would refuse.

    name            of everything that is made
    namespace       None: the one that kubectl is set to
    replicas        pods that serve, each with the whole model
    image           None: the engine's published one
    gpus            GPUs of a replica, over which it lays the model
    cpu, memory     asked for per replica; None: nothing is
    model_volume    a PersistentVolumeClaim with models, and where it is mounted
    cache_volume    a PersistentVolumeClaim for what engines fetch; None: a pod fetches anew
    hf_secret       a Secret whose `HF_TOKEN` may read the models
    """

    name: str
    namespace: str | None = None
    replicas: int = 1
    image: str | None = None
    gpus: int = 1
    cpu: str | None = None
    memory: str | None = None
    model_volume: tuple[str, str] | None = None
    cache_volume: str | None = None
    hf_secret: str | None = None

    def __post_init__(self) -> None:
        manifest.service_name(self.name, "Name")
        if self.namespace is not None:
            manifest.label_name(self.namespace, "Namespace")
        if self.image is not None:
            manifest.image_name(self.image)
        if self.cpu is not None:
            manifest.quantity(self.cpu, "CPU")
        if self.memory is not None:
            manifest.quantity(self.memory, "Memory", whole=True)
        for claim, what in ((self.cache_volume, "Cache volume"), (self.hf_secret, "Secret")):
            if claim is not None:
                manifest.object_name(claim, what)
        if self.model_volume is not None:
            claim, path = self.model_volume
            manifest.object_name(claim, "Model volume")
            _check_mount(path)

    def kubectl(self, command: str) -> str:
        """A command line for where the objects are."""
        place = "" if self.namespace is None else f" -n {self.namespace}"
        return f"kubectl{place} {command}"

    def metadata(self, name: str | None = None, **more: Any) -> dict[str, Any]:
        """An object's metadata."""
        place = {} if self.namespace is None else {"namespace": self.namespace}
        return {"name": name or self.name, **place, **more}

    def resources(self, gpu: str = GPU) -> dict[str, Any]:
        """A replica's share of a node. A limit on memory is what was asked for, since a server
        that grows past it would be the first to be ended anyway."""
        asked = {"cpu": self.cpu, "memory": self.memory}
        limits = {gpu: str(self.gpus) if self.gpus else None, "memory": self.memory}
        found = {"limits": _given(limits), "requests": _given(asked)}
        return {key: value for key, value in found.items() if value}


def _check_mount(path: str) -> None:
    manifest.plain_text(path, "Mount path")
    if path != posixpath.normpath(path) or not re.fullmatch(r"/[^/:][^:]*", path):
        raise SettingError(
            f"{path!r} is no place to mount a volume at.", "Name a folder as /models."
        )
    for taken in (FILES, CACHE, SHARED_MEMORY):
        if f"{taken}/".startswith(f"{path}/") or f"{path}/".startswith(f"{taken}/"):
            raise SettingError(
                f"{path!r} is taken: the server's own {taken} is there.", "Mount it elsewhere."
            )


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a pod, and where its containers see it."""

    name: str
    path: str
    source: Mapping[str, Any]
    read_only: bool = False

    def as_volume(self) -> dict[str, Any]:
        return {"name": self.name, **self.source}

    def as_mount(self) -> dict[str, Any]:
        read_only = {"readOnly": True} if self.read_only else {}
        return {"name": self.name, "mountPath": self.path, **read_only}


def model_volumes(cluster: Cluster) -> list[Volume]:
    """The volumes with models, which a server and what reads its tokenizer share."""
    found = []
    if cluster.model_volume is not None:
        claim, path = cluster.model_volume
        source = {"persistentVolumeClaim": {"claimName": claim}}
        found.append(Volume("models", path, source, read_only=True))
    if cluster.cache_volume is not None:
        source = {"persistentVolumeClaim": {"claimName": cluster.cache_volume}}
        found.append(Volume("cache", CACHE, source))
    return found


def cache_environment(cluster: Cluster, variable: str = "HF_HOME") -> list[dict[str, str]]:
    """Where fetched models go, if there is a volume for them."""
    if cluster.cache_volume is None:
        return []
    return [{"name": variable, "value": f"{CACHE}/models"}]


def token_environment(cluster: Cluster) -> list[dict[str, Any]]:
    """The Secret's variables, if there is one."""
    return [] if cluster.hf_secret is None else [{"secretRef": {"name": cluster.hf_secret}}]


def config_map(cluster: Cluster, files: Mapping[str, str]) -> dict[str, Any]:
    """Files as an object. Its name ends in their hash, so that pods start anew with new files."""
    told = "\0".join(part for name in sorted(files) for part in (name, files[name]))
    mark = hashlib.sha256(told.encode()).hexdigest()[:8]
    name = f"{cluster.name}-files-{mark}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": cluster.metadata(name),
        "data": dict(files),
    }


def file_volume(files: Mapping[str, Any]) -> Volume:
    """The volume of a `config_map`."""
    source = {"configMap": {"name": files["metadata"]["name"]}}
    return Volume("files", FILES, source, read_only=True)


def with_places(arguments: tuple[str, ...], files: Mapping[str, str]) -> tuple[str, ...]:
    """Arguments that name files, with where the container finds them."""

    def placed(argument: str) -> str:
        option, equals, name = argument.rpartition("=")
        return f"{option}{equals}{FILES}/{name}" if name in files else argument

    return tuple(map(placed, arguments))


def is_path(model: str) -> bool:
    """Whether a model is named as a file or folder, not as a repository."""
    return (
        model.startswith(("/", ".", "~"))
        or model.lower().endswith(".gguf")
        or model.count("/") > 1
        or "\\" in model
    )


def check_models(setup: Setup, cluster: Cluster) -> None:
    """Raises SettingError for a model that no container would find: a path outside the volumes."""
    for model, what, option in (
        (setup.target, "The target", "--target"),
        (setup.draft, "The draft", "--draft-model"),
    ):
        if model is None or not is_path(model):
            continue
        manifest.plain_text(model, what)
        if cluster.model_volume is None:
            raise SettingError(
                f"{what} {model} is a path, and the deployment mounts no volume with models.",
                f"Mount one with --model-volume CLAIM:/PATH, or name a repository with {option}.",
            )
        place = posixpath.normpath(cluster.model_volume[1])
        if not posixpath.normpath(model).startswith(f"{place}/"):
            raise SettingError(
                f"{what} {model} is a path outside {place}, where the volume "
                f"{cluster.model_volume[0]} is mounted.",
                f"Name where the volume has it with {option} {place}/…, or mount it elsewhere.",
            )


def check_packages(setup: Setup, image: str) -> None:
    """Raises SettingError for drafts that need a package which the published image hasn't."""
    if setup.engine != "vllm":
        return
    method = setup.config.get("method")
    needs = {
        "suffix": "arctic-inference",
        "custom_class": str(setup.config.get("model")).split(".")[0],
    }
    if method in needs:
        raise SettingError(
            f"vLLM's method {method} needs the package {needs[method]}, which isn't in {image}.",
            "Build an image from it that has the package too, and name yours with --image.",
        )
