"""The default policy: exact whatever it chooses, deterministic by recorded costs, and never much
slower than plain decoding by those costs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, decode, fixed
from paceline.decode.generate import Generation
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.economics.cost import Costs, Feed, Point
from paceline.economics.live import LiveCosts
from paceline.economics.policy import MeasuredPolicy, Source, _Priced
from paceline.economics.replay import SimulatedStream, stream_of
from paceline.economics.server import Server
from paceline.economics.trace import SourceTrace, Trace
from paceline.engines.toy import ToyEngine
from paceline.errors import SettingError
from paceline.testing import enumerate_outcomes
from paceline.types import Choice, Proposal, Round
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier

PROMPT = (1, 2, 3, 1, 2)


def line(base_s: float, row_s: float, **options) -> Costs:
    points = [
        Point(n * w, n, 0, base_s + n * w * row_s) for n in (1, 2, 4, 8) for w in (1, 2, 4, 8, 33)
    ]
    feeds = (Feed(1, base_s + row_s), Feed(64, base_s + 64 * row_s))
    return Costs(key={"model": "toy"}, points=tuple(points), feeds=feeds, **options)


FLAT, STEEP = line(0.1, 0.002), line(0.0001, 0.1)
CHEAP, DEAR = line(0.005, 0.0001), line(0.1, 0.002)


def policy(target: Costs = FLAT, draft: Costs = CHEAP, *, frozen=True, **options) -> MeasuredPolicy:
    sources = [Source("lookup", foreseeable=True, weighs=True), Source("model", costs=draft)]
    options.setdefault("say", lambda _: None)
    return MeasuredPolicy(target, sources, frozen=frozen, **options)


def target() -> ToyEngine:
    return ToyEngine(10, seed=34, order=3, context_size=400)


def run(chosen, requests=None, *, draft_seed: int = 34, tokens: int = 60) -> list[Generation]:
    engine = target()
    drafts = {
        "lookup": LookupDraft(),
        "model": ModelDraft(ToyEngine(10, seed=draft_seed, order=3, context_size=400), engine),
    }
    stop = StopConditions(max_tokens=tokens)
    requests = requests or [Request(prompt=PROMPT, stop=stop)]
    done = decode(Decoder(engine, drafts, ChainVerifier(), chosen), requests)
    assert engine.sequences_open == 0
    return done


def seconds(rounds, costs: Costs, draft: Costs) -> float:
    """What rounds would take by costs: the toy engine's own seconds say nothing."""
    return sum(
        costs.forward_s(r.width) + (draft.feed_s(2) + (r.limit - 1) * draft.forward_s(1))
        if r.source == "model"
        else costs.forward_s(r.width)
        for r in rounds
        if not r.prefill
    )


@pytest.mark.parametrize("costs", [FLAT, STEEP])
@pytest.mark.parametrize("draft_seed", [34, 8])
def test_greedy_text_is_plain_text(costs: Costs, draft_seed: int) -> None:
    [plain] = run(fixed(None, 0))
    [drafted] = run(policy(costs), draft_seed=draft_seed)
    assert drafted.tokens == plain.tokens


def test_a_batch_gives_each_request_what_plain_decoding_gives() -> None:
    requests = [
        Request(
            prompt=(PROMPT * 3)[: 3 + i],
            sampling=Sampling(repetition_penalty=1.0 + 0.1 * (i % 3)),
            stop=StopConditions(max_tokens=20 + 9 * i),
            draft=[None, "lookup", "model"][i % 3],
            draft_limit=[None, 2, None, 0][i % 4],
        )
        for i in range(6)
    ]
    plain, drafted = run(fixed(None, 0), requests), run(policy(), requests)
    assert [g.tokens for g in drafted] == [g.tokens for g in plain]
    assert sum(r.limit > 0 for g in drafted for r in g.rounds) > 20
    for request, generation in zip(requests, drafted, strict=True):
        for r in generation.rounds:
            assert request.draft_limit is None or r.limit <= request.draft_limit
            assert request.draft is None or r.source in (None, request.draft)


class Peeks(MeasuredPolicy):
    """What the policy must not do: look at the token that the draft drew, and leave it out for
    being unlikely."""

    def __call__(self, streams) -> list[Choice]:
        choices = super().__call__(streams)
        for number, stream in enumerate(streams):
            if choices[number].source != "model" or not stream.prompt_is_read:
                continue
            draft = stream.drafts["model"]
            stream.open_draft("model")
            [drawn] = draft.propose([stream.context], [1])
            law = drawn.law(0)
            draft.drawn = drawn
            if law is not None and law.prob(drawn.tokens[0]) < 0.5:
                choices[number] = Choice(None, 0)
        return choices


