"""The default policy's choices: exact whatever they are, deterministic by recorded costs, and never
much slower than ordinary decoding by those costs."""

from __future__ import annotations

import pytest
from policies import (
    CHEAP,
    DEAR,
    FLAT,
    PROMPT,
    STEEP,
    line,
    policy,
    run,
    seconds,
    target,
)

from paceline import Request, Sampling, StopConditions, fixed
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import SettingError
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.costs import Costs, Point
from paceline.policy.live import LiveCosts
from paceline.simulate.server import SimulatedStream, stream_of
from paceline.simulate.trace import SourceTrace, Trace
from paceline.testing import enumerate_outcomes
from paceline.types import Choice, Proposal
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier


@pytest.mark.parametrize("costs", [FLAT, STEEP])
@pytest.mark.parametrize("draft_seed", [34, 8])
def test_greedy_text_is_plain_text(costs: Costs, draft_seed: int) -> None:
    [baseline] = run(fixed(None, 0))
    [drafted] = run(policy(costs), draft_seed=draft_seed)
    assert drafted.tokens == baseline.tokens


def test_a_batch_gives_each_request_what_baseline_decoding_gives() -> None:
    requests = [
        Request(
            prompt=(PROMPT * 3)[: 3 + i],
            sampling=Sampling(repetition_penalty=1.0 + 0.1 * (i % 3)),
            stop=StopConditions(max_tokens=20 + 9 * i),
            draft=[None, "lookup", "model"][i % 3],
            max_draft_tokens=[None, 2, None, 0][i % 4],
        )
        for i in range(6)
    ]
    baseline, drafted = run(fixed(None, 0), requests), run(policy(), requests)
    assert [g.tokens for g in drafted] == [g.tokens for g in baseline]
    assert sum(r.max_draft_tokens > 0 for g in drafted for r in g.rounds) > 20
    for request, generation in zip(requests, drafted, strict=True):
        for r in generation.rounds:
            assert (
                request.max_draft_tokens is None or r.max_draft_tokens <= request.max_draft_tokens
            )
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
            distribution = drawn.distribution(0)
            draft.drawn = drawn
            if distribution is not None and distribution.prob(drawn.tokens[0]) < 0.5:
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
    """The distribution of the output over every path of every random choice, through the real
    loop."""

    def outcome(rng) -> tuple[int, ...]:
        engine = ToyEngine(3, seed=2, order=2, end_tokens=(2,))
        drafts = {
            "model": draft_kind(ToyEngine(3, seed=9, end_tokens=(2,)), engine),
            "lookup": LookupDraft(),
        }
        sources = [
            Source("lookup", previewable=True, has_confidence=True),
            Source("model", costs=CHEAP),
        ]
        chosen = kind(LiveCosts(FLAT, frozen=True), sources, most=2) if kind else fixed(None, 0)
        decoder = Decoder(engine, drafts, verifier(), chosen)
        sampling = Sampling(temperature=0.9, repetition_penalty=1.2)
        stop = StopConditions(max_tokens=4)
        stream = decoder.open(Request(prompt=(0, 1, 0), sampling=sampling, stop=stop))
        stream.rng = stream.context.rng = rng
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
    baseline, _ = enumerated(None, verifier)
    drafted, asked = enumerated(MeasuredPolicy, verifier)
    assert {"lookup", "model"} <= asked, "or nothing was proved"
    assert sum(drafted.values()) == pytest.approx(1, abs=1e-6)
    assert variation(baseline, drafted) < 1e-6


def test_a_policy_that_looks_at_a_drawn_token_fails_the_enumeration() -> None:
    baseline, _ = enumerated(None, ChainVerifier)
    honest, _ = enumerated(MeasuredPolicy, ChainVerifier, Told)
    peeking, _ = enumerated(Peeks, ChainVerifier, Told)
    assert variation(baseline, honest) < 1e-6
    assert variation(baseline, peeking) > 0.01


def test_by_recorded_costs_the_choices_are_the_same_in_every_run() -> None:
    sampling = Sampling(temperature=0.8, seed=3)
    requests = [Request(prompt=PROMPT, sampling=sampling, stop=StopConditions(max_tokens=150))]
    first, second = (run(policy(), requests, draft_seed=8)[0] for _ in range(2))
    shape = [(r.source, r.max_draft_tokens, r.accepted, r.width) for r in first.rounds]
    assert shape == [(r.source, r.max_draft_tokens, r.accepted, r.width) for r in second.rounds]
    assert len({max_draft_tokens for _, max_draft_tokens, _, _ in shape}) > 2


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
    [baseline] = run(fixed(None, 0), [request])
    [drafted] = run(chosen, [request], draft_seed=77)
    asked = [r for r in drafted.rounds if r.source == "model"]
    assert len(asked) >= 2, "it was tried"
    assert sum(r.accepted for r in asked) / sum(r.proposed for r in asked) < 0.3
    costs = line(0.1, 0.03), line(0.01, 0.001)
    assert seconds(drafted.rounds, *costs) <= 1.03 * seconds(baseline.rounds, *costs)
    assert len(said) <= 1


def test_a_good_draft_is_used_and_a_dear_width_is_not() -> None:
    [cheap] = run(policy(FLAT, CHEAP), draft_seed=34)
    assert sum(r.max_draft_tokens for r in cheap.rounds) > 40
    assert len(cheap.rounds) < 15
    [dear] = run(policy(STEEP, CHEAP), draft_seed=34)
    assert max(r.max_draft_tokens for r in dear.rounds) == 0


def test_a_batch_shares_one_budget_of_rows() -> None:
    """Rows are cheap up to six and dear beyond: the sequence whose match is long gets them."""
    points = [Point(2, 2, 0, 0.1), Point(6, 2, 0, 0.11), Point(7, 2, 0, 0.3), Point(20, 2, 0, 0.9)]
    costs = Costs(key={}, points=(Point(1, 1, 0, 0.1), Point(2, 1, 0, 0.1), *points))
    chosen = MeasuredPolicy(
        LiveCosts(costs, frozen=True), [Source("lookup", previewable=True, has_confidence=True)]
    )

    def stream(match_length: int) -> SimulatedStream:
        count = 60
        known = SourceTrace((match_length,) * count, (0,) * count, (20,) * count, (20,) * count)
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

    limits = [choice.max_draft_tokens for choice in chosen([stream(1), stream(20)])]
    assert sum(limits) == 4
    assert limits[1] > limits[0]


def test_a_source_that_the_decoder_lacks_is_named() -> None:
    engine = target()
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), policy())
    stream = decoder.open(Request(prompt=PROMPT))
    with pytest.raises(SettingError, match="no draft named 'model'"):
        decoder.step([stream])


def test_a_batch_wider_than_what_was_measured_decodes_plainly() -> None:
    points = [Point(n, 1, 0, 0.1 + 0.01 * n) for n in range(1, 5)]
    engine = ToyEngine(10, seed=34, order=3, context_size=400, max_sequences=12)
    chosen = MeasuredPolicy(
        LiveCosts(Costs(key={}, points=tuple(points))), [Source("lookup", True, True)]
    )
    stop = StopConditions(max_tokens=12)
    requests = [Request(prompt=(1, 2, i % 9), stop=stop) for i in range(12)]
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), chosen)
    done = decode(decoder, requests)
    assert all(g.error is None and len(g.tokens) == 12 for g in done)
    assert all(r.max_draft_tokens == 0 for g in done for r in g.rounds)
