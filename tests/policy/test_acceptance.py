"""Acceptance: what is judged is counted, what lies behind the first wrong token is not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paceline.policy.acceptance import MOST, Acceptance, Shared, prior_of
from paceline.types import Preview


def test_a_request_starts_from_what_all_requests_know() -> None:
    shared = Shared(has_confidence=True)
    cold = Acceptance(shared).probabilities(2, 1)[0]
    for _ in range(200):
        Acceptance(shared).learn(2, 0, 1)
    assert Acceptance(shared).probabilities(2, 1)[0] < 0.1 < cold


def test_acceptance_is_the_product_over_positions() -> None:
    known = Acceptance(Shared(has_confidence=False, prior=np.full(11, 0.5)))
    # 0.5 less half a standard error of four observations
    assert known.probabilities(0, 3) == pytest.approx([0.375, 0.375**2, 0.375**3])
    weighed = Acceptance(Shared(has_confidence=True))
    # a match of 1 that was right once is a match of 2
    assert (
        weighed.probabilities(1, 2)[1]
        == weighed.probabilities(1, 1)[0] * weighed.probabilities(2, 1)[0]
    )
    assert len(weighed.probabilities(1000, MOST)) == MOST


def test_longer_matches_are_trusted_more_before_anything_was_counted() -> None:
    known = Acceptance(Shared(has_confidence=True))
    probabilities = [known.probabilities(length, 1)[0] for length in range(1, 40)]
    assert probabilities == sorted(probabilities)
    assert probabilities[0] < 0.3
    assert probabilities[-1] > 0.85


def test_tokens_behind_the_first_wrong_one_are_not_judged() -> None:
    """Position 0 always right, position 1 always wrong; nothing is ever known of position 2."""
    known = Acceptance(Shared(has_confidence=False, prior=np.full(11, 0.5)))
    for _ in range(300):
        known.judge(Preview([7, 8, 9], 0), [7, 1, 9])
    steps = known.steps(0)
    assert steps[0] > 0.9
    assert steps[1] < 0.1
    assert steps[2] == 0.375
    assert (known.judged, known.accepted) == (600, 300)


def test_a_preview_longer_than_what_was_committed_is_censored() -> None:
    known = Acceptance(Shared(has_confidence=False))
    known.judge(Preview([7, 8, 9], 0), [7])
    assert (known.judged, known.accepted) == (1, 1)
    known.judge(Preview([7], 0), [7, 8])
    assert (known.judged, known.accepted) == (2, 2)


def test_the_estimate_comes_to_the_truth() -> None:
    """A draft that is right with 0.9, 0.6, 0.3 by position. 2,000 proposals, seed fixed; cells
    remember about 50 observations, so four standard errors are 0.28 at most."""
    source, known = random.Random(5), Acceptance(Shared(has_confidence=False))
    truth = [0.9, 0.6, 0.3]
    for _ in range(2000):
        right = 0
        while right < 3 and source.random() < truth[right]:
            right += 1
        known.learn(0, right, min(3, right + 1))
    assert known.steps(0)[:3] == pytest.approx(truth, abs=0.28)


def test_a_changed_text_is_noticed_and_a_request_forgets() -> None:
    known = Acceptance(Shared(has_confidence=True))
    for _ in range(500):
        known.learn(4, 1, 1)
    assert known.probabilities(4, 1)[0] > 0.95
    for _ in range(40):
        known.learn(4, 0, 1)
    assert known.probabilities(4, 1)[0] < 0.6


TREE = Preview([7, 8, 9, 5], 0, confidences=[3, 2, 4, 1], parents=[-1, -1, 1, 0])


def test_of_a_tree_every_child_of_a_right_token_is_judged() -> None:
    known = Acceptance(Shared(has_confidence=True))
    before = known.steps(0, 8)
    known.judge(TREE, [8, 6, 5])
    # 7 wrong and 8 right under the root, 9 wrong under 8; 5 hangs on a token that was wrong.
    assert (known.judged, known.accepted) == (3, 1)
    changed = [now > was for was, now in zip(before, known.steps(0, 8), strict=True)]
    assert [e for e in range(8) if known.steps(0, 8)[e] != before[e]] == [2, 3, 4]
    assert changed[2]


def test_a_tree_is_as_likely_as_its_paths_and_never_rises() -> None:
    known = Acceptance(Shared(has_confidence=True))
    three, two, four, one = (known.steps(match_length, 1)[0] for match_length in (3, 2, 4, 1))
    assert known.ahead(TREE, 4) == pytest.approx(
        [three, two, two * four, min(two * four, three * one)]
    )
    assert known.ahead(TREE, 2) == known.ahead(TREE, 4)[:2]
    likelier = Preview([7, 8], 0, confidences=[1, 5], parents=[-1, -1])
    first, second = known.ahead(likelier, 2)
    assert second == first < known.steps(5, 1)[0]


def test_evidence_of_its_own_for_each_token_of_a_chain() -> None:
    known = Acceptance(Shared(has_confidence=True))
    chain = Preview([7, 8, 9], 0, confidences=[4, 1, 6])
    four, one, six = (known.steps(match_length, 1)[0] for match_length in (4, 1, 6))
    assert known.ahead(chain, 3) == pytest.approx([four, four * one, four * one * six])
    known.judge(chain, [7, 1])
    assert (known.judged, known.accepted) == (2, 1)


def test_a_draft_may_bring_its_own_prior() -> None:
    shared = Shared(has_confidence=True, prior=prior_of([0.1, 0.9]))
    assert shared.probabilities == pytest.approx([0.1, *[0.9] * 10])


def test_caution_goes_with_evidence() -> None:
    known = Acceptance(Shared(has_confidence=True))
    before = known.steps(4)[0]
    shared = known.shared.probability(4)
    assert shared - before == pytest.approx(0.5 * (shared * (1 - shared) / 4) ** 0.5)
    for _ in range(400):
        known.learn(4, 4, 5)  # cells 4 … 7 right, 8 wrong: cell 4 is always right
    assert known.steps(4)[0] > 0.97
