"""Costs: steps are kept, nothing is invented beyond what was measured, bad figures are refused."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from paceline.errors import DataError, SettingError
from paceline.policy.costs import Costs, Feed, Point, check_key, costs_of, read_costs

STEPPED = {1: 85.0, 2: 119.0, 3: 136.0, 4: 115.0, 8: 204.0, 16: 246.0}


def costs(milliseconds=STEPPED, **options) -> Costs:
    points = tuple(Point(rows, 1, 64, ms / 1e3) for rows, ms in milliseconds.items())
    return Costs(key={"model": "m"}, points=points, **options)


def test_steps_are_kept_and_what_lies_between_is_a_straight_line() -> None:
    found = costs()
    assert found.r(4) == pytest.approx(115 / 85)
    assert found.r(4) < found.r(3)
    assert found.forward_s(6) == pytest.approx((115 + 204) / 2 / 1e3)
    assert found.forward_s(12) == pytest.approx((204 + 246) / 2 / 1e3)


def test_nothing_is_known_beyond_the_widest_and_below_a_row_a_sequence() -> None:
    found = costs()
    assert found.forward_s(17) == math.inf
    assert found.table()[0] == math.inf
    points = (*found.points, Point(2, 2, 64, 0.15), Point(8, 2, 64, 0.3), Point(4, 4, 64, 0.2))
    both = Costs(key={}, points=(*points, Point(16, 4, 64, 0.5)))
    assert both.forward_s(2, 2) == 0.15
    assert both.forward_s(5, 2) == pytest.approx(0.225)
    assert both.forward_s(1, 2) == math.inf
    # three sequences lie half way between two and four
    assert both.forward_s(4, 3) == pytest.approx((0.2 + 0.2) / 2)
    assert both.forward_s(2, 3) == math.inf
    # beyond the most sequences measured, theirs holds
    assert both.forward_s(8, 6) == both.forward_s(8, 4)
    assert both.forward_s(5, 6) == math.inf


def test_a_longer_context_adds_what_was_measured_there() -> None:
    points = [*costs().points, Point(1, 1, 1064, 0.095), Point(16, 1, 1064, 0.286)]
    found = Costs(key={}, points=tuple(points))
    assert found.forward_s(1, 1, 1064) == pytest.approx(0.095)
    assert found.forward_s(1, 1, 564) == pytest.approx(0.090)
    # 10 ms more at one row and 40 at sixteen: 16 at four
    assert found.forward_s(4, 1, 1064) == pytest.approx(0.115 + 0.010 + 3 / 15 * 0.030)
    assert found.forward_s(4, 1, 99_999) == found.forward_s(4, 1, 1064)


def test_decisions_go_by_the_lower_quartile() -> None:
    point = Point(1, 1, 0, 0.2, low=0.1, high=0.9, samples=5)
    assert Costs(key={}, points=(point,)).forward_s(1) == 0.1


def test_feeding_is_interpolated_from_one_token_on_and_proportional_beyond() -> None:
    found = costs(feeds=(Feed(9, 0.165), Feed(100, 1.0)))
    assert found.feed_s(1) == pytest.approx(0.085)
    assert found.feed_s(5) == pytest.approx(0.125)
    assert found.feed_s(300) == pytest.approx(3.0)
    assert found.feed_s(0) == 0
    assert costs().feed_s(4) == pytest.approx(0.115), "without figures a token costs a row"
    assert costs().feed_s(32) == pytest.approx(2 * 0.246)
    assert np.allclose(found.feeds_s(120), [found.feed_s(n) for n in range(121)])


@pytest.mark.parametrize("seconds", [0, -0.1, math.nan, math.inf])
def test_costs_that_are_no_seconds_are_refused(seconds: float) -> None:
    with pytest.raises(DataError, match="1 rows of 1 sequences"):
        costs({1: 1e3 * seconds})
    with pytest.raises(DataError, match="feeding 8 tokens"):
        costs(feeds=(Feed(8, seconds),))


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(DataError, match="no point for one row"):
        costs({2: 10.0})
    with pytest.raises(DataError, match="3 rows, 4 sequences"):
        Costs(key={}, points=(Point(3, 4, 0, 1.0),))
    with pytest.raises(DataError, match="overhead_s is -1"):
        costs(overhead_s=-1)
    for low in (0, -5):
        with pytest.raises(DataError, match="1 rows of 1 sequences"):
            Costs(key={}, points=(Point(1, 1, 0, 1.0, low=low),))
    with pytest.raises(DataError, match="at the shortest context"):
        Costs(key={}, points=(Point(1, 1, 9, 1.0), Point(2, 1, 0, 1.0)))
    with pytest.raises(DataError, match="feeding 0 tokens"):
        costs(feeds=(Feed(0, 1.0),))


def test_a_document_brings_back_the_same_costs(tmp_path) -> None:
    whole = costs(feeds=(Feed(8, 0.2),), overhead_s=0.001, drafts={"d": costs({1: 9.0, 2: 10.0})})
    assert costs_of(whole.as_document(), "x") == whole
    for change, said in (
        (
            {"kind": "paceline bench"},
            "x is not a paceline costs file: its kind is 'paceline bench'",
        ),
        ({"version": 0}, "x has version 0 of the format, and this Paceline reads version 1"),
        ({"points": [{"rows": 1}]}, r"points\[0\]: .*missing required field `sequences`"),
        ({"points": [{**asdict(whole.points[0]), "rows": 1.5}]}, r"points\[0\].rows is 1.5"),
        ({"points": [{**asdict(whole.points[0]), "low": "x"}]}, r"points\[0\].low is 'x'"),
        ({"points": [{**asdict(whole.points[0]), "seconds": 0}]}, "is 0.0 seconds"),
        ({"points": [{**asdict(whole.points[0]), "lo": 0.5}]}, r"points\[0\] has 'lo'"),
        ({"drafts": {"d": {**costs().as_document(), "version": 9}}}, "of version 9"),
    ):
        with pytest.raises(DataError, match=said):
            costs_of(whole.as_document() | change, "x")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        read_costs(str(broken))
    with pytest.raises(DataError, match="can't be read"):
        read_costs(str(tmp_path / "none.json"))
    with pytest.raises(SettingError, match="Did you mean 'llama-3.1-8b-h100-vllm'"):
        read_costs("llama-3.1-8b-h100-vlm")


def test_costs_of_another_model_or_machine_are_refused_by_name() -> None:
    check_key(costs(), {"model": "m"}, "file")
    with pytest.raises(SettingError, match="costs in file are for model 'm'; here it is 'n'"):
        check_key(costs(), {"model": "n"}, "file")
    with pytest.raises(SettingError, match="are for cpu None; here it is 'z'"):
        check_key(costs(), {"model": "m", "cpu": "z"}, "file")
