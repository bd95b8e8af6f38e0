"""Rounds walked for all answers at once are the rounds that the simulator serves one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.decode.stats import stats
from paceline.policy.costs import Costs, Point
from paceline.simulate.fixed_limits import Answers
from paceline.simulate.simulate import policy_named, simulate
from paceline.simulate.trace import Recording, RecordingHeader, SourceTrace, Trace

COSTS = Costs(key={}, points=tuple(Point(rows, 1, 0, 1.0) for rows in (1, 40)))


@st.composite
def traces(draw: st.DrawFn) -> list[Trace]:
    found = []
    for number in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 25))
        numbers = st.lists(st.integers(0, 8), min_size=length, max_size=length)
        offered = draw(numbers)
        right = [
            min(right, offer, length - t)
            for t, (right, offer) in enumerate(zip(draw(numbers), offered, strict=True))
        ]
        unwatched = [min(offer, less) for offer, less in zip(offered, draw(numbers), strict=True)]
        known = SourceTrace(*map(tuple, ([0] * length, right, offered, unwatched)))
        found.append(
            Trace(
                id=str(number),
                category=draw(st.sampled_from(["a", "b"])),
                prompt_tokens=3,
                output_tokens=length,
                most_tokens=length + draw(st.integers(0, 4)),
                sources={"lookup": known},
            )
        )
    return found


@settings(max_examples=200, deadline=None)
@given(some=traces(), max_draft_tokens=st.integers(1, 10))
def test_every_count_is_the_simulator_s(some: list[Trace], max_draft_tokens: int) -> None:
    recording = Recording(
        RecordingHeader(target={}, temperature=0, sources={"lookup": True}), tuple(some)
    )
    policy = policy_named(f"lookup:{max_draft_tokens}", COSTS, {"lookup": True})
    served = simulate(recording, COSTS, policy).served
    found = Answers(some, "lookup").outcomes(max_draft_tokens)
    for category in {None, *(trace.category for trace in some)}:
        rounds = [r for one in served if category in (None, one.trace.category) for r in one.rounds]
        expected, mine = stats(rounds), found[category]
        for name in ("tokens", "rounds", "drafted_rounds", "proposed", "accepted", "offered"):
            assert getattr(mine, name) == getattr(expected, name), name
        assert mine.acceptance == pytest.approx(expected.acceptance)
        assert mine.tokens_per_round == expected.tokens_per_round
        assert mine.acceptance_rate == expected.acceptance_rate


def test_what_is_unknown_is_refused() -> None:
    known = SourceTrace((0,), (None,), (None,), (None,))
    trace = Trace(
        id="a",
        category="a",
        prompt_tokens=1,
        output_tokens=1,
        most_tokens=1,
        sources={"model": known},
    )
    with pytest.raises(ValueError, match="not every moment of 'model' is known"):
        Answers([trace], "model")
