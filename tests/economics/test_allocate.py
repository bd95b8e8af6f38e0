"""Plans against a search through all of them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from paceline.economics import allocate


def jagged(rows: int, source: random.Random) -> np.ndarray:
    """Seconds by rows that rise and fall."""
    return np.array([np.inf, *(1 + 0.1 * i + 0.4 * source.random() for i in range(rows))])


def survival(source: random.Random, positions: int) -> np.ndarray:
    return np.cumprod([source.random() ** 0.3 for _ in range(positions)])


@pytest.mark.parametrize("seed", range(20))
def test_one_sequence_gets_the_best_of_all_limits(seed: int) -> None:
    source = random.Random(seed)
    table, chances = jagged(8, source), survival(source, 6)
    paid = np.arange(1, 7) * 0.05
    rate, limit = allocate.for_one(chances, table, paid)
    every = {k: (1 + chances[:k].sum()) / (table[k + 1] + paid[k - 1]) for k in range(1, 7)}
    assert limit == max(every, key=every.get)
    assert rate == pytest.approx(every[limit])


def test_a_width_that_was_not_measured_is_not_asked_for() -> None:
    table = np.array([np.inf, 1.0, 1.0, 1.0])
    assert allocate.for_one(np.ones(10), table) == (3.0, 2)
    assert allocate.for_one(np.ones(10), table[:2]) == (0.0, 0)
    assert allocate.plain(table, 4) == 0
    plan = allocate.for_batch(np.ones((2, 5)), table)
    assert sum(plan.limits) == 1


def test_the_end_of_a_step_is_preferred() -> None:
    """Four rows cost what two do, and five cost twice that: three tokens, however unlikely the
    last."""
    table = np.array([np.inf, 1.0, 1.2, 1.2, 1.2, 2.4, 2.4])
    assert allocate.for_one(np.array([0.9, 0.3, 0.1, 0.05, 0.01]), table)[1] == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_gets_the_best_of_all_allotments(seed: int) -> None:
    source = random.Random(seed)
    table = jagged(12, source)
    chances = np.stack([survival(source, 3) for _ in range(3)])
    plan = allocate.for_batch(chances, table)
    best = 0.0
    for limits in itertools.product(range(4), repeat=3):
        if not any(limits):
            continue
        tokens = 3 + sum(chances[i, :k].sum() for i, k in enumerate(limits))
        best = max(best, tokens / table[3 + sum(limits)])
    tokens = 3 + sum(chances[i, :k].sum() for i, k in enumerate(plan.limits))
    assert plan.rate == pytest.approx(best)
    assert tokens / table[3 + sum(plan.limits)] == pytest.approx(best)


def test_equally_likely_tokens_are_taken_in_order() -> None:
    plan = allocate.for_batch(np.ones((3, 4)), np.array([np.inf] * 3 + [1.0] * 6))
    assert sum(plan.limits) == 5


@pytest.mark.parametrize("seed", range(20))
def test_a_drafted_batch_gets_the_best_common_limit(seed: int) -> None:
    source = random.Random(seed)
    table = jagged(12, source)
    chances = np.stack([survival(source, 3) for _ in range(3)])
    paid = np.multiply.outer([0.1, 0.15, 0.2], [1, 2, 3])
    plan = allocate.for_drafted_batch(chances, table, paid)
    best = 0.0
    for limit in (1, 2, 3):
        for count in (1, 2, 3):
            for chosen in itertools.combinations(range(3), count):
                tokens = 3 + sum(chances[i, :limit].sum() for i in chosen)
                seconds = table[3 + limit * count] + paid[count - 1, limit - 1]
                best = max(best, tokens / seconds)
    assert plan.rate == pytest.approx(best)
    assert len({limit for limit in plan.limits if limit}) == 1
