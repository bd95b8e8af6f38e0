"""`paceline bench`: plain and drafted decoding of the same prompts, and what paid."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from tqdm import tqdm

from paceline.cli import options
from paceline.cli.parser import Parser, at_least, limits
from paceline.drafts.base import Draft
from paceline.drafts.create import is_model
from paceline.engines.base import Engine
from paceline.errors import DataError, SettingError
from paceline.measure.bench import BenchResult, Configuration, as_document, run_bench
from paceline.measure.card import card
from paceline.measure.workload import built_in, read_workload

EXAMPLES = """\
  paceline bench smollm2-135m -d lookup
  paceline bench model.gguf -d lookup -d draft.gguf -n 3,7 --prompts prompts.jsonl"""


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "bench",
        examples=EXAMPLES,
        help="compare plain and drafted decoding on your prompts",
        description=(
            "Decode every prompt plainly and with each draft and limit, interleaved, and print a "
            "card;\neverything measured goes to a JSON file."
        ),
    )
    options.add_target(parser)
    parser.add_argument(
        "-d",
        "--draft",
        action="append",
        metavar="DRAFT",
        help=f"{options.DRAFT_HELP} (repeatable; default: lookup)",
    )
    parser.add_argument(
        "-n",
        "--limit",
        type=limits,
        default=[3],
        metavar="N[,N…]",
        help="most tokens a draft may offer in a round; several are compared (default: 3)",
    )
    options.add_verifier(parser)
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help='JSONL: "prompt" or chat "messages", "id", "category" (default: six built-in prompts)',
    )
    parser.add_argument(
        "--categories", metavar="NAME[,NAME…]", help="only the prompts of these categories"
    )
    parser.add_argument("--raw", action="store_true", help="prompts without the chat template")
    parser.add_argument(
        "--max-tokens",
        type=at_least(2),
        default=128,
        metavar="N",
        help="most tokens an answer (default: 128)",
    )
    parser.add_argument(
        "--repeats",
        type=at_least(1),
        default=1,
        metavar="N",
        help="times each prompt is run (default: 1)",
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="the JSON file (default: paceline-bench-DATE-TIME.json)"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON document, not the card")
    options.add_draft_loading(parser)
    options.add_sampling(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    workload = read_workload(args.prompts, raw=args.raw) if args.prompts else built_in()
    if args.categories:
        workload = workload.of_categories(args.categories.split(","))
    for sentence in workload.skipped:
        print(f"{workload.name}: {sentence} Left out.", file=sys.stderr)
    out = _out_path(args.out)
    with ExitStack() as stack:
        engine = stack.enter_context(options.load_target(args))
        sampling = options.sampling_of(args, engine)
        configurations = _configurations(args, engine, stack)
        result = BenchResult(
            engine.facts(),
            [Configuration("plain"), *configurations],
            workload,
            sampling,
            args.max_tokens,
        )
        try:
            _measure(engine, configurations, result, args.repeats)
        finally:
            # Whatever ended the run, what was measured is written before anything else.
            if result.runs:
                document = {"command": ["paceline", *sys.argv[1:]], **as_document(result)}
                unwritten = _write(out, document)
    if not result.runs:
        failed = result.failed[0] if result.failed else "It was interrupted."
        raise DataError(f"No prompt was measured. {failed}", "Mend that and run it again.")
    print(json.dumps(document, ensure_ascii=False) if args.json else card(result))
    if unwritten:
        raise unwritten
    print(f"Everything measured is in {out}.", file=sys.stderr)
    return 0 if result.complete else 1


def _measure(
    engine: Engine, configurations: list[Configuration], result: BenchResult, repeats: int
) -> None:
    """Run the bench under a progress bar; an interrupt ends it and keeps what it has."""
    total = (len(configurations) + 1) * len(result.workload.prompts) * repeats
    with tqdm(total=total, unit="run", file=sys.stderr, dynamic_ncols=True) as bar:

        def show(prompt: str, configuration: str) -> None:
            bar.set_postfix_str(f"{prompt}, {configuration}")
            bar.update()

        try:
            run_bench(
                engine,
                configurations,
                result.workload,
                max_tokens=result.max_tokens,
                sampling=result.sampling,
                repeats=repeats,
                on_progress=show,
                result=result,
            )
        except KeyboardInterrupt:
            bar.write("Interrupted; what was measured is kept.", file=sys.stderr)


def _configurations(
    args: argparse.Namespace, engine: Engine, stack: ExitStack
) -> list[Configuration]:
    verifier = options.find_verifier(args.verifier)
    found = []
    for spec, label in _labels(args.draft or ["lookup"]).items():
        draft: Draft = options.load_draft(args, spec, engine)
        stack.callback(draft.release)
        found += [
            Configuration(f"{label} -n {limit}", draft, limit, verifier)
            for limit in dict.fromkeys(args.limit)
        ]
    return found


def _labels(specs: list[str]) -> dict[str, str]:
    """A short name for each draft: a path's last part, unless two have the same."""
    for spec in specs:
        if specs.count(spec) > 1:
            raise SettingError(f"The draft {spec!r} is named twice.", "Name it once.")
    short = {spec: Path(spec).name if is_model(spec) else spec for spec in specs}
    if len(set(short.values())) < len(short):
        return {spec: spec for spec in specs}
    return short


def _out_path(given: str | None) -> Path:
    """Where the JSON file goes; whether that is possible is asked before anything is measured."""
    path = Path(given or f"paceline-bench-{datetime.now():%Y%m%d-%H%M%S}.json")
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise DataError(f"{path} can't be written.", "Choose another file with -o.")
    return path


def _write(path: Path, document: dict[str, object]) -> DataError | None:
    """Write the file; what prevents it is told after the card has been printed."""
    try:
        path.write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
    except OSError as error:
        return DataError(
            f"{path} can't be written: {error.strerror}.",
            "Make room; --json prints the document to stdout.",
        )
    return None
