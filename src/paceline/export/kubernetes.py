"""A plan as Kubernetes objects: a Deployment of an engine's own image, its Service, a ConfigMap
where the engine reads a file, and a PodMonitor for its counters; what is asked of a cluster besides
(names, replicas, GPUs, volumes, a secret); and manifests filled in from `templates/`.

Rules that Kubernetes tells of itself (names, labels, images, amounts) are left to
`kubectl apply --dry-run=server`, which every manifest's heading names.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files as package_files
from typing import Any

from paceline.errors import SettingError, unknown_name
from paceline.export.setup import ENGINES, EngineSetup, is_path
from paceline.export.text import as_yaml, comment, import_yaml, target_words

FILES = "/etc/paceline"
"""Where a container finds the files that its engine's arguments name."""
CACHE = "/cache"
"""Where it keeps the models that it fetches."""
SHARED_MEMORY = "/dev/shm"

STARTUP_MINUTES = 60
"""How long a server may take to fetch its models, load them and capture its graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is asked of a cluster. Raises SettingError for what Kubernetes takes but means
    otherwise.

    name            of everything that is made
    namespace       None: the one that kubectl is set to
    replicas        pods that serve, each with the whole model
    image           None: the engine's published one
    gpus            GPUs of a replica, over which it splits the model
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
        if self.memory is not None and self.memory.endswith("m"):
            raise SettingError(
                f"Memory {self.memory!r} means thousandths of a byte.",
                f"Write {self.memory[:-1]}Mi for mebibytes.",
            )
        if self.model_volume is not None:
            _check_mount(self.model_volume[1])

    def heading(self, undo: str, pod: str, port: int, path: str, *more: str) -> list[str]:
        """How manifests are checked, applied, rolled back and watched: a command a note, so that
        none is broken.

        undo         what kubectl is told to roll back
        pod, port    where the counters are read
        more         notes before how they are watched
        """
        kubectl = "kubectl" if self.namespace is None else f"kubectl -n {self.namespace}"
        return [
            f"Check: {kubectl} apply --dry-run=server -f THIS_FILE",
            "Apply: kubectl apply -f THIS_FILE",
            f"To roll back: {kubectl} {undo}",
            *more,
            f"Watch: {kubectl} port-forward {pod} {port}",
            f"and: paceline watch http://127.0.0.1:{port}{path}",
        ]

    def values(self, files: Mapping[str, str], cache_variable: str = "HF_HOME") -> dict[str, Any]:
        """What templates name. The ConfigMap's name ends in a hash of its files: with new ones pods
        start anew."""
        told = "\0".join(part for name in sorted(files) for part in (name, files[name]))
        mark = hashlib.sha256(told.encode()).hexdigest()[:8]
        claim, path = self.model_volume or (None, None)
        cached = self.cache_volume is not None
        return {
            **asdict(self),
            "gpus": str(self.gpus) if self.gpus else None,
            "model_claim": claim,
            "model_path": path,
            "cache_path": CACHE if cached else None,
            "cache_variable": cache_variable,
            "cache_folder": f"{CACHE}/models" if cached else None,
            "files": dict(files),
            "files_name": f"{self.name}-files-{mark}" if files else None,
            "files_path": FILES if files else None,
        }


def _check_mount(path: str) -> None:
    if path != posixpath.normpath(path) or not re.fullmatch(r"/[^/:][^:]*", path):
        raise SettingError(
            f"{path!r} is not a place to mount a volume at.", "Name a folder as /models."
        )
    for taken in (FILES, CACHE, SHARED_MEMORY):
        if f"{taken}/".startswith(f"{path}/") or f"{path}/".startswith(f"{taken}/"):
            raise SettingError(
                f"{path!r} is taken: the server's own {taken} is there.", "Mount it elsewhere."
            )


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
    pod = f"deployment/{cluster.name}"
    heading = cluster.heading(f"rollout undo {pod}", pod, profile.port, profile.metrics_path)
    serves = f"{profile.title} {setup.version} serves {setup.target}."
    return manifests(objects, [serves, *heading, *setup.notes])


def published_image(setup: EngineSetup) -> str:
    """The image that an engine's makers publish of its version. Raises SettingError if there is
    none, or one without a package that the drafts need."""
    if setup.engine == "llama-server" and not re.fullmatch(r"b\d+", setup.version):
        raise SettingError(
            f"llama.cpp publishes images of numbered builds, and {setup.version} isn't one.",
            "Name an image of yours with --image.",
        )
    return check_packages(setup, ENGINES[setup.engine].image.format(version=setup.version))


def short_name(text: str, most: int = 63) -> str:
    """What comes nearest to a text and is a Service's name: `Qwen/Qwen2.5-1.5B` gives
    `qwen2-5-1-5b`."""
    last = re.sub(r"\.gguf$", "", text.rstrip("/").rsplit("/", 1)[-1], flags=re.IGNORECASE)
    name = re.sub(r"[^a-z0-9]+", "-", last.lower(), flags=re.ASCII).strip("-")
    if not name[:1].isalpha():
        name = f"model-{name}"
    return name[:most].strip("-")


# Templates.


def read_template(name: str) -> dict[str, Any]:
    """The documents of `templates/NAME.yaml`, by kind. Raises SettingError if PyYAML is missing."""
    text = (package_files("paceline.export") / f"templates/{name}.yaml").read_text("utf-8")
    return {one["kind"]: one for one in import_yaml().safe_load_all(text)}


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """A template with its `$name`s replaced. A list's item in which one is None goes; `$$name` may
    be None, and its key goes. Mappings and lists that are left empty go too."""
    if isinstance(template, str) and template.startswith("$"):
        return values[template.lstrip("$")]
    if isinstance(template, dict):
        filled = {key: fill(value, values) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value not in (None, {}, [])}
    if isinstance(template, list):
        return [fill(one, values) for one in template if _complete(one, values)]
    return template


def _complete(template: Any, values: Mapping[str, Any]) -> bool:
    if isinstance(template, dict):
        return all(_complete(value, values) for value in template.values())
    required = isinstance(template, str) and re.match(r"\$(?!\$)", template)
    return not required or values[template[1:]] is not None


def manifests(objects: Iterable[Mapping[str, Any]], notes: Iterable[str]) -> str:
    """Objects as YAML documents under their notes."""
    return "\n".join(comment(notes)) + "\n" + "---\n".join(map(as_yaml, objects))


def literal(arguments: Iterable[str]) -> list[str]:
    """Arguments that reach the program as they are: the kubelet reads `$(NAME)` as a variable, and
    `$$` as a dollar. Raises SettingError for one with characters that no terminal and no YAML
    shows."""
    found = []
    for argument in arguments:
        for character in argument:
            if not character.isprintable():
                raise SettingError(
                    f"Argument {argument!r} has the character U+{ord(character):04X} in it.",
                    "Leave it out.",
                )
        found.append(argument.replace("$", "$$"))
    return found


def with_places(arguments: Iterable[str], files: Mapping[str, str]) -> tuple[str, ...]:
    """Arguments that name files, with where the container finds them."""

    def placed(argument: str) -> str:
        option, equals, name = argument.rpartition("=")
        return f"{option}{equals}{FILES}/{name}" if name in files else argument

    return tuple(map(placed, arguments))


# What no container would find.


def check_models(setup: EngineSetup, cluster: Cluster) -> None:
    """Raises SettingError for a model that no container would find: a path outside the volumes."""
    for model, what, option in (
        (setup.target, "The target", "--target"),
        (setup.draft, "The draft", "--draft-model"),
    ):
        if model is None or not is_path(model):
            continue
        if cluster.model_volume is None:
            raise SettingError(
                f"{what} {model} is a path, and the deployment mounts no volume with models.",
                f"Mount one with --model-volume CLAIM:/PATH, or name a repository with {option}.",
            )
        claim, path = cluster.model_volume
        place = posixpath.normpath(path)
        if not posixpath.normpath(model).startswith(f"{place}/"):
            raise SettingError(
                f"{what} {model} is a path outside {place}, where the volume {claim} is mounted.",
                f"Name where the volume has it with {option} {place}/…, or mount it elsewhere.",
            )


def check_packages(setup: EngineSetup, image: str) -> str:
    """The published image. Raises SettingError for drafts that need a package which it hasn't."""
    method = setup.config.get("method") if setup.engine == "vllm" else None
    needs = {
        "suffix": "arctic-inference",
        "custom_class": str(setup.config.get("model")).split(".")[0],
    }
    if method in needs:
        raise SettingError(
            f"vLLM's method {method} needs the package {needs[method]}, which isn't in {image}.",
            "Build an image from it that has the package too, and name yours with --image.",
        )
    return image
