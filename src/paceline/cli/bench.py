"""`paceline bench`: the same prompts decoded with and without drafts, and which was faster."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.local.bench import Configuration, header_of, run_bench, with_baseline
from paceline.bench.local.file import RunFile
from paceline.bench.local.resources import read_bandwidth
from paceline.bench.local.result import BenchResult, as_document
from paceline.bench.local.run import Run
from paceline.bench.local.summary import card
from paceline.bench.prompts.workload import Workload
from paceline.cli.configurations import ConfigurationOptions, Configurations
from paceline.cli.options import Output, PromptOptions, dated_path, out_path, progress_bar, say
from paceline.cli.settings import Verb, flag, group, option, whole
from paceline.engines.base import Engine
from paceline.errors import DataError, SettingError
from paceline.simulate.record import is_replayable, sources_of, trace_of
from paceline.simulate.trace import KIND, RecordingHeader, write

if TYPE_CHECKING:
    from tqdm import tqdm

EXAMPLES = """\
  paceline bench smollm2-135m -d lookup
  paceline bench model.gguf -d lookup -d draft.gguf -n 3,7 --prompts prompts.jsonl -o run.jsonl
  paceline bench model.gguf -n auto,3 --also "--temperature 0.8" --also "--verifier block -n 7\""""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Decode every prompt without a draft and with each draft and limit, in turns, and print a
    summary. Everything measured goes to a file as it comes: started again with the same file, a
    bench goes on where it was. `paceline report FILE` makes a page of it. For a live server:
    `paceline bench-server`."""

    shared: ConfigurationOptions = group(ConfigurationOptions)
    also: tuple[str, ...] = option(
        "more configurations, of these options with some changed: drafts, limits, costs, verifier, "
        'loading (with --target MODEL), sampling, as in "--verifier block --temperature 0.8"',
        "OPTIONS",
        repeat=True,
        quoted=True,
    )
    prompts: PromptOptions = group(PromptOptions)
    max_tokens: int = whole("most tokens an answer", 128, least=2)
    repeats: int = whole("times each prompt is run", 1)
    warm: bool = flag(
        "allow drafts that remember earlier prompts; else every prompt meets a fresh one"
    )
    out: str | None = option(
        "the file of runs, JSONL (default: paceline-bench-DATE-TIME.jsonl)", "FILE", short="-o"
    )
    record: str | None = option(
        "also write what each draft would have offered at every token, for `simulate`", "FILE"
    )
    output: Output = group(Output)


def run(settings: Settings) -> int:
    """Measure, print the summary, and return the exit code."""
    workload = settings.prompts.workload()
    if settings.shared.rules.lossy and settings.record is not None:
        raise _lossy_record()
    out = dated_path(settings.out, "paceline-bench")
    record = None if settings.record is None else _record_path(settings.record, out)
    with ExitStack() as stack:
        made = Configurations(stack, warm=settings.warm)
        configurations = with_baseline(made.all(settings.shared, settings.also))
        engine = configurations[0].engine
        assert engine is not None
        if record is not None:
            _check_record(configurations)
        header = header_of(
            engine,
            configurations,
            workload,
            max_tokens=settings.max_tokens,
            repeats=settings.repeats,
            seed=settings.shared.sampling.seed or 0,
            command=("paceline", *sys.argv[1:]),
            bandwidth=_bandwidth(engine),
        )
        file = RunFile.open(out, header)
        result = file.result
        unwritten: DataError | None = None
        try:
            with file:
                _measure(engine, configurations, workload, file)
        except DataError as error:
            unwritten = error  # what was measured is told first
        if not result.finished.runs:
            out.unlink(missing_ok=True)
            first = next((f"{id}: {why}" for id, why in result.failed.items()), "")
            raise unwritten or DataError(
                f"No prompt was measured. {first or 'It was interrupted.'}",
                "Correct that and run it again.",
            )
        settings.output.show(lambda: as_document(result), lambda: card(result))
        if unwritten:
            raise unwritten
        say(f"Everything measured is in {out}: `paceline report {out}`.")
        if record is not None:
            _record(record, engine, configurations, workload, result)
            say(f"The rounds are in {record}: `paceline simulate {record} --costs …`.")
    return 0 if result.complete else 1


def _record_path(given: str, out: Path) -> Path:
    """Where the recording goes: over one of this very command at most, which a second start makes
    anew. Raises DataError."""
    path = out_path(given, "--record")
    if path.absolute() == out.absolute():
        raise DataError(f"{path} is the file of runs too.", "Choose another file with --record.")
    if path.exists() and path.stat().st_size and not _is_own_recording(path):
        raise DataError(f"{path} is there already.", "Choose another file with --record.")
    return path


def _is_own_recording(path: Path) -> bool:
    try:
        header = json.loads(path.read_text(encoding="utf-8").partition("\n")[0])
        return bool(header["kind"] == KIND and header["command"] == ["paceline", *sys.argv[1:]])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _bandwidth(engine: Engine) -> float | None:
    """Of the memory that holds the target, read with its threads; None if that isn't the CPU's."""
    metadata = engine.metadata()
    return (
        read_bandwidth(threads=metadata.get("threads")) if metadata.get("device") == "cpu" else None
    )


def _check_record(configurations: list[Configuration]) -> None:
    """A recording has one target, one temperature and chains. Raises SettingError."""
    if len({one.baseline for one in configurations}) > 1:
        raise SettingError(
            "A recording holds one target and one sampling, and --also names another.",
            "Record it in a bench of its own.",
        )
    for one in configurations:
        verifier = one.chosen_verifier
        if verifier.lossy:
            raise _lossy_record()
        assert one.engine is not None
        trees = [name for name, draft in one.drafts.items() if draft.branches]
        if trees and verifier.trees and one.engine.capabilities.trees:
            raise SettingError(
                f"The draft {trees[0]!r} offers trees, and a recording holds chains.",
                "Leave --record out, or take chains: --verifier chain --allow-chains.",
            )


def _lossy_record() -> SettingError:
    return SettingError(
        "A lossy verifier accepts other tokens than those a recording counts as right.",
        "Record with an exact verifier, or drop --record.",
    )


def _measure(
    engine: Engine,
    configurations: list[Configuration],
    workload: Workload,
    file: RunFile,
) -> None:
    """Run the bench under a progress bar; an interrupt ends it and keeps what it has."""
    result, header = file.result, file.result.header
    each = len(configurations)
    left = each * len(result.missing())
    total = each * len(header.prompts) * header.repeats
    if result.runs:
        say(_going_on(total - left, total))
    with progress_bar(total, "run", initial=total - left) as bar:

        def show(prompt: str, configuration: str) -> None:
            bar.set_postfix_str(f"{prompt}, {configuration}")
            bar.update()

        try:
            run_bench(
                engine,
                configurations,
                workload,
                max_tokens=header.max_tokens,
                repeats=header.repeats,
                on_progress=show,
                keeper=_Shown(file, file.result, bar, total),
            )
        except KeyboardInterrupt:
            bar.write(
                "Interrupted; what was measured is kept, and the same command with -o goes on.",
                file=sys.stderr,
            )


@dataclass(slots=True)
class _Shown:
    """Keeps runs in a file; a prompt that fails moves the bar by all its runs."""

    file: RunFile
    result: BenchResult
    bar: tqdm[Any]
    total: int

    def add(self, run: Run) -> None:
        self.file.add(run)

    def fail(self, id: str, reason: str) -> None:
        self.file.fail(id, reason)
        self.bar.n = self.total - len(self.result.configurations) * len(self.result.missing())
        self.bar.refresh()


def _going_on(done: int, total: int) -> str:
    if done == total:
        return f"All {total} runs are in that file already. Name another file to start anew."
    return f"Going on: {done} of {total} runs are there."


def _record(
    path: Path,
    engine: Engine,
    configurations: list[Configuration],
    workload: Workload,
    result: BenchResult,
) -> None:
    """Write a line for each run. Raises DataError where there is no room."""
    drafts = {name: draft for c in configurations for name, draft in c.drafts.items()}
    header = RecordingHeader(
        target=engine.metadata(),
        temperature=result.configurations[0].sampling.temperature,
        sources=sources_of(drafts),
        has_confidence=tuple(
            name for name, d in drafts.items() if d.has_confidence and is_replayable(d)
        ),
        command=("paceline", *sys.argv[1:]),
    )
    prompts = {prompt.id: prompt for prompt in workload.prompts}
    size = engine.capabilities.context_size
    try:
        with path.open("w", encoding="utf-8") as file:
            write(header, file)
            for run in result.runs:
                prompt = result.asked(prompts[run.id]).tokens(engine)
                trace = trace_of(
                    id=run.id,
                    category=run.category,
                    configuration=run.configuration,
                    prompt=prompt,
                    output=run.tokens,
                    rounds=run.rounds,
                    drafts=drafts,
                    most_tokens=min(result.header.max_tokens, size - len(prompt)),
                )
                write(trace, file)
    except OSError as error:
        raise DataError(
            f"{path} can't be written: {error.strerror}.", "Make room, run it again."
        ) from None


VERB = Verb(Settings, run, EXAMPLES)
