"""The loop's edges: refusals at the door, a fault in one of many, what rounds say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, fixed, generate
from paceline.decode.generate import decode
from paceline.decode.stats import one_line, stats
from paceline.decode.step import Decoder, with_chains
from paceline.drafts.base import Draft
from paceline.drafts.combine import first_branch
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.drafts.recycle import RecycleDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import DraftError, NumericError, PromptError, SettingError
from paceline.testing import sample_round
from paceline.types import Choice, Proposal
from paceline.verify.chain import ChainVerifier
from paceline.verify.tree import TreeVerifier


def baseline(engine: ToyEngine) -> Decoder:
    return Decoder(engine, {}, ChainVerifier(), fixed(None, 0))


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (Request(prompt=()), PromptError, "no tokens"),
        (Request(prompt=(1,) * 32), PromptError, "32 tokens; the context of 32"),
        (Request(prompt=(1,), draft="lokup"), SettingError, "Did you mean 'lookup'"),
        (Request(prompt=(1,), sampling=Sampling(banned_tokens=(99,))), SettingError, "token 99"),
        (Request(prompt=(1, 99)), PromptError, "Token 99"),
        (Request(prompt=(1,), stop=StopConditions(tokens=(99,))), PromptError, "Token 99"),
    ],
)
def test_what_cannot_be_honoured_is_refused_at_the_door(request_, error, message) -> None:
    engine = ToyEngine(8, context_size=32)
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), fixed("lookup", 2))
    with pytest.raises(error, match=message):
        decoder.open(request_)
    assert engine.sequences_open == 0


def test_limits_and_maxima_out_of_range_are_refused() -> None:
    too_few = StopConditions(max_tokens=3)
    for make in (
        lambda: Request(prompt=(1,), sampling=Sampling(min_tokens=4), stop=too_few),
        lambda: fixed("lookup", -1),
        lambda: Request(prompt=(1,), max_draft_tokens=-1),
        lambda: StopConditions(max_tokens=0),
        lambda: StopConditions(strings=("",)),
    ):
        with pytest.raises(SettingError):
            make()


def nan_after(length: int) -> ToyEngine:
    def table(context: list[int]) -> list[float]:
        fault = context[0] == 7 and len(context) >= length
        return [math.nan] * 8 if fault else [float(t == len(context) % 7) for t in range(8)]

    return ToyEngine(8, table=table)


def test_a_faulty_row_ends_its_own_request_and_no_other() -> None:
    engine = nan_after(5)
    decoder = baseline(engine)
    good, bad = (
        decoder.open(Request(prompt=(first, 1), stop=StopConditions(max_tokens=9)))
        for first in (1, 7)
    )
    while not (good.finished and bad.finished):
        decoder.step([good, bad])
    assert isinstance(bad.error, NumericError)
    assert len(good.history.output) == 9
    assert engine.sequences_open == 0
    with pytest.raises(NumericError, match="after 5 tokens, row 0"):
        generate(nan_after(5), [7, 1], stop=StopConditions(max_tokens=9))


def test_streams_may_be_dropped_at_any_time() -> None:
    engine = ToyEngine(8, seed=2, max_sequences=3)
    draft_engine = ToyEngine(8, seed=5, max_sequences=3)
    draft = ModelDraft(draft_engine, engine)
    decoder = Decoder(engine, {"model": draft}, ChainVerifier(), fixed("model", 3))
    random = np.random.default_rng(0)
    running = []
    for _ in range(200):
        if len(running) < 3 and random.random() < 0.5:
            prompt = tuple(random.integers(0, 8, int(random.integers(1, 20))).tolist())
            running.append(decoder.open(Request(prompt=prompt, stop=StopConditions(max_tokens=15))))
        decoder.step(running)
        if running and random.random() < 0.2:
            decoder.close(running.pop(int(random.integers(len(running)))))
        running = [stream for stream in running if not stream.finished]
        assert engine.sequences_open == len(running)
        assert draft_engine.sequences_open <= len(running)
    last = decode(decoder, [Request(prompt=(1, 2), stop=StopConditions(max_tokens=15))])
    assert (
        last[0].tokens
        == generate(ToyEngine(8, seed=2), [1, 2], stop=StopConditions(max_tokens=15)).tokens
    )


class Tree(Draft):
    name = summary = "tree"
    branches = True

    def propose(self, contexts, limits):
        return [Proposal((1, 2)[:n], self.name, parents=(-1, -1)[:n]) for n in limits]


class Chain(Tree):
    branches = False

    def propose(self, contexts, limits):
        return [Proposal((1, 2)[:n], self.name, parents=(-1, 0)[:n]) for n in limits]


class TooMany(Chain):
    def propose(self, contexts, limits):
        return [Proposal((1,) * (max_draft_tokens + 1), self.name) for max_draft_tokens in limits]


def test_trees_are_refused_by_name_and_chains_with_parents_are_not() -> None:
    short = StopConditions(max_tokens=9)
    with pytest.raises(SettingError, match="offers trees, and the verifier chain takes chains"):
        generate(
            ToyEngine(8),
            [1],
            draft=Tree(),
            max_draft_tokens=2,
            stop=short,
            verifier=ChainVerifier(),
        )
    engine = ToyEngine(8, trees=False)
    with pytest.raises(SettingError, match="offers trees, and the engine toy takes chains"):
        generate(engine, [1], draft=Tree(), max_draft_tokens=2, stop=short, verifier=TreeVerifier())
    assert generate(
        ToyEngine(8), [1], draft=Chain(), max_draft_tokens=2, stop=StopConditions(max_tokens=9)
    )


def test_trees_become_chains_where_that_is_allowed_and_it_is_said(caplog) -> None:
    baseline = generate(ToyEngine(8), [1], stop=StopConditions(max_tokens=9))
    for engine, verifier in (
        (ToyEngine(8, trees=False), TreeVerifier()),
        (ToyEngine(8), ChainVerifier()),
    ):
        caplog.clear()
        drafts = with_chains(engine, {"tree": Tree()}, verifier)
        decoder = Decoder(engine, drafts, verifier, fixed("tree", 2))
        [got] = decode(decoder, [Request(prompt=(1,), stop=StopConditions(max_tokens=9))])
        assert got.tokens == baseline.tokens
        assert {round.width for round in got.rounds[1:-1]} == {2}
        assert [r.message.endswith("goes instead.") for r in caplog.records] == [True]


def test_the_first_branch_of_a_tree_is_its_first_children() -> None:
    tree = Proposal((1, 2, 3, 4, 5), "tree", parents=(-1, -1, 1, 0, 0))
    assert first_branch(tree) == Proposal((1, 4), "tree")


def test_a_draft_that_offers_more_than_its_limit_is_a_fault() -> None:
    with pytest.raises(DraftError, match="'tree' offered 3 tokens where 2 were the limit"):
        generate(
            ToyEngine(8),
            [1],
            draft=TooMany(),
            max_draft_tokens=2,
            stop=StopConditions(max_tokens=9),
        )


def test_the_target_is_fed_each_committed_token_once_and_each_drafted_one_once() -> None:
    engine = ToyEngine(8, seed=3)
    got = generate(
        engine,
        [1, 2, 3],
        draft=ModelDraft(ToyEngine(8, seed=4), engine),
        max_draft_tokens=3,
        stop=StopConditions(max_tokens=30),
    )
    drafted = sum(round.width - 1 for round in got.rounds)
    rounds = len(got.rounds)
    assert engine.forwards == rounds
    assert engine.rows_fed == 3 + (rounds - 1) + drafted


def test_of_a_tree_what_was_accepted_is_not_fed_again() -> None:
    engine = ToyEngine(8, seed=3, order=1)
    got = generate(
        engine,
        [1, 2, 3],
        draft=RecycleDraft(),
        max_draft_tokens=4,
        stop=StopConditions(max_tokens=40),
    )
    assert any(round.path for round in got.rounds)
    drafted = sum(round.width - 1 for round in got.rounds)
    assert engine.rows_fed == 3 + (len(got.rounds) - 1) + drafted


def test_seconds_of_a_batch_add_up_to_no_more_than_the_clock() -> None:
    from time import perf_counter

    engine = ToyEngine(8, seed=3)
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), fixed("lookup", 3))
    requests = [Request(prompt=(i, 1, 2), stop=StopConditions(max_tokens=30)) for i in range(5)]
    started = perf_counter()
    done = decode(decoder, requests)
    elapsed = perf_counter() - started
    spent = sum(r.draft_s + r.verify_s + r.other_s for g in done for r in g.rounds)
    assert 0 < spent <= elapsed


def test_figures_are_pooled() -> None:
    rounds = [
        sample_round(prefill=True, verify_s=9.0),
        sample_round(proposed=4, accepted=4, emitted=5, width=5, source="x"),
        sample_round(proposed=4, accepted=1, emitted=2, width=5, source="x"),
        sample_round(proposed=2, accepted=0, emitted=1, width=3, source="x"),
        sample_round(),
    ]
    got = stats(rounds)
    assert (got.tokens, got.rounds, got.drafted_rounds) == (9, 4, 3)
    assert got.acceptance_rate == 5 / 10
    assert got.tokens_per_round == 9 / 4
    assert got.acceptance == (2 / 3, 1 / 3, 1 / 2, 1 / 2)
    assert got.offered == (3, 3, 2, 2)
    assert got.ms_per_token == pytest.approx(1e3 * 0.048 / 9)
    assert got.prefill_s == pytest.approx(9.002)
    assert "50% of 10 drafted tokens accepted" in one_line(got)


def test_figures_of_nothing_are_none_not_zero() -> None:
    got = stats([sample_round(prefill=True)])
    assert got.ms_per_token is got.acceptance_rate is got.tokens_per_round is None
    assert "nothing decoded" in one_line(got)


def test_a_fault_behind_the_first_rejection_is_no_fault() -> None:
    """Whatever other settings there are: the row is never reached."""
    nan = [math.nan] * 3
    for settings in (Sampling(), Sampling(logit_bias={0: 0.1}), Sampling(temperature=1e-3, seed=1)):
        engine = ToyEngine(3, table={(): [0, 0, 9], (1,): nan})
        got = generate(
            engine,
            [2],
            draft=Ones(),
            max_draft_tokens=2,
            sampling=settings,
            stop=StopConditions(max_tokens=5),
        )
        assert got.tokens == (2,) * 5


class Ones(Draft):
    name = summary = "ones"

    def propose(self, contexts, limits):
        return [Proposal((1,) * max_draft_tokens, self.name) for max_draft_tokens in limits]


class Outside(Ones):
    def propose(self, contexts, limits):
        return [Proposal((99,), self.name) for _ in limits]


def test_a_draft_that_offers_no_token_of_the_target_is_named() -> None:
    with pytest.raises(DraftError, match="'ones' offered token 99"):
        generate(
            ToyEngine(8),
            [1],
            draft=Outside(),
            max_draft_tokens=2,
            stop=StopConditions(max_tokens=9),
        )


def test_a_bad_request_does_not_touch_the_others() -> None:
    engine = nan_after(5)
    requests = [
        Request(prompt=p, stop=StopConditions(max_tokens=9)) for p in ((1, 1), (99,), (7, 1))
    ]
    said: list[tuple[int, str]] = []
    good, refused, failed = decode(
        baseline(engine), requests, on_text=lambda n, t: said.append((n, t))
    )
    assert len(good.tokens) == 9
    assert isinstance(refused.error, PromptError)
    assert isinstance(failed.error, NumericError)
    assert len(failed.tokens) == 3, "what it had said is kept"
    assert good.text == "".join(text for number, text in said if number == 0)
    assert engine.sequences_open == 0


def test_a_policy_that_names_no_draft_of_the_decoder_is_told_so() -> None:
    decoder = Decoder(ToyEngine(8), {"lookup": LookupDraft()}, ChainVerifier(), fixed("lokup", 3))
    stream = decoder.open(Request(prompt=(1,)))
    with pytest.raises(SettingError, match="Did you mean 'lookup'"):
        decoder.step([stream])


@pytest.mark.parametrize(
    "prompt", [[1, "x"], [{"role": "user"}], [{"role": "u", "content": "a"}, 5], [1.5]]
)
def test_a_prompt_of_no_form_is_refused(prompt) -> None:
    with pytest.raises(PromptError):
        generate(ToyEngine(8), prompt)


def test_a_prompt_may_be_an_array() -> None:
    stop = StopConditions(max_tokens=3)
    assert generate(ToyEngine(8), np.array([1, 2]), stop=stop).prompt_tokens == 2


def test_time_spent_observing_is_the_draft_s_also_where_nothing_was_asked() -> None:
    import time

    class Slow(LookupDraft):
        observed = 0

        def observe(self, context, committed):
            Slow.observed += 1
            time.sleep(0.002)
            super().observe(context, committed)

    got = generate(
        ToyEngine(8, seed=3),
        [1, 2, 3],
        draft=Slow(),
        max_draft_tokens=1,
        stop=StopConditions(max_tokens=8),
    )
    assert sum(round.draft_s for round in got.rounds) >= 0.002 * Slow.observed
    assert got.rounds[0].source is None, "nothing was asked while the prompt was read"


def test_drafting_is_counted_for_those_that_asked_and_not_for_others() -> None:
    import time

    class Slow(LookupDraft):
        def propose(self, contexts, limits):
            time.sleep(0.05)
            return super().propose(contexts, limits)

    engine = ToyEngine(8, seed=3)

    def only_the_first(streams):
        return [Choice("lookup", 2) if i == 0 else Choice(None, 0) for i in range(len(streams))]

    decoder = Decoder(engine, {"lookup": Slow()}, ChainVerifier(), only_the_first)
    stop = StopConditions(max_tokens=5)
    asking, other = (decoder.open(Request(prompt=(1, 2, 1), stop=stop)) for _ in range(2))
    other.open_draft("lookup")
    other.drafts["lookup"].prefill([other.context])
    for _ in range(2):
        decoder.step([asking, other])
    assert asking.rounds[-1].draft_s >= 0.05
    assert other.rounds[-1].draft_s < 0.04
