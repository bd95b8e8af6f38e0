"""The two-sample test of sampled tokens: its odds of a false alarm, what it finds, what it says."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest

from paceline.bench.two_sample import LEAST_PAIRS, RARE, TwoSample, two_sample

KINDS = 40
LENGTH = 60


def text(rng: np.random.Generator, distribution: np.ndarray, sticky: float = 0.0) -> list[int]:
    """Tokens of a distribution; with `sticky`, most repeat the one before, as texts repeat their
    words."""
    tokens = rng.choice(len(distribution), LENGTH, p=distribution)
    for at in range(1, LENGTH):
        if rng.random() < sticky:
            tokens[at] = tokens[at - 1]
    return tokens.tolist()


def zipf(kinds: int = KINDS, power: float = 1.0) -> np.ndarray:
    weights = np.arange(1, kinds + 1.0) ** -power
    return weights / weights.sum()


def pairs_of(
    rng: np.random.Generator, count: int, sticky: float = 0.0, other: np.ndarray | None = None
) -> list[tuple[list[int], list[int]]]:
    """Each pair has a distribution of its own, as each prompt has; `other` is the drafted
    half's."""
    pairs = []
    for _ in range(count):
        distribution = zipf() * rng.lognormal(0.0, 1.0, KINDS)
        distribution /= distribution.sum()
        pairs.append(
            (
                text(rng, distribution, sticky),
                text(rng, distribution if other is None else other, sticky),
            ),
        )
    return pairs


def pooled_chi_square(pairs: list[tuple[list[int], list[int]]]) -> float:
    """The p-value that takes every token for an independent draw (Wilson and Hilferty 1931)."""
    baseline, drafted = (
        np.bincount([token for pair in pairs for token in pair[half]], minlength=KINDS)
        for half in (0, 1)
    )
    both = baseline + drafted
    seen = both > 0
    statistic = float(np.sum((baseline - drafted)[seen] ** 2 / both[seen]))
    freedom = int(seen.sum()) - 1
    third = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - third)) / math.sqrt(third)
    return math.erfc(normal / math.sqrt(2)) / 2


def test_false_alarms_are_as_rare_as_the_level_where_a_pooled_chi_square_is_fooled() -> None:
    """300 data sets without a difference, tokens of a text depending on each other. At level 0.05
    over 27 alarms are met once in 1,800 times (binomial); the seed is fixed."""
    rng = np.random.default_rng(0)
    alarms = fooled = 0
    for number in range(300):
        pairs = pairs_of(rng, 10, sticky=0.8)
        found = two_sample(pairs, seed=number, permutations=199, shares=())
        assert found is not None
        alarms += found.differs
        fooled += pooled_chi_square(pairs) <= 0.05
    assert alarms <= 27
    assert alarms >= 4, "a test that never speaks would pass as well"
    assert fooled > 200


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(1)
    found = two_sample(pairs_of(rng, 20, sticky=0.3, other=zipf(power=1.6)))
    assert found is not None
    assert found.differs
    assert found.p_value < 0.01
    assert "counted differently often" in found.sentence()


def test_a_difference_in_length_alone_is_found() -> None:
    rng = np.random.default_rng(2)
    pairs = [(baseline, drafted[:-15]) for baseline, drafted in pairs_of(rng, 20)]
    found = two_sample(pairs, shares=())
    assert found is not None
    assert found.differs


def test_statistic_and_p_value_are_those_of_all_ways_to_swap() -> None:
    """Six pairs: all 64 ways are enumerated by hand."""
    rng = np.random.default_rng(3)
    pairs = [(rng.integers(0, 4, 30).tolist(), rng.integers(0, 3, 40).tolist()) for _ in range(6)]
    pairs[0][0].extend([77, 78, 79])  # rare, so one kind

    def statistic(swapped: tuple[bool, ...]) -> float:
        counts = np.zeros((2, 5))
        for (baseline, drafted), swap in zip(pairs, swapped, strict=True):
            for half, tokens in enumerate((drafted, baseline) if swap else (baseline, drafted)):
                for token in tokens:
                    counts[half, min(token, 4)] += 1
        return float(np.sum((counts[0] - counts[1]) ** 2 / counts.sum(axis=0)))

    every = [statistic(swapped) for swapped in itertools.product((False, True), repeat=6)]
    found = two_sample(pairs, permutations=40_000, shares=())
    assert found is not None
    assert found.kinds == 5
    assert found.statistic == pytest.approx(every[0], rel=1e-5)
    exact = np.mean([other >= every[0] * (1 - 1e-9) for other in every])
    assert found.p_value == pytest.approx(exact, abs=0.012)  # five standard deviations at most


