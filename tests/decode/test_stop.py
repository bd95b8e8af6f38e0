"""The end of an answer, wherever in a block it falls: text, ids, reason and counts are plain's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import FinishReason, Sampling, StopConditions, generate
from paceline.decode.stop import Stopper
from paceline.drafts.model import ModelDraft
from paceline.engines.tokenizer import Tokenizer
from paceline.engines.toy import ToyEngine

PROMPT = [0, 1]
TEXT = "the cat sat on the mat"


def speller(context_size: int = 64) -> ToyEngine:
    """Says TEXT over and over, greedily."""
    alphabet = "".join(dict.fromkeys(TEXT)) + "#"

    def table(context: list[int]) -> list[float]:
        letter = TEXT[(len(context) - len(PROMPT)) % len(TEXT)]
        return [5.0 * (alphabet[i] == letter) for i in range(len(alphabet))]

    return ToyEngine(
        len(alphabet),
        table=table,
        alphabet=alphabet,
        context_size=context_size,
        end_tokens=(len(alphabet) - 1,),
    )


def answer(max_draft_tokens: int, context_size: int = 64, **stop):
    engine = speller(context_size)
    pieces: list[str] = []
    generation = generate(
        engine,
        PROMPT,
        draft=ModelDraft(speller(), engine),
        max_draft_tokens=max_draft_tokens,
        logprobs=True,
        stop=StopConditions(**stop),
        on_text=pieces.append,
    )
    assert "".join(pieces) == generation.text
    assert len(generation.log_probs) == len(generation.tokens)
    assert sum(r.emitted for r in generation.rounds) == len(generation.tokens)
    assert generation.stats.acceptance_rate in (1.0, None), "a cut block counts no rejection"
    assert engine.sequences_open == 0
    return generation


LIMITS = range(9)


@pytest.mark.parametrize("max_draft_tokens", LIMITS)
@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 20])
def test_maximum_tokens(max_draft_tokens: int, most: int) -> None:
    got = answer(max_draft_tokens, max_tokens=most)
    assert (got.text, len(got.tokens)) == (TEXT[:most], most)
    assert got.finish_reason is FinishReason.MAX_TOKENS


@pytest.mark.parametrize("max_draft_tokens", LIMITS)
def test_the_context_s_end(max_draft_tokens: int) -> None:
    got = answer(max_draft_tokens, context_size=15)
    assert len(got.tokens) == 13
    assert got.finish_reason is FinishReason.CONTEXT_END
    assert (
        answer(max_draft_tokens, context_size=15, max_tokens=13).finish_reason
        is FinishReason.MAX_TOKENS
    )


@pytest.mark.parametrize("max_draft_tokens", LIMITS)
@pytest.mark.parametrize("letter", list("the cas"))
def test_a_stop_token_is_counted_and_not_shown(max_draft_tokens: int, letter: str) -> None:
    token = speller().tokenizer.encode(letter)[0]
    got = answer(max_draft_tokens, max_tokens=40, tokens=(token,))
    assert got.text == TEXT[: TEXT.index(letter)]
    assert got.tokens[-1] == token
    assert len(got.tokens) == TEXT.index(letter) + 1
    assert got.finish_reason is FinishReason.STOP_TOKEN


@pytest.mark.parametrize("max_draft_tokens", LIMITS)
@pytest.mark.parametrize("string", ["t", "cat", "at s", " on the mat", "mat"])
def test_a_stop_string_across_tokens(max_draft_tokens: int, string: str) -> None:
    got = answer(max_draft_tokens, max_tokens=40, strings=(string, "never"))
    assert got.text == TEXT[: TEXT.index(string)]
    assert len(got.tokens) == TEXT.index(string) + len(string)
    assert got.finish_reason is FinishReason.STOP_STRING


@pytest.mark.parametrize("max_draft_tokens", LIMITS)
def test_an_end_token_inside_a_block(max_draft_tokens: int) -> None:
    end = 4

    def table(context: list[int]) -> list[float]:
        return [
            9.0 * (token == (end if len(context) == 8 else len(context) % 4)) for token in range(5)
        ]

    engine, other = (ToyEngine(5, table=table, end_tokens=(end,)) for _ in range(2))
    got = generate(
        engine, PROMPT, draft=ModelDraft(other, engine), max_draft_tokens=max_draft_tokens
    )
    assert got.tokens == (2, 3, 0, 1, 2, 3, end)
    assert got.text == "cdabcd"
    assert got.finish_reason is FinishReason.END_TOKEN
    on = generate(
        engine,
        PROMPT,
        draft=ModelDraft(other, engine),
        max_draft_tokens=max_draft_tokens,
        stop=StopConditions(ignore_end=True, max_tokens=10),
    )
    assert len(on.tokens) == 10


def test_stop_strings_wait_for_the_minimum() -> None:
    engine = speller()
    got = generate(
        engine,
        PROMPT,
        sampling=Sampling(min_tokens=8),
        stop=StopConditions(strings=("at",), max_tokens=40),
    )
    assert got.text == "the cat s"


class Bytes(Tokenizer):
    """One token a byte; 256 ends."""

    size = 257
    end_tokens = frozenset({256})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == 256 else bytes([token])

    def piece(self, token: int) -> str:
        return str(token)


def push_all(tokens: list[int], stop: StopConditions) -> tuple[list[str], Stopper, object]:
    stopper, pieces, reason = Stopper(stop, Bytes(), 10_000), [], None
    for token in tokens:
        reason = stopper.push(token)
        pieces.append(stopper.take_text())
        if reason is not None:
            break
    return pieces, stopper, reason


@given(st.text(max_size=30))
def test_pieces_are_whole_characters_and_join_to_the_text(text: str) -> None:
    pieces, _, _ = push_all([*text.encode(), 256], StopConditions())
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.binary(max_size=30))
def test_bytes_that_are_no_text_come_out_as_one_decoding_of_the_whole(data: bytes) -> None:
    pieces, _, _ = push_all([*data, 256], StopConditions())
    assert "".join(pieces) == data.decode("utf-8", errors="replace")


@given(st.text(alphabet="abé", max_size=20), st.lists(st.text("abé", min_size=1, max_size=4)))
def test_stop_strings_cut_where_the_first_completes(text: str, strings: list[str]) -> None:
    pieces, _, reason = push_all([*text.encode(), 256], StopConditions(strings=tuple(strings)))
    ends = [(text.find(s) + len(s), text.find(s)) for s in strings if s in text]
    if not ends:
        assert ("".join(pieces), reason) == (text, FinishReason.END_TOKEN)
    else:
        first_end = min(ends)[0]
        cut = min(start for end, start in ends if end == first_end)
        assert ("".join(pieces), reason) == (text[:cut], FinishReason.STOP_STRING)


def test_nothing_is_held_back_longer_than_it_must() -> None:
    pieces, _, _ = push_all(list(b"xaaby"), StopConditions(strings=("aab!",)))
    assert pieces == ["x", "", "", "", "aaby"]


def test_long_stop_strings_do_not_slow_the_text_down() -> None:
    source = random.Random(1)
    text = "".join(source.choice("ab") for _ in range(2000))
    pieces, _, _ = push_all(list(text.encode()), StopConditions(strings=("ab" * 40,)))
    assert "".join(pieces) == text[: len("".join(pieces))]
