"""Whether a window's drafts pay, with the arithmetic in words.

Acceptance alone can't say: it takes what a drafted round costs over a plain one. A plan knows that
(`break_even_tokens`), or it is measured: time per token of the same server without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.monitor.advice import Cost, advice
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a window.

    state          one of `STATES`
    speedup    time per token without drafts over that with them; with a plan, tokens per
                   drafted round over those that break even. None if unknown
    basis          "baseline" or "plan": what it was judged by; None if by nothing
    why            the arithmetic, a sentence each
    change         the setting to change; None if none
    notes        what makes the verdict mean less, and where acceptance isn't the plan's
    baseline_s        seconds per token without drafts, where they are measured
    """

    state: str
    why: tuple[str, ...]
    speedup: Interval | None = None
    basis: str | None = None
    change: str | None = None
    notes: tuple[str, ...] = ()
    baseline_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    window: Window,
    *,
    plan: PlanDocument | None = None,
    baseline: Sequence[Window] = (),
    together: bool = False,
) -> Verdict:
    """By the baseline if there is one, else by the plan.

    baseline    windows of the same server without drafts
    together    they are one, of a twin that was read at the same moments
    """
    notes = () if plan is None else _beside_plan(window, plan)
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
    return replace(found, notes=(*found.notes, *notes))


def _without_drafts(window: Window, found: Verdict) -> Verdict:
    """A server whose drafts are off is as fast as its baseline, and that is no verdict on drafts;
    one that lost by looking for them in vain has lost."""
    drafted = _drafted(window)
    if drafted or not window.tokens:
        return found
    counted = "No token was drafted" if drafted == 0 else "The page counts no drafts"
    note = f"{counted} in this window: check that drafts are on."
    if found.state == EVEN or (found.state == PAYING and drafted == 0):
        return replace(found, state=UNKNOWN, why=(*found.why, note), change=None)
    return replace(found, notes=(*found.notes, note))


def _drafted(window: Window) -> float | None:
    """Drafted rounds, or what tells of them; None if nothing does."""
    total = window.total
    return next((n for n in (total.drafts, total.steps, total.drafted) if n is not None), None)


def state_of(speedup: Interval) -> str:
    """Paying or losing if the whole interval and 2 % say so, breaking even if it is narrow and
    holds 1 (or is that close to it), otherwise unknown."""
    value, low, high = speedup.value, speedup.low, speedup.high
    if low > 1 and value >= 1 + MARGIN:
        return PAYING
    if high < 1 and value <= 1 - MARGIN:
        return LOSING
    if low >= 1 - WIDEST and high <= 1 + WIDEST:
        return EVEN
    return UNKNOWN


# By a baseline.


def _by_baseline(window: Window, baseline: Sequence[Window], together: bool) -> Verdict:
    fault = _unfit(window, baseline) or _too_little(window, "in this window")
    if fault:
        return _unknown(fault)
    alike = [one for one in baseline if _alike(window, one, together)]
    if not alike:
        loads = sorted(one.load for one in baseline if one.load is not None)
        spread = f"{loads[0]:.1f}" if len(loads) < 2 else f"{loads[0]:.1f} to {loads[-1]:.1f}"
        return _unknown(
            f"{_at(window.load)} here, and {spread if loads else 'an unknown number'} without "
            "drafts: time per token at another load is no comparison."
        )
    undrafted = alike[0] if len(alike) == 1 else _pooled(alike)
    if fault := _too_little(undrafted, "without drafts at a load like this"):
        return _unknown(fault)
    times = of_quotient(undrafted.time, window.time, together=together)
    with_s, baseline_s = window.time.ratio, undrafted.time.ratio
    state = state_of(times)
    why = [
        f"{1e3 * baseline_s:.2f} ms a token without drafts over {1e3 * with_s:.2f} with them = "
        f"{times.value:.2f} ({times.low:.2f} to {times.high:.2f})."
    ]
    cost = _cost(window, baseline_s)
    if cost is not None and window.total.tokens_per_drafted_round is not None:
        why.append(
            f"A drafted round gives {window.total.tokens_per_drafted_round:.2f} tokens and takes "
            f"{cost.rounds:.2f} plain ones."
        )
    if state == UNKNOWN:
        why.append("That is too wide to say: a longer --window has more tokens.")
    notes = () if window.load and undrafted.load else ("No load is told, so none was compared.",)
    change = advice(window, state, cost)
    return Verdict(state, tuple(why), times, "baseline", change, notes, baseline_s)


