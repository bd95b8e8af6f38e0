"""Whether a window's drafts pay, with the arithmetic in words and the setting to change.

Acceptance alone can't say: it takes what a drafted round costs over an ordinary one. A plan knows
that (`break_even_tokens`), or it is measured: time per token of the same server without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.monitor.dialects import dialect_named
from paceline.monitor.spread import LEAST_PARTS, Interval, Sums, of_quotient
from paceline.monitor.window import Window
from paceline.plan.document import PlanDocument

PAYING, EVEN, LOSING, UNKNOWN = "paying", "breaking even", "losing", "unknown"
STATES = (PAYING, EVEN, LOSING, UNKNOWN)

MARGIN = 0.02
"""Less gained or lost than this is breaking even, however sure."""
WIDEST = 0.10
"""An interval around 1 that is wider than this to either side isn't breaking even but unknown."""
LEAST_TOKENS = 200
"""Of a window, below which nothing is said of time per token."""
LEAST_ROUNDS = 50
"""Drafted rounds of a window, below which nothing is said of acceptance."""
ALIKE = 1.3
"""Loads that differ by no more than this factor are compared."""
_WORTH = 1.03
"""A lower limit is named only where it would have been faster than the present one by this."""


@dataclass(frozen=True, slots=True)
class WatchVerdict:
    """What came of a window.

    state          one of `STATES`
    speedup        time per token without drafts over that with them; with a plan, tokens per
                   drafted round over those that break even. None if unknown
    basis          "baseline" or "plan": what it was judged by; None if by nothing
    why            the arithmetic, a sentence each
    change         the setting to change; None if none
    notes          what makes the verdict mean less, and where acceptance isn't the plan's
    baseline_s     seconds per token without drafts, where they are measured
    """

    state: str
    why: tuple[str, ...]
    speedup: Interval | None = None
    basis: str | None = None
    change: str | None = None
    notes: tuple[str, ...] = ()
    baseline_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything, by name."""
        return asdict(self)


def judge(
    window: Window,
    *,
    plan: PlanDocument | None = None,
    baseline: Sequence[Window] = (),
    together: bool = False,
) -> WatchVerdict:
    """By the baseline if there is one, else by the plan.

    baseline    windows of the same server without drafts
    together    they are one, of a control server that was read at the same moments
    """
    if baseline:
        found = _by_baseline(window, baseline, together)
    elif plan is not None:
        found = _by_plan(window, plan)
    else:
        found = _unknown(
            "acceptance alone can't say whether drafts pay: give --plan, or --baseline with a "
            "server (or a recorded file) without drafts."
        )
    found = _without_drafts(window, found)
    return replace(found, notes=(*found.notes, *(_beside_plan(window, plan) if plan else ())))


def _without_drafts(window: Window, found: WatchVerdict) -> WatchVerdict:
    """A server whose drafts are off is as fast as its baseline, which says nothing about drafts;
    drafts that cost time without a token still count as a loss."""
    total = window.total
    drafted = next((n for n in (total.drafts, total.steps, total.drafted) if n is not None), None)
    if drafted or not window.tokens:
        return found
    counted = "No token was drafted" if drafted == 0 else "The server counts no drafts"
    note = f"{counted} in this window: check that drafts are on."
    if found.state == EVEN or (found.state == PAYING and drafted == 0):
        return replace(found, state=UNKNOWN, why=(*found.why, note), change=None)
    return replace(found, notes=(*found.notes, note))


def state_of(speedup: Interval) -> str:
    """Paying or losing if the whole interval and 2 % say so, breaking even if it is narrow and
    holds 1 or comes that close, otherwise unknown."""
    value, low, high = speedup.value, speedup.low, speedup.high
    if low > 1 and value >= 1 + MARGIN:
        return PAYING
    if high < 1 and value <= 1 - MARGIN:
        return LOSING
    return EVEN if low >= 1 - WIDEST and high <= 1 + WIDEST else UNKNOWN


# By a baseline.


def _by_baseline(window: Window, baseline: Sequence[Window], together: bool) -> WatchVerdict:
    fault = _unfit(window, baseline) or _too_little(window, "in this window")
    if fault:
        return _unknown(fault)
    alike = [one for one in baseline if _alike(window, one, together)]
    if not alike:
        loads = sorted({f"{one.load:.1f}" for one in baseline if one.load is not None}, key=float)
        spread = " to ".join(loads[:1] + loads[1:][-1:]) or "an unknown number"
        return _unknown(
            f"{_at(window.load)} here, and {spread} without drafts: time per token at another load "
            "is no comparison."
        )
    undrafted = replace(
        alike[0],
        total=sum((one.total for one in alike[1:]), alike[0].total),
        parts=tuple(part for one in alike for part in one.parts),
    )
    if fault := _too_little(undrafted, "without drafts at a load like this"):
        return _unknown(fault)
    speedup = of_quotient(undrafted.time, window.time, together=together)
    with_s, baseline_s = window.time.ratio, undrafted.time.ratio
    state = state_of(speedup)
    why = [
        f"{1e3 * baseline_s:.2f} ms a token without drafts over {1e3 * with_s:.2f} with them = "
        f"{speedup.value:.2f} ({speedup.low:.2f} to {speedup.high:.2f})."
    ]
    cost, gives = _cost(window, baseline_s), window.total.tokens_per_drafted_round
    if cost is not None and gives is not None:
        why.append(
            f"A drafted round gives {gives:.2f} tokens and takes as long as {cost.rounds:.2f} "
            "ordinary ones."
        )
    if state == UNKNOWN:
        why.append("The interval is too wide to say: a longer --window has more tokens.")
    notes = () if window.load and undrafted.load else ("No load is counted, so none was compared.",)
    change = advice(window, state, cost)
    return WatchVerdict(state, tuple(why), speedup, "baseline", change, notes, baseline_s)


def _too_little(window: Window, where: str) -> str | None:
    """Why time per token can't be had of a window; None if it can."""
    tokens = window.total.timed_tokens
    if tokens is None or window.total.timed_s is None:
        dialect = dialect_named(window.server)
        names = (*dialect.timed_s[:1], *dialect.generated[:1])
        return f"the page lacks {' or '.join(names) or 'times'}, so there is no time per token."
    if tokens < LEAST_TOKENS:
        return f"{tokens:,.0f} tokens {where}; at least {LEAST_TOKENS} are needed."
    return None if window.time.usable else _too_bunched(window, window.time, "tokens", where)


