"""`paceline export`: a plan as the settings of an engine, or as a deployment."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from paceline.cli.options import out_path, say, write_text
from paceline.cli.settings import Verb, argument, flag, option, whole
from paceline.errors import DataError, SettingError
from paceline.export import dynamo, kubernetes
from paceline.export.kubernetes import Cluster, short_name
from paceline.export.make import make_setup
from paceline.export.setup import ENGINES, EngineSetup, ExportOptions
from paceline.export.text import one_line, unwritten, written
from paceline.plan.document import read_plan

EXAMPLES = """\
  paceline export vllm plan.json
  paceline export llama-server plan.json --version b11434 -o serve.sh
  paceline export kubernetes plan.json --engine vllm --target owner/name"""


# What each place takes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Turn a plan (`paceline plan … -o plan.json`) into what an engine is started with.
    A key, a flag or a combination that this version of the engine would refuse is an error here,
    and a rule that changes what is emitted is never turned on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What every place that a plan is exported to takes."""

    plan: str = argument("a plan's file", "PLAN")
    version: str | None = option("version of the engine (default: the newest known)")
    target: str | None = option("the target as the engine finds it (default: the plan's)", "NAME")
    draft_model: str | None = option(
        "the draft's model as the engine finds it (default: the plan's)", "NAME"
    )
    max_draft_tokens: int | None = whole("drafted tokens in a round (default: the plan's)")
    nearest: bool = flag("where the engine can't express the draft, export what comes nearest")
    draft_tensor_parallel: int | None = whole(
        "GPUs that the draft is split over (default: the engine's)"
    )
    out: str | None = option("write to this file (default: stdout)", "FILE", short="-o")

    def options(self, **changes: object) -> ExportOptions:
        """What was given, for `make_setup`."""
        names = ExportOptions.__dataclass_fields__
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return ExportOptions(**{**given, **changes})


def _format(engine: str) -> Any:
    formats = ENGINES[engine].formats
    return option("what form is written", choices=formats, default=formats[0])


