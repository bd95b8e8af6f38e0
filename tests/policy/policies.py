"""What the tests of the default policy share: costs that are straight lines, and requests on the
toy engine or replayed."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import Request, StopConditions
from paceline.decode.generate import Generation, decode
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.costs import Costs, Feed, Point
from paceline.policy.live import LiveCosts
from paceline.simulate.server import SimulatedServer, SimulatedStream, stream_of
from paceline.simulate.trace import SourceTrace, Trace
from paceline.types import Proposal
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
    sources = [
        Source("lookup", previewable=True, has_confidence=True),
        Source("model", costs=draft),
    ]
    options.setdefault("say", lambda _: None)
    return MeasuredPolicy(LiveCosts(target, frozen=frozen), sources, **options)


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
        costs.forward_s(r.width) + (draft.feed_s(2) + (r.max_draft_tokens - 1) * draft.forward_s(1))
        if r.source == "model"
        else costs.forward_s(r.width)
        for r in rounds
        if not r.prefill
    )


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
    SimulatedServer(costs, chosen, batch=len(streams)).run(streams)
    return streams


def feeding(share: float) -> Costs:
    """A draft whose step costs 5 % of the target's, and each token it reads that share."""
    points = [Point(n, n, 0, 0.005) for n in (1, 2, 4, 8)]
    feeds = (Feed(1, 0.005), Feed(101, 0.005 + 100 * share * 0.105))
    return Costs(key={"model": "d"}, points=tuple(points), feeds=feeds)


class Empty(LookupDraft):
    """A draft with an engine that never has anything to offer, as one beyond its context."""

    name = "empty"
    previewable = has_confidence = False

    def propose(self, contexts, limits):
        return [Proposal((), self.name) for _ in contexts]
