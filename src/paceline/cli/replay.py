"""`paceline replay`: how would a draft do on the answers that a model already gave?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.local.model_metadata import draft_metadata, target_metadata
from paceline.cli.options import (
    COSTS_HELP,
    MODEL_HELP,
    ChoiceOptions,
    DraftOptions,
    Output,
    PlaceOptions,
    draft_option,
    new_path,
    progress_bar,
    refuse_given,
    say,
)
from paceline.cli.settings import (
    Verb,
    argument,
    at_least,
    group,
    option,
    several,
    whole,
)
from paceline.drafts.base import Draft
from paceline.drafts.create import models_of
from paceline.engines.base import Engine
from paceline.engines.load import load_tokenizer
from paceline.errors import DataError, SettingError
from paceline.policy.acceptance import MOST
from paceline.policy.costs import Costs, read_costs
from paceline.simulate.fixed_limits import fill_outcomes
from paceline.simulate.record import sources_of
from paceline.simulate.replay import (
    Log,
    check_kinds,
    check_replayable,
    counts_of,
    read_log,
    replay,
)
from paceline.simulate.result import (
    ReplayDocument,
    ReplayedDraft,
    fill_predictions,
    temperature_notes,
    whose,
)
from paceline.simulate.summary import replay_summary
from paceline.simulate.trace import Recording, RecordingHeader, Trace, write
from paceline.types import Sampling

EXAMPLES = """\
  paceline replay answers.jsonl --target model.gguf -d lookup
  paceline replay answers.jsonl --target model.gguf -d lookup -d draft.gguf --costs costs.json"""


def _limit(text: str) -> int:
    value = at_least(1)(text)
    if value > MOST:
        raise argparse.ArgumentTypeError(f"{value} is above {MOST}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlaceOptions(DraftOptions):
    """How a model draft is loaded, and where it runs."""

    place: PlaceOptions = group(PlaceOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Say how drafts would do on the answers that a model already gave. Of the target only the
    tokenizer is loaded; a model draft reads each answer once. With costs, speed is predicted
    too."""

    prompts: str = argument("JSONL of prompts with answers (docs/workloads.md)", "LOGS")
    target: str = option(f"the model that answered: {MODEL_HELP}", "MODEL", required=True)
    engine: str | None = option("force its engine (paceline list)", "NAME")
    draft: tuple[str, ...] = draft_option(
        "lookup, with options, or a model with the target's tokenizer", "lookup"
    )
    max_draft_tokens: tuple[int, ...] = option(
        f"limits, 1 to {MOST}",
        "N[,N…]",
        short="-n",
        default=(1, 2, 3, 5, 7, 15),
        type=several(_limit),
    )
    choice: ChoiceOptions = group(ChoiceOptions)
    temperature: float = option(
        "what the answers were sampled at; 0 is greedy", default=0.0, type=float
    )
    max_tokens: int | None = whole(
        "most tokens the answers had room for: an answer of so many was cut"
    )
    costs: str | None = option(f"predict speed by {COSTS_HELP}", "FILE")
    batch: tuple[int, ...] | None = option(
        "requests served at once, for --costs (default: 1)", "N[,N…]", type=several(at_least(1))
    )
    out: str | None = option(
        "write what was found as rounds for `paceline simulate`", "FILE", short="-o"
    )
    output: Output = group(Output)
    loading: DraftPlaceOptions = group(DraftPlaceOptions)


def run(settings: Settings) -> int:
    """Replay each answer, print what drafts got right, and return the exit code."""
    # Whatever can be refused is, before anything is loaded.
    for spec in settings.draft:
        check_kinds(spec)
    if not any(models_of(spec) for spec in settings.draft):
        loading = settings.loading
        refuse_given(loading.given() | loading.place.given(), "no draft here is a model")
    sampling = Sampling(temperature=settings.temperature)
    costs = _costs(settings)
    out = None if settings.out is None else new_path(settings.out, "-o")
    workload = settings.choice.find(settings.prompts)
    with ExitStack() as stack:
        target = stack.enter_context(load_tokenizer(settings.target, engine=settings.engine))
        loading = settings.loading
        drafts = loading.load_all(settings.draft, target, loading.place, stack, own=True)
        check_replayable(drafts, sampling.temperature)
        log = read_log(workload, target, max_tokens=settings.max_tokens)
        header = RecordingHeader(
            target=target.metadata(),
            temperature=sampling.temperature,
            sources=sources_of(drafts),
            has_confidence=tuple(name for name, draft in drafts.items() if draft.has_confidence),
            command=("paceline", *sys.argv[1:]),
        )
        notes = [] if costs is None else whose(costs, target, drafts)
        result = ReplayDocument(
            command=header.command,
            complete=False,
            target=target_metadata(target),
            workload=workload.metadata(),
            temperature=sampling.temperature,
            answers=counts_of(log, 0),
            drafts={name: ReplayedDraft(draft_metadata(d), {}) for name, d in drafts.items()},
            costs=settings.costs,
            notes=[*notes, *temperature_notes(sampling.temperature, drafts)],
        )
        traces: list[Trace] = []
        try:
            _replay(log, drafts, target, traces, header, out)
            result.complete = True
        except KeyboardInterrupt:
            say("Interrupted; what was replayed is kept.")
    if not traces:
        raise DataError("No answer was replayed: it was interrupted.", "Run it again.")
    result.answers = counts_of(log, len(traces))
    recording = Recording(header, tuple(traces))
    fill_outcomes(result, recording, settings.max_draft_tokens)
    if costs is not None:
        _predict(settings, result, recording, costs)
    settings.output.show(result.as_json, lambda: replay_summary(result))
    if out is not None:
        say(f"The recording is in {out}: `paceline simulate {out} --costs …`.")
    return 0 if result.complete else 1


def _costs(settings: Settings) -> Costs | None:
    if settings.costs is not None:
        return read_costs(settings.costs)
    if settings.batch is not None:
        raise SettingError(
            f"--batch is {','.join(map(str, settings.batch))}, and without costs no speed is "
            "predicted.",
            "Add --costs FILE, or leave it out.",
        )
    return None


def _replay(
    log: Log,
    drafts: Mapping[str, Draft],
    target: Engine,
    traces: list[Trace],
    header: RecordingHeader,
    out: Path | None,
) -> None:
    """Add each answer's trace, under a progress bar, and write it at once."""
    with ExitStack() as stack:
        file = None if out is None else stack.enter_context(out.open("x", encoding="utf-8"))
        if file is not None:
            write(header, file)
        bar = stack.enter_context(progress_bar(log.tokens, "token", unit_scale=True))
        for trace in replay(log, drafts, target):
            traces.append(trace)
            if file is not None:
                write(trace, file)
            bar.update(trace.output_tokens)


def _predict(
    settings: Settings, result: ReplayDocument, recording: Recording, costs: Costs
) -> None:
    """Fill in what drafts gain by costs, under a progress bar."""
    with progress_bar(0, "simulation") as bar:

        def show(total: int) -> None:
            bar.total = total
            bar.update()

        try:
            limits, batches = settings.max_draft_tokens, settings.batch or (1,)
            fill_predictions(result, recording, costs, limits, batches, show)
        except KeyboardInterrupt:
            result.complete = False
            say("Interrupted; what was predicted is kept.")


VERB = Verb(Settings, run, EXAMPLES)
