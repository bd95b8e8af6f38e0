"""Measure what forwards cost on this machine, and keep it under a key of all it depends on."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

from paceline.bench.machine import TOLERATED_SHORTAGE, machine_metadata, shortage, watched
from paceline.decode.generate import generate
from paceline.engines import base
from paceline.engines.base import Engine, Job
from paceline.errors import DataError, PacelineError
from paceline.models.catalog import cache_dir
from paceline.policy.costs import Costs, Feed, Point, costs_of
from paceline.types import StopConditions

# Dense where verifying usually happens, then around the sizes that kernels are made for.
WIDTHS = (*range(1, 11), 12, 13, 14, 15, 16, 17, 20, 24, 28, 31, 32, 33)
QUICK_WIDTHS, WIDE_IF_FLAT, FLAT = (1, 2, 3, 4, 6, 7, 8, 12, 16), (24, 32), 6.0
# Measured once more in each sweep for each time they stand here: all else is set beside them.
OFTEN = (1, 1, 1, 2, 3, 4)
SEQUENCES, WIDTHS_OF_SEVERAL = (2, 4, 8), (1, 2, 3, 4, 6, 8, 16)
MOST_ROWS = 64
SHORT, LONG, WIDTHS_OF_LONG = 64, 512, (1, 4, 16)
FEEDS = (8, 32, 128)
_ENOUGH = 4  # rows that a profile must reach
_STEADY = 0.15  # cells that spread more than this are measured up to twice as often
_JUMP = 1.25  # a step this much above the line between its neighbours is looked into


class ProfileCell(NamedTuple):
    """One kind of forward: `sequences` of `width` tokens each, after `context` tokens; with all
    rows wanted, or only the last."""

    sequences: int
    width: int
    context: int
    feed: bool = False

    @property
    def weight(self) -> int:
        """Its share of the work, for progress."""
        return self.sequences * self.width + 2


@dataclass(slots=True)
class Timings:
    """Seconds by cell, growing while they are measured: an interrupt loses nothing."""

    seconds: dict[ProfileCell, list[float]] = field(default_factory=dict)
    overheads: list[float] = field(default_factory=list)
    complete: bool = False

    @property
    def has_base(self) -> bool:
        """Whether one row of one sequence was measured, without which there are no costs."""
        return any(c.sequences == c.width == 1 and not c.feed for c in self.seconds)

    def add(self, cell: ProfileCell, seconds: float) -> None:
        """One more forward."""
        self.seconds.setdefault(cell, []).append(seconds)

    def costs(self, key: dict[str, Any]) -> Costs:
        """What they say of costs. Raises DataError without `has_base`."""
        points, feeds = [], []
        for cell, taken in sorted(self.seconds.items()):
            low, middle, high = _quartiles(taken)
            if cell.feed:
                feeds.append(Feed(cell.width, middle, low, high, len(taken)))
                continue
            rows = cell.sequences * cell.width
            points.append(Point(rows, cell.sequences, cell.context, middle, low, high, len(taken)))
        return Costs(
            source="measured",
            key=key,
            points=tuple(points),
            feeds=tuple(feeds),
            overhead_s=median(self.overheads) if self.overheads else 0.0,
            complete=self.complete,
        )


def measure_costs(
    engine: Engine,
    samples: Timings,
    *,
    quick: bool = False,
    feeds: bool = True,
    sweeps: int = 5,
    on_progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Fill `samples`, sweep by sweep, every sweep over all cells of as many sequences in another
    order, so that a shared machine's drift falls on all alike. Long contexts come last.

    quick          one sequence and the most useful widths only
    feeds          also what catching up costs, which only a draft does
    on_progress    called with the share that is done
    """
    context = _context(engine)
    plan = _plan(engine, len(context), quick, feeds)
    total, done = sweeps * sum(cell.weight for cell in plan), 0

    def advance(cell: ProfileCell) -> None:
        nonlocal done
        done += cell.weight
        on_progress(min(0.99, done / total))

    with closing(engine.open()) as held:
        engine.score([Job(held, context)])
        for width in (1, max(cell.width for cell in plan)):  # warms up
            _forward(engine, [held], width, context)
        for sweep in range(sweeps):
            _sweep(engine, held, plan, context, samples, advance)
            if sweep == 0 and quick:
                plan += _wider(samples, plan, engine)
            if sweep == 1 and not quick and sweeps > 2:
                plan += _finer(samples, plan, engine)
        for _ in range(sweeps):
            unsure = [cell for cell in {*plan} if _spread(samples.seconds[cell]) > _STEADY]
            if not unsure:
                break
            _sweep(engine, held, unsure, context, samples, advance)
    if not quick:
        _measure_long(engine, context, samples, sweeps)
    _measure_overhead(engine, context, samples)
    samples.complete = True
    on_progress(1.0)


