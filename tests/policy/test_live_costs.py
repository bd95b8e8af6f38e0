"""Costs while decoding: drift is no change of r(w), and one bad moment is no change of anything."""

from __future__ import annotations

import pytest

from paceline.policy.costs import Costs, Point
from paceline.policy.live import LiveCosts


def live(**options) -> LiveCosts:
    points = tuple(Point(rows, 1, 0, 0.01 * rows) for rows in (1, 2, 4, 8))
    return LiveCosts(Costs(key={}, points=points, overhead_s=0.001), **options)


def r(costs: LiveCosts, rows: int) -> float:
    table = costs.table()
    return float(table[rows] / table[1])


def test_a_machine_that_slows_down_keeps_its_ratios() -> None:
    costs = live()
    for _ in range(60):
        costs.observe(1, 1, 0, 0.02)
        costs.observe(4, 1, 0, 0.08)
    assert costs.drift == pytest.approx(2, rel=0.05)
    assert r(costs, 4) == pytest.approx(4, rel=0.05)
    assert costs.table()[4] * costs.drift == pytest.approx(0.08, rel=0.1)


def test_a_width_that_is_dearer_than_profiled_becomes_so() -> None:
    costs = live()
    for _ in range(60):
        costs.observe(1, 1, 0, 0.01)
        costs.observe(4, 1, 0, 0.06)
    assert r(costs, 4) == pytest.approx(6, rel=0.1)
    assert r(costs, 2) == pytest.approx(2, rel=0.01), "rows never seen keep to the profile"
    assert costs.drift == pytest.approx(1, rel=0.02)


def test_rows_not_seen_for_long_go_back_to_the_profile() -> None:
    costs = live()
    for _ in range(20):
        costs.observe(4, 1, 0, 0.1)
    assert r(costs, 4) > 5
    for _ in range(2000):
        costs.observe(1, 1, 0, 0.01)
    assert r(costs, 4) == pytest.approx(4, rel=0.01)


def test_an_interrupted_forward_says_little() -> None:
    costs = live()
    for _ in range(30):
        costs.observe(1, 1, 0, 0.01)
    costs.observe(1, 1, 0, 10.0)
    assert costs.drift < 1.1


def test_what_is_out_of_reach_is_not_learned_from() -> None:
    costs = live()
    costs.observe(9, 1, 0, 5.0)
    costs.observe(2, 1, 0, 0.0)
    assert costs.drift == 1
    assert r(costs, 2) == 2


def test_what_one_sequence_teaches_is_no_price_of_baseline_rounds_of_two() -> None:
    points = [Point(rows, n, 0, 0.01 * rows) for n in (1, 2) for rows in (2, 4)]
    costs = LiveCosts(Costs(key={}, points=(Point(1, 1, 0, 0.01), *points)))
    costs.table(2)
    for _ in range(20):
        costs.observe(2, 1, 0, 0.05)
    assert costs.table(1)[2] > 0.03
    assert costs.table(2)[2] == 0.02


def test_frozen_costs_stay() -> None:
    costs = live(frozen=True)
    costs.observe(1, 1, 0, 5.0)
    costs.observe(4, 1, 0, 5.0)
    costs.observe_overhead(4, 5.0)
    costs.observe_whole(1.0, 5.0)
    assert costs.drift == 1
    assert r(costs, 4) == 4
    assert costs.round_s()[1] == pytest.approx(0.011)


def test_overhead_has_a_part_per_round_and_one_per_row() -> None:
    costs = live()
    for _ in range(50):
        for rows in (1, 2, 8):
            costs.observe_overhead(rows, 0.002 + 0.0005 * rows)
    whole, table = costs.round_s(), costs.table()
    round_s = {rows: whole[rows] - table[rows] for rows in (1, 8)}
    assert round_s[1] == pytest.approx(0.0025, rel=0.15)
    assert round_s[8] == pytest.approx(0.006, rel=0.15)


def test_seconds_of_feeding_and_stepping_drift_too() -> None:
    costs = live()
    for _ in range(80):
        costs.observe_whole(costs.feed_s(4), 0.08)
    assert costs.feed_s(4) == pytest.approx(0.08, rel=0.02)
    assert costs.steps_s(1)[1] == pytest.approx(0.02, rel=0.02)
    assert costs.steps_s(1)[0] == 0