class Told(ModelDraft):
    """Offers what the policy has already drawn."""

    drawn: Proposal | None = None

    def propose(self, contexts, limits):
        if self.drawn is None:
            return super().propose(contexts, limits)
        drawn, self.drawn = self.drawn, None
        return [drawn]


def enumerated(kind: type[MeasuredPolicy] | None, verifier, draft_kind=ModelDraft):
    """The law of the output over every path of every random choice, through the real loop."""

    def outcome(chance) -> tuple[int, ...]:
        engine = ToyEngine(3, seed=2, order=2, end_tokens=(2,))
        drafts = {
            "model": draft_kind(ToyEngine(3, seed=9, end_tokens=(2,)), engine),
            "lookup": LookupDraft(),
        }
        sources = [Source("lookup", foreseeable=True, weighs=True), Source("model", costs=CHEAP)]
        chosen = kind(FLAT, sources, frozen=True, most=2) if kind else fixed(None, 0)
        decoder = Decoder(engine, drafts, verifier(), chosen)
        sampling = Sampling(temperature=0.9, repetition_penalty=1.2)
        stop = StopConditions(max_tokens=4)
        stream = decoder.open(Request(prompt=(0, 1, 0), sampling=sampling, stop=stop))
        stream.chance = stream.context.chance = chance
        while not stream.finished:
            decoder.step([stream])
        asked.update(r.source for r in stream.rounds)
        return tuple(stream.history.output)

    asked: set[str | None] = set()
    return enumerate_outcomes(outcome), asked


def variation(one, other) -> float:
    return sum(abs(one.get(k, 0) - other.get(k, 0)) for k in one.keys() | other.keys()) / 2


@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
def test_the_policy_is_part_of_what_is_exact_by_enumeration(verifier) -> None:
    plain, _ = enumerated(None, verifier)
    drafted, asked = enumerated(MeasuredPolicy, verifier)
    assert {"lookup", "model"} <= asked, "or nothing was proved"
    assert sum(drafted.values()) == pytest.approx(1, abs=1e-6)
    assert variation(plain, drafted) < 1e-6


def test_a_policy_that_looks_at_a_drawn_token_fails_the_enumeration() -> None:
    plain, _ = enumerated(None, ChainVerifier)
    honest, _ = enumerated(MeasuredPolicy, ChainVerifier, Told)
    peeking, _ = enumerated(Peeks, ChainVerifier, Told)
    assert variation(plain, honest) < 1e-6
    assert variation(plain, peeking) > 0.01


def test_by_recorded_costs_the_choices_are_the_same_in_every_run() -> None:
    sampling = Sampling(temperature=0.8, seed=3)
    requests = [Request(prompt=PROMPT, sampling=sampling, stop=StopConditions(max_tokens=150))]
    first, second = (run(policy(), requests, draft_seed=8)[0] for _ in range(2))
    shape = [(r.source, r.limit, r.accepted, r.width) for r in first.rounds]
    assert shape == [(r.source, r.limit, r.accepted, r.width) for r in second.rounds]
    assert len({limit for _, limit, _, _ in shape}) > 2


def test_the_target_as_its_own_draft_is_never_asked_and_that_is_said_once() -> None:
    said: list[str] = []
    chosen = policy(FLAT, DEAR, say=said.append)
    for _ in range(2):
        [generation] = run(chosen)
        assert all(r.source != "model" for r in generation.rounds)
    assert len(said) == 1
    assert "can't pay here: a drafted token costs 1.00 of a target pass" in said[0]


def test_a_useless_draft_costs_at_most_three_percent_and_that_is_said_once() -> None:
    """By costs. A cheap draft of another seed: almost nothing it offers is right."""
    said: list[str] = []
    chosen = policy(line(0.1, 0.03), line(0.01, 0.001), say=said.append)
    request = Request(prompt=PROMPT, stop=StopConditions(max_tokens=250), draft="model")
    [plain] = run(fixed(None, 0), [request])
    [drafted] = run(chosen, [request], draft_seed=77)
    asked = [r for r in drafted.rounds if r.source == "model"]
    assert len(asked) >= 2, "it was tried"
    assert sum(r.accepted for r in asked) / sum(r.proposed for r in asked) < 0.3
    costs = line(0.1, 0.03), line(0.01, 0.001)
    assert seconds(drafted.rounds, *costs) <= 1.03 * seconds(plain.rounds, *costs)
    assert len(said) <= 1


