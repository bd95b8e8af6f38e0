"""`paceline tune`: which of the target's own layers should draft for it, on your prompts."""

from __future__ import annotations

import argparse
import json
import sys
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


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
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
    parser.add_argument(
        "--budget",
        type=at_least(1),
        default=300,
        metavar="SECONDS",
        help="time for the search, fitting apart (default: 300)",
    )
    parser.add_argument(
        "--max-tokens",
        type=at_least(2),
        default=64,
        metavar="N",
        help="most tokens an answer (default: 64)",
    )
    parser.add_argument(
        "-o",
        "--out",
        default="paceline-early-exit.json",
        metavar="FILE",
        help="the setting (default: paceline-early-exit.json)",
    )
    parser.add_argument(
        "--head",
        action="append",
        default=[],
        metavar="FILE",
        help="a fitted head to try as well (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    group = parser.add_argument_group("fitting a head")
    group.add_argument(
        "--fit-head",
        metavar="FILE",
        help="fit one to text that the target writes, and try it; a fit that was killed goes on",
    )
    group.add_argument(
        "--layers", type=at_least(1), metavar="N", help="the exit layer (default: a quarter)"
    )
    group.add_argument("--rank", type=at_least(1), metavar="N", help="of its map (default: 64)")
    group.add_argument("--fit-steps", type=at_least(1), metavar="N", help="(default: 200)")
    group.add_argument(
        "--answers",
        type=at_least(1),
        metavar="N",
        help="answers to each prompt to fit to (default: 4)",
    )
    options.add_sampling(parser)
    parser.set_defaults(run=run)


_FIT = {"layers": None, "rank": 64, "fit_steps": 200, "answers": 4}
"""What belongs to --fit-head, and what it is unless given; the layers go by the target."""


def _check(args: argparse.Namespace) -> None:
    """Refuse what only a fit takes, or fill it in for one."""
    for name, default in _FIT.items():
        given = getattr(args, name)
        if given is None:
            setattr(args, name, default)
        elif args.fit_head is None:
            option = f"--{name.replace('_', '-')}"
            raise SettingError(
                f"{option} is {given}, and no head is to be fitted.",
                f"Add --fit-head FILE, or drop {option}.",
            )


def run(args: argparse.Namespace) -> int:
    _check(args)
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
            if not _fit(args, engine, workload, head):
                return 1
            tuner.heads.update(_heads(engine, [head]))
        return _search(args, tuner, engine, out)


def _heads(engine: Any, files: list[Path]) -> dict[Path, HeadFile]:
    from paceline.engines.transformers.head import load_head
    from paceline.engines.transformers.layers import identity

    here = identity(engine)
    return {file: load_head(file, here, engine.module.device) for file in files}


def _fit(args: argparse.Namespace, engine: Any, workload: Workload, path: Path) -> bool:
    """Fit a head and write it; False after an interrupt, whose checkpoint stays."""
    from paceline.engines.transformers.head import save_head
    from paceline.engines.transformers.layers import identity
    from paceline.train.exit_head import FitSettings, HeadFit
    from paceline.train.texts import write_texts

    layers = args.layers or max(1, identity(engine)["layers"] // 4)
    settings = FitSettings(layers=layers, rank=args.rank, steps=args.fit_steps)
    checkpoint = path.with_name(f"{path.name}.part")
    with tqdm(total=100, unit="%", desc="text", file=sys.stderr, dynamic_ncols=True) as bar:
        try:
            fit = HeadFit(
                engine,
                settings,
                lambda: write_texts(
                    engine,
                    workload,
                    answers=args.answers,
                    max_tokens=args.max_tokens,
                    on_progress=lambda share: _show(bar, share),
                ),
                checkpoint,
                f"{args.answers} answers of at most {args.max_tokens} tokens to the "
                f"{len(workload.prompts)} prompts of {workload.name}",
            )
            if fit.resumed:
                print(f"Going on from {checkpoint}.", file=sys.stderr)
            bar.set_description("fit")
            _show(bar, 0.0)
            fit.run(lambda done, total: _show(bar, done / total))
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


def _show(bar: Any, share: float) -> None:
    bar.update(int(100 * share) - bar.n)


def _search(args: argparse.Namespace, tuner: Tuner, engine: Any, out: Path) -> int:
    from paceline.engines.transformers.layers import identity

    with tqdm(total=100, unit="%", desc="tune", file=sys.stderr, dynamic_ncols=True) as bar:

        def show(share: float, doing: str) -> None:
            bar.set_postfix_str(doing)
            _show(bar, share)

        tuner.on_progress = show
        try:
            tuner.run()
        except KeyboardInterrupt:
            bar.write("Interrupted; what was found is kept.", file=sys.stderr)
    result = tuner.result
    write_setting(out, result.setting(identity(engine)))
    document = json.dumps(result.as_json(), ensure_ascii=False)
    print(document if args.json else "\n".join(_card(result)))
    print(f"The setting is in {out}: -d early-exit:setting={out}", file=sys.stderr)
    return 0 if result.complete else 1


def _card(result: TuneResult) -> list[str]:
    best = result.best
    assert best is not None, "a setting was written"
    lines = [result.verdict, f"The best setting: {name(best)} of {result.layers} layers."]
    if result.baseline_tok_per_s is not None and result.tok_per_s is not None:
        lines.append(
            f"plain {result.baseline_tok_per_s:.1f} tokens/s, with it {result.tok_per_s:.1f}, on "
            f"{result.prompts} prompts; it drafted in {result.drafted_rounds:.0%} of the rounds"
        )
    rows = [("setting", "agreement", "estimate", "measured")]
    for candidate in sorted(result.candidates, key=lambda c: (-c.prompts, -c.estimate))[:SHOWN]:
        measured = "-"
        if candidate.measured is not None:
            measured = f"{candidate.measured:.2f} ({candidate.prompts})"
        rows.append(
            (name(candidate), f"{candidate.agreement:.0%}", f"{candidate.estimate:.2f}", measured)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines += [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.append(
        f"{result.looked_at} settings looked at; estimate: speedup at the best fixed limit; "
        "measured: speedup under the policy (prompts)"
    )
    return lines


def name(candidate: Candidate) -> str:
    """A candidate in the words of -d."""
    last = len(candidate.kept)
    if candidate.head is not None:
        return f"head={candidate.head}"
    if candidate.kept == tuple(range(last)):
        return f"layers={last}"
    return f"kept {short(candidate.kept)}"


def short(layers: tuple[int, ...]) -> str:
    from paceline.engines.transformers.layers import ranges

    return ranges(layers)
