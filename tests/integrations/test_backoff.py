"""When to stop looking for drafts."""

from __future__ import annotations

import pytest

from paceline.integrations.vllm import _LONGEST_PAUSE, _PAUSE, _WINDOW, Backoff


def watch(
    backoff: Backoff, *, draft_s: float, accepted: int, emitted: int = 4, steps: int = _WINDOW
) -> None:
    for _ in range(steps):
        backoff.count(step_s=0.01, draft_s=draft_s, emitted=emitted, accepted=accepted)


def pause_of(backoff: Backoff, sequences: int = 1) -> int:
    """Steps that are left alone from now on."""
    count = 0
    while backoff.backs_off(sequences=sequences, begun=False):
        count += 1
    return count


def test_looking_in_vain_at_a_price_is_left_and_for_ever_longer() -> None:
    backoff, pauses = Backoff(), []
    for _ in range(8):
        watch(backoff, draft_s=0.0004, accepted=0)
        pauses.append(pause_of(backoff))
    assert pauses[:3] == [_PAUSE, 2 * _PAUSE, 4 * _PAUSE]
    assert pauses[-1] == _LONGEST_PAUSE


@pytest.mark.parametrize(
    ("draft_s", "accepted"),
    [(0.00002, 0), (0.0004, 1), (0.003, 3)],
    ids=["costs nothing", "brings more", "dear, and brings more"],
)
def test_what_is_worth_it_goes_on(draft_s: float, accepted: int) -> None:
    backoff = Backoff()
    watch(backoff, draft_s=draft_s, accepted=accepted, steps=5 * _WINDOW)
    assert pause_of(backoff) == 0


def test_dear_and_brings_little_is_left() -> None:
    backoff = Backoff()
    watch(backoff, draft_s=0.003, accepted=1)
    assert pause_of(backoff) == _PAUSE


def test_a_new_request_is_looked_at_where_there_are_few() -> None:
    for sequences, rests in ((1, False), (8, False), (9, True)):
        backoff = Backoff()
        watch(backoff, draft_s=0.0004, accepted=0)
        assert backoff.backs_off(sequences=sequences, begun=True) is rests


def test_success_makes_pauses_short_again() -> None:
    backoff = Backoff()
    for _ in range(3):
        watch(backoff, draft_s=0.0004, accepted=0)
        pause_of(backoff)
    watch(backoff, draft_s=0.0004, accepted=2)
    watch(backoff, draft_s=0.0004, accepted=0)
    assert pause_of(backoff) == _PAUSE