def test_a_good_draft_is_used_and_a_dear_width_is_not() -> None:
    [cheap] = run(policy(FLAT, CHEAP), draft_seed=34)
    assert sum(r.limit for r in cheap.rounds) > 40
    assert len(cheap.rounds) < 15
    [dear] = run(policy(STEEP, CHEAP), draft_seed=34)
    assert max(r.limit for r in dear.rounds) == 0


def trace(right: Sequence[int], source: str = "model") -> Trace:
    count = len(right)
    offered = [0, *[32] * (count - 1)]
    right = [min(n, count - t) for t, n in enumerate(right)]
    known = SourceTrace((0,) * count, tuple(right), tuple(offered), tuple(offered))
    return Trace(
        id="x",
        category="c",
        prompt_tokens=20,
        output_tokens=count,
        most_tokens=count,
        sources={source: known},
    )


def serve(traces: Sequence[Trace], chosen: MeasuredPolicy, costs: Costs) -> list[SimulatedStream]:
    streams = [stream_of(one, 0.0, 0.0) for one in traces]
    Server(costs, chosen, batch=len(streams)).run(streams)
    return streams


def feeding(share: float) -> Costs:
    """A draft whose step costs 5 % of the target's, and each token it reads that share."""
    points = [Point(n, n, 0, 0.005) for n in (1, 2, 4, 8)]
    feeds = (Feed(1, 0.005), Feed(101, 0.005 + 100 * share * 0.105))
    return Costs(key={"model": "d"}, points=tuple(points), feeds=feeds)


@pytest.mark.parametrize("share", [0.001, 0.005])
def test_a_draft_that_stopped_paying_returns_when_the_text_changes(share: float) -> None:
    draft = feeding(share)
    costs = line(0.1, 0.005, drafts={"model": draft})
    bad, good = 300, 300
    chosen = MeasuredPolicy(costs, [Source("model", costs=draft)], frozen=True, say=lambda _: None)
    [stream] = serve([trace([0] * bad + [32] * good)], chosen, costs)
    early = [r for r in stream.rounds if r.context < 20 + bad]
    late = [r for r in stream.rounds if r.context >= 20 + bad]
    spent = sum(r.draft_s + r.verify_s for r in early if not r.prefill)
    assert spent < 1.05 * costs.forward_s(1) * bad
    first = next(r.context for r in late if r.limit > 1)
    assert first - 20 - bad < 200, "found again within the price of occasional probes"
    spent = sum(r.draft_s + r.verify_s for r in late)
    assert spent < 0.8 * costs.forward_s(1) * good


def test_a_draft_that_is_dear_to_read_is_not_followed_at_any_price() -> None:
    """Reading every token alone would cost 13 % of plain decoding."""
    draft = feeding(0.13)
    costs = line(0.1, 0.005, drafts={"model": draft})
    chosen = MeasuredPolicy(costs, [Source("model", costs=draft)], frozen=True, say=lambda _: None)
    [stream] = serve([trace([0] * 600)], chosen, costs)
    spent = sum(r.draft_s + r.verify_s for r in stream.rounds if not r.prefill)
    assert spent < 1.05 * costs.forward_s(1) * 600


def test_a_collapse_is_said_once_with_its_numbers() -> None:
    said: list[str] = []
    chosen = MeasuredPolicy(
        line(0.1, 0.005), [Source("model", costs=feeding(0.001))], frozen=True, say=said.append
    )
    serve([trace([0] * 900), trace([0] * 900)], chosen, line(0.1, 0.005, drafts={"model": CHEAP}))
    assert len(said) == 1
    assert "model (d) doesn't pay on this text: 0% of 16 judged tokens were accepted" in said[0]
    assert "break-even is 10%" in said[0]
    assert "Likely causes: another chat template" in said[0]


class Empty(LookupDraft):
    """A draft with an engine that never has anything to offer, as one beyond its context."""

    name = "empty"
    foreseeable = weighs = False

    def propose(self, contexts, limits):
        return [Proposal((), self.name) for _ in contexts]


@pytest.mark.parametrize("costs", [CHEAP, None])
def test_a_draft_that_offers_nothing_does_not_stand_in_the_others_way(costs) -> None:
    engine = target()
    drafts = {"lookup": LookupDraft(), "empty": Empty()}
    sources = [Source("lookup", True, True), Source("empty", costs=costs)]
    chosen = MeasuredPolicy(FLAT, sources, say=lambda _: None)
    requests = [Request(prompt=PROMPT, stop=StopConditions(max_tokens=150)) for _ in range(2)]
    done = decode(Decoder(engine, drafts, ChainVerifier(), chosen), requests)
    rounds = [r for g in done for r in g.rounds]
    assert 0 < sum(r.source == "empty" for r in rounds) < 30
    assert sum(r.width > 1 for r in rounds) > 0.3 * len(rounds)


