"""`paceline export kubernetes` and `paceline export dynamo`: their options, and what they print."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cli.export import VllmSettings, add_place, max_running, setup_of
from paceline.cli.parser import Parser, at_least
from paceline.cli.settings import flag, option
from paceline.errors import SettingError
from paceline.export import dynamo, kubernetes
from paceline.export.cluster import Cluster, short_name
from paceline.export.setup import ENGINES, EngineSetup


def _volume(text: str) -> tuple[str, str]:
    claim, _, path = text.partition(":")
    if not claim or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not CLAIM:/PATH")
    return claim, path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(VllmSettings):
    """What both kinds of deployments take."""

    max_running: int | None = max_running()
    name: str | None = option("of everything that is made (default: the target's)", metavar="NAME")
    namespace: str | None = option("(default: kubectl's)", metavar="NAME")
    replicas: int = option("servers (%(default)s)", default=1, type=at_least(0), metavar="N")
    image: str | None = option(
        "(default: the one published of the engine's version)", metavar="IMAGE"
    )
    gpus: int | None = option(
        "GPUs per server, over all of which it splits its model (1)", type=at_least(0), metavar="N"
    )
    cpu: str | None = option("asked for per server: 4, 500m", metavar="AMOUNT")
    memory: str | None = option("asked for per server: 32Gi", metavar="AMOUNT")
    model_volume: tuple[str, str] | None = option(
        "a PersistentVolumeClaim with models, and where it is mounted",
        type=_volume,
        metavar="CLAIM:/PATH",
    )
    cache_volume: str | None = option(
        "a PersistentVolumeClaim that fetched models are kept in", metavar="CLAIM"
    )
    hf_secret: str | None = option("a Secret with HF_TOKEN, for gated models", metavar="SECRET")

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
        return Cluster(
            name=short_name(setup.target, longest) if self.name is None else self.name,
            namespace=self.namespace,
            replicas=self.replicas,
            image=self.image,
            gpus=1 if gpus is None else gpus,
            cpu=self.cpu,
            memory=self.memory,
            model_volume=self.model_volume,
            cache_volume=self.cache_volume,
            hf_secret=self.hf_secret,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings(ClusterSettings):
    """`paceline export kubernetes`."""

    engine: str = option("what decodes", choices=tuple(ENGINES), required=True)
    startup_minutes: int = option(
        "most that fetching and loading models takes (%(default)s)",
        default=kubernetes.STARTUP_MINUTES,
        type=at_least(1),
        metavar="N",
    )
    no_pod_monitor: bool = flag(
        "without a PodMonitor: for clusters without the Prometheus operator"
    )
    monitor_label: tuple[str, ...] = option(
        "of the PodMonitor: what your Prometheus selects its monitors by (repeatable)",
        repeat=True,
        metavar="KEY=VALUE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoSettings(ClusterSettings):
    """`paceline export dynamo`."""

    engine: str = option("what decodes", choices=tuple(dynamo.WORKERS), required=True)
    dynamo_version: str = option(
        "which says the engine's version too (%(default)s)",
        default=dynamo.VERSION,
        metavar="VERSION",
    )
    disaggregated: bool = flag("decode and prefill workers, in place of workers that do both")
    prefill_replicas: int | None = option(
        "prefill workers, with --disaggregated (1)", type=at_least(1), metavar="N"
    )


def add_kubernetes(places: argparse._SubParsersAction[Parser]) -> None:
    """Add `paceline export kubernetes`."""
    summary = "a Deployment with its Service"
    add_place(places, "kubernetes", summary, KubernetesSettings, _kubernetes)


def add_dynamo(places: argparse._SubParsersAction[Parser]) -> None:
    """Add `paceline export dynamo`."""
    add_place(places, "dynamo", "a DynamoGraphDeployment", DynamoSettings, _dynamo)


def _kubernetes(settings: KubernetesSettings, _: str | None) -> str:
    if settings.no_pod_monitor and settings.monitor_label:
        raise SettingError(
            "--monitor-label is given with --no-pod-monitor.", "Leave one of them out."
        )
    setup = setup_of(settings, settings.engine, tensor_parallel=settings.split())
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


def _dynamo(settings: DynamoSettings, _: str | None) -> str:
    if settings.prefill_replicas is not None and not settings.disaggregated:
        raise SettingError(
            "--prefill-replicas is given without --disaggregated.", "Give both or neither."
        )
    version = settings.version or dynamo.ships(settings.engine, settings.dynamo_version)
    setup = setup_of(settings, settings.engine, version=version, tensor_parallel=settings.split())
    return dynamo.dynamo(
        setup,
        settings.cluster(setup, dynamo.NAME),
        version=settings.dynamo_version,
        disaggregated=settings.disaggregated,
        prefill_replicas=settings.prefill_replicas or 1,
    )
