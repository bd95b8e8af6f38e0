"""A plan as a `DynamoGraphDeployment`: NVIDIA Dynamo's frontend and the engine's workers
(`templates/dynamo.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paceline.errors import SettingError, unknown_name
from paceline.export.kubernetes import (
    FILES,
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
from paceline.export.text import as_yaml

VERSION = "1.6.1"

SHIPS = {"1.6.1": {"vllm": "0.31.0", "sglang": "0.5.21", "tensorrt-llm": "1.3.0rc29"}}
"""The engine versions in each Dynamo version's images: the pins of its wheel."""

WORKERS = {
    engine: profile.dynamo for engine, profile in ENGINES.items() if profile.dynamo is not None
}

NAME = 45 - len("Frontend")
"""Most characters of a graph's name: Grove, which lays out the pods, takes 45 of the graph's and a
component's names together, and no component here has a longer name than `Frontend`."""


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
    return f"nvcr.io/nvidia/ai-dynamo/{WORKERS[engine].runtime}-runtime:{version}"


def dynamo(
    setup: EngineSetup,
    cluster: Cluster,
    *,
    version: str = VERSION,
    disaggregated: bool = False,
    prefill_replicas: int = 1,
) -> str:
    """Manifests to be applied together, with the setup's notes as comments.

    version          of Dynamo
    disaggregated    decode and prefill workers in place of workers that do both

    Raises SettingError for an engine version that this Dynamo hasn't, and for what it could not
    take.
    """
    shipped = ships(setup.engine, version)
    if setup.version != shipped:
        raise SettingError(
            f"Dynamo {version} has {ENGINES[setup.engine].title} {shipped} in its image, and this "
            f"export is for {setup.version}.",
            f"Leave --version out, or give {shipped}.",
        )
    if len(cluster.name) > NAME:
        raise SettingError(
            f"Name {cluster.name!r} has {len(cluster.name)} characters, and Dynamo's pods leave "
            f"room for {NAME}.",
            "Shorten it with --name.",
        )
    image = _image(setup, cluster, version)
    check_models(setup, cluster)
    kinds = {"worker": cluster.replicas}
    if disaggregated:
        kinds = {"decode": cluster.replicas, "prefill": prefill_replicas}
    method = _method(setup)
    prefill_drafts = disaggregated and _prefill_drafts(setup, method)
    told = {kind: _drafting(setup, kind, kind != "prefill" or prefill_drafts) for kind in kinds}
    files = {name: text for _, named in told.values() for name, text in named.items()}

    values = cluster.values(files) | {"image": image, "module": WORKERS[setup.engine].module}
    # The frontend reads the tokenizer, hence the models' volumes; it needs no GPU.
    frontend = {
        **values,
        **dict.fromkeys(("gpus", "cpu", "memory", "files_path", "component_files")),
        "component": "Frontend",
        "type": "frontend",
        "component_replicas": 1,
        "command": ["python3"],
        "args": ["-m", "dynamo.frontend"],
    }
    workers = [
        {
            **values,
            "component": kind,
            "type": kind,
            "component_replicas": replicas,
            "command": ["python3", "-m", f"dynamo.{WORKERS[setup.engine].module}"],
            "args": literal(_arguments(setup, cluster.gpus, kind, told[kind][0])),
            "files_path": FILES if told[kind][1] else None,
            "component_files": values["files_name"] if told[kind][1] else None,
        }
        for kind, replicas in kinds.items()
    ]
    templates = read_template("dynamo")
    (component,) = templates["DynamoGraphDeployment"]["spec"].pop("components")
    graph = fill(templates["DynamoGraphDeployment"], values)
    graph["spec"]["components"] = [fill(component, one) for one in (frontend, *workers)]
    maps = [fill(templates["ConfigMap"], values)] if files else []
    notes = [
        f"Dynamo {version} serves {setup.target} with {ENGINES[setup.engine].title} "
        f"{setup.version}.",
        *cluster.heading(
            f"delete dynamographdeployment/{cluster.name}",
            "POD_OF_A_WORKER",
            9090,
            "/metrics",
            "or: apply the file of what ran before.",
            "Metrics: the operator opens each worker's at port `system` (9090), and the "
            "PodMonitor `dynamo-worker` of Dynamo's platform chart scrapes it.",
        ),
    ]
    if prefill_drafts:
        notes.append(
            "Prefill workers have the draft too: what it kept of the prompt is handed over with "
            "what the target kept."
        )
    elif disaggregated and method is not None:
        notes.append("Only decode workers have the draft: it drafts from the text alone.")
    return manifests([*maps, graph], [*notes, *setup.notes])


