"""Distributions: drawing, probabilities, and what a draft's distribution leaves of a target's."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sampling.distribution import Distribution, excess, mixed
from paceline.sampling.rng import NumpyRng
from paceline.testing import rational_distribution

try:
    import torch
except ImportError:
    torch = None


def numpy_distribution(probs: list[float], tokens: list[int] | None = None) -> Distribution:
    array = np.asarray(probs, dtype=np.float32)
    return Distribution(array, None if tokens is None else np.asarray(tokens))


def test_drawing_inverts_the_cumulative_distribution() -> None:
    distribution = numpy_distribution([0.25, 0.0, 0.5, 0.25])
    uniforms = [0.0, 0.2499, 0.25, 0.7499, 0.75, 0.999999]
    assert [distribution.draw(u) for u in uniforms] == [0, 0, 2, 2, 3, 3]
    sparse = numpy_distribution([0.25, 0.75], [10, 40])
    assert [sparse.draw(u) for u in (0.0, 0.24, 0.26, 0.99)] == [10, 10, 40, 40]


@given(st.integers(1, 3000), st.integers(0, 2**32), st.floats(0, 1, exclude_max=True))
def test_an_impossible_token_is_never_drawn(size: int, seed: int, uniform: float) -> None:
    random = np.random.default_rng(seed)
    weights = random.random(size) * (random.random(size) < 0.3)
    weights[random.integers(size)] = 1.0
    distribution = numpy_distribution((weights / weights.sum()).tolist())
    for u in (uniform, 0.0, float(np.nextafter(1, 0))):
        assert distribution.prob(distribution.draw(u)) > 0


def test_draws_of_a_long_distribution_follow_it() -> None:
    """Chi-square of 20,000 draws over 4,000 tokens in 40 bins; seed fixed. At 39 degrees of
    freedom a right sampler exceeds 80 with probability 1.2e-4."""
    weights = np.random.default_rng(1).gamma(0.3, size=4000)
    distribution = numpy_distribution((weights / weights.sum()).tolist())
    rng = NumpyRng(7)
    draws = np.array([rng.sample(distribution) for _ in range(20_000)]) // 100
    expected = 20_000 * (weights / weights.sum()).reshape(40, 100).sum(axis=1)
    observed = np.bincount(draws, minlength=40)
    assert ((observed - expected) ** 2 / expected).sum() < 80


def test_certain_answers_use_no_random_number() -> None:
    one, other = NumpyRng(3), NumpyRng(3)
    assert one.bernoulli(1.0)
    assert not one.bernoulli(0.0)
    assert one.sample(Distribution.one_hot(5)) == 5
    distribution = numpy_distribution([0.1] * 10)
    assert [one.sample(distribution) for _ in range(5)] == [
        other.sample(distribution) for _ in range(5)
    ]


def test_a_draft_s_stream_does_not_shift_the_target_s() -> None:
    one, other, distribution = NumpyRng(3), NumpyRng(3), numpy_distribution([0.1] * 10)
    child = one.spawn()
    [child.sample(distribution) for _ in range(7)]
    assert [one.sample(distribution) for _ in range(5)] == [
        other.sample(distribution) for _ in range(5)
    ]


def as_dict(distribution: Distribution | None) -> dict[int, Fraction]:
    return {} if distribution is None else dict(distribution.items())


FORMS = {
    "dense": lambda weights: rational_distribution(weights),
    "sparse": lambda weights: rational_distribution({i: w for i, w in enumerate(weights) if w}),
}


@pytest.mark.parametrize("draft_form", FORMS)
@pytest.mark.parametrize("target_form", FORMS)
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=6).filter(any),
    st.lists(st.integers(0, 5), min_size=2, max_size=6).filter(any),
    st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 7)]),
)
def test_excess_is_what_it_says_in_every_form(
    target_form: str, draft_form: str, p: list[int], q: list[int], scale: Fraction
) -> None:
    """Also where one vocabulary is longer than the other."""
    target, draft = FORMS[target_form](p), FORMS[draft_form](q)
    wanted = {}
    for token, prob in target.items():
        left = scale * prob - Fraction(draft.prob(token))
        if left > 0:
            wanted[token] = left
    distribution, mass = excess(target, draft, scale)
    assert mass == sum(wanted.values())
    assert as_dict(distribution) == {token: left / mass for token, left in wanted.items()}


@pytest.mark.skipif(torch is None, reason="no torch")
def test_distributions_of_two_engines_in_two_places_meet() -> None:
    """A NumPy draft distribution against a torch target distribution, dense and sparse."""
    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    wanted, mass = excess(numpy_distribution(p), numpy_distribution(q))
    for target in (
        Distribution(torch.tensor(p)),
        Distribution(torch.tensor(p), torch.tensor([0, 1, 2])),
    ):
        for draft in (numpy_distribution(q), numpy_distribution(q, [0, 1, 2])):
            distribution, same_mass = excess(target, draft)
            assert same_mass == pytest.approx(mass)
            assert as_dict(distribution) == pytest.approx(as_dict(wanted), abs=1e-6)
    assert excess(Distribution(torch.tensor(p)), Distribution.one_hot(0))[1] == pytest.approx(0.5)


MIXED = {
    "dense": rational_distribution([1, 2, 3]),
    "longer": rational_distribution([1, 0, 1, 0, 2]),
    "sparse": rational_distribution({1: 1, 4: 3}),
    "other": rational_distribution({0: 1, 1: 2, 6: 1}),
    "one-hot": Distribution.one_hot(1),
    "another": Distribution.one_hot(5),
    "spelt out": rational_distribution({2: 1}),
}


@pytest.mark.parametrize("first", MIXED)
@pytest.mark.parametrize("second", MIXED)
def test_a_mixture_of_fractions_is_exact(first: str, second: str) -> None:
    weight = Fraction(2, 7)
    one, other = MIXED[first], MIXED[second]
    kept = one.items(), other.items()
    distribution = mixed(one, other, weight)
    expected: dict[int, Fraction] = {}
    for part, share in ((one, weight), (other, 1 - weight)):
        for token, prob in part.items():
            expected[token] = expected.get(token, 0) + share * prob
    assert dict(distribution.items()) == expected
    assert sum(expected.values()) == 1
    assert (one.items(), other.items()) == kept, "the parts stay what they were"
    assert mixed(one, other, 0) is other
    assert mixed(one, other, 1) is one
    dense = distribution.single is None and distribution.tokens is None
    assert dense == bool({"dense", "longer"} & {first, second})


@pytest.mark.skipif(torch is None, reason="no torch")
def test_mixtures_across_array_kinds() -> None:
    p, q = np.asarray([0.5, 0.25, 0.25], np.float32), np.asarray([0.5, 0.5], np.float32)
    for one in (
        Distribution(p),
        Distribution(torch.tensor(p)),
        Distribution(torch.tensor(p), torch.tensor([0, 1, 2])),
    ):
        for other in (
            Distribution(torch.tensor(q), torch.tensor([1, 3])),
            Distribution(q, np.asarray([1, 3])),
            Distribution.one_hot(1),
        ):
            tail = {1: 1.0} if other.single is not None else {1: 0.5, 3: 0.5}
            for distribution in (mixed(one, other, 0.6), mixed(other, one, 0.4)):
                expected = {0: 0.3, 1: 0.15 + 0.4 * tail[1], 2: 0.15, 3: 0.4 * tail.get(3, 0)}
                found = {token: distribution.prob(token) for token in range(4)}
                assert found == pytest.approx(expected, abs=1e-6)
