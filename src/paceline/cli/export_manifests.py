"""`paceline export kubernetes` and `paceline export dynamo`: their options, and what they print."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from paceline.cli.parser import Parser, at_least
from paceline.errors import SettingError
from paceline.export import dynamo, kubernetes
from paceline.export.cluster import Cluster
from paceline.export.manifest import LABEL, label, short_name
from paceline.export.setup import Setup


def add_kubernetes(parser: Parser) -> None:
    """The options of `paceline export kubernetes`."""
    _add_shared(parser, kubernetes.ENGINES)
    parser.add_argument(
        "--startup-minutes",
        type=at_least(1),
        default=kubernetes.STARTUP_MINUTES,
        metavar="N",
        help=f"most that fetching and loading models takes ({kubernetes.STARTUP_MINUTES})",
    )
    parser.add_argument(
        "--no-pod-monitor",
        action="store_true",
        help="without a PodMonitor: for clusters without the Prometheus operator",
    )
    parser.add_argument(
        "--monitor-label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the PodMonitor: what your Prometheus selects its monitors by (repeatable)",
    )
    parser.set_defaults(manifest=_kubernetes)


def add_dynamo(parser: Parser) -> None:
    """The options of `paceline export dynamo`."""
    _add_shared(parser, dynamo.ENGINES)
    parser.add_argument(
        "--dynamo-version",
        default=dynamo.VERSION,
        metavar="VERSION",
        help=f"which says the engine's version too ({dynamo.VERSION})",
    )
    parser.add_argument(
        "--api",
        choices=dynamo.APIS,
        default=dynamo.APIS[0],
        help=f"of DynamoGraphDeployment ({dynamo.APIS[0]})",
    )
    parser.add_argument(
        "--disaggregated",
        action="store_true",
        help="decode and prefill workers, in place of workers that do both",
    )
    parser.add_argument(
        "--prefill-replicas",
        type=at_least(1),
        metavar="N",
        help="prefill workers, with --disaggregated (1)",
    )
    parser.set_defaults(manifest=_dynamo)


def engine_version(args: argparse.Namespace) -> str | None:
    """The engine version to export for, where none was asked for and the place that runs it has
    just one. Raises SettingError for a Dynamo that isn't known."""
    if args.manifest is not _dynamo:
        return None
    return dynamo.ships(args.engine, args.dynamo_version)


def tensor_parallel(args: argparse.Namespace) -> int | None:
    """Over how many GPUs a target is laid: all of a server's."""
    given: int | None = args.tensor_parallel
    if args.gpus is None:
        return given
    if given is not None and given != args.gpus:
        raise SettingError(
            f"--tensor-parallel is {given} and --gpus {args.gpus}: a server lays its model over "
            "all of its GPUs.",
            "Give one of them.",
        )
    return args.gpus or None


def render(args: argparse.Namespace, setup: Setup) -> str:
    """The manifests of a setup, as the options have them. Raises SettingError for what they, or
    the place that they are for, can't have."""
    found: str = args.manifest(args, setup)
    return found


def _add_shared(parser: Parser, engines: tuple[str, ...]) -> None:
    parser.add_argument("--engine", choices=engines, required=True, help="what decodes")
    parser.add_argument(
        "--name", metavar="NAME", help="of everything that is made (default: the target's)"
    )
    parser.add_argument("--namespace", metavar="NAME", help="(default: kubectl's)")
    parser.add_argument("--replicas", type=at_least(0), default=1, metavar="N", help="servers (1)")
    parser.add_argument(
        "--image", metavar="IMAGE", help="(default: the one published of the engine's version)"
    )
    parser.add_argument(
        "--gpus",
        type=at_least(0),
        metavar="N",
        help="GPUs per server, over all of which it lays its model (1)",
    )
    parser.add_argument("--cpu", metavar="AMOUNT", help="asked for per server: 4, 500m")
    parser.add_argument("--memory", metavar="AMOUNT", help="asked for per server: 32Gi")
    parser.add_argument(
        "--model-volume",
        type=_volume,
        metavar="CLAIM:/PATH",
        help="a PersistentVolumeClaim with models, and where it is mounted",
    )
    parser.add_argument(
        "--cache-volume",
        metavar="CLAIM",
        help="a PersistentVolumeClaim that fetched models are kept in",
    )
    parser.add_argument(
        "--hf-secret", metavar="SECRET", help="a Secret with HF_TOKEN, for gated models"
    )


def _volume(text: str) -> tuple[str, str]:
    claim, colon, path = text.partition(":")
    if not colon or not claim or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not CLAIM:/PATH")
    return claim, path


def _cluster(args: argparse.Namespace, setup: Setup, longest: int) -> Cluster:
    gpus = args.tensor_parallel if args.gpus is None else args.gpus
    return Cluster(
        name=short_name(setup.target, longest) if args.name is None else args.name,
        namespace=args.namespace,
        replicas=args.replicas,
        image=args.image,
        gpus=1 if gpus is None else gpus,
        cpu=args.cpu,
        memory=args.memory,
        model_volume=args.model_volume,
        cache_volume=args.cache_volume,
        hf_secret=args.hf_secret,
    )


def _kubernetes(args: argparse.Namespace, setup: Setup) -> str:
    if args.no_pod_monitor and args.monitor_label:
        raise SettingError(
            "--monitor-label is given with --no-pod-monitor.", "Leave one of them out."
        )
    return kubernetes.kubernetes(
        setup,
        _cluster(args, setup, LABEL),
        startup_minutes=args.startup_minutes,
        pod_monitor=not args.no_pod_monitor,
        monitor_labels=_labels(args.monitor_label),
    )


def _labels(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, value = label(text, "Label")
        if key in found:
            raise SettingError(f"--monitor-label gives {key!r} twice.", "Give it once.")
        found[key] = value
    return found


def _dynamo(args: argparse.Namespace, setup: Setup) -> str:
    if args.prefill_replicas is not None and not args.disaggregated:
        raise SettingError(
            "--prefill-replicas is given without --disaggregated.", "Give both or neither."
        )
    return dynamo.dynamo(
        setup,
        _cluster(args, setup, dynamo.NAME),
        version=args.dynamo_version,
        api=args.api,
        disaggregated=args.disaggregated,
        prefill_replicas=args.prefill_replicas or 1,
    )