def _too_little(window: Window, where: str) -> str | None:
    """Why time per token can't be had of a window; None if it can."""
    tokens = window.total.timed_tokens
    if tokens is None or window.total.timed_s is None:
        dialect = dialect_named(window.server)
        names = () if dialect is None else (*dialect.timed_s[:1], *dialect.generated[:1])
        return f"the page lacks {' or '.join(names) or 'times'}, so there is no time per token."
    if tokens < LEAST_TOKENS:
        return f"{tokens:,.0f} tokens {where}; at least {LEAST_TOKENS} are needed."
    return None if window.time.usable else _too_bunched(window, window.time, "tokens", where)


def _too_bunched(window: Window, sums: Sums, what: str, where: str) -> str:
    """Why the spread of something can't be had."""
    dialect = dialect_named(window.server)
    at_the_end = dialect is not None and dialect.at_the_end
    more = f" {window.server} counts an answer when it ends." if at_the_end else ""
    return (
        f"{what} came at {sums.filled} of {len(window.parts)} readings {where}; at least "
        f"{LEAST_PARTS} are needed to see how they spread.{more}"
    )


def _unfit(window: Window, baseline: Sequence[Window]) -> str | None:
    """Why a baseline is none of this server."""
    others = {one.server for one in baseline} - {window.server}
    if others:
        return f"the baseline is of {others.pop()}, and this is {window.server}."
    drafted = sum(one.total.drafted or one.total.steps or 0 for one in baseline)
    if drafted:
        return f"the baseline drafts too ({drafted:,.0f} counted): it must run without drafts."
    return None


def _alike(one: Window, other: Window, together: bool) -> bool:
    """Whether times per token may be compared. Twins under the same traffic may differ in how many
    sequences they decode at once just because one is faster: then they give as many tokens."""
    measures = [(one.load, other.load)]
    if together and one.tokens and other.tokens:
        measures.append((one.tokens / one.seconds, other.tokens / other.seconds))
    return any(a is None or b is None or max(a, b) <= ALIKE * min(a, b) for a, b in measures)


def _pooled(windows: Sequence[Window]) -> Window:
    total = windows[0].total
    for one in windows[1:]:
        total = total + one.total
    parts = tuple(part for one in windows for part in one.parts)
    return replace(windows[0], total=total, parts=parts)


def _cost(window: Window, baseline_s: float) -> Cost | None:
    """What a drafted round takes, in plain rounds of one token. Rounds without a draft are taken
    to cost what plain ones do."""
    total, rounds = window.total, window.rounds
    if not total.drafts or not total.drafted or not rounds or total.timed_s is None:
        return None
    baseline_rounds = rounds - total.drafts
    taken = (total.timed_s / baseline_s - baseline_rounds) / total.drafts
    return None if taken <= 0 else Cost(taken, total.drafted / total.drafts)


# By a plan.


