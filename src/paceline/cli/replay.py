"""`paceline replay`: how would a draft do on the answers that a model already gave?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paceline.bench.local.model_metadata import draft_metadata, target_metadata
from paceline.cli import options
from paceline.cli.parser import Parser, at_least
from paceline.cli.workloads import add_choice, workload_of
from paceline.drafts.base import Draft
from paceline.drafts.create import create_draft, engine_name, models_of
from paceline.engines.base import Engine
from paceline.engines.load import load, load_tokenizer
from paceline.errors import DataError, SettingError
from paceline.policy.acceptance import MOST
from paceline.policy.costs import Costs, read_costs, shipped_costs
from paceline.simulate.fixed_limits import Answers
from paceline.simulate.record import is_replayable, sources_of
from paceline.simulate.replay import (
    Log,
    check_kinds,
    check_replayable,
    counts_of,
    read_log,
    replay,
)
from paceline.simulate.result import (
    AUTO,
    ReplayDocument,
    ReplayedDraft,
    predict,
    simulations_of,
    whose,
)
from paceline.simulate.summary import replay_summary
from paceline.simulate.trace import Recording, RecordingHeader, Trace, write
from paceline.types import Sampling

EXAMPLES = """\
  paceline replay answers.jsonl --target model.gguf -d lookup
  paceline replay answers.jsonl --target model.gguf -d lookup -d draft.gguf --costs costs.json"""

LIMITS = [1, 2, 3, 5, 7, 15]


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "replay",
        examples=EXAMPLES,
        help="judge drafts on logged answers, without the target",
        description=(
            "Say how drafts would do on the answers that a model already gave. Of the target only\n"
            "the tokenizer is loaded; a model draft reads each answer once. With costs, speed is\n"
            "predicted too."
        ),
    )
    parser.add_argument(
        "prompts", metavar="LOGS", help="JSONL of prompts with answers (docs/workloads.md)"
    )
    parser.add_argument(
        "--target",
        required=True,
        metavar="MODEL",
        help="the model that answered: GGUF file, model directory, hub name or demo name",
    )
    parser.add_argument("--engine", metavar="NAME", help="force its engine (paceline list)")
    parser.add_argument(
        "-d",
        "--draft",
        action="append",
        metavar="DRAFT",
        help="lookup, with options, or a model with the target's tokenizer (repeatable; default: "
        "lookup)",
    )
    parser.add_argument(
        "-n",
        "--max-draft-tokens",
        type=_limits,
        default=LIMITS,
        metavar="N[,N…]",
        help=f"limits, 1 to {MOST} (default: {','.join(map(str, LIMITS))})",
    )
    _add_log(parser)
    _add_prices(parser)
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="write what was found as rounds for `paceline simulate`"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    _add_draft_loading(parser)
    parser.set_defaults(run=run)


def _add_log(parser: Parser) -> None:
    add_choice(parser)
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="X",
        help="what the answers were sampled at (default: 0, greedy)",
    )
    parser.add_argument(
        "--max-tokens",
        type=at_least(1),
        metavar="N",
        help="most tokens the answers had room for: an answer of so many was cut",
    )


def _add_prices(parser: Parser) -> None:
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="predict speed by these costs: a file of `paceline profile`, or shipped ones: "
        f"{', '.join(shipped_costs())}",
    )
    parser.add_argument(
        "--batch",
        type=_numbers,
        metavar="N[,N…]",
        help="requests served at once, for --costs (default: 1)",
    )


def _add_draft_loading(parser: Parser) -> None:
    options.add_draft_loading(parser)
    group = parser.add_argument_group("running a model draft")
    options.add_place(group)


def _numbers(text: str) -> list[int]:
    return list(dict.fromkeys(at_least(1)(part) for part in text.split(",")))


def _limits(text: str) -> list[int]:
    found = _numbers(text)
    if max(found) > MOST:
        raise argparse.ArgumentTypeError(f"{max(found)} is above {MOST}")
    return found


def run(args: argparse.Namespace) -> int:
    # Whatever can be refused is, before anything is loaded.
    specs = args.draft or ["lookup"]
    for spec in specs:
        check_kinds(spec)
    _check_loading(args, specs)
    sampling = Sampling(temperature=args.temperature)
    costs = _costs(args)
    out = None if args.out is None else _new_file(args.out)
    workload = workload_of(args)
    with ExitStack() as stack:
        target = stack.enter_context(load_tokenizer(args.target, engine=args.engine))
        drafts = _load(args, specs, target, stack)
        check_replayable(drafts, sampling.temperature)
        log = read_log(workload, target, max_tokens=args.max_tokens)
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
            costs=args.costs,
            notes=[*notes, *_temperature_notes(sampling.temperature, drafts)],
        )
        traces: list[Trace] = []
        try:
            _replay(log, drafts, target, traces, header, out)
            result.complete = True
        except KeyboardInterrupt:
            print("Interrupted; what was replayed is kept.", file=sys.stderr)
    if not traces:
        raise DataError("No answer was replayed: it was interrupted.", "Run it again.")
    result.answers = counts_of(log, len(traces))
    _judge(args, result, Recording(header, tuple(traces)), costs)
    text = json.dumps(result.as_json(), ensure_ascii=False) if args.json else replay_summary(result)
    print(text)
    if out is not None:
        print(f"The recording is in {out}: `paceline simulate {out} --costs …`.", file=sys.stderr)
    return 0 if result.complete else 1


def _check_loading(args: argparse.Namespace, specs: Sequence[str]) -> None:
    """Refuse what is said of loading a model draft where there is none."""
    if any(models_of(spec) for spec in specs):
        return
    said = {"draft_engine": args.draft_engine, "draft_context": args.draft_context}
    for name, value in (said | options.place_of(args)).items():
        if value is not None:
            raise SettingError(
                f"--{name.replace('_', '-')} is {value}, and no draft here is a model.",
                "Leave it out.",
            )


def _costs(args: argparse.Namespace) -> Costs | None:
    if args.costs is not None:
        return read_costs(args.costs)
    if args.batch is not None:
        raise SettingError(
            f"--batch is {','.join(map(str, args.batch))}, and without costs no speed is "
            "predicted.",
            "Add --costs FILE, or leave it out.",
        )
    return None


def _new_file(name: str) -> Path:
    """Where the recording goes: never over another one. Raises DataError."""
    path = options.out_path(name, "-o")
    if path.exists():
        raise DataError(f"{path} is there already.", "Choose another file with -o, or remove it.")
    return path


def _load(
    args: argparse.Namespace, specs: Sequence[str], target: Engine, stack: ExitStack
) -> dict[str, Draft]:
    """Drafts by short name; the stack releases them."""

    def loader(model: str) -> Engine:
        return load(
            model,
            engine=args.draft_engine or engine_name(model),
            context_size=args.draft_context,
            **options.place_of(args),
        )

    found: dict[str, Draft] = {}
    for spec, label in options.labels(specs).items():
        found[label] = create_draft(spec, target, loader=loader)
        stack.callback(found[label].release)
    return found


def _temperature_notes(temperature: float, drafts: Mapping[str, Draft]) -> list[str]:
    if not temperature:
        return ["The answers are taken for greedily decoded ones (else: --temperature)."]
    notes = []
    if any(is_replayable(draft) for draft in drafts.values()):
        notes.append(
            f"Sampled at temperature {temperature:g}: what a lookup gets right in these answers "
            "is what it would get right in new ones, but for chance."
        )
    if any(draft.teacher_forced for draft in drafts.values()):
        notes.append(
            f"Sampled at temperature {temperature:g}: a model draft is judged as if it offered its "
            "likeliest tokens. One that draws them as the target does is accepted otherwise; only "
            "`paceline bench` tells how often."
        )
    return notes


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
        bar = stack.enter_context(_bar(log.tokens, "token"))
        for trace in replay(log, drafts, target):
            traces.append(trace)
            if file is not None:
                write(trace, file)
            bar.update(trace.output_tokens)


def _bar(total: int, unit: str) -> Any:
    return tqdm(
        total=total, unit=unit, unit_scale=unit == "token", file=sys.stderr, dynamic_ncols=True
    )


def _judge(
    args: argparse.Namespace, result: ReplayDocument, recording: Recording, costs: Costs | None
) -> None:
    """Fill in the figures, and the prices where there are costs."""
    for name, draft in result.drafts.items():
        answers = Answers(recording.traces, name)
        limits = {limit: answers.outcomes(limit) for limit in args.max_draft_tokens}
        result.drafts[name] = replace(draft, limits=limits)
    if costs is None:
        return
    sources = recording.header.sources
    priced = [name for name, free in sources.items() if free or name in costs.drafts]
    result.notes += [
        f"The costs have no figures of the draft {name!r}, so it isn't priced; they have: "
        f"{', '.join(costs.drafts) or 'none'}."
        for name in sources
        if name not in priced
    ]
    batches = args.batch or [1]
    most = max(costs.sequences)
    if max(batches) > most:
        result.notes.append(
            f"The costs were measured with at most {most} sequences at once; beyond, a forward is "
            "priced as if its rows were theirs."
        )
    specs = [AUTO, *(f"{name}:{limit}" for name in priced for limit in args.max_draft_tokens)]
    total = sum(simulations_of(recording, specs, batch) for batch in batches if priced)
    try:
        with _bar(total, "simulation") as bar:
            for batch in batches if priced else ():
                result.predicted[batch] = predict(recording, costs, specs, batch, bar.update)
    except KeyboardInterrupt:
        result.complete = False
        print("Interrupted; what was predicted is kept.", file=sys.stderr)
