"""How many tokens to draft for each sequence of a batch: the most expected tokens per second.

Pure functions of survival and seconds. Each further position adds its survival, which never rises,
so that taking the most likely tokens of all sequences first always takes prefixes. Every total is
tried and none is assumed to be the last good one: seconds have steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Plan(NamedTuple):
    """`limits` per sequence, and the expected tokens per second they bring."""

    rate: float
    limits: list[int]


def plain(round_s: np.ndarray, sequences: int) -> float:
    """Tokens per second without drafts; `round_s` holds a round's seconds by rows."""
    if sequences >= len(round_s):
        return 0.0
    return float(sequences / round_s[sequences])


def for_one(
    survival: np.ndarray, round_s: np.ndarray, draft_s: np.ndarray | float = 0.0
) -> tuple[float, int]:
    """Best rate and limit (1 or more) of one sequence.

    survival    entry i: chance that tokens 0…i are all accepted
    draft_s     seconds of drafting, or entry i: of drafting i + 1 tokens
    """
    count = min(len(survival), len(round_s) - 2)
    if count < 1:
        return 0.0, 0
    paid = draft_s if isinstance(draft_s, float) else draft_s[:count]
    rates = (1 + survival[:count].cumsum()) / (round_s[2 : count + 2] + paid)
    best = int(rates.argmax())
    return float(rates[best]), best + 1


def for_batch(survival: np.ndarray, round_s: np.ndarray) -> Plan:
    """One budget of rows over all sequences, where drafting itself costs nothing.

    survival    shape (sequences, positions); 0 where a sequence has nothing to offer
    """
    sequences, positions = survival.shape
    flat = survival.ravel()
    most = min(int(np.count_nonzero(flat)), len(round_s) - 1 - sequences)
    if most < 1:
        return Plan(0.0, [0] * sequences)
    # Stable, so that equally likely tokens of one sequence stay in their order.
    order = np.argsort(-flat, kind="stable")[:most]
    rates = (sequences + flat[order].cumsum()) / round_s[sequences + 1 : sequences + most + 1]
    best = int(rates.argmax())
    taken = np.bincount(order[: best + 1] // positions, minlength=sequences)
    return Plan(float(rates[best]), taken.tolist())


def for_drafted_batch(survival: np.ndarray, round_s: np.ndarray, draft_s: np.ndarray) -> Plan:
    """The same where drafting is paid per step of all sequences that take part: every one of them
    gets the same limit, and the best are taken in first.

    draft_s    shape (sequences, positions): seconds of drafting for as many sequences (one, two, …)
               and as many tokens each
    """
    sequences, positions = survival.shape
    gains = survival.cumsum(axis=1)
    tokens = sequences - np.sort(-gains, axis=0).cumsum(axis=0)
    rows = sequences + np.multiply.outer(np.arange(1, sequences + 1), np.arange(1, positions + 1))
    known = rows < len(round_s)
    seconds = np.where(known, round_s[np.where(known, rows, 0)], np.inf) + draft_s
    rates = tokens / seconds
    best = int(rates.argmax())
    count, limit = best // positions + 1, best % positions + 1
    chosen = np.argsort(-gains[:, limit - 1], kind="stable")[:count].tolist()
    return Plan(float(rates.flat[best]), [limit if i in chosen else 0 for i in range(sequences)])