def _by_plan(window: Window, plan: PlanDocument) -> Verdict:
    if plan.draft is None:
        return _unknown("the plan is to decode without drafts: take them off, or use --baseline.")
    needed = plan.expected.break_even_tokens
    if not needed:
        return _unknown("the plan doesn't say which tokens per round break even: use --baseline.")
    counted = window.total.drafts if window.total.drafts is not None else window.total.steps
    if counted is None:
        dialect = dialect_named(window.server)
        return _unknown(f"no drafted rounds are counted. {dialect.turn_on if dialect else ''}")
    if counted < LEAST_ROUNDS:
        return _unknown(
            f"{counted:,.0f} drafted rounds in this window; at least {LEAST_ROUNDS} are needed."
        )
    tokens = window.tokens_a_drafted_round
    if tokens is None and 0 < window.drafting.filled < LEAST_PARTS:
        return _unknown(_too_bunched(window, window.drafting, "drafted rounds", "in this window"))
    if tokens is None:
        return _unknown("how much is accepted isn't counted, or not how it spreads.")
    times = tokens.over(needed)
    state = state_of(times)
    sign = {PAYING: "more than", LOSING: "less than"}.get(state, "beside")
    why = [
        f"{tokens.value:.2f} tokens a drafted round ({tokens.low:.2f} to {tokens.high:.2f}), "
        f"{sign} the {needed:.2f} that break even: {times.value:.2f} speedup in such rounds."
    ]
    if state == UNKNOWN:
        why.append("That is too wide to say: a longer --window has more rounds.")
    load = window.load
    notes = ["The plan's break-even holds for one sequence at a time, on the plan's machine."]
    if load is None and state in (PAYING, EVEN):
        why.append("No load is told, and with more at once a drafted round costs more plain ones.")
        state = UNKNOWN
    elif load is not None and load > ALIKE:
        at = f"{_at(load)[:1].upper()}{_at(load)[1:]} here"
        if state in (PAYING, EVEN):
            why.append(
                f"{at}: a drafted round costs more plain ones then, and it isn't known how "
                "many. Use --baseline."
            )
            state = UNKNOWN
        else:
            notes.append(f"{at}, where a drafted round costs still more.")
    rows, total = plan.mean_draft_tokens or plan.max_draft_tokens, window.total
    cost = Cost(needed, rows) if rows else None
    if rows and total.drafts and total.drafted is not None:
        here = total.drafted / total.drafts
        if max(here, rows) > ALIKE * min(here, rows):
            notes.append(
                f"A drafted round has {here:.1f} tokens here and {rows:.1f} in the plan, so that "
                f"it costs {'less' if here < rows else 'more'} than the plan says."
            )
    return Verdict(
        state, tuple(why), times, "plan", advice(window, state, cost, plan), tuple(notes)
    )


def _beside_plan(window: Window, plan: PlanDocument) -> tuple[str, ...]:
    """Where the window's acceptance isn't the plan's, by more than three standard errors."""
    total, expected = window.total, plan.expected.acceptance_at
    seen = total.accepted_at
    if not total.drafts or total.drafts < LEAST_ROUNDS or not expected or not seen:
        return ()
    crowding = _crowding(window)
    if crowding is None:
        return ()
    for place, (was, now) in enumerate(zip(expected, seen, strict=False), 1):
        error = (max(was * (1 - was), 1e-4) / total.drafts) ** 0.5 * crowding
        if abs(now - was) > 3 * error:
            side = "less" if now < was else "more"
            return (
                f"At position {place} {now:.0%} are accepted, and the plan expects {was:.0%}: "
                f"{side} than chance explains.",
            )
    return ()


def _crowding(window: Window) -> float | None:
    """By how much the spread over the window is wider than that of independent rounds; at least
    1. None if it can't be seen."""
    alone, seen = window.of_counts(), window.tokens_a_drafted_round
    if alone is None or seen is None:
        return None
    if alone.high <= alone.low:
        return 1.0
    return max(1.0, (seen.high - seen.low) / (alone.high - alone.low))


def _at(load: float | None) -> str:
    return "an unknown number of sequences at once" if load is None else f"{load:.1f} at once"


def _unknown(why: str) -> Verdict:
    return Verdict(UNKNOWN, (f"{why[:1].upper()}{why[1:]}".strip(),))


def exit_code(states: Sequence[str]) -> int:
    """0 paying or breaking even, 3 losing, 1 unknown: of the last window that is known."""
    known = [state for state in states if state != UNKNOWN]
    if not known:
        return 1
    return 3 if known[-1] == LOSING else 0
