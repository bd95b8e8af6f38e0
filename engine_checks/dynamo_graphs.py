"""Graphs of `paceline export dynamo` against the templates in the ai-dynamo wheel.

    python engine_checks/dynamo_graphs.py ai_dynamo-1.6.1-py3-none-any.whl

Every key that is written must be in a template, or in the API's documentation, or, inside a pod, in
Kubernetes' own schema (`manifests.py`, which runs first); images, commands, engine versions and
Dynamo's own options must be the wheel's. Writes results/dynamo.json with what workers are told,
which `dynamo_parsers.py` tries, and the keys to tests/export/manifest_keys.json.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from manifests import HERE, KEYS, documents, exported, exports, paths, write

from paceline.export.dynamo import SHIPS, VERSION, published_image

TEMPLATES = "dynamo/profiler/templates/dgd"
FOLDERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}

DOCUMENTED = {
    "metadata.namespace": "Kubernetes' ObjectMeta",
    "spec.backendFramework": "DynamoGraphDeploymentSpec: sglang, vllm or trtllm",
}
"""Places that no template has, and the type of the operator's API that documents them:
deploy/operator/api/v1beta1 of github.com/ai-dynamo/dynamo, and
docs.nvidia.com/dynamo/…/reference/api/kubernetes."""

POD = "spec.components[].podTemplate.spec"
"""The place that is a pod's."""


ENGINES_OWN = {
    "vllm": {
        *("--model", "--tensor-parallel-size"),
        *("--speculative-config", "--kv-transfer-config"),
    },
    "sglang": {
        *(
            "--tp-size",
            "--enable-metrics",
            "--speculative-algorithm",
            "--speculative-draft-model-path",
        ),
        *("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"),
        *("--speculative-ngram-max-bfs-breadth", "--speculative-adaptive"),
        *("--speculative-adaptive-config",),
    },
}
"""Options that a worker hands to its engine, whose own checks are in the engines' scripts."""


def templates(wheel: zipfile.ZipFile) -> dict[str, dict[str, Any]]:
    """By engine, those of an aggregated and a disaggregated graph."""
    return {
        engine: {
            shape: yaml.safe_load(wheel.read(f"{TEMPLATES}/{folder}/{shape}.yaml"))
            for shape in ("agg", "disagg")
        }
        for engine, folder in FOLDERS.items()
    }


def pins(wheel: zipfile.ZipFile) -> tuple[str, dict[str, str]]:
    """The wheel's version, and the engine versions that it asks for."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    headers = HeaderParser().parsestr(wheel.read(name).decode())
    found = {}
    for line in headers.get_all("Requires-Dist") or []:
        pin = re.match(r"(vllm|sglang|tensorrt-llm)(?:\[[^]]*\])?==([^;\s]+)", line)
        if pin:
            found[pin[1]] = pin[2]
    return str(headers["Version"]), found


def containers(graph: Any) -> dict[str, Any]:
    """Main containers by the kind of their component."""
    return {
        one["type"]: inner
        for one in graph["spec"]["components"]
        for inner in one["podTemplate"]["spec"]["containers"]
        if inner["name"] == "main"
    }


def known_paths(found: dict[str, dict[str, Any]]) -> set[str]:
    """Every place that a template or the documentation has, pods by Kubernetes' schema."""
    pod = json.loads(KEYS.read_text(encoding="utf-8"))["kubernetes"]["paths"]["PodTemplate"]
    own = (paths(graph) for shapes in found.values() for graph in shapes.values())
    inside = (path for path in pod if path.startswith("template.spec"))
    return set(DOCUMENTED).union(
        *own, (POD + path.removeprefix("template.spec") for path in inside)
    )


@cache
def graphs() -> list[tuple[str, bool, Any]]:
    """Every graph that the command makes, by engine and shape."""
    return list(_graphs())


def _graphs() -> Iterator[tuple[str, bool, Any]]:
    for name, options, _ in exports():
        if options[0] != "dynamo":
            continue
        text, _ = exported(name, options)  # nothing where it refuses; manifests.py tells which
        engine = options[options.index("--engine") + 1]
        for one in documents(text):
            if one["kind"] == "DynamoGraphDeployment":
                yield engine, "--disaggregated" in options, one


def options_of(wheel: zipfile.ZipFile, engine: str) -> set[str]:
    """Dynamo's own options of a worker: every literal of its argument modules that is one."""
    folder = f"dynamo/{FOLDERS[engine]}/"
    sources = [
        name
        for name in wheel.namelist()
        if name.startswith(folder) and name.endswith(("/args.py", "/backend_args.py"))
    ]
    text = "".join(wheel.read(name).decode() for name in sources)
    return set(re.findall(r"""["'](--[a-z][a-z0-9-]+)["']""", text))


def faults(wheel: zipfile.ZipFile) -> Iterator[str]:
    version, pinned = pins(wheel)
    if version != VERSION or pinned != SHIPS.get(version):
        yield f"The wheel {version} pins {pinned}, and Paceline has {SHIPS.get(VERSION)}."
    found = templates(wheel)
    known = known_paths(found)
    for engine, halves, graph in graphs():
        unknown = paths(graph) - known
        if unknown:
            yield f"{engine}: nowhere documented: {sorted(unknown)}"
        template = containers(found[engine]["disagg" if halves else "agg"])
        written = containers(graph)
        if written.keys() != template.keys():
            yield f"{engine}: has {sorted(written)}, the template {sorted(template)}"
            continue
        offered = options_of(wheel, engine)
        for kind, container in written.items():
            yield from container_faults(engine, kind, container, template[kind], offered)


def container_faults(
    engine: str, kind: str, container: Any, template: Any, offered: set[str]
) -> Iterator[str]:
    if container["command"] != template["command"]:
        yield f"{engine} {kind}: starts {container['command']}, not {template['command']}"
    if container["image"] != template["image"] or container["image"] != published_image(engine):
        yield f"{engine} {kind}: image {container['image']}, not {template['image']}"
    if kind == "frontend":
        if container["args"] != template["args"]:
            yield f"{engine} frontend: {container['args']}, not {template['args']}"
        return
    for word in container["args"]:
        if not word.startswith("--") or word in offered or word in template["args"]:
            continue
        if engine == "tensorrt-llm" or word not in ENGINES_OWN[engine]:
            yield f"{engine} {kind}: the wheel has no {word}"


def workers() -> list[tuple[str, list[str]]]:
    """Every worker's engine and arguments, once."""
    found = {}
    for engine, _, graph in graphs():
        for kind, container in containers(graph).items():
            if kind != "frontend":
                found[json.dumps([engine, container["args"]])] = (engine, container["args"])
    return list(found.values())


def run(path: Path) -> int:
    with zipfile.ZipFile(path) as wheel:
        wrong = sorted(set(faults(wheel)))
        known = sorted(known_paths(templates(wheel)))
        version, pinned = pins(wheel)
    write(
        HERE / "results/dynamo.json",
        {
            "ai-dynamo": version,
            "pins": pinned,
            "graphs": len(graphs()),
            "faults": wrong,
            "workers": workers(),
        },
    )
    if wrong:
        print("\n".join(wrong))
        return 1
    keys = json.loads(KEYS.read_text(encoding="utf-8"))
    keys["dynamo"] = {"checked with": {"ai-dynamo": version}, "v1beta1": known}
    write(KEYS, keys)
    print(f"Every graph has the shape of ai-dynamo {version}'s templates.")
    return 0


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
