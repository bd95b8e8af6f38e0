"""Candidate and baseline side by side."""

from __future__ import annotations

import pytest

from paceline.bench.comparison import ComparedPrompt, Comparison
from paceline.bench.stats import Pair, speed_ratio


def comparison(*prompts: ComparedPrompt) -> Comparison:
    return Comparison(candidate="d", title="d", baseline="baseline", prompts=prompts, equal=None)


FAST = ComparedPrompt("a", "code", Pair(2.0, 10, 1.0, 10), Pair(3.0, 10, 2.0, 10))
SLOW = ComparedPrompt("b", "chat", Pair(1.0, 10, 2.0, 10))


def test_a_ratio_is_of_sums_over_a_category_or_all() -> None:
    both = comparison(FAST, SLOW)
    assert both.ratio() == speed_ratio([FAST.per_token, SLOW.per_token])
    assert both.ratio("code") == speed_ratio([FAST.per_token])
    assert both.ratio() is both.ratio()  # found once


def test_whole_answers_count_where_they_were_timed() -> None:
    assert comparison(FAST, SLOW).whole_ratio() == speed_ratio([Pair(3.0, 10, 2.0, 10)])
    assert comparison(SLOW).whole_ratio() is None


def test_the_worst_category_comes_first_and_what_was_not_decoded_in_none() -> None:
    nothing = ComparedPrompt("c", "maths", Pair(0.0, 0, 0.0, 0))
    found = comparison(FAST, SLOW, nothing)
    assert found.categories == ["code", "chat", "maths"]
    assert [name for name, _ in found.worst_first()] == ["chat", "code"]
    assert found.prompt_ratios().keys() == {"a", "b"}
    assert found.prompt_ratios()["a"].value == pytest.approx(2)
    assert comparison(nothing).ratio() is None
