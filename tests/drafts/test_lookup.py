"""The suffix automaton against a search by hand, and lookup's isolation and limits."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafts.automaton import Follower, SuffixAutomaton
from paceline.drafts.base import Context
from paceline.drafts.lookup import LookupDraft, Store
from paceline.engines.toy import ToyEngine
from paceline.errors import SettingError
from paceline.sampling.history import History


def longest_match(text: list[int]) -> tuple[int, int]:
    """Length and latest earlier end of the longest suffix that occurs before."""
    for length in range(len(text) - 1, 0, -1):
        ends = [e for e in range(length, len(text)) if text[e - length : e] == text[-length:]]
        if ends:
            return length, max(ends)
    return 0, 0


@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_match_is_the_longest_and_the_most_recent(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, start=1):
        automaton.extend([token])
        length, end = longest_match(text[:count])
        assert automaton.match_length == length
        if length:
            assert automaton.match_end == end


def test_a_match_in_a_long_repeating_text_is_a_true_one() -> None:
    """Beyond the renewed positions a match may be older, never wrong."""
    source = random.Random(2)
    text = [1, 2] * 200 + [source.randrange(3) for _ in range(200)] + [1] * 150
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, start=1):
        automaton.extend([token])
        length, end = automaton.match_length, automaton.match_end
        if length:
            assert text[end - length : end] == text[count - length : count]
            assert end < count


def test_a_repeating_text_is_continued_past_its_end() -> None:
    assert SuffixAutomaton([7, 1, 2, 3, 1, 2, 3, 1]).continuation(7) == [2, 3, 1, 2, 3, 1, 2]
    assert SuffixAutomaton([1, 2, 3]).continuation(5) == []


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=20))
def test_a_follower_finds_the_longest_suffix_in_a_store(text: list[int], query: list[int]) -> None:
    follower = Follower(SuffixAutomaton(text))
    for count, token in enumerate(query, start=1):
        follower.extend([token])
        suffixes = (query[count - n : count] for n in range(count, -1, -1))
        assert follower.match_length == len(next(s for s in suffixes if contains(text, s)))


def contains(text: list[int], part: list[int]) -> bool:
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30), st.lists(st.integers(0, 2), max_size=30)
)
def test_a_follower_stays_right_while_its_store_grows(text: list[int], more: list[int]) -> None:
    store = SuffixAutomaton()
    follower, followed = Follower(store), []
    for token in text:
        store.extend([token])
        follower.extend([token])
        followed.append(token)
        if more:
            store.extend([more.pop()])
        length = follower.match_length
        assert contains(store.text, followed[len(followed) - length :])
        follow = follower.continuation(1)
        if length and follow:
            assert contains(store.text, followed[len(followed) - length :] + follow)


def context(tokens: list[int]) -> Context:
    return Context(History(tokens))


def proposed(draft: LookupDraft, tokens: list[int], max_draft_tokens: int = 8) -> tuple[int, ...]:
    one = context(tokens)
    draft.open(one)
    draft.prefill([one])
    [proposal] = draft.propose([one], [max_draft_tokens])
    draft.close(one)
    assert proposal.distributions is None
    return proposal.tokens


def test_proposals_grow_with_the_match_up_to_the_limit() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert proposed(LookupDraft(reach=1.0), [*text, 1, 2, 3]) == (4, 5, 6)
    assert proposed(LookupDraft(min_match=1, reach=4.0), [*text, 3]) == (4, 5, 6, 7)
    assert proposed(LookupDraft(reach=4.0), [*text, 1, 2, 3], max_draft_tokens=5) == (4, 5, 6, 7, 8)
    assert proposed(LookupDraft(min_match=3), [*text, 1, 2]) == ()
    assert proposed(LookupDraft(), [1, 2, 3]) == ()


def test_requests_do_not_see_each_other_unless_they_name_a_store() -> None:
    first, second = [1, 2, 3, 4, 5, 6], [9, 2, 3, 4]
    alone = LookupDraft(reach=1.0)
    proposed(alone, first)
    assert proposed(alone, second) == ()
    store = Store()
    shared = LookupDraft(reach=1.0, store=store)
    proposed(shared, first)
    assert proposed(shared, second) == (5, 6)
    assert proposed(LookupDraft(reach=1.0), second) == ()


def test_stores_are_shared_by_name_and_target() -> None:
    engine, other = ToyEngine(8, seed=1), ToyEngine(8, seed=2)
    one, same = (LookupDraft.create(engine, store="team") for _ in range(2))
    assert one.store is same.store
    assert LookupDraft.create(other, store="team").store is not one.store
    assert LookupDraft.create(engine).store is None


def test_a_proposal_from_a_store_does_not_run_into_the_next_text() -> None:
    store = Store()
    store.add([1, 2, 3])
    store.add([7, 8, 9])
    assert proposed(LookupDraft(store=store), [5, 1, 2]) == (3,)


def test_a_full_store_stops_growing() -> None:
    store = Store(most_tokens=5)
    store.add([1, 2, 3])
    store.add([4, 5, 6])
    assert store.automaton.text == [1, 2, 3, -2]


@pytest.mark.parametrize(
    "options",
    [{"min_match": "0"}, {"min_match": "x"}, {"reach": "0"}, {"reach": "-1"}, {"rech": "1"}],
)
def test_bad_options_are_refused_by_name(options: dict[str, str]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        LookupDraft.create(ToyEngine(8), **options)


@pytest.mark.parametrize("kind", ["words", "random", "one token"])
def test_memory_is_linear_in_the_text(kind: str) -> None:
    """32k tokens within 150 MB x 32 / 128, and no more than twice that of half the text."""
    source = random.Random(4)
    words = [[source.randrange(50_000) for _ in range(source.randint(1, 6))] for _ in range(2000)]
    tokens: list[int] = []
    while len(tokens) < 32_000:
        tokens += {
            "words": source.choice(words),
            "random": [source.randrange(50_000)],
            "one token": [1],
        }[kind]
    half, whole = traced(tokens[:16_000]), traced(tokens[:32_000])
    assert whole < 150e6 * 32 / 128
    assert whole < 2.6 * half


def traced(tokens: list[int]) -> int:
    tracemalloc.start()
    automaton = SuffixAutomaton(tokens)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(automaton.text) == len(tokens)
    return used


def test_work_per_token_does_not_grow_with_the_text() -> None:
    """Counts, not seconds: the states a repeating text makes, the worst case for renewing."""
    automaton = SuffixAutomaton([1] * 20_000)
    assert len(automaton._length) <= 2 * 20_000
    started = time.process_time()
    automaton.extend([1] * 2_000)
    assert time.process_time() - started < 2.0, "2,000 tokens took seconds: work is not O(1)"


def test_a_store_s_match_that_leads_nowhere_gives_way_to_the_request_s_own() -> None:
    store = Store()
    store.add([7, 5, 1, 2])
    assert proposed(LookupDraft(reach=1.0, store=store), [1, 2, 3, 4, 5, 1, 2]) == (3, 4)
