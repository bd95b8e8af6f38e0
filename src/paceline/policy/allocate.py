"""How many tokens to draft for each sequence of a batch: the most expected tokens per second.

Pure functions of probabilities and seconds, on plain lists: there are few numbers, and a round
should not wait for its own planning. Acceptance never rises with the position, so taking the most
likely tokens of all sequences first always takes prefixes. Every total is tried and none is assumed
to be the last good one: seconds have steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Allocation(NamedTuple):
    """`limits` per sequence, and the expected tokens per second they bring."""

    rate: float
    limits: list[int]


def baseline(round_s: Sequence[float], sequences: int) -> float:
    """Tokens per second without drafts; `round_s` holds a round's seconds by rows."""
    return sequences / round_s[sequences] if sequences < len(round_s) else 0.0


def for_one(
    acceptance: Sequence[float],
    round_s: Sequence[float],
    first_s: float = 0.0,
    step_s: float = 0.0,
    steps: int | None = None,
) -> tuple[float, int]:
    """Best rate and limit (1 or more) of one sequence.

    acceptance    entry i: probability that tokens 0…i are all accepted
    first_s     seconds of drafting anything at all, and
    step_s      of each step
    steps       most steps of a proposal; None is one for each drafted token
    """
    best_rate, best, tokens, paid_s = 0.0, 0, 1.0, first_s
    for limit, probability in enumerate(acceptance[: len(round_s) - 2], start=1):
        tokens += probability
        if steps is None or limit <= steps:
            paid_s += step_s
        rate = tokens / (round_s[limit + 1] + paid_s)
        if rate > best_rate:
            best_rate, best = rate, limit
    return best_rate, best


def for_batch(acceptance: Sequence[Sequence[float]], round_s: Sequence[float]) -> Allocation:
    """One budget of rows over all sequences, where drafting itself costs nothing.

    acceptance    per sequence as above; empty where a sequence has nothing to offer
    """
    sequences = len(acceptance)
    # Sorting is stable, so that equally likely tokens of one sequence stay in their order.
    order = sorted(
        [
            (-probability, number)
            for number, probabilities in enumerate(acceptance)
            for probability in probabilities
        ]
    )
    best_rate, best, tokens, rows = 0.0, 0, float(sequences), sequences
    for place, (negative, _) in enumerate(order[: max(0, len(round_s) - 1 - sequences)], start=1):
        tokens -= negative
        rows += 1
        rate = tokens / round_s[rows]
        if rate > best_rate:
            best_rate, best = rate, place
    limits = [0] * sequences
    for _, number in order[:best]:
        limits[number] += 1
    return Allocation(best_rate, limits)


def for_drafted_batch(
    acceptance: Sequence[Sequence[float]],
    round_s: Sequence[float],
    first_s: Sequence[float],
    step_s: Sequence[float],
    steps: int | None = None,
) -> Allocation:
    """The same where drafting is paid per step of all sequences that take part: every one of them
    gets the same limit, and the best are taken in first.

    first_s    entry n: seconds of drafting anything at all for n sequences, and
    step_s     of each step of n sequences
    steps      most steps of a proposal; None is one for each drafted token
    """
    sequences, gains = len(acceptance), [0.0] * len(acceptance)
    best_rate, best_draft_tokens, best_taken = 0.0, 0, list[int]()
    for limit in range(1, max(map(len, acceptance), default=0) + 1):
        for number, probabilities in enumerate(acceptance):
            if limit <= len(probabilities):
                gains[number] += probabilities[limit - 1]
        order = sorted(range(sequences), key=gains.__getitem__, reverse=True)
        tokens, rows = float(sequences), sequences
        for count, number in enumerate(order, start=1):
            rows += limit
            if rows >= len(round_s):
                break
            tokens += gains[number]
            paid = limit if steps is None else min(limit, steps)
            rate = tokens / (round_s[rows] + first_s[count] + paid * step_s[count])
            if rate > best_rate:
                best_rate, best_draft_tokens, best_taken = rate, limit, order[:count]
    limits = [0] * sequences
    for number in best_taken:
        limits[number] = best_draft_tokens
    return Allocation(best_rate, limits)
