"""`paceline bench`: plain and drafted decoding of the same prompts, and what paid."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from tqdm import tqdm

from paceline.cli import options
from paceline.cli.parser import Parser, at_least, limits
from paceline.drafts.base import Draft
from paceline.economics.policy import MeasuredPolicy
from paceline.economics.trace import Header, write
from paceline.engines.base import Engine
from paceline.errors import DataError, SettingError
from paceline.measure.bench import BenchResult, Configuration, as_document, run_bench
from paceline.measure.card import card
from paceline.measure.record import is_replayable, sources_of, trace_of
from paceline.measure.workload import built_in, read_workload

_Fresh: TypeAlias = Callable[[], MeasuredPolicy] | None

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
        default=[None],
        metavar="N[,N…]",
        help="auto: all drafts on offer, asked only when it pays; a number: each draft always, at "
        "most N tokens a round. Several are compared (default: auto)",
    )
    options.add_policy(parser)
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
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="also write what each draft would have offered at every token, for `simulate`",
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
    if args.costs is not None and None not in args.limit:
        raise SettingError(
            f"--costs is {args.costs}, and no limit is auto.", "Add -n auto, or drop --costs."
        )
    if args.draft is not None and set(args.draft) == {"none"}:
        raise SettingError("There is no draft to bench.", "Name one with -d.")
    if args.lossy and args.record is not None:
        raise SettingError(
            "A lossy verifier accepts other tokens than those a recording counts as right.",
            "Record with an exact verifier, or drop --record.",
        )
    out = options.out_path(args.out or f"paceline-bench-{datetime.now():%Y%m%d-%H%M%S}.json", "-o")
    record = None if args.record is None else options.out_path(args.record, "--record")
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
                if record is not None:
                    unwritten = _record(record, engine, result) or unwritten
    if not result.runs:
        failed = result.failed[0] if result.failed else "It was interrupted."
        raise DataError(f"No prompt was measured. {failed}", "Mend that and run it again.")
    print(json.dumps(document, ensure_ascii=False) if args.json else card(result))
    if unwritten:
        raise unwritten
    print(f"Everything measured is in {out}.", file=sys.stderr)
    if record is not None:
        print(f"The rounds are in {record}: `paceline simulate {record}`.", file=sys.stderr)
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
    """With `auto`, one configuration with all drafts on offer; with a number, one a draft."""
    options.find_verifier(args.verifier, {}, lossy=args.lossy)  # refused before drafts are loaded
    drafts = options.load_drafts(args, args.draft or ["lookup"], engine, stack)
    verifier = options.find_verifier(args.verifier, drafts, lossy=args.lossy)
    options.check_trees(args, engine, drafts, verifier)
    trees = [name for name, draft in drafts.items() if draft.branches]
    if args.record and trees and verifier.trees and engine.capabilities.trees:
        raise SettingError(
            f"The draft {trees[0]!r} offers trees, and a recording holds chains.",
            "Leave --record out, or take chains: --verifier chain --allow-chains.",
        )
    found: list[Configuration] = []

    def add(name: str, some: dict[str, Draft], limit: int | None, policy: _Fresh = None) -> None:
        verifier = options.find_verifier(args.verifier, some, lossy=args.lossy)
        chains = args.allow_chains
        found.append(Configuration(name, some, limit, verifier, policy, chains_for_trees=chains))

    for limit in dict.fromkeys(args.limit):
        if limit is None:
            policy = options.measured(args, engine, drafts)
            name = f"{' + '.join(drafts)} -n auto"
            add(name, drafts, None, policy.fresh)
        else:
            for label, draft in drafts.items():
                add(f"{label} -n {limit}", {label: draft}, limit)
    return found


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


def _record(path: Path, engine: Engine, result: BenchResult) -> DataError | None:
    """Write a line for each run; what prevents it is told after the card has been printed."""
    drafts = {name: draft for c in result.configurations for name, draft in c.drafts.items()}
    header = Header(
        target=engine.facts(),
        temperature=result.sampling.temperature,
        sources=sources_of(drafts),
        weighs=tuple(name for name, d in drafts.items() if d.weighs and is_replayable(d)),
        command=("paceline", *sys.argv[1:]),
    )
    size = engine.capabilities.context_size
    try:
        with path.open("w", encoding="utf-8") as file:
            write(header, file)
            for run in result.runs:
                prompt = run.prompt.tokens(engine)
                trace = trace_of(
                    id=run.prompt.id,
                    category=run.prompt.category,
                    configuration=run.configuration,
                    prompt=prompt,
                    output=run.generation.tokens,
                    rounds=run.generation.rounds,
                    drafts=drafts,
                    most_tokens=min(result.max_tokens, size - len(prompt)),
                )
                write(trace, file)
    except OSError as error:
        return DataError(f"{path} can't be written: {error.strerror}.", "Make room, run it again.")
    return None
