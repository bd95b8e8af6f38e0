"""A model as the draft: distributions as drawn, caches caught up by length, limits of its own
context."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, fixed, generate
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.base import Context
from paceline.drafts.model import ModelDraft
from paceline.drafts.vocabulary import check_pair
from paceline.engines.toy import ToyEngine
from paceline.errors import PairError
from paceline.sampling.history import History
from paceline.sampling.processors import distribution_of
from paceline.sampling.rng import NumpyRng
from paceline.types import Choice
from paceline.verify.chain import ChainVerifier


def context(tokens: list[int], sampling: Sampling | None = None) -> Context:
    return Context(History(tokens), sampling or Sampling(), NumpyRng(5), frozenset({7}))


def opened(draft: ModelDraft, *contexts: Context) -> None:
    for one in contexts:
        draft.open(one)
    draft.prefill(contexts)


def test_greedy_proposals_are_deterministic_and_are_the_draft_s_own_text() -> None:
    engine, target = ToyEngine(8, seed=3), ToyEngine(8, seed=4)
    draft, one = ModelDraft(engine, target), context([1, 2, 3])
    opened(draft, one)
    [proposal] = draft.propose([one], [5])
    baseline = generate(engine, [1, 2, 3], stop=StopConditions(max_tokens=len(proposal.tokens)))
    assert proposal.tokens == baseline.tokens
    assert set(proposal.distributions) == {None}


def test_sampled_proposals_carry_the_distribution_each_token_was_drawn_from() -> None:
    sampling = Sampling(temperature=0.8, top_k=4, repetition_penalty=1.3)
    engine = ToyEngine(8, seed=3)
    draft, one = ModelDraft(engine, engine), context([1, 2, 3], sampling)
    opened(draft, one)
    [proposal] = draft.propose([one], [4])
    for index, distribution in enumerate(proposal.distributions):
        before = proposal.tokens[:index]
        logits = engine.logits([1, 2, 3, *before]).copy()
        for token in {1, 2, 3, *before}:
            logits[token] *= 1 / 1.3 if logits[token] > 0 else 1.3
        assert dict(distribution.items()) == pytest.approx(
            dict(distribution_of(logits, sampling).items())
        )
        assert distribution.prob(proposal.tokens[index]) > 0


def test_drafting_ends_with_an_end_token_and_keeps_it() -> None:
    engine = ToyEngine(8, table={(): [0, 0, 0, 0, 0, 0, 0, 9]})
    draft, one = ModelDraft(engine, engine), context([1])
    opened(draft, one)
    [proposal] = draft.propose([one], [4])
    assert proposal.tokens == (7,)


def test_several_sequences_are_drafted_in_one_forward_each_step() -> None:
    engine = ToyEngine(8, seed=3)
    draft, contexts = (
        ModelDraft(engine, engine),
        [context([1]), context([2, 3]), context([4, 5, 6])],
    )
    opened(draft, *contexts)
    before = engine.forwards
    proposals = draft.propose(contexts, [4, 2, 3])
    assert engine.forwards - before == max(len(p.tokens) for p in proposals)
    for one, proposal in zip(contexts, proposals, strict=True):
        alone = ModelDraft(ToyEngine(8, seed=3), engine)
        other = context(one.history.tokens)
        opened(alone, other)
        assert alone.propose([other], [len(proposal.tokens)])[0].tokens == proposal.tokens


def test_the_cache_is_caught_up_after_pauses_and_rejections() -> None:
    """After any history of drafting, the next proposal is that of a draft that starts afresh, and
    only what is missing is fed."""
    # It reads far back, or a wrong token left in the cache would not show.
    engine, random = ToyEngine(8, seed=3, order=40), np.random.default_rng(0)
    draft, one = ModelDraft(engine, engine), context([1, 2, 3])
    opened(draft, one)
    for _ in range(60):
        if random.random() < 0.6:
            [proposal] = draft.propose([one], [int(random.integers(1, 6))])
            kept = int(random.integers(0, len(proposal.tokens) + 1))
            emitted = [*proposal.tokens[:kept], int(random.integers(0, 7))]
        else:  # a round without a draft
            emitted = [int(random.integers(0, 7))]
        for token in emitted:
            one.history.commit(token)
        draft.observe(one, emitted)
        held = draft._states[one].sequence.tokens
        common = next(
            (i for i, (a, b) in enumerate(zip(held, one.history.tokens, strict=False)) if a != b),
            min(len(held), len(one.history)),
        )
        common = min(common, len(one.history) - 1)
        before = engine.rows_fed
        [proposal] = draft.propose([one], [1])
        assert engine.rows_fed - before == len(one.history) - common
        assert draft._states[one].sequence.tokens == one.history.tokens
        fresh, other = ModelDraft(engine, engine), context(one.history.tokens)
        opened(fresh, other)
        assert fresh.propose([other], [1])[0].tokens == proposal.tokens
        fresh.close(other)


def test_its_own_context_limits_only_the_sequence_that_reaches_it(caplog) -> None:
    target = ToyEngine(8, seed=3, context_size=128)
    engine = ToyEngine(8, seed=3, context_size=32)
    draft = ModelDraft(engine, target)
    requests = [
        Request(prompt=tuple([1] * length), stop=StopConditions(max_tokens=40))
        for length in (30, 2, 60)
    ]
    decoder = Decoder(target, {"model": draft}, ChainVerifier(), fixed("model", 4))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        drafted = decode(decoder, requests)
    baseline = decode(Decoder(target, {}, ChainVerifier(), fixed(None, 0)), requests)
    assert [g.tokens for g in drafted] == [g.tokens for g in baseline]
    accepted = [sum(r.accepted for r in g.rounds) for g in drafted]
    assert accepted[1] > accepted[0] > 0
    assert accepted[2] == 0
    told = [record for record in caplog.records if "holds 32 tokens" in record.getMessage()]
    assert len(told) == 3, "each sequence that reaches the end says it once"


def test_padding_rows_are_harmless() -> None:
    target, padded = ToyEngine(8, seed=3), ToyEngine(12, seed=3, alphabet="abcdefgh")
    assert "4 rows of padding differ" in check_pair(target, padded)
    # Random padding rows do get emitted here: then a draft without them sits the request out.
    for a, b in ((target, padded), (padded, target)):
        answer = generate(
            a,
            [1, 2],
            draft=ModelDraft(b, a),
            max_draft_tokens=3,
            sampling=Sampling(temperature=1.0, seed=1),
            stop=StopConditions(max_tokens=40),
        )
        assert len(answer.tokens) == 40


def test_a_real_difference_is_refused_naming_the_token() -> None:
    with pytest.raises(PairError, match="token 2 is 'c' in the target and 'd' in the draft"):
        ModelDraft(ToyEngine(4, alphabet="abdc"), ToyEngine(4, alphabet="abcd"))
    with pytest.raises(PairError, match="token 4 is '' in the target and 'e'"):
        check_pair(ToyEngine(4, alphabet="abcd"), ToyEngine(5, alphabet="abcde"))


def test_rooms_are_given_back_to_the_draft_s_engine() -> None:
    target, engine = ToyEngine(8, seed=3), ToyEngine(8, seed=5)
    draft = ModelDraft(engine, target)

    def now_and_then(streams):
        return [Choice("model" if len(s.rounds) % 3 else None, 3) for s in streams]

    for _ in range(3):
        generate(
            target, [1, 2], draft=draft, policy=now_and_then, stop=StopConditions(max_tokens=20)
        )
    assert engine.sequences_open == target.sequences_open == 0


def test_a_mask_that_is_a_dead_end_only_for_the_draft_ends_its_proposal() -> None:
    """The draft prefers a token behind which nothing is allowed; the target never goes there."""
    target = ToyEngine(3, table={(): [0, 1, 9]})
    draft = ModelDraft(ToyEngine(3, table={(): [0, 9, 1]}), target)
    settings = Sampling(allowed_tokens=(1, 2), banned_sequences=((1, 1), (1, 2)))
    stop = StopConditions(max_tokens=6)
    baseline = generate(target, [0], sampling=settings, stop=stop)
    drafted = generate(target, [0], sampling=settings, stop=stop, draft=draft, max_draft_tokens=3)
    assert drafted.tokens == baseline.tokens == (2,) * 6


def test_a_draft_with_a_faulty_row_sits_that_request_out_and_says_so(caplog) -> None:
    def table(context: list[int]) -> list[float]:
        return [float("nan")] * 8 if context[0] == 7 else [1.0, 2, 3, 4, 5, 6, 0, 0]

    target, engine = ToyEngine(8, seed=1), ToyEngine(8, table=table)
    decoder = Decoder(
        target, {"model": ModelDraft(engine, target)}, ChainVerifier(), fixed("model", 3)
    )
    requests = [Request(prompt=(first, 1), stop=StopConditions(max_tokens=12)) for first in (7, 1)]
    with caplog.at_level(logging.WARNING, logger="paceline"):
        bad, good = decode(decoder, requests)
    assert bad.error is good.error is None
    assert bad.stats.proposed == 0
    assert good.stats.proposed > 0
    assert any("sits this request out" in record.getMessage() for record in caplog.records)


def test_padding_below_the_shared_size_is_harmless_too() -> None:
    named, unnamed = ToyEngine(6, alphabet="abcde"), ToyEngine(6, alphabet="abcde")
    named.tokenizer.piece = lambda token: "[PAD5]" if token == 5 else "abcde"[token]
    assert "same 6 tokens" in check_pair(unnamed, named)


def test_it_says_how_much_it_has_yet_to_read() -> None:
    engine = ToyEngine(8, seed=3)
    draft, one = ModelDraft(engine, engine), context([1, 2, 3, 4])
    assert draft.pending_tokens(one) == 4, "before it was opened, all"
    opened(draft, one)
    assert draft.pending_tokens(one) == 1, "the last one's row is what the next proposal needs"
    [proposal] = draft.propose([one], [3])
    assert len(proposal.tokens) == 3
    for token in proposal.tokens:
        one.history.commit(token)
    one.history.commit(5)
    # two of the three drafted tokens were fed; the third and the bonus were not
    assert draft.pending_tokens(one) == 2
    for token in (6, 6, 6):
        one.history.commit(token)
    assert draft.pending_tokens(one) == 5
    draft.propose([one], [1])
    assert draft.pending_tokens(one) == 1
