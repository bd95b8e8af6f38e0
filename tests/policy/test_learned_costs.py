"""Costs learned from steps alone."""

from __future__ import annotations

import math
import random

import pytest

from paceline.errors import SettingError
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.live import FIRST_ROW_SHARE, LearnedCosts


def watched(
    share: float, *, sequences: int = 1, steps: int = 300, noise: float = 0.0
) -> LearnedCosts:
    """Costs of a server whose step takes 0.1 s for one row and `share` of it more for each."""
    costs, rng = LearnedCosts(), random.Random(5)
    for _ in range(steps):
        rows = sequences + rng.choice((0, 0, 0, 1, 2, 4, 8))
        seconds = 0.1 * (1 + share * (rows - 1)) * math.exp(rng.uniform(-noise, noise))
        costs.observe(rows, sequences, 0, seconds)
    return costs


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 1.2])
@pytest.mark.parametrize("sequences", [1, 4])
def test_rows_cost_what_they_were_seen_to_cost(share: float, sequences: int) -> None:
    costs = watched(share, sequences=sequences)
    table = costs.round_s(sequences)
    for extra in (0, 1, 2, 4, 8):
        rows = sequences + extra
        assert table[rows] == pytest.approx(0.1 * (1 + share * (rows - 1)), rel=0.03)


def test_widths_that_were_not_seen_lie_on_the_line() -> None:
    table = watched(0.3).round_s(1)
    assert table[1 + 6] == pytest.approx(0.1 * (1 + 0.3 * 6), rel=0.05)
    assert table[1 + 12] == pytest.approx(0.1 * (1 + 0.3 * 12), rel=0.05)


def test_noise_of_a_fifth_moves_the_line_little() -> None:
    assert watched(0.3, noise=0.2).row_share == pytest.approx(0.3, rel=0.2)


def test_a_step_in_the_curve_is_kept() -> None:
    costs = LearnedCosts()
    for _ in range(40):
        for rows, seconds in ((1, 0.1), (4, 0.2), (5, 0.13)):
            costs.observe(rows, 1, 0, seconds)
    table = costs.round_s(1)
    assert table[4] > table[5] * 1.3


def test_one_interrupted_step_says_little() -> None:
    costs = watched(0.1)
    before = costs.round_s(1)[3]
    costs.observe(3, 1, 0, 60.0)
    costs.observe(1, 1, 0, 60.0)
    for _ in range(8):
        costs.observe(1, 1, 0, 0.1)
    assert costs.round_s(1)[3] == pytest.approx(before, rel=0.15)


def test_a_server_that_slows_down_is_followed() -> None:
    costs = watched(0.1)
    for _ in range(100):
        costs.observe(1, 1, 0, 0.3)
    assert costs.round_s(1)[1] == pytest.approx(0.3, rel=0.02)
    assert costs.round_s(1)[2] == pytest.approx(0.33, rel=0.03)


def test_a_width_taken_for_dear_is_tried_again() -> None:
    """What one bad minute taught is forgotten while decoding plainly."""
    costs = watched(0.05)
    for _ in range(30):
        costs.observe(5, 1, 0, 0.9)
    assert costs.round_s(1)[5] > 0.5
    for _ in range(1500):
        costs.observe(1, 1, 0, 0.1)
    assert costs.round_s(1)[5] / costs.round_s(1)[1] < 1 + 4 * costs.row_share + 0.1


def test_nothing_to_compare_with_asks_for_a_baseline_step() -> None:
    costs = LearnedCosts()
    assert costs.needs_baseline(1)
    costs.observe(4, 1, 0, 0.2)  # nothing to compare it with
    assert costs.row_share == FIRST_ROW_SHARE
    costs.observe(1, 1, 0, 0.1)
    assert not costs.needs_baseline(1)
    assert costs.needs_baseline(2)


def test_where_no_baseline_step_can_be_seen_it_is_asked_for_a_few_times_only() -> None:
    costs = LearnedCosts()
    assert [costs.needs_baseline(3) for _ in range(6)] == [True] * 4 + [False] * 2
    assert [costs.needs_baseline(5) for _ in range(2)] == [True, True]
    assert costs.round_s(3)[5] > costs.round_s(3)[3]


def test_after_many_drafted_steps_a_baseline_one_is_due() -> None:
    costs = LearnedCosts()
    costs.observe(1, 1, 0, 0.1)
    for _ in range(99):
        costs.observe(4, 1, 0, 0.12)
        assert not costs.needs_baseline(1)
    costs.observe(4, 1, 0, 0.12)
    assert costs.needs_baseline(1)
    costs.observe(1, 1, 0, 0.1)
    assert not costs.needs_baseline(1)


def test_other_numbers_of_sequences_are_told_from_those_seen() -> None:
    table = watched(0.2).round_s(3)
    assert table[2] == math.inf
    assert table[3] == pytest.approx(0.1 * (1 + 0.2 * 2), rel=0.1)


def test_times_that_are_none_teach_nothing() -> None:
    costs = LearnedCosts()
    costs.observe(1, 1, 0, 0.0)
    costs.observe(1, 1, 0, -1.0)
    assert costs.needs_baseline(1)


def test_a_draft_that_has_to_be_asked_needs_no_profile_to_be_on_offer() -> None:
    policy = MeasuredPolicy(LearnedCosts(), [Source("guess")])
    assert policy.costs.profiled is None
    with pytest.raises(SettingError):
        LearnedCosts(row_share=-0.1)
