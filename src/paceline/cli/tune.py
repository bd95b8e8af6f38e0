"""`paceline tune`: which of the target's own layers should draft for it, on your prompts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from paceline.bench.prompts.workload import Workload
from paceline.cli import options
from paceline.cli.parser import Parser, at_least
from paceline.cli.workloads import add_workload, workload_of
from paceline.drafts.early_exit import write_setting
from paceline.errors import SettingError
from paceline.train.tune import Tuner
from paceline.train.tune_result import Candidate, TuneResult

if TYPE_CHECKING:
    from paceline.engines.transformers.head import HeadFile

EXAMPLES = """\
  paceline tune owner/model -o setting.json
  paceline tune model-directory --prompts prompts.jsonl --fit-head head.safetensors --layers 8
  paceline generate owner/model -d early-exit:setting=setting.json -p "…" """

SHOWN = 8


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What only a fit takes; None is the default: a quarter of the layers, rank 64, 200 steps,
    4 answers to each prompt."""

    layers: int | None
    rank: int | None
    fit_steps: int | None
    answers: int | None

    def refuse_without_fit(self) -> None:
        """Raises SettingError for any that is given."""
        for name in self.__slots__:
            given, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if given is not None:
                raise SettingError(
                    f"{option} is {given}, and no head is to be fitted.",
                    f"Add --fit-head FILE, or drop {option}.",
                )


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    """The verb and its options."""
    parser = verbs.add_parser(
        "tune",
        examples=EXAMPLES,
        help="find which of a target's own layers should draft for it",
        description=(
            "Search the exit layer or the layers to skip by measured speed under the policy, on "
            "your\nprompts, and write a setting for -d early-exit:setting=FILE. With --fit-head, "
            "fit a\nsmall head behind an exit layer first. Needs the transformers engine."
        ),
    )
    options.add_target(parser)
    add_workload(parser)
    group: Any = parser

    def number(name: str, help: str, metavar: str = "N", least: int = 1, **how: Any) -> None:
        group.add_argument(name, type=at_least(least), metavar=metavar, help=help, **how)

    number("--budget", "time for the search, fitting apart (default: 300)", "SECONDS", default=300)
    number("--max-tokens", "most tokens an answer (default: 64)", least=2, default=64)
    out = "paceline-early-exit.json"
    parser.add_argument(
        "-o", "--out", default=out, metavar="FILE", help=f"the setting (default: {out})"
    )
    a_head = "a fitted head to try as well (repeatable)"
    parser.add_argument("--head", action="append", default=[], metavar="FILE", help=a_head)
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    group = parser.add_argument_group("fitting a head")
    fit = "fit one to text that the target writes, and try it; a fit that was killed goes on"
    group.add_argument("--fit-head", metavar="FILE", help=fit)
    number("--layers", "the exit layer (default: a quarter)")
    number("--rank", "of its map (default: 64)")
    number("--fit-steps", "(default: 200)")
    number("--answers", "answers to each prompt to fit to (default: 4)")
    options.add_sampling(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit a head if one is asked for, search, and write the setting."""
    fit = FitOptions(args.layers, args.rank, args.fit_steps, args.answers)
    if args.fit_head is None:
        fit.refuse_without_fit()
    workload = workload_of(args, turns=False)
    out = options.out_path(args.out, "-o")
    head = None if args.fit_head is None else options.out_path(args.fit_head, "--fit-head")
    with options.load_target(args, max_sequences=4) as engine:
        tuner = Tuner(
            engine,
            workload,
            budget_s=args.budget,
            max_tokens=args.max_tokens,
            sampling=options.sampling_of(args, engine),
            on_measure=lambda line: print(line, file=sys.stderr),
        )
        tuner.heads.update(_heads(engine, [Path(name) for name in args.head]))
        if head is not None:
            if not _fit(fit, engine, workload, head, args.max_tokens):
                return 1
            tuner.heads.update(_heads(engine, [head]))
        return _search(tuner, engine, out, as_json=args.json)


def _heads(engine: Any, files: list[Path]) -> dict[Path, HeadFile]:
    from paceline.engines.transformers.head import load_head
    from paceline.engines.transformers.layers import identity

    here = identity(engine)
    return {file: load_head(file, here, engine.module.device) for file in files}


@contextmanager
def _bar(title: str) -> Iterator[tuple[Any, Callable[[float], None]]]:
    """A bar of percents, and what moves it to a share."""
    with tqdm(total=100, unit="%", desc=title, file=sys.stderr, dynamic_ncols=True) as bar:
        yield bar, lambda share: bar.update(int(100 * share) - bar.n) and None


def _fit(options: FitOptions, engine: Any, workload: Workload, path: Path, most: int) -> bool:
    """Fit a head and write it; False after an interrupt, whose checkpoint stays."""
    from paceline.engines.transformers.head import save_head
    from paceline.engines.transformers.layers import identity
    from paceline.train.exit_head import FitSettings, HeadFit
    from paceline.train.texts import Text, samplings_for, write_texts

    layers = options.layers or max(1, identity(engine)["layers"] // 4)
    answers = options.answers or 4
    settings = FitSettings(layers, options.rank or 64, options.fit_steps or 200)
    checkpoint = path.with_name(f"{path.name}.part")
    with _bar("text") as (bar, show):

        def texts() -> list[Text]:
            found: list[Text] = []
            samplings = samplings_for(answers)
            for share, some in write_texts(engine, workload, samplings, max_tokens=most):
                found += some
                show(share)
            return found

        try:
            source = (
                f"{answers} answers of at most {most} tokens to the "
                f"{len(workload.prompts)} prompts of {workload.name}"
            )
            fit = HeadFit(engine, settings, texts, checkpoint, source)
            if fit.resumed:
                print(f"Going on from {checkpoint}.", file=sys.stderr)
            bar.set_description("fit")
            show(0.0)
            fit.run(lambda done, total: show(done / total))
        except KeyboardInterrupt:
            bar.close()
            print("Interrupted; the same command goes on with the fit.", file=sys.stderr)
            return False
    found = fit.finish()
    save_head(path, found)
    checkpoint.unlink(missing_ok=True)
    before, after = (found.report[f"held_out_acceptance_{when}"] for when in ("before", "after"))
    print(
        f"The head behind {layers} layers is in {path}: held-out acceptance "
        f"{before['sampled']:.1%} → {after['sampled']:.1%} sampled, {before['greedy']:.1%} → "
        f"{after['greedy']:.1%} greedy.",
        file=sys.stderr,
    )
    return True


def _search(tuner: Tuner, engine: Any, out: Path, *, as_json: bool) -> int:
    from paceline.engines.transformers.layers import identity

    with _bar("tune") as (bar, show):

        def progress(share: float, doing: str) -> None:
            bar.set_postfix_str(doing)
            show(share)

        tuner.on_progress = progress
        try:
            tuner.run()
        except KeyboardInterrupt:
            bar.write("Interrupted; what was found is kept.", file=sys.stderr)
    result = tuner.result
    write_setting(out, result.setting(identity(engine)))
    document = json.dumps(result.as_json(), ensure_ascii=False)
    print(document if as_json else "\n".join(_summary(result)))
    print(f"The setting is in {out}: -d early-exit:setting={out}", file=sys.stderr)
    return 0 if result.complete else 1


def _summary(result: TuneResult) -> list[str]:
    best = result.best
    assert best is not None, "a setting was written"
    lines = [result.verdict, f"The best setting: {_name(best)} of {result.layers} layers."]
    if result.baseline_tok_per_s is not None and result.tok_per_s is not None:
        lines.append(
            f"baseline {result.baseline_tok_per_s:.1f} tokens/s, with it {result.tok_per_s:.1f}, "
            f"on {result.prompts} prompts; it drafted in {result.drafted_rounds:.0%} of the rounds"
        )
    rows = [("setting", "agreement", "estimate", "measured")]
    for c in sorted(result.candidates, key=lambda c: (-c.prompts, -c.estimate))[:SHOWN]:
        measured = "-" if c.measured is None else f"{c.measured:.2f} ({c.prompts})"
        rows.append((_name(c), f"{c.agreement:.0%}", f"{c.estimate:.2f}", measured))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.append(
        f"{result.looked_at} settings looked at; estimate: speedup at the best fixed limit; "
        "measured: speedup under the policy (prompts)"
    )
    return lines


def _name(candidate: Candidate) -> str:
    """A candidate in the words of -d."""
    from paceline.engines.transformers.layers import ranges

    if candidate.head is not None:
        return f"head={candidate.head}"
    last = len(candidate.kept)
    exits = candidate.kept == tuple(range(last))
    return f"layers={last}" if exits else f"kept {ranges(candidate.kept)}"
