"""Plans against a search through all of them."""

from __future__ import annotations

import itertools
import random

import pytest

from paceline.policy import allocate
from paceline.policy.acceptance import prefix_acceptance

INFINITE = float("inf")


def jagged(rows: int, source: random.Random) -> list[float]:
    """Seconds by rows that rise and fall."""
    return [INFINITE, *(1 + 0.1 * i + 0.4 * source.random() for i in range(rows))]


def acceptance(source: random.Random, positions: int) -> list[float]:
    return prefix_acceptance([source.random() ** 0.3 for _ in range(positions)])


@pytest.mark.parametrize("seed", range(20))
def test_one_sequence_gets_the_best_of_all_limits(seed: int) -> None:
    source = random.Random(seed)
    table, probabilities = jagged(8, source), acceptance(source, 6)
    rate, limit = allocate.for_one(probabilities, table, 0.02, 0.05)
    every = {
        k: (1 + sum(probabilities[:k])) / (table[k + 1] + 0.02 + 0.05 * k)
        for k in range(1, len(probabilities) + 1)
    }
    assert limit == max(every, key=every.get)
    assert rate == pytest.approx(every[limit])


def test_what_is_hardly_ever_accepted_is_not_planned_for() -> None:
    assert prefix_acceptance([0.5, 0.5, 0.01, 0.9]) == [0.5, 0.25]


def test_a_width_that_was_not_measured_is_not_asked_for() -> None:
    table = [INFINITE, 1.0, 1.0, 1.0]
    assert allocate.for_one([1.0] * 10, table) == (3.0, 2)
    assert allocate.for_one([1.0] * 10, table[:2]) == (0.0, 0)
    assert allocate.baseline(table, 4) == 0
    plan = allocate.for_batch([[1.0] * 5] * 2, table)
    assert sum(plan.limits) == 1
    assert allocate.for_drafted_batch([[1.0] * 5] * 2, table, [0.0] * 3, [0.0] * 3).limits == [1, 0]


def test_the_end_of_a_step_is_preferred() -> None:
    """Four rows cost what two do, and five cost twice that: three tokens, however unlikely the
    last."""
    table = [INFINITE, 1.0, 1.2, 1.2, 1.2, 2.4, 2.4]
    assert allocate.for_one([0.9, 0.3, 0.1, 0.05, 0.01], table)[1] == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_gets_the_best_of_all_allotments(seed: int) -> None:
    source = random.Random(seed)
    table = jagged(12, source)
    probabilities = [acceptance(source, 3) for _ in range(3)]
    plan = allocate.for_batch(probabilities, table)
    best = 0.0
    for limits in itertools.product(range(4), repeat=3):
        if not any(limits):
            continue
        tokens = 3 + sum(sum(probabilities[i][:k]) for i, k in enumerate(limits))
        best = max(best, tokens / table[3 + sum(limits)])
    tokens = 3 + sum(sum(probabilities[i][:k]) for i, k in enumerate(plan.limits))
    assert plan.rate == pytest.approx(best)
    assert tokens / table[3 + sum(plan.limits)] == pytest.approx(best)


def test_equally_likely_tokens_are_taken_in_order() -> None:
    plan = allocate.for_batch([[1.0] * 4] * 3, [INFINITE] * 3 + [1.0] * 6)
    assert sum(plan.limits) == 5


@pytest.mark.parametrize("seed", range(20))
def test_a_drafted_batch_gets_the_best_common_limit(seed: int) -> None:
    source = random.Random(seed)
    table = jagged(12, source)
    probabilities = [acceptance(source, 3) for _ in range(3)]
    first, step = [0.0, 0.05, 0.06, 0.07], [0.0, 0.1, 0.15, 0.2]
    plan = allocate.for_drafted_batch(probabilities, table, first, step)
    best = 0.0
    for limit in (1, 2, 3):
        for count in (1, 2, 3):
            for chosen in itertools.combinations(range(3), count):
                tokens = 3 + sum(sum(probabilities[i][:limit]) for i in chosen)
                seconds = table[3 + limit * count] + first[count] + limit * step[count]
                best = max(best, tokens / seconds)
    assert plan.rate == pytest.approx(best)
    assert len({limit for limit in plan.limits if limit}) == 1


def test_a_tree_is_paid_by_its_levels_not_by_its_tokens() -> None:
    acceptance, round_s = [[0.9, 0.8, 0.7, 0.6], [0.9, 0.8, 0.7, 0.6]], [INFINITE] + [1.0] * 12
    first_s, step_s = [0.0] * 3, [0.0, 0.5, 0.5]
    chains = allocate.for_drafted_batch(acceptance, round_s, first_s, step_s)
    trees = allocate.for_drafted_batch(acceptance, round_s, first_s, step_s, 2)
    assert trees.limits == [4, 4]
    assert trees.rate == pytest.approx((2 + 2 * 3.0) / (1.0 + 2 * 0.5))
    assert chains.rate < trees.rate
    one = allocate.for_one(acceptance[0], round_s, 0.0, 0.5, 2)
    assert one == pytest.approx(((1 + 3.0) / (1.0 + 2 * 0.5), 4))
