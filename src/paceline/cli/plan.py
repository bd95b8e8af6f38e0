"""`paceline plan FILE`: a decision from anything that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.bench.local.result import BenchResult
from paceline.bench.server.result import ServerResult
from paceline.cli.options import Output, out_path, refuse_given, say
from paceline.cli.settings import Verb, argument, as_flag, group, option, whole
from paceline.errors import DataError, SettingError
from paceline.plan.bench import decide_bench
from paceline.plan.document import DRAFT_KINDS, PlanDocument, PlannedDraft, calls_itself_plan
from paceline.plan.drafts import WITH_MODEL
from paceline.plan.evidence import Measured, read_measured
from paceline.plan.replay import decide_replay
from paceline.plan.servers import decide_servers
from paceline.plan.summary import plan_summary

EXAMPLES = """\
  paceline plan bench.jsonl -o plan.json
  paceline plan servers.jsonl --draft-kind ngram --max-draft-tokens 3 -o plan.json"""

OUT_HELP = "write the plan, for `paceline export` and `paceline watch`"

_DRAFTED = ("draft_kind", "draft_model", "max_draft_tokens")
_SERVED = tuple(kind for kind in DRAFT_KINDS if kind != "several")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Decide from what was measured: a bench of a local model, a run on live servers, or a replay.
    Print a summary of the plan; -o writes the plan. `paceline break-even` decides from costs
    alone."""

    file: str = argument(
        "what was measured: a file of `bench -o` or `bench-server -o`, or what `replay --json` "
        "printed",
        "FILE",
    )
    configuration: str | None = option(
        "of a bench or replay: plan with this one, whether it pays or not (default: the best that "
        "does)",
        "NAME",
    )
    draft_kind: str | None = option(
        f"of a run on live servers: what drafted there ({', '.join(_SERVED)})",
        "KIND",
        choices=_SERVED,
    )
    draft_model: str | None = option(
        "of a run on live servers: the draft's model, a path or a repository", "MODEL"
    )
    max_draft_tokens: int | None = whole(
        "of a run on live servers: most drafted tokens a round", short="-n"
    )
    out: str | None = option(OUT_HELP, "FILE", short="-o")
    output: Output = group(Output)


def run(settings: PlanSettings) -> int:
    """Plan, print or write it, and return the exit code."""
    measured = read_measured(settings.file)
    out = plan_path(settings.out)
    give(_plan(settings, measured), out, settings.output)
    return 0


def _plan(settings: PlanSettings, measured: Measured) -> PlanDocument:
    file, named = Path(settings.file).name, settings.configuration
    drafted = {name: getattr(settings, name) for name in _DRAFTED}
    if isinstance(measured, ServerResult):
        why = f"{settings.file} is a run on live servers, which has one way to decode"
        refuse_given({"configuration": named}, why)
        served, limit = _served(settings), settings.max_draft_tokens
        assert limit is not None
        return decide_servers(measured, served, limit, file=file)
    if isinstance(measured, BenchResult):
        refuse_given(drafted, f"{settings.file} is a bench, which says what drafted")
        return decide_bench(measured, configuration=named, file=file)
    refuse_given(drafted, f"{settings.file} is a replay, which says what drafted")
    return decide_replay(measured, configuration=named, file=file)


def _served(settings: PlanSettings) -> PlannedDraft:
    """What drafted on the server, as the user says."""
    for name in ("draft_kind", "max_draft_tokens"):
        if getattr(settings, name) is None:
            raise SettingError(
                f"{settings.file} is of live servers, which don't tell what drafted.",
                f"Say it with {as_flag(name)}.",
            )
    kind, model = settings.draft_kind, settings.draft_model
    assert kind is not None
    if model is None and kind in WITH_MODEL and kind != "mtp":  # which may be the target's own
        raise SettingError(
            f"A draft of the kind {kind} has a model.", "Name it with --draft-model."
        )
    if model is not None and kind not in WITH_MODEL:
        raise SettingError(
            f"--draft-model is {model}, and a draft of the kind {kind} has none.", "Leave it out."
        )
    return PlannedDraft(kind=kind, name=model or kind, model=model)


def plan_path(out: str | None) -> Path | None:
    """Where the plan goes: never over another file than a plan, which may be damaged or of another
    version. Raises DataError."""
    if out is None:
        return None
    path = out_path(out, "-o")
    if path.is_file() and path.stat().st_size and not calls_itself_plan(path):
        raise DataError(
            f"{path} is there already, and is not a plan.", "Choose another file with -o."
        )
    return path


def give(plan: PlanDocument, out: Path | None, output: Output) -> None:
    """Write it where that was asked for, and print its summary, or the document itself."""
    if out is not None:
        plan.write(out)
    output.show(plan.as_json, lambda: plan_summary(plan))
    if out is not None:
        say(f"The plan is in {out}.")


VERB = Verb(PlanSettings, run, EXAMPLES)
