"""r(w): what a forward over w rows costs, over what one row costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from paceline.engines.base import Engine, Job


@dataclass(frozen=True, slots=True)
class WidthCost:
    """Median seconds of a forward of one sequence over `width` rows, and that over width 1."""

    width: int
    forward_s: float
    ratio: float


def width_costs(
    engine: Engine, widths: Sequence[int], *, context: Sequence[int], repeats: int = 5
) -> list[WidthCost]:
    """Measure widths in turns, so that a shared machine's drift hits all alike; each row's logits
    are asked for, as verifying does.

    context    tokens held before the rows; its length matters
    """
    sequence = engine.open()
    try:
        engine.score([Job(sequence, list(context))])
        seconds: dict[int, list[float]] = {width: [] for width in {1, *widths}}
        for turn in range(repeats + 1):
            for width, taken in seconds.items():
                rows = [context[i % len(context)] for i in range(width)]
                started = perf_counter()
                [logits] = engine.score([Job(sequence, rows, width)])
                float(logits[-1, 0])  # waits for a device that works behind our back
                if turn:  # the first turn warms up
                    taken.append(perf_counter() - started)
                sequence.rewind(len(context))
    finally:
        sequence.close()
    base = median(seconds[1])
    costs = {width: median(taken) for width, taken in seconds.items()}
    return [WidthCost(width, costs[width], costs[width] / base) for width in sorted(set(widths))]
