"""`paceline break-even`: can a draft pay here, from which acceptance on, how far?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import plugins
from paceline.bench.local.model_metadata import draft_metadata, target_metadata
from paceline.bench.profile.measured_policy import gather_costs, sources
from paceline.cli.options import (
    COSTS_HELP,
    DRAFT_HELP,
    MODEL_HELP,
    DraftOptions,
    Output,
    TargetOptions,
    draft_option,
    refuse_given,
    say,
)
from paceline.cli.plan import OUT_HELP, give, plan_path
from paceline.cli.settings import Verb, argument, group, option
from paceline.errors import SettingError, unknown_name
from paceline.plan.break_even import BreakEven, as_document, lines, make_plan, sentence
from paceline.plan.costs import decide_costs
from paceline.plan.document import TRAINED
from paceline.policy.adaptive import Source
from paceline.policy.break_even import check_acceptance
from paceline.policy.costs import Costs, read_costs
from paceline.report.cost_plots import check_plot, plot_speed_up

EXAMPLES = """\
  paceline break-even target.gguf -d draft.gguf --acceptance 0.7
  paceline break-even --costs llama-3.1-8b-h100-vllm --plot speedup.svg"""


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalTarget(TargetOptions):
    """A target that is left out where costs are named."""

    target: str | None = argument(MODEL_HELP, "TARGET", nargs="?")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenSettings:
    """Print whether a draft can pay, then the arithmetic behind it. Costs come from a quick
    measurement of TARGET and its drafts, kept for the next time, or from a file: then no model
    is loaded, and TARGET is left out."""

    target: OptionalTarget = group(OptionalTarget)
    draft: tuple[str, ...] = draft_option(
        f"{DRAFT_HELP} (default: lookup; with --costs also all drafts of the file)"
    )
    acceptance: tuple[float, ...] = option(
        "acceptance rate of a drafted token, 0 to 1 (default: a range)",
        "A[,A…]",
        default=(),
        type=_numbers,
    )
    costs: str | None = option(COSTS_HELP, "FILE")
    plot: str | None = option("draw the speedup over max_draft_tokens: .svg, .png or .pdf", "FILE")
    out: str | None = option(f"{OUT_HELP}; takes one draft and one acceptance", "FILE", short="-o")
    output: Output = group(Output)
    loading: DraftOptions = group(DraftOptions)


def run(settings: BreakEvenSettings) -> int:
    """Print the decision and its arithmetic, and return the exit code."""
    # Whatever can be refused is, before a model is loaded.
    for acceptance in settings.acceptance:
        check_acceptance(acceptance)
    plot = None if settings.plot is None else check_plot(Path(settings.plot))
    out = plan_path(settings.out)
    found = _recorded(settings) if settings.costs is not None else _measured(settings)
    plan, target, drafts = found
    if out is not None:
        give(decide_costs(plan, target, drafts, file=settings.costs), out, settings.output)
    else:
        settings.output.show(
            lambda: as_document(plan),
            lambda: "\n".join([sentence(plan), "", *lines(plan)]),
        )
    if plot is not None:
        plot_speed_up(plan, plot)
        say(f"The plot is in {plot}.")
    return 0


_Costed = tuple[BreakEven, Mapping[str, Any], dict[str, dict[str, Any]]]
"""What costs say, of what: metadata of the target, and of each draft by name."""


def _recorded(settings: BreakEvenSettings) -> _Costed:
    assert settings.costs is not None
    target, loading = settings.target, settings.loading
    if target.target is not None:
        raise SettingError(
            f"Both TARGET ({target.target}) and --costs ({settings.costs}) are given.",
            "Leave out TARGET to decide from the file, or --costs to measure.",
        )
    given = {"engine": target.engine, "context": target.context}
    given |= target.place.given() | loading.given()
    refuse_given(given, "--costs loads no model", "Drop one of them.")
    costs = read_costs(settings.costs)
    names = settings.draft or ("lookup", *costs.drafts)
    found = [_source(costs, n, settings.costs) for n in dict.fromkeys(names) if n != "none"]
    metadata = {source.name: _metadata(source) for source in found}
    return make_plan(costs, found, settings.acceptance), costs.key, metadata


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
        return Source(
            name, previewable=True, has_confidence=True, prior=plugins.find("draft", kind).prior
        )
    raise unknown_name(f"draft in the costs of {file}", name, ["lookup", *costs.drafts])


def _measured(settings: BreakEvenSettings) -> _Costed:
    if settings.target.target is None:
        raise SettingError("There is no TARGET.", "Name a model, or costs with --costs FILE.")
    if settings.draft and set(settings.draft) == {"none"}:
        raise SettingError("There is no draft to decide on.", "Name one with -d.")
    with ExitStack() as stack:
        engine = stack.enter_context(settings.target.load())
        specs = settings.draft or ("lookup",)
        drafts = settings.loading.load_all(specs, engine, settings.target.place, stack)
        for name, draft in drafts.items():
            if draft.branches and not draft.previewable:
                raise SettingError(
                    f"The draft {name!r} offers trees, and this arithmetic is of chains.",
                    "Ask for its model, and use `paceline bench` for trees.",
                )
            if not draft.previewable and draft.engine is None:
                raise SettingError(
                    f"The draft {name!r} has no model, so its cost can only be learned while "
                    "decoding.",
                    "Use `paceline bench`.",
                )
        costs = gather_costs(engine, drafts, on_measure=say)
        return (
            make_plan(costs, sources(costs, drafts), settings.acceptance),
            target_metadata(engine),
            {name: draft_metadata(draft) for name, draft in drafts.items()},
        )


VERB = Verb(BreakEvenSettings, run, EXAMPLES)
