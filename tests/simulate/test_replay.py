"""Replaying a log: what was decoded comes out again, round by round, without the target."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from paceline import Request, StopConditions, fixed
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.decode.generate import Generation, decode
from paceline.decode.step import Decoder
from paceline.drafts.base import Context, Draft
from paceline.drafts.combine import FirstDraft
from paceline.drafts.lookup import LookupDraft, Store
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import DataError, SettingError
from paceline.policy.acceptance import MOST
from paceline.policy.costs import Costs, Point
from paceline.sampling.history import History
from paceline.simulate.fixed_limits import Answers
from paceline.simulate.record import sources_of
from paceline.simulate.replay import (
    ROWS,
    Log,
    check_kinds,
    check_replayable,
    forced,
    likeliest,
    read_log,
    replay,
)
from paceline.simulate.result import Price, predict, simulations_of
from paceline.simulate.simulate import policy_named, simulate
from paceline.simulate.trace import Recording, RecordingHeader
from paceline.types import Round
from paceline.verify.chain import ChainVerifier

PROMPTS = ("abcab", "hgfedcba", "aabbaabb", "c", "dede")
MOST_TOKENS = 60


def noisy(engine: ToyEngine, share: int) -> ToyEngine:
    """A draft that likes what the target likes, but in one context of `share`."""

    def logits(context: list[int]) -> np.ndarray:
        row = engine.logits(context)
        return np.roll(row, 1) if sum(context[-3:]) % share == 0 else row

    return ToyEngine(8, table=logits)


def prompt(text: str, answer: str | None, category: str = "all", name: str = "") -> WorkloadPrompt:
    messages = ({"role": "user", "content": text},)
    return WorkloadPrompt(name or text, category, messages, answer=answer)


def decoded(engine: ToyEngine, draft: Draft, max_draft_tokens: int, text: str) -> Generation:
    request = Request(
        prompt=tuple(engine.tokenizer.encode(text)), stop=StopConditions(max_tokens=MOST_TOKENS)
    )
    decoder = Decoder(engine, {"draft": draft}, ChainVerifier(), fixed("draft", max_draft_tokens))
    [done] = decode(decoder, [request])
    return done


def logged(engine: ToyEngine, runs: dict[str, Generation]) -> Log:
    """The log that the runs would have left: texts, and no tokens."""
    prompts = tuple(prompt(text, run.text) for text, run in runs.items() if run.text)
    return read_log(Workload("log", prompts), engine, max_tokens=MOST_TOKENS)


COSTS = Costs(
    key={},
    points=(Point(1, 1, 0, 1.0), Point(40, 1, 0, 1.0)),
    drafts={"draft": Costs(key={}, points=(Point(1, 1, 0, 0.1), Point(40, 1, 0, 0.1)))},
)


def rounds_of(
    log: Log, draft: Draft, engine: ToyEngine, max_draft_tokens: int
) -> dict[str, tuple[Round, ...]]:
    drafts = {"draft": draft}
    header = RecordingHeader(target={}, temperature=0.0, sources=sources_of(drafts))
    recording = Recording(header, tuple(replay(log, drafts, engine)))
    policy = policy_named(f"draft:{max_draft_tokens}", COSTS, header.sources)
    return {one.trace.id: one.rounds for one in simulate(recording, COSTS, policy).served}


def counts(rounds: tuple[Round, ...]) -> list[dict[str, object]]:
    """Everything of rounds but their seconds."""
    kept = [one.name for one in fields(Round) if not one.name.endswith("_s")]
    return [{name: getattr(round, name) for name in kept} for round in rounds]


def cyclic(context: list[int]) -> np.ndarray:
    """Letters in turn, and an end when there are enough of them."""
    return np.eye(8)[7 if len(context) > 24 else (context[-1] + 1) % 5]


def quoting(context: list[int]) -> np.ndarray:
    """Ends behind an "e", so that the end token can be quoted like any other."""
    return np.eye(8)[7 if context[-1] == 4 else min(7, context[-1] + 1)]


@pytest.mark.parametrize("max_draft_tokens", [1, 3, 8])
@pytest.mark.parametrize(
    ("engine", "prompts", "least"),
    [
        (ToyEngine(8, order=3, seed=4), PROMPTS, 50),
        (ToyEngine(8, table=cyclic, end_tokens=(7,)), ("abcd", "a", "bcdea"), 15),
        (ToyEngine(8, table=quoting, end_tokens=(7,)), ("abcdeha", "bcdehab"), 4),
    ],
    ids=["to the most tokens", "to an end", "to a drafted end"],
)
def test_a_lookup_comes_to_the_rounds_that_were_decoded(
    max_draft_tokens, engine, prompts, least
) -> None:
    draft = LookupDraft(min_match=1)
    runs = {text: decoded(engine, draft, max_draft_tokens, text) for text in prompts}
    log = logged(engine, runs)
    assert [answer.output for answer in log.answers] == [run.tokens for run in runs.values()]
    found = rounds_of(log, draft, engine, max_draft_tokens)
    for text, run in runs.items():
        assert counts(found[text]) == counts(run.rounds)
    assert sum(round.accepted for run in runs.values() for round in run.rounds) >= least


@pytest.mark.parametrize("max_draft_tokens", [1, 3, 8])
def test_a_model_comes_to_the_rounds_that_were_decoded(max_draft_tokens: int) -> None:
    engine = ToyEngine(8, order=3, seed=4)
    draft = ModelDraft(noisy(engine, 4), engine)
    runs = {text: decoded(engine, draft, max_draft_tokens, text) for text in PROMPTS}
    found = rounds_of(logged(engine, runs), draft, engine, max_draft_tokens)
    for text, run in runs.items():
        assert counts(found[text]) == counts(run.rounds)
    rounds = [round for run in runs.values() for round in run.rounds]
    accepted = sum(round.accepted for round in rounds)
    assert 0.2 < accepted / sum(round.proposed for round in rounds) < 0.95


def test_of_a_model_that_ends_on_a_way_of_its_own_only_rejected_tokens_differ() -> None:
    engine = ToyEngine(8, order=3, seed=4, end_tokens=(7,))
    draft = ModelDraft(noisy(engine, 3), engine)
    shorter = 0
    for text in PROMPTS:
        run = decoded(engine, draft, 6, text)
        if not run.text:
            continue
        found = rounds_of(logged(engine, {text: run}), draft, engine, 6)[text]
        for mine, real in zip(found, run.rounds, strict=True):
            assert (mine.accepted, mine.emitted) == (real.accepted, real.emitted)
            assert mine.proposed >= real.proposed
            shorter += mine.proposed > real.proposed
    assert shorter, "else this shows nothing"


def test_one_pass_says_what_a_model_proposes_when_it_is_asked_at_every_place() -> None:
    engine = ToyEngine(8, order=2, seed=1)
    draft = ModelDraft(noisy(engine, 5), engine)
    text = [1, 2, 3, *decoded(engine, LookupDraft(), 1, "abc").tokens, *[4, 5, 6] * 30]
    before, output = text[:3], text[3:]
    assert len(output) > 2 * ROWS, "several parts"
    known = forced(draft.engine, before, output, ())
    for t in range(1, len(output)):
        context = Context(History([*before, *output[:t]]))
        draft.open(context)
        [proposal] = draft.propose([context], [6])
        draft.close(context)
        following = output[t : t + 6]
        agreed = next(
            (i for i, (a, b) in enumerate(zip(proposal.tokens, following, strict=False)) if a != b),
            len(following),
        )
        assert min(known.right[t], 6) == agreed
    assert (known.right[0], known.offered[0]) == (0, 0)
    assert set(known.offered[1:]) == {MOST}


def test_a_draft_that_cant_follow_offers_nothing_there() -> None:
    engine = ToyEngine(8, order=1, seed=1)
    short = ModelDraft(ToyEngine(8, order=1, seed=1, context_size=6), engine)
    output = decoded(engine, LookupDraft(), 1, "abc").tokens[:10]
    assert likeliest(short.engine, [0, 1, 2], output) == [*output[:4], *[None] * 6]
    known = forced(short.engine, [0, 1, 2], output, ())
    assert known.offered == known.right == (0, 3, 2, 1, 0, 0, 0, 0, 0, 0)
    assert likeliest(short.engine, [0] * 7, output) == [None] * 10
    narrow = ModelDraft(ToyEngine(8, order=1, seed=1), engine)
    narrow.engine.vocabulary_size = 4
    assert likeliest(narrow.engine, [0, 5], [1, 2]) == [None, None]

    def broken(context: list[int]) -> np.ndarray:
        row = engine.logits(context)
        return row * np.nan if len(context) == 5 else row

    numb = ModelDraft(ToyEngine(8, table=broken), engine)
    assert likeliest(numb.engine, [0, 1, 2], output) == [*output[:2], *[None] * 8]
    assert numb.engine.sequences_open == 0


def test_nothing_is_drafted_behind_an_end_token() -> None:
    engine = ToyEngine(8, table=lambda context: np.eye(8)[min(7, context[-1] + 1)])
    draft = ModelDraft(engine, engine)
    known = forced(draft.engine, [0], [1, 2, 3, 4, 5, 6, 7], {7})
    assert known.offered == known.right == (0, 6, 5, 4, 3, 2, 1)
    # Where the draft would have ended and the answer goes on, the end token was its last.
    known = forced(draft.engine, [5], [6, 6, 0], {7})
    assert known.right == (0, 0, 0)
    assert known.offered == (0, 1, 1)


# Reading a log.


def test_what_ended_gets_an_end_token_and_what_was_cut_does_not() -> None:
    engine = ToyEngine(8, end_tokens=(6, 7))
    some = (prompt("ab", "abc"), prompt("ba", "ab"), prompt("a", "abcd"))
    log = read_log(Workload("log", some), engine, max_tokens=3)
    assert [answer.output for answer in log.answers] == [(0, 1, 2), (0, 1, 6), (0, 1, 2, 3)]
    assert [answer.cut for answer in log.answers] == [True, False, True]
    assert [answer.most_tokens for answer in log.answers] == [3, 3, 4]
    told = (replace(some[0], cut=True), *some[1:])
    log = read_log(Workload("log", told), engine)
    assert (log.answers[0].output, log.answers[0].cut) == ((0, 1, 2), True)
    assert log.answers[0].most_tokens == 3
    log = read_log(Workload("log", some), engine)
    assert [answer.output[-1] for answer in log.answers] == [6, 6, 6]
    assert [answer.most_tokens for answer in log.answers] == [4 + MOST, 3 + MOST, 5 + MOST]


def test_the_end_token_is_the_one_that_ends_earlier_messages() -> None:
    engine = ToyEngine(8, end_tokens=(6, 7), alphabet="abcdefgh")
    log = read_log(Workload("log", (prompt("agbhb", "ab"),)), engine)
    assert log.answers[0].output == (0, 1, 7)
    # An answer that holds one ended there.
    log = read_log(Workload("log", (prompt("ab", "abgcd"),)), engine)
    assert log.answers[0].output == (0, 1, 6)
    assert not log.answers[0].respelled
    log = read_log(Workload("log", (prompt("ab", "ab"),)), ToyEngine(8))
    assert log.answers[0].output == (0, 1), "a model without end tokens never ends"


def test_what_is_left_out_is_counted_and_named() -> None:
    engine = ToyEngine(8, end_tokens=(7,))
    some = (
        prompt("ab", "abc"),
        prompt("ba", None),
        prompt("aa", ""),
        prompt("a?", "b"),
        prompt("a", "b?"),
    )
    log = read_log(Workload("log", some), engine)
    assert (len(log.answers), log.unanswered) == (1, 2)
    assert [sentence.split(".")[0] for sentence in log.failed] == [
        "a?: The toy vocabulary has no '?'",
        "a: The toy vocabulary has no '?'",
    ]
    with pytest.raises(DataError, match="log holds no answer to replay: 1 of 1 prompts have none"):
        read_log(Workload("log", some[1:2]), engine)


def test_an_answer_that_its_tokens_dont_spell_is_said() -> None:
    engine = ToyEngine(8, end_tokens=(7,))
    spell = engine.tokenizer.encode
    engine.tokenizer.encode = lambda text: spell(text.lower())  # type: ignore[method-assign]
    log = read_log(Workload("log", (prompt("ab", "ABc"), prompt("ab", "abc"))), engine)
    assert [answer.output for answer in log.answers] == [(0, 1, 2, 7)] * 2
    assert [answer.respelled for answer in log.answers] == [True, False]


# What can be replayed.


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("none", "it offers nothing"),
        ("recycle", "it learns from the target's rows of logits"),
        ("early-exit:layers=2", "it needs the target"),
        ("tree:toy:1", "it offers trees"),
        ("shared:toy:1", "it has other tokens than the target"),
        ("text:toy:1", "it has other tokens than the target"),
        ("first:lookup+recycle", "recycle learns from the target's rows"),
        ("first:lookup+toy:1", "what a combination with a model offers"),
        ("cascade:lookup+toy:1", "what a combination with a model offers"),
    ],
)
def test_drafts_that_need_the_target_are_refused_by_name(spec: str, reason: str) -> None:
    with pytest.raises(SettingError, match="can't be replayed") as error:
        check_kinds(spec)
    assert repr(spec) in error.value.fact
    assert reason in error.value.fact


def test_options_that_a_log_cant_honour_are_refused() -> None:
    engine = ToyEngine(8)
    calibrated = ModelDraft(engine, engine, calibrate=True)
    check_replayable({"m": calibrated, "first": FirstDraft([LookupDraft(), LookupDraft()])}, 0.0)
    with pytest.raises(SettingError, match="'m' can't be replayed: it calibrates itself"):
        check_replayable({"m": calibrated}, 0.8)
    with pytest.raises(SettingError, match="'l' can't be replayed: it remembers other requests"):
        check_replayable({"l": LookupDraft(store=Store())}, 0.0)
    for spec in ("lookup:min_match=3", "toy:1", "first:lookup+lookup:min_match=4"):
        check_kinds(spec)


# Prices.


def recording(*answers: tuple[str, str]) -> Recording:
    """Of a lookup, over prompts "abcdabcd" and these answers and categories."""
    engine, drafts = ToyEngine(8), {"lookup": LookupDraft()}
    some = tuple(
        prompt("abcdabcd", text, category, str(number))
        for number, (text, category) in enumerate(answers)
    )
    header = RecordingHeader(
        target={}, temperature=0.0, sources=sources_of(drafts), has_confidence=("lookup",)
    )
    return Recording(header, tuple(replay(read_log(Workload("log", some), engine), drafts, engine)))


REPEATS, OTHERWISE = "abcd" * 6, "hgfedcbahbgcfd"


def test_gains_are_the_simulator_s_and_by_category() -> None:
    points = (Point(1, 1, 0, 1.0), Point(4, 1, 0, 1.5), Point(2, 2, 0, 1.5), Point(8, 2, 0, 2.0))
    costs = Costs(key={}, points=points)
    some = recording((REPEATS, "same"), (OTHERWISE, "other"), (REPEATS, "same"))
    specs = ["lookup:3", "measured", "lookup:7"]
    called = []
    found = {n: predict(some, costs, specs, n, lambda: called.append(1)) for n in (1, 2, 4)}
    assert len(called) == sum(simulations_of(some, specs, batch) for batch in found)
    prices = {batch: one.policies for batch, one in found.items()}
    for category in (None, "same", "other"):
        part = some if category is None else some.of(category=category)
        baseline, mine = (
            simulate(part, costs, policy_named(spec, costs, {"lookup": True})).ms_per_token
            for spec in ("baseline", "lookup:3")
        )
        assert baseline is not None
        assert mine is not None
        speedup = prices[1]["lookup:3"][category].speedup
        assert speedup is not None
        assert speedup.value == pytest.approx(baseline / mine)
    assert prices[1]["lookup:3"]["same"].pays
    assert prices[1]["lookup:3"]["other"].pays is False
    assert "no figure" in prices[1]["lookup:7"][None].missing
    assert prices[1]["lookup:7"][None].pays is None
    assert found[1].best_of("same", fixed=True)[0] == "lookup:3"
    assert prices[2]["lookup:3"]["other"].missing == "Fewer answers than a batch of 2."
    assert prices[2]["lookup:3"]["same"].speedup is not None
    assert found[4].best_of(None) is None


def test_a_gain_that_other_answers_may_not_show_is_not_called_one() -> None:
    ratio = SimpleNamespace
    assert Price(ratio(value=1.3, low=1.1, high=1.5)).pays is True
    assert Price(ratio(value=1.3, low=0.9, high=1.8)).pays is None
    assert Price(ratio(value=1.02, low=1.01, high=1.03)).pays is False
    assert Price(ratio(value=1.3, low=None, high=None)).pays is True


def test_counts_and_prices_go_by_the_same_rounds() -> None:
    some = recording((REPEATS, "same"), (OTHERWISE, "other"))
    outcome = Answers(some.traces, "lookup").outcomes(3)[None]
    policy = policy_named("lookup:3", COSTS, {"lookup": True})
    assert outcome.rounds == len(simulate(some, COSTS, policy).rounds)


def test_teacher_forcing_is_not_inherited() -> None:
    """A draft that proposes in another way is not replayed as if it didn't."""

    class Other(ModelDraft):
        pass

    assert ModelDraft.teacher_forced
    assert not Other.teacher_forced
