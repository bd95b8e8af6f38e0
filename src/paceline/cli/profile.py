"""`paceline profile`: measure what forwards cost here, and keep it for the policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paceline.bench.profile.profile import (
    LONG,
    SEQUENCES,
    WIDTHS,
    Samples,
    cached,
    costs_key,
    keep,
    measure_costs,
)
from paceline.cli import options
from paceline.cli.parser import Parser, at_least
from paceline.drafts.base import Draft
from paceline.drafts.create import models_of
from paceline.engines.base import Engine
from paceline.errors import DataError, SettingError
from paceline.policy.break_even import (
    LEAST_SPEEDUP_BOUND,
    best_speedup_bound,
    least_acceptance,
    prices,
)
from paceline.policy.costs import Costs

EXAMPLES = """\
  paceline profile smollm2-135m
  paceline profile target.gguf -d draft.gguf -o costs.json"""

SHOWN = (2, 3, 4, 6, 8, 12, 16, 24, 32)


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "profile",
        examples=EXAMPLES,
        help="measure what width, batch and context cost here",
        description=(
            "Measure seconds per forward by width, number of sequences and context, for a target "
            "and\nmodels that draft for it. The policy reads them from the cache; -o writes a copy."
        ),
    )
    options.add_target(parser)
    parser.add_argument(
        "-d",
        "--draft",
        action="append",
        default=[],
        metavar="DRAFT",
        help="a draft with a model, or early-exit (repeatable); others have no forwards to price",
    )
    parser.add_argument(
        "--sweeps",
        type=at_least(2),
        default=5,
        metavar="N",
        help="times each kind of forward is measured (default: 5)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="also write the costs to this file")
    parser.add_argument("--json", action="store_true", help="print the JSON document instead")
    options.add_draft_loading(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = None if args.out is None else options.out_path(args.out, "-o")
    with ExitStack() as stack:
        engine, drafts = _load(args, stack)
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
            found += _measure(engines, args.sweeps)
        finally:
            if found:
                _write(args.json, out, found)
    complete = len(found) == len(engines) and all(costs.complete for _, costs in found)
    if not complete:
        kept = "what was measured is kept" if found else "nothing had been measured"
        print(f"Interrupted; {kept}.", file=sys.stderr)
    return 0 if complete else 1


def _load(args: argparse.Namespace, stack: ExitStack) -> tuple[Engine, dict[str, Draft]]:
    """With room for a batch, in a context that is just long enough, unless the user chose one or
    the model has a shorter one."""
    options.labels(args.draft)  # refuses what is named twice before anything is loaded
    chosen = args.context, args.draft_context
    enough = LONG + 2 * max(WIDTHS)
    for attempt in (enough, None):
        args.context = chosen[0] or attempt
        args.draft_context = chosen[1] or (attempt if any(map(models_of, args.draft)) else None)
        try:
            with ExitStack() as self_test:
                engine = options.load_target(args, max_sequences=max(SEQUENCES))
                self_test.enter_context(engine)
                drafts = options.load_drafts(args, args.draft, engine, self_test)
                stack.push(self_test.pop_all())
                return engine, drafts
        except SettingError:
            if attempt is None or None not in chosen:
                raise
    raise AssertionError("unreachable")


def _measure(engines: list[tuple[str, Engine]], sweeps: int) -> Iterator[tuple[str, Costs]]:
    """Costs of each model in turn; an interrupt ends it with what the last one has so far."""
    for name, engine in engines:
        samples = Samples()
        with tqdm(total=100, unit="%", desc=name, file=sys.stderr, dynamic_ncols=True) as bar:
            show = partial(_show, bar)
            with suppress(KeyboardInterrupt):
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
        print(f"Kept in {keep(costs)}.", file=sys.stderr)
    except DataError as error:
        print(f"{error.fact} It is not kept.", file=sys.stderr)


def _show(bar: Any, share: float) -> None:
    bar.update(int(100 * share) - bar.n)


def _write(as_json: bool, out: Path | None, found: list[tuple[str, Costs]]) -> None:
    (_, target), *drafts = found
    whole = replace(target, drafts=dict(drafts))
    document = json.dumps(whole.as_document(), indent=1)
    print(document if as_json else "\n".join(_lines(whole)))
    if out is not None:
        try:
            out.write_text(document + "\n", encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"{out} can't be written: {error.strerror}.", "Choose another file with -o."
            ) from None


def _lines(costs: Costs) -> Iterator[str]:
    base = costs.forward_s(1)
    table = costs.table()
    shown = [width for width in SHOWN if width < len(table)]
    yield f"target    {costs.key['model']}, {costs.key['engine']}, {costs.key['cpu']}"
    yield f"width     T(1) = {1e3 * base:.1f} ms   " + "  ".join(
        f"r({width})={costs.r(width):.2f}" for width in shown
    )
    row = min(range(2, len(table)), key=lambda width: table[width] / width, default=1)
    yield f"          cheapest per row: {row} rows, {costs.r(row) / row:.2f} of T(1) each"
    batches = [n for n in costs.sequences if n > 1]
    if batches:
        yield "batch     one token each: " + "  ".join(
            f"{n} sequences {costs.forward_s(n, n) / base:.2f}" for n in batches
        )
    if len(costs.contexts) > 1:
        longest = costs.contexts[-1]
        later = costs.forward_s(1, 1, longest) / base
        yield f"context   after {longest} tokens a pass takes {later:.2f} of T(1)"
    yield f"round     {1e3 * costs.overhead_s:.2f} ms outside forwards"
    for name, draft in costs.drafts.items():
        priced = prices(costs, draft)
        yield (
            f"draft     {name}: a drafted token costs {priced.draft_cost:.2f} T(1), catching up "
            f"100 tokens {draft.feed_s(100) / base:.1f} T(1)"
        )
        max_draft_tokens, gain = best_speedup_bound(priced)
        least = least_acceptance(
            priced.r, draft_cost=priced.draft_cost, overhead=priced.overhead, most=priced.most
        )
        yield "          " + (
            f"it can't pay here: always right it would give "
            f"{gain if max_draft_tokens else 'less than 1'} "
            "speedup"
            if least is None or gain < LEAST_SPEEDUP_BOUND
            else f"it pays above an acceptance of {least[1]:.0%} (limit {least[0]}); always right "
            f"it would give {gain:.2f} speedup"
        )