def _max_running() -> Any:
    return whole("SGLang: most sequences decoded together; with drafts SGLang itself would take 48")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaServerSettings(ExportSettings):
    """Of llama-server."""

    format: str = _format("llama-server")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings(ExportSettings):
    """Also for engines that split a target over as many GPUs as they are told."""

    tensor_parallel: int | None = whole("GPUs that the target is split over (default: 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRTSettings(SplitSettings):
    """Of TensorRT-LLM."""

    format: str = _format("tensorrt-llm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings(SplitSettings):
    """Of SGLang."""

    max_running: int | None = _max_running()
    format: str = _format("sglang")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings(SplitSettings):
    """Of vLLM, and of deployments, which may be of it."""

    ours: bool = flag("vLLM: Paceline's own drafts and policy in place of vLLM's n-grams")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings(PluginSettings):
    """Of vLLM."""

    format: str = _format("vllm")


def _volume(text: str) -> tuple[str, str]:
    claim, _, path = text.partition(":")
    if not claim or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not CLAIM:/PATH")
    return claim, path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(PluginSettings):
    """What both kinds of deployments take."""

    max_running: int | None = _max_running()
    name: str | None = option("name of everything that is made (default: the target's)", "NAME")
    namespace: str | None = option("namespace (default: kubectl's)", "NAME")
    replicas: int = whole("number of servers", 1, least=0)
    image: str | None = option(
        "container image (default: the one published for the engine's version)", "IMAGE"
    )
    gpus: int | None = whole(
        "GPUs of a server, which splits its model over all of them (default: 1)", least=0
    )
    cpu: str | None = option("CPU request of a server, such as 4 or 500m", "AMOUNT")
    memory: str | None = option("memory request of a server, such as 32Gi", "AMOUNT")
    model_volume: tuple[str, str] | None = option(
        "a PersistentVolumeClaim with models, and where it is mounted", "CLAIM:/PATH", type=_volume
    )
    cache_volume: str | None = option(
        "a PersistentVolumeClaim that fetched models are kept in", "CLAIM"
    )
    hf_secret: str | None = option("a Secret with HF_TOKEN, for gated models", "SECRET")

    def split(self) -> int | None:
        """Over how many GPUs a target is split: all of a server's."""
        given, gpus = self.tensor_parallel, self.gpus
        if None not in (given, gpus) and given != gpus:
            raise SettingError(
                f"--tensor-parallel is {given} and --gpus {gpus}: a server splits its model over "
                "all of its GPUs.",
                "Give one of them.",
            )
        return given if gpus is None else gpus or None

    def cluster(self, setup: EngineSetup, longest: int) -> Cluster:
        """What is asked of the cluster; a name that isn't given has at most so many characters."""
        gpus = self.tensor_parallel if self.gpus is None else self.gpus
        given = {one.name: getattr(self, one.name) for one in fields(Cluster)}
        name = short_name(setup.target, longest) if self.name is None else self.name
        return Cluster(**{**given, "name": name, "gpus": 1 if gpus is None else gpus})


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings(ClusterSettings):
    """`paceline export kubernetes`."""

    engine: str = option("the engine that decodes", choices=tuple(ENGINES), required=True)
    startup_minutes: int = whole(
        "most minutes that fetching and loading models takes", kubernetes.STARTUP_MINUTES
    )
    no_pod_monitor: bool = flag(
        "without a PodMonitor: for clusters without the Prometheus operator"
    )
    monitor_label: tuple[str, ...] = option(
        "label of the PodMonitor, by which your Prometheus selects its monitors",
        "KEY=VALUE",
        repeat=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoSettings(ClusterSettings):
    """`paceline export dynamo`."""

    engine: str = option("the engine that decodes", choices=tuple(dynamo.WORKERS), required=True)
    dynamo_version: str = option(
        "version of Dynamo, which has one version of the engine", "VERSION", default=dynamo.VERSION
    )
    disaggregated: bool = flag("decode and prefill workers, in place of workers that do both")
    prefill_replicas: int | None = whole("prefill workers, with --disaggregated (default: 1)")


# What each place is given.


def _run(text: Callable[[Any], str], settings: ExportSettings) -> int:
    """Print or write what a plan becomes, and return the exit code."""
    out = _out_path(settings)
    made = text(settings)
    if out is None:
        sys.stdout.write(made)
    else:
        write_text(out, made)
        say(f"The settings are in {out}.")
    return 0


def _setup(settings: ExportSettings, engine: str, **changes: object) -> EngineSetup:
    """The plan that is named, for an engine; with changes to what was given."""
    return make_setup(engine, read_plan(Path(settings.plan)), settings.options(**changes))


def _engine(engine: str, settings: Any) -> str:
    setup, form = _setup(settings, engine), settings.format
    text = written(setup, form, settings.out or "THIS_FILE")
    for note in unwritten(setup, form):
        say(one_line(note))
    return text


def _out_path(settings: ExportSettings) -> Path | None:
    """Where it goes: over no file of Paceline's. Raises DataError."""
    if settings.out is None:
        return None
    path = out_path(settings.out, "-o")
    if path.exists() and Path(settings.plan).exists() and path.samefile(settings.plan):
        raise DataError(f"{path} is the plan itself.", "Choose another file with -o.")
    kind = _kind(path)
    if kind is not None:
        raise DataError(
            f"{path} is there already, and is a {kind} file.", "Choose another file with -o."
        )
    return path


_KIND = re.compile(r'"kind"\s*:\s*"(paceline [^"]+)"')


def _kind(path: Path) -> str | None:
    """What a file of Paceline's says it is; None for others."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(4096)
    found = _KIND.search(start) if start.lstrip().startswith("{") else None
    return one_line(found[1]) if found else None


def _kubernetes(settings: KubernetesSettings) -> str:
    if settings.no_pod_monitor and settings.monitor_label:
        raise SettingError(
            "--monitor-label is given with --no-pod-monitor.", "Leave one of them out."
        )
    setup = _setup(settings, settings.engine, tensor_parallel=settings.split())
    return kubernetes.kubernetes(
        setup,
        settings.cluster(setup, 63),
        startup_minutes=settings.startup_minutes,
        pod_monitor=not settings.no_pod_monitor,
        monitor_labels=_labels(settings.monitor_label),
    )


def _labels(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"Label {text!r} has no value.", "Write KEY=VALUE.")
        if key in found:
            raise SettingError(f"--monitor-label gives {key!r} twice.", "Give it once.")
        found[key] = value
    return found


def _dynamo(settings: DynamoSettings) -> str:
    if settings.prefill_replicas is not None and not settings.disaggregated:
        raise SettingError(
            "--prefill-replicas is given without --disaggregated.", "Give both or neither."
        )
    version = settings.version or dynamo.ships(settings.engine, settings.dynamo_version)
    setup = _setup(settings, settings.engine, version=version, tensor_parallel=settings.split())
    return dynamo.dynamo(
        setup,
        settings.cluster(setup, dynamo.NAME),
        version=settings.dynamo_version,
        disaggregated=settings.disaggregated,
        prefill_replicas=settings.prefill_replicas or 1,
    )


KINDS: Mapping[str, type[ExportSettings]] = {
    "vllm": VllmSettings,
    "sglang": SglangSettings,
    "tensorrt-llm": TensorRTSettings,
    "llama-server": LlamaServerSettings,
}


def _place(kind: type[ExportSettings], text: Callable[[Any], str], summary: str) -> Verb:
    return Verb(kind, partial(_run, text), description=f"A plan as {summary}.")


VERB = Verb(
    Settings,
    None,
    EXAMPLES,
    metavar="ENGINE",
    actions={
        **{
            name: _place(
                KINDS[name],
                partial(_engine, name),
                f"settings of {engine.title} {', '.join(engine.versions)}",
            )
            for name, engine in ENGINES.items()
        },
        "kubernetes": _place(KubernetesSettings, _kubernetes, "a Deployment with its Service"),
        "dynamo": _place(DynamoSettings, _dynamo, "a DynamoGraphDeployment"),
    },
)