def test_a_source_that_the_decoder_lacks_is_named() -> None:
    engine = target()
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), policy())
    stream = decoder.open(Request(prompt=PROMPT))
    with pytest.raises(SettingError, match="no draft named 'model'"):
        decoder.step([stream])


def test_prompts_do_not_pay_for_probes() -> None:
    chosen = MeasuredPolicy(FLAT, [Source("model", costs=CHEAP)])
    stream = stream_of(trace([0] * 50), 0.0, 0.0)
    chosen([stream])
    stream.rounds.append(
        Round(
            proposed=0,
            accepted=0,
            emitted=1,
            source=None,
            limit=0,
            width=1,
            batch=1,
            context=20,
            prefill=True,
            draft_s=0.0,
            verify_s=1e6,
            other_s=0.0,
        )
    )
    chosen.settle()
    assert chosen._priced["model"].credit_s == 0


def test_a_draft_that_was_not_asked_is_read_up_before_it_is_asked_again() -> None:
    """Its price includes that, spread over what is to come: far behind and near the end, no."""
    costs = line(0.1, 0.005)
    slow = Costs(
        key={"model": "d"},
        points=(Point(1, 1, 0, 0.01),),
        feeds=(Feed(1, 0.01), Feed(2, 0.01), Feed(100, 5.0)),
    )
    chosen = MeasuredPolicy(costs, [Source("model", costs=slow)], frozen=True, say=lambda _: None)
    near, far = stream_of(trace([32] * 30), 0.0, 0.0), stream_of(trace([32] * 30), 0.0, 0.0)
    for stream, held in ((near, 119), (far, 0)):
        stream.history.length, stream.read = 120, 20
        stream.trace = trace([32] * 130)
        stream.held["model"] = held
        stream.rounds = []
    assert chosen([near])[0].source == "model"
    assert chosen([far])[0].source is None


def test_a_batch_shares_one_budget_of_rows() -> None:
    """Rows are cheap up to six and dear beyond: the sequence whose match is long gets them."""
    points = [Point(2, 2, 0, 0.1), Point(6, 2, 0, 0.11), Point(7, 2, 0, 0.3), Point(20, 2, 0, 0.9)]
    costs = Costs(key={}, points=(Point(1, 1, 0, 0.1), Point(2, 1, 0, 0.1), *points))
    chosen = MeasuredPolicy(costs, [Source("lookup", foreseeable=True, weighs=True)], frozen=True)

    def stream(evidence: int) -> SimulatedStream:
        count = 60
        known = SourceTrace((evidence,) * count, (0,) * count, (20,) * count, (20,) * count)
        one = stream_of(
            Trace(
                id="x",
                category="c",
                prompt_tokens=5,
                output_tokens=count,
                most_tokens=count,
                sources={"lookup": known},
            ),
            0.0,
            0.0,
        )
        one.history.length, one.read = 10, 5
        return one

    limits = [choice.limit for choice in chosen([stream(1), stream(20)])]
    assert sum(limits) == 4
    assert limits[1] > limits[0]


def test_free_sources_are_judged_though_they_were_never_asked() -> None:
    """On steep costs lookup is not asked; its record grows all the same."""
    chosen = policy(STEEP)
    [generation] = run(chosen)
    assert not any(r.limit for r in generation.rounds)
    [(key, shared)] = [(k, s) for k, s in chosen._shared.items() if k[0] == "lookup"]
    assert key == ("lookup", 0.0)
    fresh = policy()._prior("lookup", 0.0).chances
    assert np.abs(np.asarray(shared.chances) - np.asarray(fresh)).max() > 0.02


def test_a_fresh_policy_has_counted_nothing() -> None:
    chosen = policy()
    run(chosen)
    chosen.settle()
    assert chosen.account.rounds > 0
    twin = chosen.fresh()
    assert twin.account.rounds == 0
    assert not twin._shared
    assert chosen.account.rounds > 0
    run(twin)
    assert twin.costs is chosen.costs


def test_the_account_agrees_with_the_rounds() -> None:
    chosen = policy()
    [generation] = run(chosen)
    chosen.settle()
    decoding = [r for r in generation.rounds if not r.prefill]
    assert chosen.account.rounds == len(decoding)
    assert chosen.account.drafted == sum(r.limit > 0 for r in decoding)
    assert chosen.account.plain_s == pytest.approx(
        sum(r.emitted for r in decoding) * FLAT.forward_s(1)
    )


