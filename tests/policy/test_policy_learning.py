"""What the default policy learns from rounds: what is right, what asking costs, when to ask."""

from __future__ import annotations

import time

import numpy as np
import pytest
from policies import (
    CHEAP,
    FLAT,
    PROMPT,
    STEEP,
    Empty,
    feeding,
    line,
    policy,
    run,
    serve,
    target,
    trace,
)

from paceline import Request, StopConditions
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.tree import TreeDraft
from paceline.engines.toy import ToyEngine
from paceline.policy.adaptive import MeasuredPolicy, Source, _Priced
from paceline.policy.costs import Costs, Feed, Point
from paceline.policy.live import LiveCosts
from paceline.simulate.server import stream_of
from paceline.simulate.trace import SourceTrace, Trace
from paceline.testing import sample_round
from paceline.types import Proposal
from paceline.verify.chain import ChainVerifier
from paceline.verify.tree import TreeVerifier


@pytest.mark.parametrize("share", [0.001, 0.005])
def test_a_draft_that_stopped_paying_returns_when_the_text_changes(share: float) -> None:
    draft = feeding(share)
    costs = line(0.1, 0.005, drafts={"model": draft})
    bad, good = 300, 300
    chosen = MeasuredPolicy(
        LiveCosts(costs, frozen=True), [Source("model", costs=draft)], say=lambda _: None
    )
    [stream] = serve([trace([0] * bad + [32] * good)], chosen, costs)
    early = [r for r in stream.rounds if r.context < 20 + bad]
    late = [r for r in stream.rounds if r.context >= 20 + bad]
    spent = sum(r.draft_s + r.verify_s for r in early if not r.prefill)
    assert spent < 1.05 * costs.forward_s(1) * bad
    first = next(r.context for r in late if r.max_draft_tokens > 1)
    assert first - 20 - bad < 200, "found again within the price of occasional probes"
    spent = sum(r.draft_s + r.verify_s for r in late)
    assert spent < 0.8 * costs.forward_s(1) * good


def test_a_draft_that_is_dear_to_read_is_not_followed_at_any_price() -> None:
    """Reading every token alone would cost 13 % of ordinary decoding."""
    draft = feeding(0.13)
    costs = line(0.1, 0.005, drafts={"model": draft})
    chosen = MeasuredPolicy(
        LiveCosts(costs, frozen=True), [Source("model", costs=draft)], say=lambda _: None
    )
    [stream] = serve([trace([0] * 600)], chosen, costs)
    spent = sum(r.draft_s + r.verify_s for r in stream.rounds if not r.prefill)
    assert spent < 1.05 * costs.forward_s(1) * 600


def test_a_collapse_is_said_once_with_its_numbers() -> None:
    said: list[str] = []
    chosen = MeasuredPolicy(
        LiveCosts(line(0.1, 0.005), frozen=True),
        [Source("model", costs=feeding(0.001))],
        say=said.append,
    )
    serve([trace([0] * 900), trace([0] * 900)], chosen, line(0.1, 0.005, drafts={"model": CHEAP}))
    assert len(said) == 1
    assert "model (d) doesn't pay on this text: 0% of 16 judged tokens were accepted" in said[0]
    assert "break-even is 10%" in said[0]
    assert "Likely causes: another chat template" in said[0]


@pytest.mark.parametrize("costs", [CHEAP, None])
def test_a_draft_that_offers_nothing_does_not_stand_in_the_others_way(costs) -> None:
    engine = target()
    drafts = {"lookup": LookupDraft(), "empty": Empty()}
    sources = [Source("lookup", True, True), Source("empty", costs=costs)]
    chosen = MeasuredPolicy(LiveCosts(FLAT), sources, say=lambda _: None)
    requests = [Request(prompt=PROMPT, stop=StopConditions(max_tokens=150)) for _ in range(2)]
    done = decode(Decoder(engine, drafts, ChainVerifier(), chosen), requests)
    rounds = [r for g in done for r in g.rounds]
    assert 0 < sum(r.source == "empty" for r in rounds) < 30
    assert sum(r.width > 1 for r in rounds) > 0.3 * len(rounds)


def test_prompts_do_not_pay_for_probes() -> None:
    chosen = MeasuredPolicy(LiveCosts(FLAT), [Source("model", costs=CHEAP)])
    stream = stream_of(trace([0] * 50), 0.0, 0.0)
    chosen([stream])
    stream.rounds.append(sample_round(context=20, prefill=True, verify_s=1e6))
    chosen.learn_from_rounds()
    assert chosen._priced["model"].credit_s == 0


