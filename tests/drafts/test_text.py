"""Drafting by text: the draft's likeliest text in the target's tokens, where it lines up."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from pieces import model
from test_shared import EXACT, SETTINGS, commit, context, distribution, opened, variation

from paceline import Sampling, StopConditions, generate
from paceline.drafts.base import NoDraft
from paceline.drafts.create import create_draft
from paceline.drafts.cross_tokenizer.text import TextDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import SettingError
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier

OURS = [b"a", b"b", b"ab", b"d", "<end>"]
THEIRS = [b"da", b"b", "</s>", b"a", b"d", b"bd"]


def target(**options) -> ToyEngine:
    return model(OURS, seed=34, order=3, **options)


def writes(pieces: list, text: list[int], **options) -> ToyEngine:
    """A draft that writes these tokens, whatever it has read before, and then its first again."""
    width = options.get("vocabulary_size", len(pieces))

    def table(read: list[int]) -> list[float]:
        for count in range(len(text) - 1, -1, -1):
            if read[len(read) - count :] == text[:count]:
                return [float(token == text[count]) for token in range(width)]
        raise AssertionError

    return model(pieces, table=table, **options)


def proposed(draft: TextDraft, committed: list[int], max_draft_tokens: int) -> tuple[int, ...]:
    one = context(committed)
    opened(draft, one)
    [proposal] = draft.propose([one], [max_draft_tokens])
    draft.close(one)
    assert proposal.distributions is None
    return proposal.tokens


@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
@pytest.mark.parametrize("settings", EXACT)
def test_the_whole_loop_is_exact_by_enumeration(settings: str, verifier) -> None:
    sampling = Sampling(**EXACT[settings])
    baseline = distribution(lambda _: NoDraft(), 0, verifier, sampling)
    drafted = distribution(lambda t: TextDraft(model(THEIRS, seed=9), t), 2, verifier, sampling)
    assert sum(baseline.values()) == pytest.approx(1, abs=1e-6)
    assert variation(baseline, drafted) < 1e-6


@pytest.mark.parametrize("settings", [*SETTINGS, "sampled"])
@pytest.mark.parametrize("max_draft_tokens", [1, 4])
def test_text_is_plain_text(settings: str, max_draft_tokens: int) -> None:
    """Chosen drafts draw once per emitted token, so even sampled text is plain text."""
    sampling = Sampling(**(SETTINGS | {"sampled": {"temperature": 0.9, "seed": 4}})[settings])

    def run(draft) -> tuple:
        stop = StopConditions(max_tokens=40)
        answer = generate(
            target(),
            [1, 2, 3, 0],
            draft=draft,
            max_draft_tokens=max_draft_tokens,
            sampling=sampling,
            stop=stop,
        )
        return answer.tokens, answer.stats.accepted

    engine = model(THEIRS, seed=3)
    drafted, _ = run(TextDraft(engine, target()))
    assert drafted == run(NoDraft())[0]
    assert engine.sequences_open == 0


def test_drafts_are_accepted() -> None:
    text = model([b"a", b"bc", b"c"], table={(): [1, 0, 0], (0,): [0, 1, 0]})
    ours = model([b"ab", b"c"], table={(0,): [0, 1], (1,): [1, 0]})
    answer = generate(
        ours,
        [1],
        draft=TextDraft(text, ours),
        max_draft_tokens=4,
        stop=StopConditions(max_tokens=12),
    )
    assert answer.tokens == (0, 1) * 6
    assert answer.stats.acceptance_rate == 1.0


def test_the_text_is_offered_in_the_target_s_tokens_up_to_the_limit() -> None:
    draft = TextDraft(writes([b"d", b"bab", b"a"], [1, 0, 2]), target())
    assert proposed(draft, [3], 3) == (1, 2, 3)
    assert proposed(draft, [3], 2) == (1, 2)
    assert proposed(draft, [3], 1) == (1,)


def test_nothing_is_offered_where_the_text_would_have_joined_what_is_committed() -> None:
    draft = TextDraft(writes([b"d", b"b", b"a"], [1, 0, 2]), target())
    assert proposed(draft, [3, 0], 3) == (), "a and b are one token"
    assert proposed(draft, [0, 3], 3) == (1, 3, 0)
    alone = TextDraft(writes([b"d", b"b", b"a"], [1, 0, 2]), target(), look_behind=0)
    assert proposed(alone, [3, 0], 3) == (1, 3, 0)


def test_it_reads_back_so_far_and_no_further_than_a_control_token() -> None:
    ours = model([b"a", b"b", b"c", b"abc", "<user>"], seed=1)
    for committed, look_behind, offered in (
        ([2, 0, 1], 10, ()),
        ([2, 0, 1], 2, ()),
        ([2, 0, 1], 1, (2,)),
        ([0, 4, 1], 10, (2,)),
    ):
        draft = TextDraft(writes([b"c", b"a", b"b"], [0]), ours, look_behind=look_behind)
        assert proposed(draft, committed, 1) == offered, (committed, look_behind)


def test_halves_of_characters_wait_for_the_other_half() -> None:
    pieces = [b"a", b"\xc3", b"\xbc", b"\xc3\xbc", b"x"]
    draft = TextDraft(writes([b"\xc3", b"\xbc", b"a", b"x"], [2, 0, 1]), model(pieces, seed=1))
    assert proposed(draft, [4], 2) == (0,)
    assert proposed(draft, [4], 3) == (0, 3)
    halves = model([b"a", b"\xc3", b"\xbc"], seed=1)
    assert proposed(TextDraft(writes([b"\xbc", b"a"], [0, 1]), halves), [0, 1], 2) == (2, 0)
    # Looking back begins within a character, which is left out.
    near = TextDraft(writes([b"a", b"\xc3", b"\xbc"], [0]), halves, look_behind=1)
    assert proposed(near, [1, 2], 2) == (0, 0)
    # What is committed is no text, and so isn't its continuation.
    assert proposed(TextDraft(writes([b"a", b"\xc3"], [0]), halves), [1, 0], 2) == ()


def test_the_draft_s_end_is_offered_as_the_target_s() -> None:
    def offered(written: list[int], max_draft_tokens: int = 4, **options) -> tuple[int, ...]:
        engine = writes([b"d", b"b", "</s>", "<tool>"], written, **options)
        return proposed(TextDraft(engine, target()), [1], max_draft_tokens)

    assert offered([0, 2]) == (3, 4)
    assert offered([0, 2], 1) == (3,)
    assert offered([2]) == (4,)
    assert offered([0, 3]) == (3,), "another control token ends the text, and is none of it"
    assert offered([0, 4], vocabulary_size=5) == (3,), "so does a row of padding"


def test_an_end_is_not_offered_behind_text_that_is_not() -> None:
    engine = writes([b"b", "</s>", b"a"], [0, 1])
    assert proposed(TextDraft(engine, target()), [0], 4) == ()
    assert engine.forwards == 2, "one behind the prompt, one that told the end"


def test_nothing_is_offered_behind_a_stop_token() -> None:
    draft = TextDraft(writes([b"d", b"bab", b"a"], [1, 0, 2]), target())
    one = context([3])
    one.stop_tokens = frozenset({2})
    opened(draft, one)
    assert draft.propose([one], [4])[0].tokens == (1, 2)


def test_the_name_of_a_control_token_in_the_text_is_no_control_token() -> None:
    draft = TextDraft(writes([b"d", b"<end>"], [0, 1]), target())
    assert proposed(draft, [3], 2) == ()


def test_it_keeps_its_own_tokens_as_far_as_they_were_accepted() -> None:
    engine = writes([b"d", b"bab", b"ba", b"b", b"a"], [2, 3, 0])
    draft, one = TextDraft(engine, target()), context([3])
    opened(draft, one)
    fed = engine.rows_fed
    assert draft.propose([one], [3])[0].tokens == (1, 2, 3)
    assert engine.rows_fed - fed == 3, "one token a step"
    commit(draft, one, [1, 2])
    assert draft._states[one].tokens == [0, 2, 3], "as it wrote it, not as it would read it"
    assert draft.pending_tokens(one) == 1
    fed = engine.rows_fed
    draft.propose([one], [1])
    assert engine.rows_fed - fed == 1
    commit(draft, one, [1, 0])
    assert draft._states[one].tokens == [0, 2, 3, 2]


def test_any_history_is_read_whole_and_only_what_is_missing_is_fed() -> None:
    engine, random = model(THEIRS, seed=3, order=40), np.random.default_rng(0)
    ours = target()
    draft, one = TextDraft(engine, ours), context([1, 3, 0])
    opened(draft, one)
    for _ in range(60):
        emitted = [int(token) for token in random.integers(0, 4, int(random.integers(1, 3)))]
        if random.random() < 0.6:
            [proposal] = draft.propose([one], [int(random.integers(1, 6))])
            kept = int(random.integers(0, len(proposal.tokens) + 1))
            emitted = [*(t for t in proposal.tokens[:kept] if t != 4), emitted[0]]
        commit(draft, one, emitted)
        state = draft._states[one]
        spelled = engine.tokenizer.text_bytes(state.tokens)
        assert spelled == ours.tokenizer.text_bytes(one.history.tokens)
        owed, before = draft.pending_tokens(one), engine.rows_fed
        draft.propose([one], [1])
        assert engine.rows_fed - before == owed
        assert state.sequence.tokens == state.tokens
    draft.close(one)
    assert engine.sequences_open == 0


def test_several_sequences_are_drafted_in_one_forward_each_step() -> None:
    engine = model([b"a", b"b", b"d"], seed=3)
    draft, contexts = TextDraft(engine, target()), [context([1]), context([2, 3]), context([0])]
    opened(draft, *contexts)
    before = engine.forwards
    proposals = draft.propose(contexts, [4, 2, 3])
    assert engine.forwards - before == 4
    for one, proposal, max_draft_tokens in zip(contexts, proposals, (4, 2, 3), strict=True):
        alone = TextDraft(model([b"a", b"b", b"d"], seed=3), target())
        assert proposed(alone, one.history.tokens, max_draft_tokens) == proposal.tokens


def test_a_faulty_row_of_the_draft_sits_the_request_out(caplog) -> None:
    engine = model([b"a", b"b"], table={(): [math.nan] * 2})
    with caplog.at_level(logging.WARNING, logger="paceline"):
        assert proposed(TextDraft(engine, target()), [1], 3) == ()
    assert "sits this request out" in caplog.text


def test_the_command_line_s_words_for_it() -> None:
    ours, engine = target(), model(THEIRS, seed=1)
    draft = create_draft("text:look_behind=3,somewhere", ours, loader=lambda name: engine)
    assert draft.look_behind == 3
    assert draft.engine is engine
    assert draft.metadata()["fit"] == "by text; 1 of the target's 1 end tokens the draft has too"
    for wrong, said in (
        ("text:look_behind=x,m", "look_behind is 'x'. It must be a whole number"),
        ("text:look_behind=-1,m", "look_behind is -1. It must be 0 or more"),
        ("text:window=3,m", "no option of the draft 'text' named 'window'"),
    ):
        with pytest.raises(SettingError, match=said):
            create_draft(wrong, ours, loader=lambda name: engine)
