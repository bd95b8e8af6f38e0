"""What a lookup foresees in one pass is what it says when it is asked token by token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafts.automaton import SuffixAutomaton
from paceline.drafts.combine import FirstDraft
from paceline.drafts.lookup import LookupDraft, Store
from paceline.policy.acceptance import MOST
from paceline.simulate.record import asked_throughout, replayed

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "min_match": st.integers(1, 6),
        "reach": st.one_of(st.sampled_from([0.1, 0.5, 1.0, 2.0, 40.0]), st.floats(0.01, 1e6)),
    },
)


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Of few letters, and with pieces said again, so that matches are long and end anywhere."""
    letters = st.integers(0, draw(st.integers(0, 4)))
    text: list[int] = []
    for piece in draw(st.lists(st.lists(letters, min_size=1, max_size=12), min_size=1, max_size=8)):
        text += piece * draw(st.integers(1, 4))
        start = draw(st.integers(0, len(text) - 1))
        text += text[start : start + draw(st.integers(0, 50))]
    return text


@settings(max_examples=400, deadline=None)
@given(text=texts(), share=st.floats(0, 1), options=OPTIONS)
def test_one_pass_says_what_asking_before_every_token_says(text, share, options) -> None:
    text = [*text, 0]
    at = 1 + int(share * (len(text) - 2))
    draft = LookupDraft(**options)
    assert replayed(draft, text[:at], text[at:]) == asked_throughout(draft, text[:at], text[at:])


@pytest.mark.parametrize(
    "text",
    [
        [1] * 300,
        [1, 2] * 200 + [3] + [1] * 50,
        # More shorter and shorter suffixes than are renewed: their positions stay older.
        [*[1] * 36, *[2] * 4, *[1] * 60, 3, *[1] * 41],
        [5, 6, 7],
    ],
    ids=["one token", "a period", "beyond what is renewed", "nothing to match"],
)
def test_texts_that_repeat_themselves(text: list[int]) -> None:
    draft = LookupDraft()
    for at in (1, len(text) // 2, len(text) - 1):
        assert replayed(draft, text[:at], text[at:]) == asked_throughout(
            draft, text[:at], text[at:]
        )


def test_the_pass_is_taken_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparisons above would compare asking with itself."""
    answer_previews = LookupDraft().preview_answer([1, 2, 3, 1], [2, 3, 1], MOST)
    assert answer_previews is not None
    assert list(answer_previews.match_length) == [1, 2, 3]
    assert list(answer_previews.right) == [3, 2, 1]
    assert list(answer_previews.unwatched) == [0, 4, 6]
    assert LookupDraft(store=Store()).preview_answer([1], [1], MOST) is None
    assert FirstDraft([LookupDraft(), LookupDraft()]).preview_answer([1], [1], MOST) is None


@given(tokens=st.lists(st.integers(0, 2), max_size=60), at=st.integers(0, 60))
def test_matches_are_those_after_each_token(tokens: list[int], at: int) -> None:
    automaton = SuffixAutomaton(tokens[:at])
    lengths: list[int] = []
    ends: list[int] = []
    automaton.extend(tokens[at:], (lengths, ends))
    one_by_one = SuffixAutomaton(tokens[:at])
    for token, length, end in zip(tokens[at:], lengths, ends, strict=True):
        one_by_one.extend((token,))
        assert (one_by_one.match_length, one_by_one.match_end) == (length, end)
    assert (automaton.match_length, automaton.match_end) == (
        one_by_one.match_length,
        one_by_one.match_end,
    )