def _spread(taken: Sequence[float]) -> float:
    """Distance of the quartiles over the median."""
    if len(taken) < 2:
        return float("inf")
    low, middle, high = _quartiles(taken)
    return (high - low) / middle


def _quartiles(taken: Sequence[float]) -> tuple[float, float, float]:
    if len(taken) < 2:
        return taken[0], taken[0], taken[0]
    low, middle, high = quantiles(taken, n=4, method="inclusive")  # never beyond what was measured
    return low, middle, high


def _context(engine: Engine) -> list[int]:
    """Tokens of a short text, repeated to the length that is measured after."""
    try:
        tokens = engine.tokenizer.encode("the boat left the harbour at dawn and came back at dusk ")
    except PacelineError:
        tokens = []  # a vocabulary without these letters: any token costs the same
    tokens = tokens or [0]
    length = max(1, min(SHORT, engine.capabilities.context_size // 2))
    return [tokens[i % len(tokens)] for i in range(length)]


def _plan(engine: Engine, context: int, quick: bool, feeds: bool) -> list[ProfileCell]:
    room = engine.capabilities.context_size - context
    most = engine.capabilities.max_sequences
    widths = (*(QUICK_WIDTHS if quick else WIDTHS), *OFTEN)
    plan = [ProfileCell(1, w, context) for w in widths if w <= room]
    if feeds:
        plan += [ProfileCell(1, tokens, context, feed=True) for tokens in FEEDS if tokens <= room]
    if not quick:
        plan += [
            ProfileCell(n, w, context)
            for n in SEQUENCES
            for w in WIDTHS_OF_SEVERAL
            if n <= most and w <= room and n * w <= MOST_ROWS
        ]
    return plan


def _sweep(
    engine: Engine,
    held: base.Sequence,
    plan: Sequence[ProfileCell],
    context: list[int],
    samples: Timings,
    advance: Callable[[ProfileCell], None],
) -> None:
    """Every cell once, in random order among those of as many sequences."""
    for count in sorted({cell.sequences for cell in plan}):
        cells = [cell for cell in plan if cell.sequences == count]
        random.Random().shuffle(cells)  # the caller's own stream is not ours
        with ExitStack() as stack:
            forks = (held.fork() for _ in range(count - 1))
            sequences = [held, *(stack.enter_context(closing(fork)) for fork in forks)]
            for cell in cells:
                samples.add(cell, _forward(engine, sequences, cell.width, context, feed=cell.feed))
                advance(cell)


def _forward(
    engine: Engine,
    sequences: Sequence[base.Sequence],
    width: int,
    context: list[int],
    *,
    feed: bool = False,
) -> float:
    """Seconds of one forward, undone afterwards."""
    tokens = [context[i % len(context)] for i in range(width)]
    length = sequences[0].length
    started = perf_counter()
    logits = engine.score([Job(s, tokens, 1 if feed else width) for s in sequences])
    float(logits[-1][-1, 0])  # waits for a device that works behind our back
    taken = perf_counter() - started
    for sequence in sequences:
        sequence.rewind(length)
    return taken


def _wider(samples: Timings, plan: Sequence[ProfileCell], engine: Engine) -> list[ProfileCell]:
    """Wide forwards too, where the price climbs slowly enough for them to be of use."""
    single = {cell.width: cell for cell in plan if cell.sequences == 1 and not cell.feed}
    last = single[max(single)]
    ratio = median(samples.seconds[last]) / median(samples.seconds[single[1]])
    room = engine.capabilities.context_size - last.context
    return [last._replace(width=w) for w in WIDE_IF_FLAT if ratio < FLAT and w <= room]


def _finer(samples: Timings, plan: Sequence[ProfileCell], engine: Engine) -> list[ProfileCell]:
    """Widths between two measured ones where the step up is larger than its share."""
    single = sorted({cell for cell in plan if cell.sequences == 1 and not cell.feed})
    found: list[ProfileCell] = []
    for low, high in pairwise(single):
        gap = high.width - low.width
        rise = median(samples.seconds[high]) / median(samples.seconds[low])
        if gap > 1 and not 1 / _JUMP < rise / (high.width / low.width) ** 0.8 < _JUMP:
            middle = (low.width + high.width) // 2
            found.append(low._replace(width=middle))
    return [cell for cell in found if cell.width <= engine.capabilities.context_size // 2]


def _measure_long(engine: Engine, context: list[int], samples: Timings, sweeps: int) -> None:
    """What a longer context adds, at a few widths."""
    if engine.capabilities.context_size < LONG + max(WIDTHS_OF_LONG):
        return
    long = [context[i % len(context)] for i in range(LONG)]
    with closing(engine.open()) as sequence:
        engine.score([Job(sequence, long)])
        for _ in range(sweeps):
            for width in WIDTHS_OF_LONG:
                samples.add(
                    ProfileCell(1, width, LONG), _forward(engine, [sequence], width, context)
                )


def _measure_overhead(engine: Engine, context: list[int], samples: Timings) -> None:
    """Seconds of a greedy round outside forwards."""
    room = engine.capabilities.context_size - len(context)
    stop = StopConditions(max_tokens=min(8, room), ignore_end=True)
    try:
        done = generate(engine, context, stop=stop)
    except PacelineError:
        return  # a model that can't continue this text has no overhead to tell
    samples.overheads += [r.other_s for r in done.rounds if not r.prefill]


# Keeping them.


VERSIONS = (
    *("ik_llama_cpp_python", "llama_cpp_python", "llama_cpp"),
    *("torch_version", "transformers_version", "openvino_version"),
)
"""Metadata of engines that names a version; another one has other costs."""


def costs_key(engine: Engine) -> dict[str, Any]:
    """What a profile holds for. Another value of any of these is another machine or model."""
    metadata, machine = engine.metadata(), machine_metadata()
    versions = {name: metadata[name] for name in VERSIONS if name in metadata}
    return {
        "model": Path(engine.model).name or engine.model,
        "fingerprint": _fingerprint(engine),
        "engine": engine.name,
        "versions": versions,
        "build": metadata.get("build"),
        "device": metadata.get("device"),
        "dtype": metadata.get("dtype") or metadata.get("description"),
        "threads": metadata.get("threads"),
        "same_text": metadata.get("same_text"),
        "cpu": machine["cpu"],
        "cores": machine["cores"],
    }


def _fingerprint(engine: Engine) -> str:
    """Of the model's shape and weights, without reading gigabytes: file sizes and beginnings."""
    digest = hashlib.sha256(f"{engine.name} {engine.vocabulary_size}".encode())
    if engine.place is None:
        digest.update(engine.model.encode())
    else:
        wanted = (".json", ".safetensors", ".gguf", ".bin")
        files = [engine.place]
        if engine.place.is_dir():
            files = sorted(file for file in engine.place.iterdir() if file.suffix in wanted)
        for file in filter(Path.is_file, files):
            digest.update(f"{file.name} {file.stat().st_size}".encode())
            with file.open("rb") as opened:
                digest.update(opened.read(1 << 20))
    return digest.hexdigest()[:16]


def cache_file(key: dict[str, Any]) -> Path:
    """Where a profile is kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "costs" / f"{key['model']}-{digest}.json"


def cached(engine: Engine) -> Costs | None:
    """The profile of this model on this machine, if there is one that can be read."""
    key = costs_key(engine)
    try:
        costs = costs_of(cache_file(key).read_bytes(), "the cache")
    except (OSError, DataError):
        return None
    return costs if dict(costs.key) == key else None


def is_enough(costs: Costs, engine: Engine) -> bool:
    """Whether a profile says enough to decide by: one that was interrupted, or measured in a
    smaller context, may hold a few rows only."""
    room = engine.capabilities.context_size // 2
    return len(costs.table()) > (min(room, QUICK_WIDTHS[-1]) if costs.complete else _ENOUGH)


def keep(costs: Costs) -> Path:
    """Put a profile into the cache. Raises DataError if it can't be written."""
    path = cache_file(dict(costs.key))
    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(costs.as_document(), indent=1), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}.", "Make room there.") from None
    return path


def costs_for(
    engine: Engine, *, drafts: bool = False, on_measure: Callable[[str], None] = lambda _: None
) -> Costs:
    """The cached profile, or a quick one measured now and kept.

    drafts        the model is to draft, so what catching up costs matters too
    on_measure    told, in a line, that measuring begins
    """
    found = cached(engine)
    if found is not None and is_enough(found, engine) and (found.feeds or not drafts):
        return found
    on_measure(
        f"Measuring once what width costs {Path(engine.model).name} here "
        "(`paceline profile` does it finely) …"
    )
    samples = Timings()
    with watched() as taken:
        measure_costs(engine, samples, quick=True, feeds=drafts, sweeps=3)
    costs = samples.costs(costs_key(engine))
    if shortage(taken.others_cores, engine.metadata().get("threads")) > TOLERATED_SHORTAGE:
        on_measure("Other programs disturbed that. It is measured again next time.")
        return costs
    try:
        keep(costs)
    except DataError as error:
        on_measure(f"{error.fact} It is measured again next time.")
    return costs
