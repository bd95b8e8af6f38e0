"""Closed forms against published values, limits against a search, and the same from costs."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest

from paceline.errors import SettingError
from paceline.policy import break_even as breakeven
from paceline.policy.break_even import (
    Prices,
    best_draft_tokens,
    break_even_acceptance,
    expected_tokens,
    least_acceptance,
    prices,
    speed_up,
    speed_up_of,
)
from paceline.policy.costs import Costs, Point


def linear(slope: float):
    return lambda width: 1 + slope * (width - 1)


def test_doctests() -> None:
    done = doctest.testmod(breakeven)
    assert done.attempted > 8
    assert done.failed == 0


@pytest.mark.parametrize(
    ("slope", "cost", "acceptance", "times", "limit"),
    [
        (0.02, 0, 0.5, 1.79, 4),
        (0.02, 0, 0.9, 6.37, 19),
        (0.05, 0, 0.7, 2.35, 6),
        (0.2, 0, 0.5, 1.25, 1),
        (0.2, 0, 0.95, 2.87, 10),
        (0.02, 0.1, 0.8, 2.31, 5),
        (0.05, 0.25, 0.9, 1.87, 5),
        (0.05, 0.35, 0.5, 1.07, 1),
        (0.35, 0, 0.7, 1.29, 2),
    ],
)
def test_best_limits_are_those_of_a_table_worked_out_elsewhere(
    slope, cost, acceptance, times, limit
) -> None:
    found = best_draft_tokens(acceptance, Prices(linear(slope), cost, most=40))
    assert found[0] == limit
    assert found[1] == pytest.approx(times, abs=0.011)


@pytest.mark.parametrize("limit", [1, 2, 5, 12])
@pytest.mark.parametrize("cost", [0, 0.1, 0.4])
def test_at_break_even_it_takes_as_long_as_baseline(limit: int, cost: float) -> None:
    priced = Prices(linear(0.1), draft_cost=cost, overhead=0.02)
    least = break_even_acceptance(limit, priced)
    assert least is not None
    assert speed_up(expected_tokens(least, limit), limit, priced) == pytest.approx(1, abs=1e-4)


def test_a_draft_as_dear_as_its_target_never_pays() -> None:
    assert least_acceptance(Prices(linear(0.01), draft_cost=1.0)) is None
    assert break_even_acceptance(4, Prices(linear(0.0), draft_cost=0.99)) is not None


def test_every_limit_is_tried_because_costs_have_steps() -> None:
    """Rows come in packs of 16: limits 1 to 14 all lose, 15 pays."""

    def packed(width: int) -> float:
        return 1.0 if width == 1 else 20.0 if width < 16 else 4.0 if width == 16 else math.inf

    assert best_draft_tokens(0.95, Prices(packed))[0] == 15


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, math.nan])
def test_acceptance_outside_its_range_is_refused(acceptance: float) -> None:
    with pytest.raises(SettingError, match="acceptance is"):
        expected_tokens(acceptance, 2)


def test_prices_come_from_costs() -> None:
    target = Costs(
        key={},
        points=(Point(1, 1, 0, 0.1), Point(2, 1, 0, 0.12), Point(5, 1, 0, 0.2)),
        overhead_s=0.005,
    )
    draft = Costs(key={}, points=(Point(1, 1, 0, 0.03),))
    found = prices(target, draft)
    assert (found.draft_cost, found.overhead) == pytest.approx((0.3, 0.05))
    assert found.r(5) == pytest.approx(2)
    assert found.r(6) == math.inf
    assert found.most == 4
    times = speed_up_of(np.asarray([0.9, 0.8, 0.7]), found)
    assert times[0] == pytest.approx(1.9 * 1.05 / (1.2 + 0.3 + 0.05))
    assert len(times) == 3


def test_acceptance_by_position_of_one_probability_is_the_closed_form() -> None:
    priced = Prices(linear(0.05), draft_cost=0.1, overhead=0.02)
    found = speed_up_of(np.asarray([0.8 ** (i + 1) for i in range(5)]), priced)
    wanted = [speed_up(expected_tokens(0.8, k), k, priced) for k in range(1, 6)]
    assert found == pytest.approx(wanted)
