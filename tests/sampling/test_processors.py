"""Each setting against a direct, slow statement of what it means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import NumericError, SettingError
from paceline.sampling.distribution import Distribution
from paceline.sampling.history import History
from paceline.sampling.processors import check_tokens, distribution_of, log_prob, process_logits
from paceline.sampling.rows import RowDistributions, margin
from paceline.types import Sampling

try:
    import torch
except ImportError:
    torch = None

PLACES = [
    "numpy",
    pytest.param("torch", marks=pytest.mark.skipif(torch is None, reason="no torch")),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest):
    """Puts a NumPy row where an engine would have it."""
    return np.asarray if request.param == "numpy" else torch.from_numpy


def row(seed: int, size: int = 50) -> np.ndarray:
    return (2 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def dense(distribution: Distribution, size: int = 50) -> np.ndarray:
    probs = np.zeros(size)
    for token, prob in distribution.items():
        probs[token] = prob
    return probs


def expected(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Temperature, top-k, top-p and min-p with full sorts and nothing else."""
    scaled = logits.astype(np.float64) / sampling.temperature
    probs = np.exp(scaled - scaled.max())
    order = np.lexsort((np.arange(len(probs)), -logits))
    if sampling.top_k:
        probs[order[sampling.top_k :]] = 0
    probs /= probs.sum()
    if sampling.top_p < 1:
        cumulative = np.cumsum(probs[order])
        probs[order[int(np.argmax(cumulative >= sampling.top_p)) + 1 :]] = 0
        probs /= probs.sum()
    probs[probs < sampling.min_p * probs.max() * (1 - 1e-6)] = 0
    return probs / probs.sum()


FILTERS = [
    {},
    {"top_k": 5},
    {"top_k": 50},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"top_k": 10, "top_p": 0.8},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.2},
    {"min_p": 1.0},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_filters_leave_the_stated_distribution(place, filters, temperature) -> None:
    sampling = Sampling(temperature=temperature, **filters)
    for seed in range(20):
        distribution = distribution_of(place(row(seed)), sampling)
        np.testing.assert_allclose(dense(distribution), expected(row(seed), sampling), atol=1e-6)


def test_a_flat_distribution_needs_the_far_tokens_too(place) -> None:
    """Where the bound on far tokens can't decide the nucleus, they are worked out."""
    logits = np.full(2000, -30.0, dtype=np.float32)
    logits[7] = 0
    distribution = distribution_of(place(logits), Sampling(temperature=1.0, top_p=1 - 1e-10))
    reference = expected(logits, Sampling(temperature=1.0, top_p=1 - 1e-10))
    # 932 of them, give or take the rounding of a sum of so many so small
    assert abs(len(distribution.items()) - np.count_nonzero(reference)) <= 2


def test_few_tokens_make_a_sparse_distribution_and_greedy_is_one_token(place) -> None:
    assert distribution_of(place(row(1)), Sampling(temperature=1.0, top_k=3)).tokens.shape == (3,)
    assert distribution_of(place(row(1)), Sampling(temperature=1.0)).tokens is None
    greedy = distribution_of(place(row(1)), Sampling())
    assert greedy.single == int(np.argmax(row(1)))
    assert (
        distribution_of(place(row(1)), Sampling(temperature=1.0, top_k=1)).single == greedy.single
    )


def test_ties_go_to_the_lower_token(place) -> None:
    logits = np.array([1, 3, 3, 3, 0], dtype=np.float32)
    assert distribution_of(place(logits), Sampling()).single == 1
    assert [
        t for t, _ in distribution_of(place(logits), Sampling(temperature=1, top_k=2)).items()
    ] == [1, 2]
    assert [
        t for t, _ in distribution_of(place(logits), Sampling(temperature=1, top_p=0.5)).items()
    ] == [
        1,
        2,
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_distribution_is_an_error_naming_the_row(place, bad) -> None:
    logits = np.stack([row(0), row(1)])
    logits[1] = bad if bad == -math.inf else logits[1]
    logits[1, 4] = bad
    for sampling in (Sampling(), Sampling(temperature=1.0, top_p=0.9)):
        with pytest.raises(NumericError, match="after 3 tokens, row 1"):
            RowDistributions(place(logits), sampling, History([1, 2, 3]), (9,))[1]


def test_repetition_penalty_looks_at_prompt_output_and_drafted_tokens(place) -> None:
    history = History([1, 2])
    history.commit(3)
    logits = row(5)
    got = process_logits(place(logits), Sampling(repetition_penalty=1.5), history, (4,))
    wanted = logits.copy()
    for token in (1, 2, 3, 4):
        wanted[token] = wanted[token] / 1.5 if wanted[token] > 0 else wanted[token] * 1.5
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6)
    np.testing.assert_array_equal(logits, row(5), "the engine's own row was changed")


def test_presence_and_frequency_count_the_output_and_drafted_tokens_only(place) -> None:
    history = History([1, 1, 2])
    for token in (2, 3, 3):
        history.commit(token)
    settings = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    got = process_logits(place(row(5)), settings, history, (3, 4))
    wanted = row(5)
    for token, count in ((2, 1), (3, 3), (4, 1)):
        wanted[token] -= 0.5 + 0.25 * count
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5)