def test_a_batch_wider_than_what_was_measured_decodes_plainly() -> None:
    points = [Point(n, 1, 0, 0.1 + 0.01 * n) for n in range(1, 5)]
    engine = ToyEngine(10, seed=34, order=3, context_size=400, max_sequences=12)
    chosen = MeasuredPolicy(Costs(key={}, points=tuple(points)), [Source("lookup", True, True)])
    stop = StopConditions(max_tokens=12)
    requests = [Request(prompt=(1, 2, i % 9), stop=stop) for i in range(12)]
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), chosen)
    done = decode(decoder, requests)
    assert all(g.error is None and len(g.tokens) == 12 for g in done)
    assert all(r.limit == 0 for g in done for r in g.rounds)


def test_at_the_end_of_a_request_nothing_unjudged_is_counted() -> None:
    """Five offered, two accepted, and the replacement ends the answer."""
    chosen = MeasuredPolicy(FLAT, [Source("model", costs=CHEAP)], frozen=True, say=lambda _: None)
    stream = stream_of(trace([5] * 30), 0.0, 0.0)
    stream.history.length, stream.read = 47, 20
    chosen([stream])
    stream.history.length = 50
    assert stream.finished
    base = dict(source="model", batch=1, context=47, prefill=False, verify_s=0.1, other_s=0.0)
    stream.rounds.append(
        Round(proposed=5, accepted=2, emitted=3, limit=5, width=6, draft_s=0.1, **base)
    )
    chosen.settle()
    survival = stream.policy_notes.survivals["model"]
    assert (survival.judged, survival.accepted) == (3, 2)


def test_running_dry_is_the_request_s_affair() -> None:
    chosen = MeasuredPolicy(FLAT, [Source("empty", costs=CHEAP)], say=lambda _: None)
    request = Request(prompt=PROMPT, stop=StopConditions(max_tokens=80))
    decode(Decoder(target(), {"empty": Empty()}, ChainVerifier(), chosen), [request])
    assert chosen._prior("empty", 0.0).chances == policy()._prior("model", 0.0).chances


def test_a_draft_without_costs_is_priced_by_what_it_took() -> None:
    class Slow(Empty):
        def propose(self, contexts, limits):
            time.sleep(0.02)
            return [Proposal((3,) * limit, self.name) for limit in limits]

    chosen = MeasuredPolicy(FLAT, [Source("empty")], say=lambda _: None)
    request = Request(prompt=PROMPT, stop=StopConditions(max_tokens=30))
    decode(Decoder(target(), {"empty": Slow()}, ChainVerifier(), chosen), [request])
    chosen.settle()
    learned = chosen._priced["empty"].learned
    assert learned.ask_s >= 0.02
    assert chosen.fresh()._priced["empty"].learned is learned


def plain_round(verify_s: float, **changes) -> Round:
    base = dict(proposed=0, accepted=0, emitted=1, source=None, limit=0, width=1, batch=1)
    base |= dict(context=30, prefill=False, draft_s=0.0, verify_s=verify_s, other_s=0.0)
    return Round(**(base | changes))


def test_by_recorded_costs_no_clock_decides_when_to_probe() -> None:
    credits = []
    for verify_s in (0.001, 1000.0):
        chosen = MeasuredPolicy(line(0.05, 0.05), [Source("model", costs=CHEAP)], frozen=True)
        stream = stream_of(trace([0] * 50), 0.0, 0.0)
        stream.history.length, stream.read = 30, 20
        chosen([stream])
        stream.history.length += 1
        stream.rounds.append(plain_round(verify_s))
        chosen.settle()
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
            name: SourceTrace((evidence,) * 60, (20,) * 60, (20,) * 60, (20,) * 60)
            for name, evidence in (("lookup", 30), ("model", 0))
        },
    )
    sources = [Source("lookup", True, True), Source("model", costs=line(0.09, 0.001))]
    costs = line(0.1, 0.002)
    chosen = MeasuredPolicy(costs, sources, frozen=True, say=lambda _: None)
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
    chosen = MeasuredPolicy(FLAT, [Source("model", costs=slow)], frozen=True)
    streams = [stream_of(trace([32] * 90), 0.0, 0.0) for _ in range(4)]
    first_s, step_s = chosen._draft_s("model", streams, 4)
    assert first_s[4] == pytest.approx(4 * first_s[1])
    assert first_s[1] > 0
    assert step_s[4] == step_s[1]
    priced = chosen._priced["model"]
    assert priced.seconds(4, 1, 200) == pytest.approx(2 * priced.seconds(1, 1, 100))
