"""What the policy says it did."""

from __future__ import annotations

from paceline.policy.stats import Account
from paceline.testing import sample_round
from paceline.types import Round


def round_(limit: int, emitted: int) -> Round:
    seconds = {"draft_s": 0.01, "verify_s": 0.1, "other_s": 0.01}
    return sample_round(limit=limit, accepted=emitted - 1, **seconds)


def test_rounds_limits_and_seconds_are_summed() -> None:
    account = Account()
    for limit, emitted in ((0, 1), (3, 4), (3, 1), (1, 2)):
        account.add(round_(limit, emitted), 0.1)
    assert (account.rounds, account.drafted) == (4, 3)
    assert account.as_json()["limits"] == {"0": 1, "1": 1, "3": 2}
    assert round(account.saved_s, 6) == round(0.8 - 0.48, 6)
    assert account.sentence() == (
        "drafted in 3 of 4 rounds, limits 3 (2×), 1 (1×); saved 0.32 s against 0.80 s plain"
    )
    both = account + account
    assert both.rounds == 8
    assert both.limits[3] == 4
    assert both.saved_s == 2 * account.saved_s


def test_a_loss_is_called_one() -> None:
    account = Account()
    account.add(round_(2, 1), 0.1)
    assert "lost 0.02 s" in account.sentence()
    assert Account().sentence() == "no rounds after the first token"