def test_a_draft_that_was_not_asked_is_read_up_before_it_is_asked_again() -> None:
    """Its price includes that, spread over what is to come: far behind and near the end, no."""
    costs = line(0.1, 0.005)
    slow = Costs(
        key={"model": "d"},
        points=(Point(1, 1, 0, 0.01),),
        feeds=(Feed(1, 0.01), Feed(2, 0.01), Feed(100, 5.0)),
    )
    chosen = MeasuredPolicy(
        LiveCosts(costs, frozen=True), [Source("model", costs=slow)], say=lambda _: None
    )
    near, far = stream_of(trace([32] * 30), 0.0, 0.0), stream_of(trace([32] * 30), 0.0, 0.0)
    for stream, held in ((near, 119), (far, 0)):
        stream.history.length, stream.read = 120, 20
        stream.trace = trace([32] * 130)
        stream.held["model"] = held
        stream.rounds = []
    assert chosen([near])[0].source == "model"
    assert chosen([far])[0].source is None


def test_free_sources_are_judged_though_they_were_never_asked() -> None:
    """On steep costs lookup is not asked; its record grows all the same."""
    chosen = policy(STEEP)
    [generation] = run(chosen)
    assert not any(r.max_draft_tokens for r in generation.rounds)
    [(key, shared)] = [(k, s) for k, s in chosen._shared.items() if k[0] == "lookup"]
    assert key == ("lookup", 0.0)
    fresh = policy()._prior("lookup", 0.0).probabilities
    assert np.abs(np.asarray(shared.probabilities) - np.asarray(fresh)).max() > 0.02


def test_a_fresh_policy_has_counted_nothing() -> None:
    chosen = policy()
    run(chosen)
    chosen.learn_from_rounds()
    assert chosen.policy_stats.rounds > 0
    fork = chosen.fresh()
    assert fork.policy_stats.rounds == 0
    assert not fork._shared
    assert chosen.policy_stats.rounds > 0
    run(fork)
    assert fork.costs is chosen.costs


def test_the_policy_stats_agrees_with_the_rounds() -> None:
    chosen = policy()
    [generation] = run(chosen)
    chosen.learn_from_rounds()
    decoding = [r for r in generation.rounds if not r.prefill]
    assert chosen.policy_stats.rounds == len(decoding)
    assert chosen.policy_stats.drafted == sum(r.max_draft_tokens > 0 for r in decoding)
    assert chosen.policy_stats.baseline_s == pytest.approx(
        sum(r.emitted for r in decoding) * FLAT.forward_s(1)
    )


def test_at_the_end_of_a_request_nothing_unjudged_is_counted() -> None:
    """Five offered, two accepted, and the replacement ends the answer."""
    chosen = MeasuredPolicy(
        LiveCosts(FLAT, frozen=True), [Source("model", costs=CHEAP)], say=lambda _: None
    )
    stream = stream_of(trace([5] * 30), 0.0, 0.0)
    stream.history.length, stream.read = 47, 20
    chosen([stream])
    stream.history.length = 50
    assert stream.finished
    stream.rounds.append(
        sample_round(
            max_draft_tokens=5, accepted=2, source="model", context=47, draft_s=0.1, verify_s=0.1
        )
    )
    chosen.learn_from_rounds()
    acceptance = chosen._kept[stream].acceptances["model"]
    assert (acceptance.judged, acceptance.accepted) == (3, 2)


def test_running_dry_is_the_request_s_affair() -> None:
    chosen = MeasuredPolicy(LiveCosts(FLAT), [Source("empty", costs=CHEAP)], say=lambda _: None)
    request = Request(prompt=PROMPT, stop=StopConditions(max_tokens=80))
    decode(Decoder(target(), {"empty": Empty()}, ChainVerifier(), chosen), [request])
    assert chosen._prior("empty", 0.0).probabilities == policy()._prior("model", 0.0).probabilities


def test_a_draft_without_costs_is_priced_by_what_it_took() -> None:
    class Slow(Empty):
        def propose(self, contexts, limits):
            time.sleep(0.02)
            return [Proposal((3,) * max_draft_tokens, self.name) for max_draft_tokens in limits]

    chosen = MeasuredPolicy(LiveCosts(FLAT), [Source("empty")], say=lambda _: None)
    request = Request(prompt=PROMPT, stop=StopConditions(max_tokens=30))
    decode(Decoder(target(), {"empty": Slow()}, ChainVerifier(), chosen), [request])
    chosen.learn_from_rounds()
    learned = chosen._priced["empty"].ask_s
    assert learned.value >= 0.02
    assert chosen.fresh()._priced["empty"].ask_s is learned


