"""Where drafted text differs from plain text: rounding, or a fault?

A forward over several rows may use other kernels than one over a single row, so logits move a
little, and where the two best tokens are nearly equal the choice can flip. How much they move is
measured here, on the very text in question, by scoring it again in blocks from a fresh sequence
that never saw a draft. A margin larger than any such movement can't have flipped that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from paceline.engines.base import Engine, Job
from paceline.sampling.rows import margin


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two greedy outputs.

    position        index of the first differing output token
    plain_token     what plain decoding emitted there (None: it had ended)
    drafted_token   what drafted decoding emitted there (None: it had ended)
    margin          plain's top-2 logit gap there
    movement        largest change of a top-2 gap that width alone caused before there
    numeric         whether width alone can explain the difference; otherwise it is a fault
    """

    position: int
    plain_token: int | None
    drafted_token: int | None
    margin: float
    movement: float
    numeric: bool

    @property
    def verdict(self) -> str:
        return "numeric" if self.numeric else "fault"


def first_difference(plain: Sequence[int], drafted: Sequence[int]) -> int | None:
    """Index of the first differing token, or None if the outputs are equal."""
    for index, (ours, theirs) in enumerate(zip_longest(plain, drafted)):
        if ours != theirs:
            return index
    return None


def explain(
    engine: Engine,
    prompt: Sequence[int],
    plain: Sequence[int],
    drafted: Sequence[int],
    margins: Sequence[float],
    width: int,
) -> Divergence | None:
    """The first difference between two greedy outputs and its cause; None if they are equal.

    margins    plain decoding's top-2 gap of each output token (`Request.margins`)
    width      rows of a drafted forward
    """
    position = first_difference(plain, drafted)
    if position is None:
        return None
    if position >= len(plain):
        # Plain had ended and drafted went on: no tie can do that.
        return Divergence(position, None, drafted[position], float("inf"), 0.0, numeric=False)
    again = block_margins(engine, prompt, plain[: position + 1], max(2, width))
    movement = float(np.max(np.abs(np.asarray(again) - np.asarray(margins[: position + 1]))))
    gap = margins[position]
    other = drafted[position] if position < len(drafted) else None
    return Divergence(position, plain[position], other, gap, movement, numeric=gap <= movement)


def block_margins(
    engine: Engine, prompt: Sequence[int], output: Sequence[int], width: int
) -> list[float]:
    """The margin of every output token when a fresh sequence scores them `width` at a time."""
    sequence = engine.open()
    try:
        tokens = [*prompt, *output]
        first = len(prompt) - 1
        if first:
            engine.score([Job(sequence, tokens[:first])])
        found: list[float] = []
        for start in range(first, len(tokens) - 1, width):
            block = tokens[start : min(start + width, len(tokens) - 1)]
            [rows] = engine.score([Job(sequence, block, len(block))])
            found += [margin(row, tokens[start + i + 1]) for i, row in enumerate(rows)]
        return found
    finally:
        sequence.close()