def test_rare_kinds_count_as_one() -> None:
    half = [0] * RARE + [1] * (RARE // 2 - 1) + [2]
    found = two_sample([(half, half)] + [([0], [0])] * 5, shares=())
    assert found is not None
    assert found.kinds == 2


def test_texts_that_are_alike_differ_in_nothing() -> None:
    same = [([1, 2, 3], [1, 2, 3])] * 8
    found = two_sample(same)
    assert found is not None
    assert (found.statistic, found.p_value) == (0.0, 1.0)
    assert not found.differs


@pytest.mark.parametrize("pairs", [[], [([1], [2])] * (LEAST_PAIRS - 1), [([], [])] * 9])
def test_too_few_pairs_for_any_finding_give_none(pairs: list[tuple[list[int], list[int]]]) -> None:
    assert two_sample(pairs) is None


def test_the_least_number_of_pairs_can_find_something() -> None:
    """With one pair fewer no data whatever reaches the level."""
    assert 2 / 2**LEAST_PAIRS <= 0.05 < 2 / 2 ** (LEAST_PAIRS - 1)
    found = two_sample([([1] * 90, [2] * 90)] * LEAST_PAIRS, permutations=999)
    assert found is not None
    assert found.differs


def change(rng: np.random.Generator, tokens: list[int], share: float) -> list[int]:
    return [int(rng.integers(KINDS)) if rng.random() < share else token for token in tokens]


def test_the_stated_power_is_what_fresh_data_show() -> None:
    """Texts drawn anew: the share it names is found nearly always or often; a quarter of it is
    often missed."""
    rng = np.random.default_rng(4)
    found = two_sample(pairs_of(rng, 30))
    assert found is not None
    assert found.power_share in (0.1, 0.15, 0.2, 0.3)

    def rate(share: float) -> float:
        hits = 0
        for number in range(40):
            pairs = [(baseline, change(rng, d, share)) for baseline, d in pairs_of(rng, 30)]
            one = two_sample(pairs, seed=number, permutations=199, shares=())
            assert one is not None
            hits += one.differs
        return hits / 40

    assert rate(found.power_share) >= 0.6
    assert rate(found.power_share / 4) < 0.6


def test_more_texts_find_smaller_changes() -> None:
    few, many = (two_sample(pairs_of(np.random.default_rng(5), count)) for count in (8, 120))
    assert few is not None
    assert many is not None
    assert many.power_share is not None
    assert many.power_share < (few.power_share or 1)


def test_a_test_that_could_find_nothing_says_so() -> None:
    """All kinds are equally frequent already: putting even draws in their place changes nothing."""
    rng = np.random.default_rng(6)
    even = np.full(KINDS, 1 / KINDS)
    found = two_sample([(text(rng, even), text(rng, even)) for _ in range(10)])
    assert found is not None
    assert found.power_share is None
    assert "even a change of 30% of the tokens might have been missed" in found.sentence()


def test_a_seed_gives_the_same_finding_and_the_sentence_names_its_figures() -> None:
    pairs = pairs_of(np.random.default_rng(7), 12)
    one = two_sample(pairs, seed=3)
    assert one == two_sample(pairs, seed=3)
    assert one is not None
    assert set(asdict(one)) >= {"pairs", "tokens", "p_value", "level", "power_share"}
    known = TwoSample(120, 30720, 900, 850.0, 0.43, 0.05, 4999, 0.05)
    assert known.sentence() == (
        "no difference in token counts seen (p = 0.43, 30720 tokens in 120 pairs of texts); a "
        "change of 5 % of the tokens would have been found in 80% of cases"
    )