def test_by_recorded_costs_no_clock_decides_when_to_probe() -> None:
    credits = []
    for verify_s in (0.001, 1000.0):
        chosen = MeasuredPolicy(
            LiveCosts(line(0.05, 0.05), frozen=True), [Source("model", costs=CHEAP)]
        )
        stream = stream_of(trace([0] * 50), 0.0, 0.0)
        stream.history.length, stream.read = 30, 20
        chosen([stream])
        stream.history.length += 1
        stream.rounds.append(sample_round(context=30, verify_s=verify_s))
        chosen.learn_from_rounds()
        credits += [p.credit_s for p in chosen._priced.values()]
    assert credits[0] == credits[1] > 0


def test_a_probe_takes_no_lookup_s_place() -> None:
    both = Trace(
        id="x",
        category="c",
        prompt_tokens=20,
        output_tokens=60,
        most_tokens=60,
        sources={
            name: SourceTrace((match_length,) * 60, (20,) * 60, (20,) * 60, (20,) * 60)
            for name, match_length in (("lookup", 30), ("model", 0))
        },
    )
    sources = [Source("lookup", True, True), Source("model", costs=line(0.09, 0.001))]
    costs = line(0.1, 0.002)
    chosen = MeasuredPolicy(LiveCosts(costs, frozen=True), sources, say=lambda _: None)
    stream = stream_of(both, 0.0, 0.0)
    stream.history.length, stream.read = 30, 20
    chosen._priced = {"model": _Priced(sources[1], LiveCosts(line(0.09, 0.001)), credit_s=1e9)}
    assert chosen([stream])[0].source == "lookup"


def test_reading_is_paid_by_every_sequence_that_has_to_read() -> None:
    slow = Costs(
        key={"model": "d"},
        points=tuple(Point(n, n, 0, 0.01) for n in (1, 2, 4)),
        feeds=(Feed(1, 0.01), Feed(2, 0.01), Feed(100, 1.0)),
    )
    chosen = MeasuredPolicy(LiveCosts(FLAT, frozen=True), [Source("model", costs=slow)])
    streams = [stream_of(trace([32] * 90), 0.0, 0.0) for _ in range(4)]
    first_s, step_s = chosen._draft_s("model", streams, 4)
    assert first_s[4] == pytest.approx(4 * first_s[1])
    assert first_s[1] > 0
    assert step_s[4] == step_s[1]
    priced = chosen._priced["model"]
    assert priced.seconds(4, 1, 200) == pytest.approx(2 * priced.seconds(1, 1, 100))


def test_a_tree_draft_that_has_nothing_left_to_offer_is_left_alone() -> None:
    """Its context ends long before the answer does."""
    engine = target()
    draft = TreeDraft(ToyEngine(10, seed=34, order=3, context_size=40), engine)
    source = Source("tree", costs=CHEAP, branches=True, forwards=draft.forwards)
    chosen = MeasuredPolicy(LiveCosts(FLAT, frozen=True), [source], say=lambda _: None)
    decoder = Decoder(engine, {"tree": draft}, TreeVerifier(), chosen)
    [done] = decode(decoder, [Request(prompt=PROMPT, stop=StopConditions(max_tokens=300))])
    early = [r for r in done.rounds if r.context < 35 and not r.prefill]
    late = [r for r in done.rounds if r.context > 200]  # a cell remembers about 50 observations
    assert sum(r.source == "tree" for r in early) > len(early) / 2
    assert max(r.accepted for r in early) > 2
    assert sum(r.source == "tree" for r in late) < len(late) / 4


def test_what_a_tree_should_take_goes_by_its_levels() -> None:
    chain = _Priced(Source("model", costs=CHEAP), LiveCosts(CHEAP))
    tree = _Priced(Source("tree", costs=CHEAP, branches=True, forwards=2), LiveCosts(CHEAP))
    assert tree.seconds(1, 8, 1) == chain.seconds(1, 2, 1) < chain.seconds(1, 8, 1)
    assert tree.seconds(1, 1, 1) == chain.seconds(1, 1, 1)