def _image(setup: EngineSetup, cluster: Cluster, version: str) -> str:
    """The image of all components. The operator reads the Dynamo version from its tag."""
    if cluster.image is None:
        return check_packages(setup, published_image(setup.engine, version))
    last = cluster.image.rpartition("/")[2].partition("@")[0]
    if not re.fullmatch(rf"[^:]+:v?{re.escape(version)}([-+].*)?", last):
        raise SettingError(
            f"Dynamo's operator reads its version from an image's tag, and {cluster.image!r} isn't "
            f"tagged {version}.",
            f"Tag it {version} or {version}-NAME.",
        )
    return cluster.image


def _arguments(
    setup: EngineSetup, gpus: int, kind: str, drafting: tuple[str, ...]
) -> tuple[str, ...]:
    """Of a worker."""
    profile = WORKERS[setup.engine]
    parallel = profile.parallel or ENGINES[setup.engine].parallel
    mode = () if kind == "worker" else ("--disaggregation-mode", kind, *profile.roles.get(kind, ()))
    return (
        *(word for option in profile.model for word in (option, setup.target)),
        *((str(parallel), str(gpus)) if gpus > 1 else ()),
        *mode,
        *drafting,
        # The operator opens the port that the counters are read at.
        *(setup.metrics if profile.counters is None else profile.counters),
    )


def _drafting(
    setup: EngineSetup, kind: str, drafts: bool
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The arguments of a worker about its drafts, and the files that they name."""
    if setup.engine == "tensorrt-llm":
        settings = _settings(setup, kind, drafts)
        name = f"{kind}.yaml"
        return ("--extra-engine-args", f"{FILES}/{name}"), {name: as_yaml(settings)}
    if not drafts:
        return (), {}
    return with_places(setup.arguments, setup.files), setup.files


def _settings(setup: EngineSetup, kind: str, drafts: bool) -> dict[str, Any]:
    """TensorRT-LLM's settings of a worker. The two of a disaggregated graph are as in the engine's
    examples: a cache transceiver, and no overlap in prefill workers, which don't support it.
    `return_perf_metrics` is left off, as Dynamo has it: nothing there reads what it costs time to
    write."""
    gone = {"return_perf_metrics"} if drafts else {"return_perf_metrics", "speculative_config"}
    found = {key: value for key, value in setup.config.items() if key not in gone}
    if kind == "prefill":
        found["disable_overlap_scheduler"] = True
    if kind != "worker":
        found["cache_transceiver_config"] = {"backend": "DEFAULT"}
    return found


def _method(setup: EngineSetup) -> str | None:
    """What the engine calls the kind of its drafts; None without drafts."""
    key = ENGINES[setup.engine].method_key
    arguments = dict(zip(setup.arguments, setup.arguments[1:], strict=False))
    found = setup.config.get("speculative_config", setup.config).get(key, arguments.get(key))
    return None if found is None else str(found)


def _prefill_drafts(setup: EngineSetup, method: str | None) -> bool:
    """Whether prefill workers need the drafts too: a draft with a cache of its own must have read
    the prompt. Raises SettingError where an engine can't hand that over."""
    worker = WORKERS[setup.engine]
    if method is not None and method == worker.no_handover:
        raise SettingError(
            f"{ENGINES[setup.engine].title} hands no state of a draft model ({method}) from "
            "prefill to decode workers.",
            "Leave --disaggregated out, or plan with lookup or an EAGLE draft.",
        )
    return method is not None and method not in worker.from_text
