"""Measured costs as text."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.policy.break_even import (
    LEAST_SPEEDUP_BOUND,
    best_speedup_bound,
    least_acceptance,
    prices,
)
from paceline.policy.costs import Costs

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def shown_widths(costs: Costs) -> list[int]:
    """Widths that are told, as far as costs were measured."""
    return [width for width in WIDTHS if width < len(costs.table())]


def width_line(costs: Costs) -> str:
    """Seconds of a forward of one row, and times that by width."""
    shown = "  ".join(f"r({width})={costs.r(width):.2f}" for width in shown_widths(costs)[1:])
    return f"T(1) = {1e3 * costs.forward_s(1):.1f} ms   {shown}"


def costs_lines(costs: Costs) -> Iterator[str]:
    """What width, batch, context and each draft cost, and from which acceptance rate on it pays."""
    base = costs.forward_s(1)
    table = costs.table()
    yield f"target    {costs.key['model']}, {costs.key['engine']}, {costs.key['cpu']}"
    yield f"width     {width_line(costs)}"
    row = min(range(2, len(table)), key=lambda width: table[width] / width, default=1)
    yield f"          cheapest per row: {row} rows, {costs.r(row) / row:.2f} of T(1) each"
    batches = [n for n in costs.sequences if n > 1]
    if batches:
        yield "batch     one token each: " + "  ".join(
            f"{n} sequences {costs.forward_s(n, n) / base:.2f}" for n in batches
        )
    if len(costs.contexts) > 1:
        longest = costs.contexts[-1]
        later = costs.forward_s(1, 1, longest) / base
        yield f"context   after {longest} tokens a pass takes {later:.2f} of T(1)"
    yield f"round     {1e3 * costs.overhead_s:.2f} ms outside forwards"
    for name, draft in costs.drafts.items():
        priced = prices(costs, draft)
        yield (
            f"draft     {name}: a drafted token costs {priced.draft_cost:.2f} T(1), catching up "
            f"100 tokens {draft.feed_s(100) / base:.1f} T(1)"
        )
        limit, speedup = best_speedup_bound(priced)
        least = least_acceptance(priced)
        bound = f"{speedup:.2f}×" if limit else "below 1×"
        yield "          " + (
            f"it can't pay here: if every token were accepted, the speedup would be {bound}"
            if least is None or speedup < LEAST_SPEEDUP_BOUND
            else f"it pays above an acceptance rate of {least[1]:.0%} (at most {least[0]} tokens); "
            f"if every token were accepted, the speedup would be {bound}"
        )
