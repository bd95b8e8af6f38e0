"""`paceline plan --from FILE`: a plan from what was measured; and how a plan is handed out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.bench.local.result import BenchResult
from paceline.bench.server.result import EndpointResult
from paceline.cli import options
from paceline.cli.parser import at_least
from paceline.errors import DataError, SettingError
from paceline.plan.decide import decide
from paceline.plan.decide_parts import WITH_MODEL
from paceline.plan.decide_replay import decide_replay
from paceline.plan.decide_server import decide_endpoint
from paceline.plan.document import DRAFT_KINDS, Draft, PlanDocument, calls_itself_plan
from paceline.plan.evidence import Evidence, read_evidence
from paceline.plan.summary import plan_summary

_SERVED = tuple(kind for kind in DRAFT_KINDS if kind != "several")
_ONLY_FROM = ("configuration", "draft_kind", "draft_model", "max_draft_tokens")
_NOT_FROM: Mapping[str, object] = {
    "target": None,
    "draft": None,
    "acceptance": [],
    "costs": None,
    "plot": None,
    "engine": None,
    "context": None,
    **dict.fromkeys(options.PLACE),
    "draft_engine": None,
    "draft_context": None,
}


def add_from(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("from what was measured (docs/plan.md)")
    group.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="plan from a file of `bench -o`, with --endpoint and --against or without, or from "
        "what `replay --json` printed",
    )
    group.add_argument(
        "--configuration",
        metavar="NAME",
        help="of a bench or replay: plan with this one, whether it pays or not (default: the best "
        "that does)",
    )
    group.add_argument(
        "--draft-kind",
        choices=_SERVED,
        metavar="KIND",
        help=f"of a run on live servers: what drafted there ({', '.join(_SERVED)})",
    )
    group.add_argument(
        "--draft-model", metavar="MODEL", help="the same: its model, a path or a repository"
    )
    group.add_argument(
        "--max-draft-tokens",
        type=at_least(1),
        metavar="N",
        help="the same: most drafted tokens a round",
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help="write the plan, for `paceline export` and `paceline watch`",
    )


def run(args: argparse.Namespace) -> int:
    """Plan from `args.source`."""
    for name, unset in _NOT_FROM.items():
        if getattr(args, name) != unset:
            written = f"TARGET ({args.target})" if name == "target" else _option(name)
            raise SettingError(
                f"Both {written} and --from ({args.source}) are given.",
                "Leave out one: --from plans from what was measured, and loads no model.",
            )
    out = plan_path(args)
    give(_plan(args, read_evidence(args.source)), out, as_json=args.json)
    return 0


def refuse_without_from(args: argparse.Namespace) -> None:
    for name in _ONLY_FROM:
        if getattr(args, name) is not None:
            raise SettingError(f"{_option(name)} is given without --from.", "Add --from FILE.")


def _plan(args: argparse.Namespace, evidence: Evidence) -> PlanDocument:
    file = Path(args.source).name
    if isinstance(evidence, EndpointResult):
        _refuse(args, "a run on live servers, which has one way to decode", ("configuration",))
        return decide_endpoint(evidence, _served(args), args.max_draft_tokens, file=file)
    described = ("draft_kind", "draft_model", "max_draft_tokens")
    if isinstance(evidence, BenchResult):
        _refuse(args, "a bench, which says what drafted", described)
        return decide(evidence, configuration=args.configuration, file=file)
    _refuse(args, "a replay, which says what drafted", described)
    return decide_replay(evidence, configuration=args.configuration, file=file)


def _refuse(args: argparse.Namespace, what: str, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise SettingError(
                f"{_option(name)} is given, and {args.source} is {what}.", "Leave it out."
            )


def _served(args: argparse.Namespace) -> Draft:
    """What drafted on the server, as the user says."""
    for name in ("draft_kind", "max_draft_tokens"):
        if getattr(args, name) is None:
            raise SettingError(
                f"{args.source} is of live servers, which don't tell what drafted.",
                f"Say it with {_option(name)}.",
            )
    kind, model = args.draft_kind, args.draft_model
    if model is None and kind in WITH_MODEL and kind != "mtp":  # which may be the target's own
        raise SettingError(
            f"A draft of the kind {kind} has a model.", "Name it with --draft-model."
        )
    if model is not None and kind not in WITH_MODEL:
        raise SettingError(
            f"--draft-model is {model}, and a draft of the kind {kind} has none.", "Leave it out."
        )
    return Draft(kind=kind, name=model or kind, model=model)


def plan_path(args: argparse.Namespace) -> Path | None:
    """Where the plan goes: never over another file than a plan, which may be damaged or of another
    version. Raises DataError."""
    if args.out is None:
        return None
    path = options.out_path(args.out, "-o")
    if path.is_file() and path.stat().st_size and not calls_itself_plan(path):
        raise DataError(f"{path} is there already, and is no plan.", "Choose another file with -o.")
    return path


def give(plan: PlanDocument, out: Path | None, *, as_json: bool) -> None:
    """Write it where that was asked for, and print its card, or the document itself."""
    if out is not None:
        plan.write(out)
    print(json.dumps(plan.as_json(), ensure_ascii=False) if as_json else plan_summary(plan))
    if out is not None:
        print(f"The plan is in {out}.", file=sys.stderr)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
