"""`paceline plan`: does drafting pay here, with what and how far? From costs alone, or from what
was measured (`plan_from`)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import plugins
from paceline.bench.local.model_metadata import draft_metadata, target_metadata
from paceline.bench.profile.measured_policy import gather_costs, sources
from paceline.cli import options
from paceline.cli import plan as plan_from
from paceline.cli.parser import Parser
from paceline.errors import SettingError, unknown_name
from paceline.plan.break_even import Plan, make_plan
from paceline.plan.break_even_text import as_document, lines, sentence
from paceline.plan.decide_costs import decide_costs
from paceline.plan.document import TRAINED, PlanDocument
from paceline.policy.adaptive import Source
from paceline.policy.break_even import check_acceptance
from paceline.policy.costs import Costs, read_costs, shipped_costs
from paceline.report.break_even_plot import check_plot, plot_speed_up

EXAMPLES = """\
  paceline plan target.gguf -d draft.gguf --acceptance 0.7
  paceline plan --costs llama-3.1-8b-h100-vllm --plot plan.svg
  paceline plan --from bench.jsonl -o plan.json"""


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "plan",
        examples=EXAMPLES,
        help="decide whether to draft, with what and how far",
        description=(
            "From costs: print the decision, then the arithmetic behind it. Costs come from a "
            "quick\nmeasurement of TARGET and its drafts, kept for the next time, or from a file: "
            "then no model\nis loaded, and TARGET is left out. From what was measured (--from): "
            "print the plan. With -o\nthe plan is written, and its card printed; from costs that "
            "takes one draft and one acceptance."
        ),
    )
    options.add_target(parser)
    parser.may_leave_out("target")
    parser.add_argument(
        "-d",
        "--draft",
        action="append",
        metavar="DRAFT",
        help=f"{options.DRAFT_HELP} (repeatable; default: lookup; with --costs: lookup and all "
        "drafts of the file)",
    )
    parser.add_argument(
        "--acceptance",
        type=_numbers,
        default=[],
        metavar="A[,A…]",
        help="chance that a drafted token is accepted, 0 to 1 (default: a range)",
    )
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help=f"costs from a file, or shipped ones: {', '.join(shipped_costs())}",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw speedup over limit: .svg, .png or .pdf"
    )
    plan_from.add_out(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document instead: the plan with --from or -o, else the arithmetic",
    )
    plan_from.add_from(parser)
    options.add_draft_loading(parser)
    parser.set_defaults(run=run)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None


def run(args: argparse.Namespace) -> int:
    if args.source is not None:
        return plan_from.run(args)
    # Whatever can be refused is, before a model is loaded.
    plan_from.refuse_without_from(args)
    for acceptance in args.acceptance:
        check_acceptance(acceptance)
    plot = None if args.plot is None else check_plot(Path(args.plot))
    out = plan_from.plan_path(args)
    priced = _recorded(args) if args.costs is not None else _measured(args)
    if out is not None:
        plan_from.give(priced.decided(args.costs), out, as_json=args.json)
    elif args.json:
        print(json.dumps(as_document(priced.plan), ensure_ascii=False))
    else:
        print("\n".join([sentence(priced.plan), "", *lines(priced.plan)]))
    if plot is not None:
        plot_speed_up(priced.plan, plot)
        print(f"The plot is in {plot}.", file=sys.stderr)
    return 0


@dataclass(frozen=True, slots=True)
class _Priced:
    """What costs say, of what: facts of the target, and of each draft by name."""

    plan: Plan
    target: Mapping[str, Any]
    drafts: Mapping[str, Mapping[str, Any]]

    def decided(self, file: str | None) -> PlanDocument:
        return decide_costs(self.plan, self.target, self.drafts, file=file)


def _recorded(args: argparse.Namespace) -> _Priced:
    if args.target is not None:
        raise SettingError(
            f"Both TARGET ({args.target}) and --costs ({args.costs}) are given.",
            "Leave out TARGET to plan from the file, or --costs to measure.",
        )
    loading = ("engine", "context", *options.PLACE, "draft_engine", "draft_context")
    for name in loading:
        if getattr(args, name) is not None:
            raise SettingError(
                f"--{name.replace('_', '-')} is {getattr(args, name)}, and --costs loads no model.",
                "Drop one of them.",
            )
    costs = read_costs(args.costs)
    names = args.draft or ["lookup", *costs.drafts]
    found = [_source(costs, name, args.costs) for name in dict.fromkeys(names) if name != "none"]
    metadata = {source.name: _metadata(source) for source in found}
    return _Priced(make_plan(costs, found, args.acceptance), costs.key, metadata)


def _metadata(source: Source) -> dict[str, Any]:
    """What a file of costs says of a draft: its kind by its name, if that is one; else a model."""
    if source.costs is None:
        return {"draft": source.name.partition(":")[0]}
    kind = source.name if source.name in TRAINED else "model"
    return {"draft": kind, "model": source.costs.key.get("model") or source.name}


def _source(costs: Costs, name: str, file: str) -> Source:
    """A draft of a cost file, or one that needs no costs."""
    if name in costs.drafts:
        return Source(name, costs=costs.drafts[name])
    kind = name.partition(":")[0]
    if kind in plugins.names("draft") and plugins.find("draft", kind).previewable:
        return Source(name, previewable=True, weighs=True, prior=plugins.find("draft", kind).prior)
    raise unknown_name(f"draft in the costs of {file}", name, ["lookup", *costs.drafts])


def _measured(args: argparse.Namespace) -> _Priced:
    if args.target is None:
        raise SettingError("There is no TARGET.", "Name a model, or costs with --costs FILE.")
    if args.draft and set(args.draft) == {"none"}:
        raise SettingError("There is no draft to plan for.", "Name one with -d.")
    with ExitStack() as stack:
        engine = stack.enter_context(options.load_target(args))
        drafts = options.load_drafts(args, args.draft or ["lookup"], engine, stack)
        for name, draft in drafts.items():
            if draft.branches and not draft.previewable:
                raise SettingError(
                    f"The draft {name!r} offers trees, and a plan prices chains.",
                    "Plan for its model, and use `paceline bench` for trees.",
                )
            if not draft.previewable and draft.engine is None:
                raise SettingError(
                    f"The draft {name!r} has no model, so its price can only be learned while "
                    "decoding.",
                    "Use `paceline bench`.",
                )
        costs = gather_costs(engine, drafts, on_measure=_say)
        return _Priced(
            make_plan(costs, sources(costs, drafts), args.acceptance),
            target_metadata(engine),
            {name: draft_metadata(draft) for name, draft in drafts.items()},
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr)
