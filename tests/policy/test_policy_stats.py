"""What the policy says it did."""

from __future__ import annotations

from paceline.policy.stats import PolicyStats
from paceline.testing import sample_round
from paceline.types import Round


def round_(max_draft_tokens: int, emitted: int) -> Round:
    seconds = {"draft_s": 0.01, "verify_s": 0.1, "other_s": 0.01}
    return sample_round(max_draft_tokens=max_draft_tokens, accepted=emitted - 1, **seconds)


def test_rounds_limits_and_seconds_are_summed() -> None:
    policy_stats = PolicyStats()
    for max_draft_tokens, emitted in ((0, 1), (3, 4), (3, 1), (1, 2)):
        policy_stats.add(round_(max_draft_tokens, emitted), 0.1)
    assert (policy_stats.rounds, policy_stats.drafted) == (4, 3)
    assert policy_stats.as_json()["limits"] == {"0": 1, "1": 1, "3": 2}
    assert round(policy_stats.saved_s, 6) == round(0.8 - 0.48, 6)
    assert policy_stats.sentence() == (
        "drafted in 3 of 4 rounds, limits 3 (2×), 1 (1×); saved 0.32 s against "
        "0.80 s of ordinary decoding"
    )
    both = policy_stats + policy_stats
    assert both.rounds == 8
    assert both.limits[3] == 4
    assert both.saved_s == 2 * policy_stats.saved_s


def test_a_loss_is_called_one() -> None:
    policy_stats = PolicyStats()
    policy_stats.add(round_(2, 1), 0.1)
    assert "lost 0.02 s" in policy_stats.sentence()
    assert PolicyStats().sentence() == "no rounds after the first token"
