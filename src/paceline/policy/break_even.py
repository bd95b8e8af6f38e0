"""When a draft pays, as arithmetic, and the warning where it doesn't.

One round of limit k takes r(k + 1) + k·c + o target passes of width 1 and gives 1 + Σ acceptance
tokens; a round without a draft takes 1 + o and gives one. r(w) is the cost of w rows over that of
one, c the draft's seconds per drafted token and o those outside forwards, each over the target's
T(1). Leviathan et al. 2023 (theorem 3.8) is the case r = 1, o = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import SettingError
from paceline.policy.acceptance import Acceptance
from paceline.policy.costs import Costs
from paceline.types import Sampling

LEAST_SPEEDUP_BOUND = 1.05
"""Speedup of a draft that is always right, below which it is not worth asking."""


@dataclass(frozen=True, slots=True)
class Prices:
    """A target and a draft as the formulas want them.

    r             r(w) of the target; infinite where it is not known
    draft_cost    c: seconds of a drafted token over the target's T(1); 0 for one without a model
    overhead      o: seconds outside forwards over T(1)
    most          the largest limit that is tried
    """

    r: Callable[[int], float]
    draft_cost: float = 0.0
    overhead: float = 0.0
    most: int = 32


def prices(target: Costs, draft: Costs | None = None, *, context: int = 0) -> Prices:
    """Prices at one sequence and a context length, with the largest limit whose width was measured.
    A draft without costs of its own is free."""
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


def expected_tokens(acceptance: float, limit: int) -> float:
    """Tokens per round, bonus included, if each drafted token is accepted with the same
    probability: (1 − α^(k+1)) / (1 − α), Leviathan et al. 2023, equation 1.

    >>> expected_tokens(0.5, 2)
    1.75
    >>> expected_tokens(1.0, 4)
    5.0
    """
    check_acceptance(acceptance)
    return float(sum(acceptance**i for i in range(limit + 1)))


def speed_up(tokens: float, limit: int, priced: Prices) -> float:
    """Speedup of rounds that give so many tokens.

    >>> speed_up(1.75, 2, Prices(lambda width: 1.0))
    1.75
    >>> round(speed_up(1.75, 2, Prices(lambda width: 1 + 0.2 * (width - 1), draft_cost=0.1)), 3)
    1.094
    """
    round_cost = priced.r(limit + 1) + limit * priced.draft_cost + priced.overhead
    return tokens * (1 + priced.overhead) / round_cost


def speed_up_of(acceptance: np.ndarray, priced: Prices) -> np.ndarray:
    """Speedup for limits 1, 2, … from prefix acceptance by position, shape (n,); entry i is limit
    i + 1."""
    limits = range(1, min(len(acceptance), priced.most) + 1)
    tokens = 1 + np.cumsum(acceptance[: len(limits)])
    return np.asarray([speed_up(t, k, priced) for t, k in zip(tokens, limits, strict=True)])


def best_draft_tokens(acceptance: float, priced: Prices) -> tuple[int, float]:
    """The limit with the highest speedup, and that speedup; 0 and 1.0 where none pays. Every limit
    is tried: r(w) has steps, so the first fall is not the end.

    >>> best_draft_tokens(0.8, Prices(lambda width: 1 + 0.05 * (width - 1)))
    (8, 3.092)
    >>> best_draft_tokens(0.3, Prices(lambda width: float(width)))
    (0, 1.0)
    """
    best = 0, 1.0
    for limit in range(1, priced.most + 1):
        found = speed_up(expected_tokens(acceptance, limit), limit, priced)
        if found > best[1]:
            best = limit, found
    return best[0], round(best[1], 3)


def best_speedup_bound(priced: Prices) -> tuple[int, float]:
    """The limit and the speedup of a draft that is always right; 0 and 1.0 if even that loses."""
    return best_draft_tokens(1.0, priced)


def break_even_acceptance(limit: int, priced: Prices) -> float | None:
    """The acceptance above which this limit is faster than ordinary decoding; None if even a draft
    that is always right loses.

    With one drafted token it is r(2) + c − 1:

    >>> break_even_acceptance(1, Prices(lambda width: 1.4, draft_cost=0.1))
    0.5
    >>> break_even_acceptance(3, Prices(lambda width: 1.5, draft_cost=1.0)) is None
    True
    """

    def pays(acceptance: float) -> bool:
        return speed_up(expected_tokens(acceptance, limit), limit, priced) >= 1

    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return round(high, 6)


def least_acceptance(priced: Prices) -> tuple[int, float] | None:
    """The limit that pays soonest, and its break-even acceptance; None if no limit can pay.

    >>> least_acceptance(Prices(lambda width: 1 + 0.2 * (width - 1)))
    (1, 0.2)
    """
    found = [
        (acceptance, limit)
        for limit in range(1, priced.most + 1)
        if priced.r(limit + 1) < float("inf")
        and (acceptance := break_even_acceptance(limit, priced)) is not None
    ]
    if not found:
        return None
    acceptance, limit = min(found)
    return limit, acceptance


def check_acceptance(acceptance: float) -> None:
    """Raises SettingError outside 0…1."""
    if not 0 <= acceptance <= 1:
        raise SettingError(f"The acceptance is {acceptance}.", "It must be from 0 to 1.")


# Warnings.

_ENOUGH = 16  # judged tokens before anything is said


class Warnings:
    """Says each thing once.

    say    takes a line
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()
        self._least: dict[str, tuple[int, float] | None] = {}

    def cannot_pay(self, target: Costs, name: str, draft: Costs | None) -> bool:
        """Whether this draft would gain next to nothing even if it were always right; then says
        so."""
        if draft is None:
            return False
        priced = prices(target, draft)
        limit, gain = best_speedup_bound(priced)
        if gain >= LEAST_SPEEDUP_BOUND:
            self._least[name] = least_acceptance(replace(priced, most=min(16, priced.most)))
            return False
        so = f"at most {gain:.2f} times as fast as" if limit else "slower than"
        self._once(
            name,
            f"The draft {label(name, draft)} can't pay here: {cost_words(priced)}, so even if the "
            f"target accepted every token it would be {so} ordinary decoding. It is not asked.",
        )
        return True

    def collapsed(
        self, name: str, draft: Costs | None, acceptance: Acceptance, sampling: Sampling
    ) -> None:
        """After enough judged tokens, say that a draft is not accepted often enough."""
        least = self._least.get(name)
        if acceptance.judged < _ENOUGH or least is None or name in self._said:
            return
        rate = acceptance.accepted / acceptance.judged
        if rate >= least[1]:
            return
        self._once(
            name,
            f"The draft {label(name, draft)} doesn't pay on this text: {rate:.0%} of "
            f"{acceptance.judged} judged tokens were accepted, break-even is {least[1]:.0%}. It is "
            f"asked only now and then. Likely causes: {causes(sampling)}.",
        )

    def _once(self, name: str, line: str) -> None:
        if name not in self._said:
            self._said.add(name)
            self._say(line)


def label(name: str, draft: Costs | None) -> str:
    """A draft's name, and its model where that says more."""
    model = "" if draft is None else str(draft.key.get("model", ""))
    return f"{name} ({model})" if model and not model.startswith(name) else name


def cost_words(priced: Prices) -> str:
    """The two prices that decide, in words."""
    return (
        f"a drafted token costs {priced.draft_cost:.2f} of a target pass and two rows cost "
        f"{priced.r(2):.2f}"
    )


def causes(sampling: Sampling) -> str:
    """What most often makes a draft fail."""
    hot = f"temperature {sampling.temperature:g}, " if sampling.temperature >= 0.7 else ""
    return (
        f"{hot}another chat template or language than the draft was trained on, another "
        "tokenizer's text habits, or a context beyond the draft's"
    )