def _too_bunched(window: Window, sums: Sums, what: str, where: str) -> str:
    """Why the spread of something can't be had."""
    at_the_end = dialect_named(window.server).at_the_end
    more = f" {window.server} counts an answer when it ends." if at_the_end else ""
    return (
        f"{what} came at {sums.filled} of {len(window.parts)} scrapes {where}; at least "
        f"{LEAST_PARTS} are needed to see how they spread.{more}"
    )


def _unfit(window: Window, baseline: Sequence[Window]) -> str | None:
    """Why a baseline isn't one of this server."""
    others = {one.server for one in baseline} - {window.server}
    if others:
        return f"the baseline is of {others.pop()}, and this is {window.server}."
    drafted = sum(one.total.drafted or one.total.steps or 0 for one in baseline)
    if drafted:
        return f"the baseline drafts too ({drafted:,.0f} counted): it must run without drafts."
    return None


def _alike(one: Window, other: Window, together: bool) -> bool:
    """Whether times per token may be compared. Under the same traffic a server and its control may
    decode another number of sequences at once just because one is faster: then they give as many
    tokens."""
    measures = [(one.load, other.load)]
    if together and one.tokens and other.tokens:
        measures.append((one.tokens / one.seconds, other.tokens / other.seconds))
    return any(a is None or b is None or max(a, b) <= ALIKE * min(a, b) for a, b in measures)


def _cost(window: Window, baseline_s: float) -> RoundCost | None:
    """What a drafted round takes, if rounds without a draft cost what ordinary ones do."""
    total, rounds = window.total, window.rounds
    if not total.drafts or not total.drafted or not rounds or total.timed_s is None:
        return None
    taken = (total.timed_s / baseline_s - (rounds - total.drafts)) / total.drafts
    return None if taken <= 0 else RoundCost(taken, total.drafted / total.drafts)


# By a plan.


def _by_plan(window: Window, plan: PlanDocument) -> WatchVerdict:
    if plan.draft is None:
        return _unknown("the plan is to decode without drafts: turn them off, or use --baseline.")
    needed = plan.expected.break_even_tokens
    if not needed:
        return _unknown("the plan doesn't say which tokens per round break even: use --baseline.")
    total, load = window.total, window.load
    counted = total.steps if total.drafts is None else total.drafts
    if counted is None:
        return _unknown(f"no drafted rounds are counted. {dialect_named(window.server).turn_on}")
    if counted < LEAST_ROUNDS:
        return _unknown(
            f"{counted:,.0f} drafted rounds in this window; at least {LEAST_ROUNDS} are needed."
        )
    tokens = window.tokens_a_drafted_round
    if tokens is None and 0 < window.drafting.filled < LEAST_PARTS:
        return _unknown(_too_bunched(window, window.drafting, "drafted rounds", "in this window"))
    if tokens is None:
        return _unknown("how much is accepted isn't counted, or not how it spreads.")
    speedup = tokens.over(needed)
    state = state_of(speedup)
    sign = {PAYING: "more than", LOSING: "less than"}.get(state, "beside")
    why = [
        f"{tokens.value:.2f} tokens a drafted round ({tokens.low:.2f} to {tokens.high:.2f}), "
        f"{sign} the {needed:.2f} that break even: speedup {speedup.value:.2f} in such rounds."
    ]
    if state == UNKNOWN:
        why.append("The interval is too wide to say: a longer --window has more rounds.")
    notes = ["The plan's break-even holds for one sequence at a time, on the plan's machine."]
    if state in (PAYING, EVEN) and (load is None or load > ALIKE):
        state = UNKNOWN
        why.append(
            "No load is counted, and with more at once a drafted round costs more."
            if load is None
            else f"{_sentence(_at(load))} here: a drafted round costs more then, and it isn't "
            "known how much. Use --baseline."
        )
    elif load is not None and load > ALIKE:
        notes.append(f"{_sentence(_at(load))} here, where a drafted round costs still more.")
    planned = plan.mean_draft_tokens or plan.max_draft_tokens
    cost = RoundCost(needed, planned) if planned else None
    if planned and total.drafts and total.drafted is not None:
        here = total.drafted / total.drafts
        if max(here, planned) > ALIKE * min(here, planned):
            notes.append(
                f"A drafted round has {here:.1f} tokens here and {planned:.1f} in the plan, so "
                f"that it costs {'less' if here < planned else 'more'} than the plan says."
            )
    change = advice(window, state, cost, plan)
    return WatchVerdict(state, tuple(why), speedup, "plan", change, tuple(notes))


