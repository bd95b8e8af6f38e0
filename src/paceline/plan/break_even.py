"""Whether to draft, with what and how far, from costs alone: the decision and its arithmetic, in
words and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

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
    cost_words,
    expected_tokens,
    label,
    least_acceptance,
    prices,
    speed_up,
    speed_up_of,
)
from paceline.policy.costs import Costs

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
MATCHES = (("short", 1, 2), ("medium", 3, 10), ("long", 11, 32))
"""Lookup's matches by their length in tokens."""

_LIMITS = (1, 2, 3, 4, 8, 15)
_SHOWN_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 32)
_TYPICAL = 0.8  # acceptance that the decision speaks of when none was given


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
        return [1.0] + [
            speed_up(expected_tokens(acceptance, limit), limit, self.priced)
            for limit in range(1, self.priced.most + 1)
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
    return DraftPlan(
        name=source.name,
        title=_title(source),
        free=source.costs is None,
        source="" if source.costs is None else source.costs.source,
        priced=priced,
        least=least_acceptance(priced),
        speedup_bound=best_speedup_bound(priced)[1],
        best={
            acceptance: Best(f"{acceptance:g}", *best_draft_tokens(acceptance, priced))
            for acceptance in acceptances
        },
        matches=tuple(_matches(priced)) if source.has_confidence and source.prior is None else (),
        break_even={
            limit: break_even_acceptance(limit, priced) for limit in _LIMITS if limit <= priced.most
        },
    )


def _title(source: Source) -> str:
    model = None if source.costs is None else source.costs.key.get("model")
    return source.name if model == source.name else label(source.name, source.costs)


def _matches(priced: Prices) -> Iterable[Best]:
    """The best limit by length of match: acceptance is the mean over the lengths of that name."""
    known = Acceptance(Shared(has_confidence=True))
    for name, low, high in MATCHES:
        acceptance = np.mean([known.probabilities(n, MOST) for n in range(low, high + 1)], axis=0)
        gains = speed_up_of(acceptance, priced)
        at = int(np.argmax(gains))
        pays = gains[at] > 1
        yield Best(name, at + 1 if pays else 0, round(float(gains[at]), 3) if pays else 1.0)


# In words, and as JSON.


def sentence(plan: BreakEven) -> str:
    """The decision."""
    clauses = [(_advised(plan, draft), _clause(plan, draft)) for draft in plan.drafts]
    # What to do comes before what not to do.
    words = [clause for _, clause in sorted(clauses, key=lambda pair: not pair[0])]
    if not any(advised for advised, _ in clauses):
        words.insert(0, "decode without drafts")
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}."


def lines(plan: BreakEven) -> list[str]:
    """The arithmetic."""
    t1_s = plan.costs.forward_s(1)
    found = [
        f"target    {target_words(plan.costs)}",
        f"costs     {plan.costs.source}",
        f"baseline  {1e3 * t1_s:.2f} ms a forward of one row, T(1); "
        f"{1e3 * plan.costs.overhead_s:.2f} ms a round outside forwards",
        "",
        *_r_table(plan.costs, plan.drafts[0].priced.most),
    ]
    for draft in plan.drafts:
        found += ["", *_draft_lines(draft)]
    return found


def as_document(plan: BreakEven) -> dict[str, Any]:
    """As JSON."""
    return {
        "kind": "paceline break-even",
        "decision": sentence(plan),
        "target": dict(plan.costs.key),
        "source": plan.costs.source,
        "t1_s": plan.costs.forward_s(1),
        "overhead_s": plan.costs.overhead_s,
        "r": {w: plan.costs.r(w) for w in range(1, plan.drafts[0].priced.most + 2)},
        "drafts": [_draft_document(draft) for draft in plan.drafts],
    }


def target_words(costs: Costs) -> str:
    """Model, engine and machine, as far as the key tells them."""
    key = costs.key
    name = str(key.get("model") or "a model")
    with_ = f" with {key['engine']}" if key.get("engine") else ""
    machine = key.get("cpu") if key.get("device") in (None, "cpu") else key["device"]
    return f"{name}{with_} on {machine}" if machine else f"{name}{with_}"


def price_words(draft: DraftPlan) -> str:
    """What a drafted token costs."""
    if draft.free:
        return "a drafted token costs nothing"
    return f"a drafted token costs {draft.priced.draft_cost:.2f} of a target pass"