def test_rejected_drafts_leave_no_trace_in_penalties(place) -> None:
    settings, history = Sampling(frequency_penalty=1.0, repetition_penalty=1.3), History([1])
    before = np.asarray(process_logits(place(row(2)), settings, history))
    process_logits(place(row(2)), settings, history, (5, 6, 5))
    np.testing.assert_array_equal(
        np.asarray(process_logits(place(row(2)), settings, history)), before
    )


def test_bias_and_masks(place) -> None:
    history = History([7])
    biased = process_logits(place(row(0)), Sampling(logit_bias={3: 2.5}), history)
    assert float(biased[3]) == pytest.approx(float(row(0)[3]) + 2.5)
    banned = Sampling(banned_tokens=(3, 4), logit_bias={3: 100.0})
    got = np.asarray(process_logits(place(row(0)), banned, history))
    assert np.isneginf(got[[3, 4]]).all(), "a bias must not bring a banned token back"
    assert np.isfinite(got).sum() == 48
    allowed = np.asarray(process_logits(place(row(0)), Sampling(allowed_tokens=(5, 6)), history))
    assert np.isfinite(allowed).nonzero()[0].tolist() == [5, 6]


def test_banned_sequences_see_drafted_tokens(place) -> None:
    settings = Sampling(banned_sequences=((1, 2, 3), (9,)))
    for prompt, drafted, banned in (
        ([1, 2], (), {3, 9}),
        ([1], (2,), {3, 9}),
        ([0], (1, 2), {3, 9}),
        ([2, 1], (), {9}),
        ([2], (), {9}),
        ([1, 2], (5,), {9}),
    ):
        got = np.asarray(process_logits(place(row(0)), settings, History(prompt), drafted))
        assert set(np.isneginf(got).nonzero()[0].tolist()) == banned, (prompt, drafted)


def test_minimum_tokens_hold_stop_tokens_back_by_the_row_s_own_length(place) -> None:
    settings, history = Sampling(min_tokens=3), History([1, 2])
    history.commit(5)
    for drafted, held in (((), True), ((6,), True), ((6, 7), False)):
        got = np.asarray(process_logits(place(row(0)), settings, history, drafted, {8}))
        assert np.isneginf(got[8]) == held


def test_masks_that_leave_nothing_are_an_error_of_the_settings(place) -> None:
    settings = Sampling(allowed_tokens=(1,), banned_tokens=(1,))
    with pytest.raises(SettingError, match="leave no token"):
        RowDistributions(place(row(0)[None]), settings, History([1]))[0]


def test_rows_behind_the_one_asked_for_are_not_worked_out() -> None:
    logits = np.stack([row(0), np.full(50, math.nan, dtype=np.float32)])
    distributions = RowDistributions(logits, Sampling(temperature=1.0), History([1]), (2,))
    assert dense(distributions[0]).sum() == pytest.approx(1)
    with pytest.raises(NumericError):
        distributions[1]


def test_log_probability_and_margin_of_a_row(place) -> None:
    logits = row(3)
    wanted = float(logits[4]) - math.log(np.exp(logits.astype(np.float64)).sum())
    assert log_prob(place(logits), 4) == pytest.approx(wanted, abs=1e-9)
    best, second = np.sort(logits)[::-1][:2]
    assert margin(place(logits), int(np.argmax(logits))) == pytest.approx(float(best - second))
    assert margin(place(logits), 4) <= 0


@given(st.integers(0, 10_000), st.sampled_from(FILTERS))
def test_no_filter_removes_the_most_likely_token(seed: int, filters: dict[str, float]) -> None:
    distribution = distribution_of(row(seed), Sampling(temperature=0.7, **filters))
    assert distribution.prob(int(np.argmax(row(seed)))) > 0
    assert sum(prob for _, prob in distribution.items()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e-40),
        ("temperature", 1e50),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", math.nan),
        ("min_tokens", -1),
        ("logit_bias", {1: math.inf}),
        ("allowed_tokens", ()),
        ("banned_sequences", ((),)),
        ("seed", -1),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=setting):
        Sampling(**{setting: value})


def test_settings_naming_tokens_the_model_lacks_are_refused() -> None:
    for setting in (
        {"logit_bias": {50: 1.0}},
        {"banned_tokens": (-1,)},
        {"allowed_tokens": (99,)},
        {"banned_sequences": ((1, 50),)},
    ):
        with pytest.raises(SettingError, match=next(iter(setting))):
            check_tokens(Sampling(**setting), 50)


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_extreme_temperatures_give_distributions_and_no_banned_token(place, temperature) -> None:
    settings = Sampling(temperature=temperature, banned_tokens=(0, 1), top_p=0.99)
    logits = process_logits(place(30 * row(1)), settings, History([3]))
    distribution = distribution_of(logits, settings)
    assert sum(prob for _, prob in distribution.items()) == pytest.approx(1, abs=1e-5)
    assert distribution.prob(0) == distribution.prob(1) == 0
