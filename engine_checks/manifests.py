"""Manifests of `paceline export kubernetes` and `dynamo` against the schemas of Kubernetes (the
package kubernetes-validate has those of many versions) and of the Prometheus operator.

    python engine_checks/manifests.py

Writes results/manifests.json, and the keys that were seen to be valid to
tests/export/manifest_keys.json, which the tests hold every manifest against.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
from cloudcoil.models.prometheus_operator.v1 import PodMonitor
from jsonschema import ValidationError
from kubernetes_validate import utils
from pydantic import ValidationError as PodMonitorError

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests/export"
KEYS = TESTS / "manifest_keys.json"
sys.path.insert(0, str(TESTS))

from made_setups import documents, paths  # noqa: E402
from plans import plan, steps  # noqa: E402

from paceline.cli.main import main  # noqa: E402

# It reads and parses a schema's file for every object.
utils.schema_contents = cache(utils.schema_contents)

PLANS = {
    "lookup": plan("lookup"),
    "model": plan("model"),
    "eagle3": plan("eagle3"),
    "eagle3 by batch": plan("eagle3", max_draft_tokens=4, schedule=steps((1, 4, 4), (5, None, 0))),
    "none": plan("none"),
}
MODELS = {
    "llama-server": ("--target", "/models/target.gguf", "--model-volume", "models:/models"),
}
DRAFTS = {"llama-server": ("--draft-model", "/models/draft.gguf")}
EVERYTHING = (
    *("--name", "on", "--namespace", "1e3", "--replicas", "2", "--gpus", "2"),
    *("--cpu", "4", "--memory", "64Gi", "--model-volume", "models:/models"),
    *("--cache-volume", "cache", "--hf-secret", "hf-token"),
)


def exports() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Every way to deploy a plan: its name, its options, the plan's."""
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama-server"):
        for name in PLANS:
            draft = DRAFTS.get(engine, ()) if PLANS[name].draft and name != "lookup" else ()
            for options in (MODELS.get(engine, ()), (*MODELS.get(engine, ()), *EVERYTHING)):
                monitor = ("--monitor-label", "release=on") if options else ()
                told = ("--engine", engine, *options, *draft)
                yield name, ("kubernetes", *told, *monitor), f"{engine}, {name}"
                if engine == "llama-server":
                    continue
                for halves in ((), ("--disaggregated",)):
                    yield name, ("dynamo", *told, *halves), f"{engine}, {name}"


def exported(name: str, options: tuple[str, ...]) -> tuple[str, str]:
    """What the command prints, and what it says where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        PLANS[name].write(file)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["export", options[0], str(file), *options[1:]])
        if code not in (0, 2):
            raise SystemExit(f"{options} ended with {code}: {err.getvalue()}")
        return out.getvalue(), err.getvalue().strip()


def checkable(document: Any) -> Iterator[Any]:
    """Objects that there are schemas of. Of a graph, those are its pods."""
    if document["kind"] != "DynamoGraphDeployment":
        yield document
        return
    for spec in pod_specs(document):
        yield {"apiVersion": "v1", "kind": "PodTemplate", "template": {"spec": spec}}


def pod_specs(graph: Any) -> Iterator[Any]:
    for one in graph["spec"]["components"]:
        yield one["podTemplate"]["spec"]


def fault(document: Any, release: str) -> str | None:
    """What its schema has against an object."""
    if document["kind"] == "PodMonitor":
        return monitor_fault(document)
    try:
        kubernetes_validate.validate(document, release, strict=True)
    except ValidationError as error:
        return f"{document['kind']} {'.'.join(map(str, error.path))}: {error.message}"
    return None


def monitor_fault(document: Any) -> str | None:
    """The same of a PodMonitor. Its model drops what it doesn't know, so that nothing may be gone
    afterwards."""
    try:
        read = PodMonitor.model_validate(document)
    except PodMonitorError as error:
        return f"PodMonitor: {error}"
    kept = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    gone = paths(document) - paths(kept)
    return f"PodMonitor doesn't know {sorted(gone)}" if gone else None


def broken(documents_: list[Any]) -> Iterator[tuple[str, Any]]:
    """Objects with a fault each, which a check that works must find."""

    def changed(kind: str, change: Callable[[Any], object]) -> Any:
        one = copy.deepcopy(next(one for one in documents_ if one["kind"] == kind))
        change(one)
        return one

    def pod(one: Any) -> Any:
        return one["spec"]["template"]["spec"]

    def container(one: Any) -> Any:
        return pod(one)["containers"][0]

    yield "a misspelt key", changed("Deployment", lambda one: pod(one).update(volume=[]))
    yield "a number for a text", changed("Deployment", lambda one: container(one).update(args=[1]))
    yield "no name", changed("Deployment", lambda one: container(one).pop("name"))
    yield "no selector", changed("Deployment", lambda one: one["spec"].pop("selector"))
    yield (
        "a port that is a text",
        changed("Service", lambda one: one["spec"]["ports"][0].update(port="8000")),
    )
    yield (
        "a monitor's misspelt key",
        changed(
            "PodMonitor", lambda one: one["spec"]["podMetricsEndpoints"][0].update(ports="http")
        ),
    )
    yield (
        "an interval that is none",
        changed(
            "PodMonitor", lambda one: one["spec"]["podMetricsEndpoints"][0].update(interval="15 s")
        ),
    )


def checked_releases() -> list[str]:
    """The newest release, and every third before it, for the time that a schema takes to read."""
    newest_first = list(dict.fromkeys(reversed(utils.all_versions())))
    return newest_first[::3][::-1]


def run() -> int:
    releases = checked_releases()
    refused, faults = {}, []
    done: set[str] = set()
    seen: dict[str, set[str]] = {}
    for name, options, shown in exports():
        text, said = exported(name, options)
        if not text:
            refused[f"{options[0]}: {shown}"] = said
            continue
        for document in documents(text):
            for one in checkable(document):
                if (mark := json.dumps(one)) in done:
                    continue
                done.add(mark)
                found = [error for release in releases if (error := fault(one, release))]
                faults += [f"{' '.join(options)}: {error}" for error in found]
                seen.setdefault(one["kind"], set()).update(paths(one))
    everything = documents(exported("lookup", ("kubernetes", "--engine", "vllm", *EVERYTHING))[0])
    missed = [what for what, one in broken(everything) if not fault(one, releases[-1])]
    result = {
        "schemas": {
            "kubernetes-validate": version("kubernetes-validate"),
            "releases": releases,
            "cloudcoil.models.prometheus_operator": version("cloudcoil.models.prometheus_operator"),
        },
        "objects": len(done),
        "faults": faults,
        "faults on purpose that were not found": missed,
        "refused": refused,
    }
    (HERE / "results").mkdir(exist_ok=True)
    write(HERE / "results/manifests.json", result)
    if faults or missed:
        print(json.dumps(result, indent=1))
        return 1
    keys = json.loads(KEYS.read_text(encoding="utf-8")) if KEYS.exists() else {}
    keys["kubernetes"] = {
        "checked with": result["schemas"],
        "paths": {kind: sorted(found) for kind, found in sorted(seen.items())},
    }
    write(KEYS, keys)
    print(f"{len(done)} objects are valid in Kubernetes {releases[0]} to {releases[-1]}.")
    return 0


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run())