def _advised(plan: BreakEven, draft: DraftPlan) -> bool:
    """Whether the decision is to draft with it."""
    if plan.given or not draft.matches:
        return draft.can_pay and (
            not plan.given or any(best.max_draft_tokens for best in draft.best.values())
        )
    return any(best.max_draft_tokens for best in draft.matches)


def no_speedup_words(draft: DraftPlan) -> str:
    """Why a draft can't pay however often it is right."""
    priced = cost_words(draft.priced)
    if draft.least is None:
        return f"{draft.title} can't pay here: {priced}, break-even acceptance is above 1"
    return (
        f"{draft.title} can't pay here: {priced}, so always right it would give a "
        f"speedup of {draft.speedup_bound:.2f}"
    )


def _clause(plan: BreakEven, draft: DraftPlan) -> str:
    if draft.least is None or not draft.can_pay:
        return no_speedup_words(draft)
    max_draft_tokens, least = draft.least
    soonest = f"break-even acceptance is {least:.2f}, with {_tokens(max_draft_tokens)}"
    if not _advised(plan, draft):
        what = f"at acceptance {_list(plan.acceptances)}" if plan.given else "even on long matches"
        return f"{draft.title} doesn't pay {what}: {soonest}"
    if draft.matches and not plan.given:
        return f"draft with {draft.title}, {_by_match(draft.matches)}"
    if plan.given:
        return f"draft with {draft.title}, {_by_acceptance(draft.best.values())}, and {soonest}"
    return f"draft with {draft.title} where more than {least:.2f} is accepted{_example(draft)}"


def _example(draft: DraftPlan) -> str:
    max_draft_tokens, times = best_draft_tokens(_TYPICAL, replace(draft.priced, most=32))
    if not max_draft_tokens:
        return ""
    return f": at {_TYPICAL:.2f}, {_tokens(max_draft_tokens)} a round give a speedup of {times:.2f}"


def _by_match(matches: Sequence[Best]) -> str:
    """Limits with the lengths of match they are for, equal ones together."""
    by_limit: dict[int, list[str]] = {}
    for best in matches:
        by_limit.setdefault(best.max_draft_tokens, []).append(best.case)
    words = [
        f"{_tokens(max_draft_tokens) if max_draft_tokens else 'none'} on "
        f"{' and '.join(cases)} matches"
        for max_draft_tokens, cases in by_limit.items()
    ]
    return f"{', '.join(words)} (speedup up to {max(b.speedup for b in matches):.2f})"


def _by_acceptance(found: Iterable[Best]) -> str:
    return ", ".join(
        f"{_tokens(best.max_draft_tokens)} at acceptance {best.case} (speedup {best.speedup:.2f})"
        if best.max_draft_tokens
        else f"none at {best.case}"
        for best in found
    )


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _r_table(costs: Costs, most: int) -> list[str]:
    widths = [width for width in _SHOWN_WIDTHS if width <= most + 1]
    return [
        "rows w    " + " ".join(f"{width:>5}" for width in widths),
        "r(w)      " + " ".join(f"{costs.r(width):>5.2f}" for width in widths),
    ]


def _draft_lines(draft: DraftPlan) -> list[str]:
    found = [f"{draft.title}: {price_words(draft)}"]
    if not draft.free:
        found.append(f"  costs: {draft.source}")
    bounds = {name: f"{name}, {low} to {high}" for name, low, high in MATCHES}
    if draft.matches:
        found += ["  match, in tokens     best limit  speedup, while it lasts"]
        found += [_row(bounds[best.case], best) for best in draft.matches]
    found += ["  acceptance           best limit  speedup"]
    found += [_row(best.case, best) for best in draft.best.values()]
    shown = "  ".join(
        f"{max_draft_tokens}: {'never' if least is None else f'{least:.2f}'}"
        for max_draft_tokens, least in draft.break_even.items()
    )
    return [*found, f"  break-even acceptance by limit   {shown}"]


def _row(case: str, best: Best) -> str:
    return f"  {case:<20} {best.max_draft_tokens:>10}  {best.speedup:>11.2f}"


def _draft_document(draft: DraftPlan) -> dict[str, Any]:
    return {
        "name": draft.name,
        "title": draft.title,
        "source": draft.source,
        "draft_cost": draft.priced.draft_cost,
        "can_pay": draft.can_pay,
        "least": None
        if draft.least is None
        else {"max_draft_tokens": draft.least[0], "acceptance": draft.least[1]},
        "best": [{**asdict(best), "acceptance": a} for a, best in draft.best.items()],
        "matches": [asdict(best) for best in draft.matches],
        "break_even": draft.break_even,
    }
