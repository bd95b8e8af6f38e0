"""The simulator against real decoding, against arithmetic by hand, and within its bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline import Request, Sampling, StopConditions, fixed
from paceline.decode.generate import decode
from paceline.decode.stats import stats
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.model import ModelDraft
from paceline.errors import SettingError
from paceline.policy.acceptance import MOST
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.costs import Costs, Feed, Point
from paceline.policy.live import LiveCosts
from paceline.simulate import server
from paceline.simulate.record import sources_of, trace_of
from paceline.simulate.simulate import best_fixed, policy_named, policy_of, regret, simulate
from paceline.simulate.trace import Recording, RecordingHeader, SourceTrace, Trace
from paceline.testing import ToyEngine
from paceline.verify.chain import ChainVerifier

PROMPTS = [(1, 2, 3, 1, 2), (4, 4, 2), (5, 6, 7, 0, 5, 6), (2,), (3, 1, 3, 1, 3)]


def line(rows: int) -> float:
    return 0.01 * (1 + 0.1 * (rows - 1))


COSTS = Costs(
    key={},
    points=tuple(
        Point(rows, sequences, 0, line(rows))
        for sequences in (1, 4)
        for rows in range(sequences, 140)
    ),
    overhead_s=0.001,
    drafts={"model": Costs(key={}, points=(Point(1, 1, 0, 0.002), Point(8, 1, 0, 0.004)))},
)


def target(max_sequences: int = 1) -> ToyEngine:
    """Peaked, so that its answers repeat themselves; answers end now and then."""
    return ToyEngine(
        10, seed=5, sharpness=3.0, end_tokens=(9,), max_sequences=max_sequences, context_size=120
    )


def recorded(policy, drafts, *, temperature=0.0, together=1, fixed_by="measured") -> Recording:
    """Real decoding with a policy, and its recording."""
    engine = target(together)
    sampling = Sampling(temperature=temperature, seed=3)
    stop = StopConditions(max_tokens=60)
    requests = [Request(prompt=p, sampling=sampling, stop=stop) for p in PROMPTS]
    done = decode(Decoder(engine, drafts, ChainVerifier(), policy), requests)
    header = RecordingHeader(
        target=engine.metadata(), temperature=temperature, sources=sources_of(drafts)
    )
    traces = [
        trace_of(
            id=str(number),
            category="even" if number % 2 == 0 else "odd",
            configuration=fixed_by,
            prompt=prompt,
            output=one.tokens,
            rounds=one.rounds,
            drafts=drafts,
            most_tokens=60,
        )
        for number, (prompt, one) in enumerate(zip(PROMPTS, done, strict=True))
    ]
    return Recording(header, tuple(traces))


def measured() -> MeasuredPolicy:
    return MeasuredPolicy(
        LiveCosts(COSTS, frozen=True), [Source("lookup", previewable=True, has_confidence=True)]
    )


def shape(rounds):
    """All of a round but its seconds."""
    return [replace(round, draft_s=0, verify_s=0, other_s=0) for round in rounds]


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("spec", ["measured", "lookup:3", "lookup:20", "baseline"])
def test_the_same_policy_takes_the_same_rounds_as_in_real_decoding(
    spec, temperature, together
) -> None:
    name, _, max_draft_tokens = spec.rpartition(":")
    real = (
        measured()
        if spec == "measured"
        else fixed(name or None, int(max_draft_tokens) if name else 0)
    )
    drafts = {"lookup": LookupDraft()}
    recording = recorded(real, drafts, temperature=temperature, together=together)
    policy = policy_named(spec, COSTS, recording.header.sources)
    found = simulate(recording, COSTS, policy, batch=together)
    for trace, one in zip(recording.traces, found.served, strict=True):
        assert shape(one.rounds) == shape(trace.rounds)
    if spec != "baseline":
        widths = {round.width for trace in recording.traces for round in trace.rounds}
        assert len(widths) >= 2, "the text gives a policy nothing to decide"
        rejected = [r for t in recording.traces for r in t.rounds if r.accepted < r.proposed]
        assert rejected or spec == "measured"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_recorded_model_draft_is_replayed_as_it_was(temperature) -> None:
    model, noise = target(), ToyEngine(10, seed=6, sharpness=2.0)
    table = lambda context: model.logits(context) + noise.logits(context)  # noqa: E731
    other = ToyEngine(10, table=table, end_tokens=(9,), context_size=120)
    drafts = {"model": ModelDraft(other, target())}
    recording = recorded(fixed("model", 3), drafts, temperature=temperature)
    found = simulate(recording, COSTS, policy_named("model:3", COSTS, {"model": False}))
    for trace, one in zip(recording.traces, found.served, strict=True):
        assert shape(one.rounds) == shape(trace.rounds)
    rounds = [r for t in recording.traces for r in t.rounds if r.max_draft_tokens]
    assert any(r.accepted < r.proposed for r in rounds)
    assert any(r.accepted == r.proposed for r in rounds)


def test_an_end_within_a_block_is_recorded_as_in_real_decoding() -> None:
    """1, 2, 3 and the end follow one another; the lookup goes on behind the end."""

    def table(context: list[int]) -> list[float]:
        after = {1: 2, 2: 3, 3: 9}.get(context[-1], 1)
        return [float(token == after) for token in range(10)]

    engine = ToyEngine(10, table=table, end_tokens=(9,))
    lookup, prompt = LookupDraft(), (1, 2, 3, 9, 4, 1)
    decoder = Decoder(engine, {"lookup": lookup}, ChainVerifier(), fixed("lookup", 4))
    [done] = decode(decoder, [Request(prompt=prompt, stop=StopConditions(max_tokens=20))])
    trace = trace_of(
        id="a",
        category="all",
        configuration="lookup -n 4",
        prompt=prompt,
        output=done.tokens,
        rounds=done.rounds,
        drafts={"lookup": lookup},
        most_tokens=20,
    )
    recording = Recording(
        RecordingHeader(target={}, temperature=0, sources={"lookup": True}), (trace,)
    )
    found = simulate(recording, COSTS, policy_named("lookup:4", COSTS, {"lookup": True}))
    assert shape(found.served[0].rounds) == shape(done.rounds)
    last = done.rounds[-1]
    assert (last.width, last.proposed, last.accepted, last.emitted) == (5, 2, 2, 2)


def test_a_recording_tells_which_policy_made_it() -> None:
    drafts = {"lookup": LookupDraft()}
    for policy, spec in (
        (fixed(None, 0), "baseline"),
        (fixed("lookup", 4), "lookup:4"),
        (measured(), "measured"),
    ):
        assert policy_of(recorded(policy, drafts).traces) == spec


# By hand.

TINY = Costs(
    key={},
    points=(Point(1, 1, 0, 1.0), Point(2, 1, 0, 1.5), Point(3, 1, 0, 1.75)),
    feeds=(Feed(4, 3.0),),
    overhead_s=0.125,
    drafts={
        "model": Costs(
            key={},
            points=(Point(1, 1, 0, 0.25), Point(2, 1, 0, 0.5)),
            feeds=(Feed(1, 0.25), Feed(2, 0.5), Feed(3, 0.75)),
        )
    },
)


def hand(name: str = "lookup", previewable: bool = True, **changes) -> Recording:
    """Prompt of 4, answer of 6: two drafted tokens of which one is right, a plain round, and one
    more drafted token that is right and all the room there is."""
    lists = {
        "match_length": (0,) * 6,
        "right": (0, 1, 0, 0, 2, 0),
        "offered": (0, 5, 0, 3, 4, 0),
        "unwatched": (0, 5, 0, 0, 4, 0),
    }
    trace = Trace(
        id="a",
        category="all",
        prompt_tokens=4,
        output_tokens=6,
        most_tokens=6,
        sources={name: SourceTrace(**lists)},
    )
    header = RecordingHeader(target="toy", temperature=0.0, sources={name: previewable})
    return Recording(header, (replace(trace, **changes),))


def test_seconds_are_those_of_the_costs() -> None:
    found = simulate(hand(), TINY, policy_named("lookup:2", TINY, {"lookup": True}))
    [one] = found.served
    seconds = [(r.width, r.accepted, r.verify_s, r.other_s) for r in one.rounds]
    assert seconds == [
        (1, 0, 3.0, 0.125),
        (3, 1, 1.75, 0.125),
        (1, 0, 1.0, 0.125),
        (2, 1, 1.5, 0.125),
    ]
    assert found.decode_s == 4.625
    assert found.total_s == one.ended_s == 7.75
    assert (one.arrived_s, one.first_s) == (0.0, 3.125)
    assert found.ms_per_token == found.request_ms_per_token == 925.0
    document = found.as_json()
    assert document["tokens"] == 6
    assert (document["rounds"], document["drafted_rounds"]) == (3, 2)
    assert document["acceptance_rate"] == 2 / 3
    assert document["tok_per_s"] == 6 / 7.75
    assert (document["ttft_s_median"], document["latency_s_p95"]) == (3.125, 7.75)
    assert stats(one.rounds).decode_s == found.decode_s


def test_a_priced_draft_reads_its_prompt_and_catches_up() -> None:
    recording = hand("model", False)
    found = simulate(recording, TINY, policy_named("model:2", TINY, {"model": False}))
    # Reading all but the prompt's last token; two behind and one step; nothing offered; two
    # committed since the round before last, and what was never fed of the last.
    assert [r.draft_s for r in found.served[0].rounds] == [0.75, 0.5 + 0.25, 0.0, 0.5]
    lists = (0,) * 6, (0, 2, 0, 0, 2, 0), (0, 2, 0, 0, 4, 0), (0, 2, 0, 0, 4, 0)
    recording = hand("model", False, sources={"model": SourceTrace(*lists)})
    found = simulate(recording, TINY, policy_named("model:2", TINY, {"model": False}))
    # The second of two accepted tokens was never fed to the draft, nor was the bonus.
    assert [r.draft_s for r in found.served[0].rounds] == [0.75, 0.5 + 0.25, 0.5]


def test_a_draft_without_costs_or_recording_is_refused() -> None:
    with pytest.raises(SettingError, match="no figures of the draft 'other'"):
        simulate(hand("other", False), TINY, policy_named("other:2", TINY, {"other": False}))
    with pytest.raises(SettingError, match="no recorded draft named 'lookup'"):
        simulate(hand("other"), TINY, policy_named("lookup:2", TINY, {"lookup": True}))
    recording = hand("model", False, sources={"model": SourceTrace(*[(None,) * 6] * 4)})
    with pytest.raises(SettingError, match="never asked the draft 'model'"):
        simulate(recording, TINY, policy_named("model:2", TINY, {"model": False}))


def test_rows_beyond_the_costs_are_refused() -> None:
    with pytest.raises(SettingError, match="batch of 1 came to 4 rows.*smaller batch"):
        simulate(hand(), TINY, policy_named("lookup:3", TINY, {"lookup": True}))


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 0},
        {"arrivals_per_s": 0.0},
        {"arrivals_per_s": float("nan")},
        {"batch": 4, "row_budget": 3},
        {"seed": -1},
    ],
)
def test_settings_out_of_range_are_refused(settings) -> None:
    with pytest.raises(SettingError):
        simulate(hand(), TINY, policy_named("baseline", TINY, {}), **settings)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mesured", "Did you mean 'measured'"),
        ("lookup", "Did you mean 'lookup:3'"),
        ("lokup:3", "Did you mean 'lookup'"),
        ("lookup:x", "limit of the policy 'lookup:x' is 'x'"),
        ("lookup:0", "1 or more"),
        ("", "no policy named ''"),
    ],
)
def test_an_unknown_policy_is_refused_by_name(spec, message) -> None:
    with pytest.raises(SettingError, match=message):
        policy_named(spec, TINY, {"lookup": True})


# The batch server.


def many(count: int) -> Recording:
    """Requests of uneven prompts, answers and acceptance."""
    traces = []
    for number in range(count):
        size = 8 + 7 * number % 31
        right = tuple(min((number + t) % 5, size - t) for t in range(size))
        offered = tuple(max(r, (3 * t + number) % 7) for t, r in enumerate(right))
        traces.append(
            Trace(
                id=str(number),
                category="all",
                prompt_tokens=3 + 11 * number % 40,
                output_tokens=size,
                most_tokens=size + number % 2,
                sources={"lookup": SourceTrace(offered, right, offered, offered)},
            )
        )
    header = RecordingHeader(target="toy", temperature=0.0, sources={"lookup": True})
    return Recording(header, tuple(traces))


@pytest.mark.parametrize("spec", ["measured", "lookup:6", "baseline"])
@pytest.mark.parametrize("arrivals", [None, 20.0])
@pytest.mark.parametrize("budget", [None, 4, 9])
def test_a_batch_keeps_to_its_bounds_and_loses_no_token(
    monkeypatch, spec, arrivals, budget
) -> None:
    steps = []
    step = server.SimulatedServer._step

    def watched(self, running):
        before = [(s.read, len(s.rounds)) for s in running]
        seconds = step(self, running)
        rows = sum(
            s.read - read + sum(r.width for r in s.rounds[rounds:] if not r.prefill)
            for s, (read, rounds) in zip(running, before, strict=True)
        )
        steps.append((len(running), rows, seconds))
        return seconds

    monkeypatch.setattr(server.SimulatedServer, "_step", watched)
    recording = many(12)
    found = simulate(
        recording,
        COSTS,
        policy_named(spec, COSTS, {"lookup": True}),
        batch=4,
        arrivals_per_s=arrivals,
        row_budget=budget,
        seed=7,
    )
    assert max(running for running, _, _ in steps) == 4
    if budget is not None:
        assert max(rows for _, rows, _ in steps) == budget
    for trace, one in zip(recording.traces, found.served, strict=True):
        assert sum(round.emitted for round in one.rounds) == trace.output_tokens
        assert one.arrived_s < one.first_s < one.ended_s <= found.total_s
        assert [round.prefill for round in one.rounds].count(True) == 1
    # What is shared out over rounds is what the steps took; only idle time is nobody's.
    busy = sum(seconds for _, _, seconds in steps)
    everything = [round for one in found.served for round in one.rounds]
    assert sum(r.draft_s + r.verify_s + r.other_s for r in everything) == pytest.approx(busy)
    assert found.total_s == pytest.approx(busy) if arrivals is None else found.total_s > busy


def test_arrivals_are_the_seed_s_and_come_at_their_rate() -> None:
    recording, baseline = many(200), policy_named("baseline", COSTS, {})
    one, same, other = (
        simulate(recording, COSTS, baseline, batch=4, arrivals_per_s=5.0, seed=seed)
        for seed in (1, 1, 2)
    )
    served = [[(s.arrived_s, s.ended_s, s.rounds) for s in o.served] for o in (one, same, other)]
    assert served[0] == served[1]
    assert served[0] != served[2]
    assert 170 / 5 < one.served[-1].arrived_s < 230 / 5


def test_a_budget_cuts_the_longest_proposals_first() -> None:
    """Two sequences of two and six drafted tokens; seven rows leave five: two and three."""
    lists = [(0, 2, *[0] * 8), (0, 6, *[0] * 8)]
    [pattern] = hand().traces
    traces = tuple(
        replace(
            pattern,
            prompt_tokens=1,
            output_tokens=10,
            most_tokens=10,
            sources={"lookup": SourceTrace((0,) * 10, (0,) * 10, offered, offered)},
        )
        for offered in lists
    )
    recording = replace(hand(), traces=traces)
    policy = policy_named("lookup:8", COSTS, {"lookup": True})
    found = simulate(recording, COSTS, policy, batch=2, row_budget=7)
    first, second = (one.rounds[1] for one in found.served)
    assert (first.width, first.max_draft_tokens) == (3, 8)
    assert (second.width, second.max_draft_tokens) == (4, 3)


# Hindsight.


def test_the_best_fixed_choice_is_the_fastest_of_all() -> None:
    drafts = {"lookup": LookupDraft()}
    recording = recorded(fixed(None, 0), drafts)
    best = best_fixed(recording, COSTS)
    assert best.keys() == {"even", "odd"}
    sources = recording.header.sources
    for spec in ("baseline", "lookup:1", "lookup:2", "lookup:5", "lookup:31"):
        for category, second in simulate(
            recording, COSTS, policy_named(spec, COSTS, sources)
        ).by_category.items():
            assert second >= best[category].decode_s
    for category, one in best.items():
        again = simulate(recording, COSTS, policy_named(one.policy, COSTS, sources))
        assert again.by_category[category] == one.decode_s
        assert regret(again, best)[category] == 0.0
    baseline = simulate(recording, COSTS, policy_named("baseline", COSTS, sources))
    assert max(regret(baseline, best).values()) > 0.05


def test_hindsight_tries_only_what_was_measured() -> None:
    [one] = best_fixed(hand(), TINY).values()
    assert (one.policy, one.decode_s) == ("lookup:1", pytest.approx(2 * 1.5 + 1 + 3 * 0.125))
    assert MOST >= 31  # the largest limit tried is recorded
