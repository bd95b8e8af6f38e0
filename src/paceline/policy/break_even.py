"""When a draft pays, as arithmetic.

One round of limit k takes r(k + 1) + k·c + o target passes of width 1 and gives 1 + Σ acceptance
tokens; a plain round takes 1 + o and gives one. r(w) is the cost of w rows over that of one, c the
draft's seconds per drafted token and o those outside forwards, each over the target's T(1).
Leviathan et al. 2023 (theorem 3.8) is the case r = 1, o = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import SettingError
from paceline.policy.costs import Costs

Ratio = Callable[[int], float]
"""r(w): infinite where it is not known."""


def expected_tokens(acceptance: float, limit: int) -> float:
    """Tokens per round, bonus included, if each drafted token is accepted with the same chance:
    (1 − α^(k+1)) / (1 − α), Leviathan et al. 2023, equation 1.

    >>> expected_tokens(0.5, 2)
    1.75
    >>> expected_tokens(1.0, 4)
    5.0
    """
    check_acceptance(acceptance)
    return float(sum(acceptance**i for i in range(limit + 1)))


def tokens_per_round(acceptance: Sequence[float]) -> float:
    """The same for acceptance by position: 1 + Σ.

    >>> tokens_per_round([0.5, 0.25])
    1.75
    """
    return 1.0 + float(sum(acceptance))


def speed_up(
    tokens: float, limit: int, r: Ratio, *, draft_cost: float = 0.0, overhead: float = 0.0
) -> float:
    """Speedup of rounds that give so many tokens.

    >>> speed_up(1.75, 2, lambda width: 1.0)
    1.75
    >>> round(speed_up(1.75, 2, lambda width: 1 + 0.2 * (width - 1), draft_cost=0.1), 3)
    1.094
    """
    return tokens * (1 + overhead) / (r(limit + 1) + limit * draft_cost + overhead)


def best_draft_tokens(
    acceptance: float,
    r: Ratio,
    *,
    draft_cost: float = 0.0,
    overhead: float = 0.0,
    most: int = 32,
) -> tuple[int, float]:
    """The limit with the highest speed-up, and that speed-up; 0 and 1.0 where none pays. Every
    limit is tried: r(w) has steps, so the first fall is not the end.

    >>> best_draft_tokens(0.8, lambda width: 1 + 0.05 * (width - 1))
    (8, 3.092)
    >>> best_draft_tokens(0.3, lambda width: float(width))
    (0, 1.0)
    """
    best = 0, 1.0
    for limit in range(1, most + 1):
        tokens = expected_tokens(acceptance, limit)
        found = speed_up(tokens, limit, r, draft_cost=draft_cost, overhead=overhead)
        if found > best[1]:
            best = limit, found
    return best[0], round(best[1], 3)


def break_even_acceptance(
    limit: int, r: Ratio, *, draft_cost: float = 0.0, overhead: float = 0.0
) -> float | None:
    """The acceptance above which this limit is faster than plain; None if even a draft that is
    always right loses.

    With one drafted token it is r(2) + c − 1:

    >>> break_even_acceptance(1, lambda width: 1.4, draft_cost=0.1)
    0.5
    >>> break_even_acceptance(3, lambda width: 1.5, draft_cost=1.0) is None
    True
    """
    check_limit(limit)

    def pays(acceptance: float) -> bool:
        tokens = expected_tokens(acceptance, limit)
        return speed_up(tokens, limit, r, draft_cost=draft_cost, overhead=overhead) >= 1

    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return round(high, 6)


def least_acceptance(
    r: Ratio, *, draft_cost: float = 0.0, overhead: float = 0.0, most: int = 32
) -> tuple[int, float] | None:
    """The limit that pays soonest, and its break-even acceptance; None if no limit can pay.

    >>> least_acceptance(lambda width: 1 + 0.2 * (width - 1))
    (1, 0.2)
    """
    found = [
        (acceptance, limit)
        for limit in range(1, most + 1)
        if r(limit + 1) < float("inf")
        and (
            acceptance := break_even_acceptance(limit, r, draft_cost=draft_cost, overhead=overhead)
        )
        is not None
    ]
    if not found:
        return None
    acceptance, limit = min(found)
    return limit, acceptance


def check_acceptance(acceptance: float) -> None:
    """Raises SettingError outside 0…1."""
    if not 0 <= acceptance <= 1:
        raise SettingError(f"The acceptance is {acceptance}.", "It must be from 0 to 1.")


def check_limit(limit: int) -> None:
    """Raises SettingError for a limit below 1."""
    if limit < 1:
        raise SettingError(f"The limit is {limit}.", "It must be 1 or more.")


@dataclass(frozen=True, slots=True)
class Prices:
    """A target and a draft as the formulas want them, from measured costs.

    r             r(w) of the target
    draft_cost    c: seconds of a drafted token over the target's T(1); 0 for one without a model
    overhead      o: seconds outside forwards over T(1)
    most          the largest limit whose width was measured
    """

    r: Ratio
    draft_cost: float
    overhead: float
    most: int


LEAST_SPEEDUP_BOUND = 1.05
"""Speedup of a draft that is always right, below which it is not worth asking."""


def best_speedup_bound(priced: Prices) -> tuple[int, float]:
    """The limit and the speedup of a draft that is always right; 0 and 1.0 if even that
    loses."""
    return best_draft_tokens(
        1.0,
        priced.r,
        draft_cost=priced.draft_cost,
        overhead=priced.overhead,
        most=priced.most,
    )


def prices(target: Costs, draft: Costs | None = None, *, context: int = 0) -> Prices:
    """Prices at one sequence and a context length. A draft without costs of its own is free."""
    table = target.table(1, context)
    base = float(table[1])
    ratios = table / base
    step = 0.0 if draft is None else draft.forward_s(1, 1, context) / base
    return Prices(
        lambda width: float(ratios[width]) if 0 < width < len(ratios) else float("inf"),
        step,
        target.overhead_s / base,
        min(32, len(table) - 2),
    )


def speed_up_of(acceptance: np.ndarray, priced: Prices) -> np.ndarray:
    """Speedup for limits 1, 2, … from acceptance by position, shape (n,), and measured costs; entry
    i is limit i + 1."""
    limits = np.arange(1, min(len(acceptance), priced.most) + 1)
    tokens = 1 + np.cumsum(acceptance[: len(limits)])
    seconds = np.asarray([priced.r(int(limit) + 1) for limit in limits])
    seconds = seconds + limits * priced.draft_cost + priced.overhead
    return np.asarray(tokens * (1 + priced.overhead) / seconds)
