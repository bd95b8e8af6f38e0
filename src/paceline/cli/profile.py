"""`paceline profile`: measure what forwards cost here, and keep it for the policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.bench.profile.profile import (
    LONG,
    SEQUENCES,
    WIDTHS,
    Timings,
    cached,
    costs_key,
    keep,
    measure_costs,
)
from paceline.bench.profile.summary import costs_lines
from paceline.cli.options import (
    DraftOptions,
    Output,
    TargetOptions,
    draft_option,
    labels,
    out_path,
    percent_bar,
    say,
    write_text,
)
from paceline.cli.settings import Verb, group, option, whole
from paceline.drafts.base import Draft
from paceline.drafts.create import models_of
from paceline.engines.base import Engine
from paceline.errors import DataError, PacelineError, SettingError
from paceline.policy.costs import Costs, read_costs

EXAMPLES = """\
  paceline profile smollm2-135m
  paceline profile target.gguf -d draft.gguf -o costs.json"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Measure seconds per forward by width, number of sequences and context, for a target and the
    models that draft for it. The policy reads them from the cache; -o writes a copy."""

    target: TargetOptions = group(TargetOptions)
    draft: tuple[str, ...] = draft_option(
        "a draft with a model, or early-exit; others have no forwards to price"
    )
    sweeps: int = whole("times each kind of forward is measured", 5, least=2)
    out: str | None = option("also write the costs to this file", "FILE", short="-o")
    output: Output = group(Output)
    loading: DraftOptions = group(DraftOptions)


def _costs_path(given: str) -> Path:
    """Where the costs go: never over another file than costs. Raises DataError."""
    path = out_path(given, "-o")
    if path.is_file() and path.stat().st_size:
        try:
            read_costs(str(path))
        except PacelineError:
            raise DataError(
                f"{path} is there already, and is not a file of costs.",
                "Choose another file with -o.",
            ) from None
    return path


def run(settings: Settings) -> int:
    """Measure each model, print and keep its costs, and return the exit code."""
    out = None if settings.out is None else _costs_path(settings.out)
    with ExitStack() as stack:
        engine, drafts = _load(settings, stack)
        engines = [("target", engine)]
        for name, draft in drafts.items():
            if draft.engine is None:
                raise SettingError(
                    f"The draft {name!r} has no model, so no forward to price.",
                    "Leave it out here.",
                )
            engines.append((name, draft.engine))
        found: list[tuple[str, Costs]] = []
        try:
            found += _measure(engines, settings.sweeps)
        finally:
            if found:
                _write(settings.output, out, found)
    complete = len(found) == len(engines) and all(costs.complete for _, costs in found)
    if not complete:
        kept = "what was measured is kept" if found else "nothing had been measured"
        say(f"Interrupted; {kept}.")
    return 0 if complete else 1


def _load(settings: Settings, stack: ExitStack) -> tuple[Engine, dict[str, Draft]]:
    """With room for a batch, in a context that is just long enough, unless the user chose one or
    the model has a shorter one."""
    labels(settings.draft)  # refuses what is named twice before anything is loaded
    target, loading = settings.target, settings.loading
    enough = LONG + 2 * max(WIDTHS)
    for attempt in (enough, None):
        other = attempt if any(map(models_of, settings.draft)) else None
        with_room = replace(target, context=target.context or attempt)
        drafts_with_room = replace(loading, draft_context=loading.draft_context or other)
        try:
            with ExitStack() as opened:
                engine = opened.enter_context(with_room.load(max_sequences=max(SEQUENCES)))
                drafts = drafts_with_room.load_all(settings.draft, engine, target.place, opened)
                stack.push(opened.pop_all())
                return engine, drafts
        except SettingError:
            if attempt is None or (target.context and loading.draft_context):
                raise
    raise AssertionError("unreachable")


def _measure(engines: list[tuple[str, Engine]], sweeps: int) -> Iterator[tuple[str, Costs]]:
    """Costs of each model in turn; an interrupt ends it with what the last one has so far."""
    for name, engine in engines:
        samples = Timings()
        with percent_bar(name) as (_, show), suppress(KeyboardInterrupt):
            measure_costs(engine, samples, sweeps=sweeps, on_progress=show)
        if not samples.has_base:
            return  # interrupted before there was anything to compare with
        costs = samples.costs(costs_key(engine))
        earlier = cached(engine)
        if costs.complete or earlier is None or not earlier.complete:
            _keep(costs)
        yield name, costs
        if not costs.complete:
            return


def _keep(costs: Costs) -> None:
    """In the cache; what prevents it doesn't end the run."""
    try:
        say(f"Kept in {keep(costs)}.")
    except DataError as error:
        say(f"{error.fact} It is not kept.")


def _write(output: Output, out: Path | None, found: list[tuple[str, Costs]]) -> None:
    (_, target), *drafts = found
    costs = replace(target, drafts=dict(drafts))
    output.show(costs.as_document, lambda: "\n".join(costs_lines(costs)))
    if out is not None:
        write_text(out, json.dumps(costs.as_document(), indent=1) + "\n")


VERB = Verb(Settings, run, EXAMPLES)
