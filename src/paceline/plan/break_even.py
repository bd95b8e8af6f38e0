"""Whether to draft, with what and how far, from costs alone; `plan_text` puts it into words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import DataError, SettingError
from paceline.policy.acceptance import MOST, Acceptance, Shared
from paceline.policy.adaptive import Source
from paceline.policy.break_even import (
    LEAST_SPEEDUP_BOUND,
    Prices,
    best_draft_tokens,
    best_speedup_bound,
    break_even_acceptance,
    check_acceptance,
    expected_tokens,
    least_acceptance,
    prices,
    speed_up,
    speed_up_of,
)
from paceline.policy.costs import Costs
from paceline.policy.warnings import label

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
MATCHES = (("short", 1, 2), ("medium", 3, 10), ("long", 11, 32))
"""Lookup's matches by their length in tokens."""

_LIMITS = (1, 2, 3, 4, 8, 15)


@dataclass(frozen=True, slots=True)
class Best:
    """What to do in one case: the limit with the most tokens per second, and its speedup; 0
    and 1.0 where no limit beats ordinary decoding."""

    case: str
    max_draft_tokens: int
    speedup: float


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What the costs say of one draft.

    name          as `-d` has it
    title         the same with the model, for reading
    free          it needs no model: a drafted token costs nothing
    source        where its costs come from
    priced        r(w), draft cost and overhead, over T(1)
    least         the limit that pays soonest, and the acceptance from which it does; None: never
    speedup_bound          speedup of a draft that is always right, at its best limit
    best          for each acceptance, the best limit
    matches       for each length of match, the best limit by the acceptance that is assumed before
                  anything was counted; only of a previewable draft
    break_even    by limit, the acceptance from which it pays; None: never
    """

    name: str
    title: str
    free: bool
    source: str
    priced: Prices
    least: tuple[int, float] | None
    speedup_bound: float
    best: dict[float, Best]
    matches: tuple[Best, ...]
    break_even: dict[int, float | None]

    @property
    def can_pay(self) -> bool:
        """Whether the policy would ever ask it."""
        return self.least is not None and self.speedup_bound >= LEAST_SPEEDUP_BOUND

    def speedup(self, acceptance: float) -> list[float]:
        """Speedup of limits 0, 1, 2, …, as far as widths were measured."""
        costs = {"draft_cost": self.priced.draft_cost, "overhead": self.priced.overhead}
        return [1.0] + [
            speed_up(
                expected_tokens(acceptance, max_draft_tokens),
                max_draft_tokens,
                self.priced.r,
                **costs,
            )
            for max_draft_tokens in range(1, self.priced.most + 1)
        ]


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A target's costs and what they say of each draft.

    given    the acceptances are the user's, not ours
    """

    costs: Costs
    drafts: tuple[DraftPlan, ...]
    acceptances: tuple[float, ...]
    given: bool


def make_plan(
    costs: Costs, sources: Sequence[Source], acceptances: Iterable[float] = ()
) -> BreakEven:
    """Decide from costs.

    sources        the drafts on offer; one without costs of its own is taken to be free
    acceptances    what to expect of them; none: a range

    Raises SettingError for no draft and for an acceptance outside 0…1, DataError for costs of a
    single width.
    """
    given = tuple(dict.fromkeys(acceptances))
    for acceptance in given:
        check_acceptance(acceptance)
    if not sources:
        raise SettingError("There is no draft to plan for.", "Name one with -d.")
    if prices(costs).most < 1:
        raise DataError(
            "The costs tell of one row only.", "A plan needs what two and more rows cost."
        )
    wanted = given or ACCEPTANCES
    plans = tuple(_draft_plan(costs, source, wanted) for source in sources)
    return BreakEven(costs, plans, wanted, bool(given))


def _draft_plan(costs: Costs, source: Source, acceptances: Sequence[float]) -> DraftPlan:
    priced = prices(costs, source.costs)
    terms = {"draft_cost": priced.draft_cost, "overhead": priced.overhead}
    return DraftPlan(
        name=source.name,
        title=_title(source),
        free=source.costs is None,
        source="" if source.costs is None else source.costs.source,
        priced=priced,
        least=least_acceptance(priced.r, most=priced.most, **terms),
        speedup_bound=best_speedup_bound(priced)[1],
        best={
            acceptance: Best(
                f"{acceptance:g}",
                *best_draft_tokens(acceptance, priced.r, most=priced.most, **terms),
            )
            for acceptance in acceptances
        },
        matches=tuple(_matches(priced)) if source.has_confidence and source.prior is None else (),
        break_even={
            max_draft_tokens: break_even_acceptance(max_draft_tokens, priced.r, **terms)
            for max_draft_tokens in _LIMITS
            if max_draft_tokens <= priced.most
        },
    )


def _title(source: Source) -> str:
    model = None if source.costs is None else source.costs.key.get("model")
    return source.name if model == source.name else label(source.name, source.costs)


def _matches(priced: Prices) -> Iterable[Best]:
    """The best limit by length of match: acceptance is the mean over the lengths of that name."""
    known = Acceptance(Shared(has_confidence=True))
    for name, low, high in MATCHES:
        acceptance = np.mean([known.chances(n, MOST) for n in range(low, high + 1)], axis=0)
        gains = speed_up_of(acceptance, priced)
        at = int(np.argmax(gains))
        pays = gains[at] > 1
        yield Best(name, at + 1 if pays else 0, round(float(gains[at]), 3) if pays else 1.0)
