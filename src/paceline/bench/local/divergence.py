"""Where drafted text differs from plain text: rounding, or a fault?

A forward over several rows may use other kernels than one over a single row, so logits move a
little, and where the two best tokens are nearly equal the choice can flip. How much they move is
measured here, on the very text in question, by scoring it again in blocks from a fresh sequence
that never saw a draft. A margin larger than any such movement can't have flipped that way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, zip_longest

from paceline.engines.base import Engine, Job
from paceline.sampling.history import History
from paceline.sampling.rows import RowDistributions
from paceline.types import Request


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first difference between two greedy outputs.

    position        index of the first differing output token
    baseline_token     what ordinary decoding emitted there (None: it had ended)
    drafted_token   what drafted decoding emitted there (None: it had ended)
    margin          the baseline's top-2 logit gap there; None if it had ended
    movement        largest change of a top-2 gap that width alone caused in the baseline's output
    numeric         whether width alone can explain the difference; otherwise it is a fault
    """

    position: int
    baseline_token: int | None
    drafted_token: int | None
    margin: float | None
    movement: float
    numeric: bool

    @property
    def verdict(self) -> str:
        """Whether rounding explains it."""
        return "numeric" if self.numeric else "fault"

    def sentence(self, *, exact: bool = True) -> str:
        """In words. Under a lossy verifier what isn't numeric need be no fault."""
        verdict = self.verdict if exact or self.numeric else "not numeric"
        where = f"differs from output token {self.position} on, {verdict}"
        if self.margin is None:
            return f"{where}: the baseline had ended there"
        return (
            f"{where}: the baseline's top-2 logit gap there is {self.margin:.3g}, width alone "
            f"moves gaps by up to {self.movement:.3g}"
        )


def first_difference(baseline: Sequence[int], drafted: Sequence[int]) -> int | None:
    """Index of the first differing token, or None if the outputs are equal."""
    for index, (ours, theirs) in enumerate(zip_longest(baseline, drafted)):
        if ours != theirs:
            return index
    return None


def explain(
    engine: Engine,
    request: Request,
    baseline: Sequence[int],
    drafted: Sequence[int],
    margins: Sequence[float],
    widths: Sequence[int],
) -> FirstDifference | None:
    """The first difference between two greedy outputs and its cause; None if they are equal.

    margins    ordinary decoding's top-2 gap of each output token (`Request.margins`)
    widths     rows of the drafted forwards, in order: each may use kernels of its own
    """
    position = first_difference(baseline, drafted)
    if position is None:
        return None
    if position >= len(baseline):
        # Plain had ended and drafted went on: no tie can do that.
        return FirstDifference(position, None, drafted[position], None, 0.0, numeric=False)
    gap = margins[position]
    movement = largest_movement(engine, request, baseline, margins, widths)
    other = drafted[position] if position < len(drafted) else None
    return FirstDifference(
        position, baseline[position], other, gap, movement, numeric=gap <= movement
    )


def largest_movement(
    engine: Engine,
    request: Request,
    output: Sequence[int],
    margins: Sequence[float],
    widths: Sequence[int],
) -> float:
    """The largest change of a margin when an output is scored in blocks: of 2, of the commonest
    widths and the widest, each for the whole text, and of all widths as they came. For each the
    text is scored anew, because a rewind is among the things that may be at fault.

    margins    the output's, scored one row at a time
    """
    changes = [0.0]
    for pattern in _patterns(widths):
        again = block_margins(engine, request, output, pattern)
        changes += [abs(ours - theirs) for ours, theirs in zip(again, margins, strict=True)]
    return max(changes)


def _patterns(widths: Sequence[int]) -> set[tuple[int, ...]]:
    counts = Counter(width for width in widths if width > 1)
    alike = {2, *(width for width, _ in counts.most_common(3)), max(counts, default=2)}
    return {(width,) for width in alike} | ({tuple(widths)} if counts else set())


def block_margins(
    engine: Engine, request: Request, output: Sequence[int], widths: Sequence[int]
) -> list[float]:
    """The margin of every output token when a fresh sequence scores them in blocks of these widths,
    over and over."""
    sequence, history = engine.open(), History(request.prompt)
    ends = set() if request.stop.ignore_end else engine.tokenizer.end_tokens
    stop_tokens = {*ends, *request.stop.tokens}
    try:
        tokens = [*request.prompt, *output]
        first = len(request.prompt) - 1
        if first:
            engine.score([Job(sequence, tokens[:first])])
        found: list[float] = []
        start, width = first, cycle(widths)
        while start < len(tokens) - 1:
            block = tokens[start : min(start + next(width), len(tokens) - 1)]
            [rows] = engine.score([Job(sequence, block, len(block))])
            distributions = RowDistributions(
                rows, request.sampling, history, block[1:], stop_tokens
            )
            following = tokens[start + 1 : start + 1 + len(block)]
            found += [distributions.margin(row, token) for row, token in enumerate(following)]
            for token in following:
                history.commit(token)
            start += len(block)
        return found
    finally:
        sequence.close()