def _beside_plan(window: Window, plan: PlanDocument) -> tuple[str, ...]:
    """Where the window's acceptance isn't the plan's, by more than three standard errors."""
    total, expected = window.total, plan.expected.acceptance_at
    crowding = _crowding(window)
    if not total.drafts or total.drafts < LEAST_ROUNDS or crowding is None:
        return ()
    for place, (was, now) in enumerate(zip(expected or (), total.accepted_at, strict=False), 1):
        error = (max(was * (1 - was), 1e-4) / total.drafts) ** 0.5 * crowding
        if abs(now - was) > 3 * error:
            side = "less" if now < was else "more"
            return (
                f"At position {place} {now:.0%} are accepted, and the plan expects {was:.0%}: "
                f"{side} than three standard errors explain.",
            )
    return ()


def _crowding(window: Window) -> float | None:
    """By how much the spread over the window is wider than that of independent rounds, at least
    1; None if it can't be seen."""
    alone, seen = window.of_counts(), window.tokens_a_drafted_round
    if alone is None or seen is None:
        return None
    return max(1.0, seen.width / alone.width) if alone.width > 0 else 1.0


def _at(load: float | None) -> str:
    return "an unknown number of sequences at once" if load is None else f"{load:.1f} at once"


def _unknown(why: str) -> WatchVerdict:
    return WatchVerdict(UNKNOWN, (_sentence(why),))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".strip()


# The setting to change.


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a drafted round takes.

    rounds    over an ordinary one
    tokens    drafted in it, on average
    """

    rounds: float
    tokens: float

    def at(self, limit: int) -> float:
        """With a limit, if each drafted token costs the same. Limit 0 is an ordinary round."""
        return 1 + (self.rounds - 1) * min(1.0, limit / self.tokens)


def advice(
    window: Window, state: str, cost: RoundCost | None, plan: PlanDocument | None = None
) -> str | None:
    """What to change, in the engine's own words; None if nothing. Lower limits are judged by the
    window's acceptance, as if a round's cost grew evenly with what is drafted."""
    dialect = dialect_named(window.server)
    if not dialect.turn_off or state == UNKNOWN:
        return None
    speedups = speedup_by_limit(window, cost)
    present = max(speedups, default=0)
    best = max(speedups, key=lambda limit: speedups[limit], default=0)
    worth = 0 < best < present and speedups[best] >= max(_WORTH * speedups[present], _WORTH)
    if worth and dialect.lower_limit is not None:
        return (
            f"A limit of {best} would have given a speedup of {speedups[best]:.2f} on what was "
            f"accepted here, and {present} gave {speedups[present]:.2f} (if a round's cost grows "
            f"evenly with its tokens): {dialect.lower_limit.format(k=best)}."
        )
    if state != LOSING:
        return None
    gain = plan and plan.expected.gain
    if (window.load or 0) > 1.5 and dialect.limit_by_load and gain and gain.value > 1:
        return (
            "At smaller batches the plan expects a gain: limit drafts by load with "
            f"{dialect.limit_by_load}."
        )
    if speedups:
        return f"No lower limit would have paid: {dialect.turn_off}."
    return (
        f"{_sentence(dialect.turn_off)}, or try a lower limit: acceptance by position isn't "
        "counted, so none is named."
    )


def speedup_by_limit(window: Window, cost: RoundCost | None) -> dict[int, float]:
    """Speedup by limit, from 0 to the longest draft seen; empty if it can't be told."""
    total, rounds = window.total, window.rounds
    acceptance = total.accepted_at
    if cost is None or not total.drafts or not rounds or not acceptance:
        return {}
    undrafted = max(0.0, rounds / total.drafts - 1)
    return {
        k: (undrafted + 1 + sum(acceptance[:k])) / (undrafted + cost.at(k))
        for k in range(len(acceptance) + 1)
    }


def exit_code(states: Sequence[str]) -> int:
    """0 paying or breaking even, 3 losing, 1 unknown: of the last window that is known."""
    known = [state for state in states if state != UNKNOWN]
    if not known:
        return 1
    return 3 if known[-1] == LOSING else 0
