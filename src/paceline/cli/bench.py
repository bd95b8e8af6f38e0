"""`paceline bench`: the same prompts decoded with and without drafts, and which was faster."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.local.bench import Configuration, header_of, run_bench, with_baseline
from paceline.bench.local.file import RunFile
from paceline.bench.local.result import BenchResult, as_document
from paceline.bench.local.run import BASELINE, Run
from paceline.bench.machine import read_bandwidth
from paceline.bench.prompts.workload import Workload
from paceline.bench.summary import bench_summary
from paceline.cli.options import (
    DRAFT_HELP,
    DraftOptions,
    Output,
    PromptOptions,
    RuleOptions,
    SamplingOptions,
    TargetOptions,
    dated_path,
    draft_option,
    labels,
    out_path,
    progress_bar,
    say,
)
from paceline.cli.parser import Parser
from paceline.cli.settings import (
    Verb,
    add_options,
    as_flag,
    flag,
    group,
    max_draft_tokens,
    option,
    read_options,
    several,
    whole,
)
from paceline.drafts.base import Draft
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
class ConfigurationOptions:
    """What a configuration is, and what an `--also` may change of it."""

    target: TargetOptions = group(TargetOptions)
    draft: tuple[str, ...] = draft_option(DRAFT_HELP, "lookup")
    max_draft_tokens: tuple[int | None, ...] = option(
        "auto: all drafts on offer, asked only when it is faster; a number: each draft always, at "
        "most N tokens a round. Several are compared (default: auto)",
        "N[,N…]",
        short="-n",
        default=(None,),
        type=several(max_draft_tokens),
    )
    rules: RuleOptions = group(RuleOptions)
    loading: DraftOptions = group(DraftOptions)
    sampling: SamplingOptions = group(SamplingOptions)

    def check(self) -> None:
        """Refuse what can't be honoured before a model is loaded. Raises SettingError."""
        if self.rules.costs is not None and None not in self.max_draft_tokens:
            raise SettingError(
                f"--costs is {self.rules.costs}, and no limit is auto.",
                "Add -n auto, or drop --costs.",
            )
        if set(self.draft) == {"none"}:
            raise SettingError("There is no draft to bench.", "Name one with -d.")
        self.rules.find_verifier({})


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
    max_tokens: int = whole("most tokens of an answer", 128, least=2)
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
        if not result.finished.runs and not result.disturbed:
            out.unlink(missing_ok=True)
            first = next((f"{id}: {why}" for id, why in result.failed.items()), "")
            raise unwritten or DataError(
                f"No prompt was measured. {first or 'It was interrupted.'}",
                "Correct that and run it again.",
            )
        settings.output.show(lambda: as_document(result), lambda: bench_summary(result))
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


# The configurations.


_DRAFTED = ("draft", "max_draft_tokens")
_RULES = tuple(one.name for kind in (RuleOptions, DraftOptions) for one in fields(kind))


def also(shared: ConfigurationOptions, written: str) -> tuple[ConfigurationOptions, dict[str, Any]]:
    """The options of an `--also`, and which of them it names. Raises SettingError."""
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise SettingError(f"--also is {written!r}: {error}.", "Close the quotation.") from None
    parser = Parser(prog="paceline bench --also", usage=argparse.SUPPRESS, add_help=False)
    add_options(parser, ConfigurationOptions, changes=True)
    given = vars(parser.parse_args(words))
    if not given:
        raise SettingError("--also changes nothing.", "Write an option into it, as in '-n 7'.")
    values = _unneeded(shared, given) | given
    return read_options(values, ConfigurationOptions, shared), given


def _unneeded(shared: ConfigurationOptions, given: dict[str, Any]) -> dict[str, Any]:
    """What was said for all and says nothing here, so that it isn't inherited: costs without a
    limit that is auto, leave to be lossy for another verifier, leave to cut other drafts' trees."""
    off: dict[str, Any] = {}
    if None not in given.get("max_draft_tokens", shared.max_draft_tokens):
        off["costs"] = None
    if "verifier" in given:
        off["lossy"] = False
    if "draft" in given:
        off["allow_chains"] = False
    return off


class Configurations:
    """Makes them, loading each engine and each draft once; the stack releases them.

    warm    drafts may remember earlier prompts
    """

    def __init__(self, stack: ExitStack, *, warm: bool = False) -> None:
        self._stack = stack
        self._warm = warm
        self._engines: dict[TargetOptions, Engine] = {}
        self._drafts: dict[tuple[Any, ...], dict[str, Draft]] = {}
        self._labels: dict[str, str] = {}

    def all(self, shared: ConfigurationOptions, others: Sequence[str]) -> list[Configuration]:
        """Those of the options, then those of each `--also`. All are read before anything is
        loaded."""
        every = [(shared, {}), *(also(shared, written) for written in others)]
        for one, _ in every:
            one.check()
        specs = [spec for one, _ in every for spec in one.draft]
        self._labels = labels(list(dict.fromkeys(specs)))
        return [found for one, given in every for found in self._of(one, given)]

    def _of(self, one: ConfigurationOptions, given: dict[str, Any]) -> Iterator[Configuration]:
        """With `auto`, one configuration with all drafts on offer; with a number, one a draft."""
        if one.target not in self._engines:
            self._engines[one.target] = self._stack.enter_context(one.target.load())
        engine = self._engines[one.target]
        drafts = self._load(one, engine)
        drafts = one.rules.fit_trees(engine, drafts, one.rules.find_verifier(drafts))
        words = _words(given, but=_DRAFTED)
        shared = Configuration(
            BASELINE,
            chains_for_trees=one.rules.allow_chains,
            engine=engine,
            sampling=one.sampling.sampling(engine),
            baseline=BASELINE + _words(given, but=(*_DRAFTED, *_RULES)),
            warm=self._warm,
        )
        for limit in one.max_draft_tokens:
            if limit is None:
                policy = one.rules.policy(engine, drafts)
                yield replace(
                    shared,
                    name=f"{' + '.join(drafts)} -n auto{words}",
                    drafts=drafts,
                    max_draft_tokens=None,
                    verifier=one.rules.find_verifier(drafts),
                    policy=policy.fresh,
                    costs=policy.costs.profiled,
                    recorded_costs=one.rules.costs is not None,
                )
                continue
            for label, draft in drafts.items():
                yield replace(
                    shared,
                    name=f"{label} -n {limit}{words}",
                    drafts={label: draft},
                    max_draft_tokens=limit,
                    verifier=one.rules.find_verifier({label: draft}),
                )

    def _load(self, one: ConfigurationOptions, engine: Engine) -> dict[str, Draft]:
        labels(one.draft)  # refuses one that is named twice
        key = (id(engine), one.draft, one.loading)
        if key not in self._drafts:
            names = {spec: self._labels[spec] for spec in one.draft}
            self._drafts[key] = one.loading.load_all(names, engine, one.target.place, self._stack)
        return self._drafts[key]


def _words(given: dict[str, Any], *, but: Sequence[str]) -> str:
    """Options as they are written, for a name."""
    return "".join(
        f" {as_flag(name)}{_value(value)}" for name, value in given.items() if name not in but
    )


def _value(value: Any) -> str:
    if value is True:
        return ""
    return f" {','.join(map(str, value)) if isinstance(value, list) else value}"


VERB = Verb(Settings, run, EXAMPLES)
