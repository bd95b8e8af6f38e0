"""Paying, breaking even, losing or unknown: with the arithmetic, and how often it is wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from made_up_windows import window

from paceline.monitor.counters import Counters
from paceline.monitor.spread import Interval, Sums, of_quotient, of_ratio, t
from paceline.monitor.verdict import (
    RoundCost,
    advice,
    exit_code,
    judge,
    speedup_by_limit,
    state_of,
)
from paceline.monitor.window import Window
from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
    Target,
)

EVEN_COST = 2.248
"""Of the made-up windows below: the cost at which drafts neither gain nor lose."""


def plan(needed: float | None = 1.8, **how: Any) -> PlanDocument:
    made = PlanDocument(
        target=Target(name="t", engine="vllm"),
        draft=PlannedDraft(kind="ngram", name="ngram"),
        max_draft_tokens=4,
        expected=Expected(acceptance_at=(0.6, 0.36, 0.22, 0.13), break_even_tokens=needed),
        measured=Measurement(source="bench"),
    )
    return msgspec.structs.replace(made, **how)


def crowded(one: Window, times: float) -> Window:
    """The same with so many sequences in each forward."""
    assert one.total.sequences is not None
    return replace(one, total=replace(one.total, sequences=times * one.total.sequences))


# By a baseline.


def test_a_gain_and_a_loss_are_told_with_their_arithmetic() -> None:
    baseline = window(1, drafts=False)
    found = judge(window(0, cost=1.4), baseline=[baseline], together=True)
    assert found.state == "paying"
    assert found.speedup is not None
    ratio = baseline.time.ratio / window(0, cost=1.4).time.ratio
    assert found.speedup.value == pytest.approx(ratio)
    assert f"= {ratio:.2f}" in found.why[0]
    assert found.speedup.low > 1
    lost = judge(window(2, cost=3.5), baseline=[baseline], together=True)
    assert (lost.state, lost.basis) == ("losing", "baseline")
    assert lost.change is not None
    assert "without --speculative-config" in lost.change


def test_what_a_drafted_round_takes_comes_out_of_the_times() -> None:
    found = judge(
        window(0, cost=1.6, spread=0, undrafted=0.5, seconds=300),
        baseline=[window(1, drafts=False, spread=0, seconds=300)],
    )
    assert "takes as long as 1.6" in found.why[1]


def test_an_even_stream_is_called_losing_in_at_most_five_windows_of_a_hundred() -> None:
    """And paying as seldom: 120 windows of a minute whose answers differ by a quarter."""
    for together in (True, False):
        states = Counter(
            judge(
                window(2 * seed, cost=EVEN_COST),
                baseline=[window(2 * seed + 1, drafts=False)],
                together=together,
            ).state
            for seed in range(120)
        )
        assert states["losing"] <= 6, states
        assert states["paying"] <= 6, states


def test_a_fifth_lost_or_gained_is_found_in_most_windows() -> None:
    for state, cost in (("losing", EVEN_COST * 1.25), ("paying", EVEN_COST / 1.25)):
        found = [
            judge(window(2 * seed, cost=cost), baseline=[window(2 * seed + 1, drafts=False)]).state
            for seed in range(30)
        ]
        assert found.count(state) >= 20
        assert set(found) <= {state, "unknown"}


def test_too_few_tokens_are_never_judged() -> None:
    short = window(0, seconds=2)
    tokens = short.total.timed_tokens
    found = judge(short, baseline=[window(1, drafts=False)])
    assert found.state == "unknown"
    assert found.why == (f"{tokens:,.0f} tokens in this window; at least 200 are needed.",)
    found = judge(window(0), baseline=[window(1, drafts=False, seconds=2)])
    assert "without drafts" in found.why[0]


def test_tokens_that_came_at_few_readings_are_never_judged() -> None:
    one = window(0)
    bunched = replace(one, parts=(one.total, *[Counters("vLLM", timed_s=0, timed_tokens=0)] * 11))
    found = judge(bunched, baseline=[window(1, drafts=False)])
    assert found.state == "unknown"
    assert "came at 1 of 12 scrapes" in found.why[0]


def test_another_load_is_no_comparison() -> None:
    baseline = window(1, drafts=False)
    found = judge(window(0), baseline=[crowded(baseline, 3)])
    assert found.state == "unknown"
    assert "1.0 at once here, and 3.0 without drafts" in found.why[0]
    assert judge(window(0), baseline=[crowded(baseline, 3), baseline]).state == "paying"


def test_a_server_and_its_control_that_give_as_many_tokens_have_the_same_traffic() -> None:
    """The slower one has more requests open at once: that is its fault, and no other load."""
    on, off = window(0, cost=1.2, seconds=60), window(1, drafts=False, seconds=60)
    busy = crowded(replace(off, total=replace(off.total, generated=on.tokens)), 3)
    assert judge(on, baseline=[busy], together=True).state == "paying"
    assert judge(on, baseline=[busy], together=False).state == "unknown"


def test_a_baseline_that_drafts_is_refused() -> None:
    found = judge(window(0), baseline=[window(1)])
    assert found.state == "unknown"
    assert "drafts too" in found.why[0]


def test_a_baseline_of_another_kind_of_server_is_refused() -> None:
    baseline = window(1, drafts=False)
    other = replace(baseline, total=replace(baseline.total, server="llama.cpp"))
    assert "is of llama.cpp, and this is vLLM" in judge(window(0), baseline=[other]).why[0]


def test_a_page_without_times_is_said_with_the_name_it_lacks() -> None:
    one = window(0)
    bare = replace(one, total=replace(one.total, timed_s=None))
    found = judge(bare, baseline=[window(1, drafts=False)])
    assert "vllm:inter_token_latency_seconds_sum" in found.why[0]


def idle_drafts(one: Window, value: float | None) -> Window:
    def without(c: Counters) -> Counters:
        return replace(c, drafts=value, drafted=value, accepted=value, accepted_by_position=())

    return replace(one, total=without(one.total), parts=tuple(map(without, one.parts)))


@pytest.mark.parametrize(
    ("value", "fact"), [(0.0, "No token was drafted"), (None, "The server counts no drafts")]
)
def test_a_server_that_drafts_nothing_is_not_breaking_even(value: float | None, fact: str) -> None:
    """As fast as its control server, for its drafts are off."""
    on, off = (window(seed, drafts=False, spread=0.05, seconds=300) for seed in (0, 1))
    found = judge(idle_drafts(on, value), baseline=[off])
    assert found.speedup is not None
    assert 0.9 < found.speedup.low < found.speedup.high < 1.1
    assert found.state == "unknown"
    assert f"{fact} in this window: check that drafts are on." in found.why


def test_what_is_lost_or_gained_without_a_count_of_drafts_is_told_with_a_note() -> None:
    off = window(1, drafts=False)
    for value, states in ((0.0, ("unknown", "losing")), (None, ("paying", "losing"))):
        for cost, state in zip((1.2, 4.0), states, strict=True):
            found = judge(idle_drafts(window(0, cost=cost), value), baseline=[off])
            assert found.state == state
            assert any("check that drafts are on" in t for t in (*found.why, *found.notes))


def test_an_idle_window_says_nothing_of_drafts_that_are_off() -> None:
    idle = replace(window(0).total, generated=0.0, timed_tokens=0.0, drafts=0.0, drafted=0.0)
    found = judge(replace(window(0), total=idle), baseline=[window(1, drafts=False)])
    assert not any("check that" in t for t in (*found.why, *found.notes))


def test_the_load_of_several_workers_is_of_one() -> None:
    """Four, with one sequence each: as SGLang counts, seconds of answers over those that passed."""
    total = Counters("SGLang", timed_s=240.0, generated=12_000.0)
    four = Window(0.0, 60.0, total, (), workers=4)
    assert four.load == 1
    assert replace(four, workers=1).load == 4
    gauge = Window(0.0, 60.0, Counters("SGLang"), (), running=8.0, waiting=None, workers=4)
    assert gauge.load == 2
    assert msgspec.convert(json.loads(json.dumps(four.as_json())), Window).workers == 4


# By a plan.


def test_tokens_a_drafted_round_are_held_against_those_that_break_even() -> None:
    found = judge(window(0), plan=plan(1.5))
    assert (found.state, found.basis) == ("paying", "plan")
    assert "the 1.50 that break even" in found.why[0]
    assert judge(window(0), plan=plan(3.5)).state == "losing"


def test_by_a_plan_an_even_stream_is_seldom_called_losing() -> None:
    long = window(7, seconds=4_000).total.tokens_per_drafted_round
    states = Counter(judge(window(seed), plan=plan(long)).state for seed in range(120))
    assert states["losing"] <= 6, states
    assert states["paying"] <= 6, states


def test_a_plan_says_nothing_of_a_gain_at_another_load() -> None:
    busy = crowded(window(0), 8)
    found = judge(busy, plan=plan(1.5))
    assert found.state == "unknown"
    assert "8.0 at once here" in found.why[1]
    assert judge(busy, plan=plan(3.5)).state == "losing"  # it can only cost more


def test_drafts_of_another_length_than_the_plans_are_said() -> None:
    told = judge(window(0), plan=plan(1.5, mean_draft_tokens=2.0)).notes
    assert any("4.0 tokens here and 2.0 in the plan" in one and "more" in one for one in told)
    assert not any("in the plan," in one for one in judge(window(0), plan=plan(1.5)).notes)


def test_a_gain_at_an_unknown_load_is_unknown() -> None:
    one = window(0)
    bare = replace(one, total=replace(one.total, sequences=None, timed_s=None))
    assert bare.load is None
    found = judge(bare, plan=plan(1.5))
    assert found.state == "unknown"
    assert "No load is counted" in found.why[1]
    assert judge(bare, plan=plan(3.5)).state == "losing"


def bunched(one: Window, drafts: float, accepted: float) -> Window:
    """All drafted rounds at one reading of twelve."""
    nothing = replace(one.parts[0], drafts=0.0, accepted=0.0)
    parts = (replace(one.parts[0], drafts=drafts, accepted=accepted), *[nothing] * 11)
    at = tuple(accepted / 4 for _ in range(4))
    total = replace(one.total, drafts=drafts, accepted=accepted, accepted_by_position=at)
    return replace(one, total=total, parts=parts)


def test_rounds_that_came_at_one_reading_are_never_judged_by_a_plan() -> None:
    one = bunched(window(0), 70.0, 230.0)
    found = judge(one, plan=plan(1.5))
    assert found.state == "unknown"
    assert "Drafted rounds came at 1 of 12 scrapes" in found.why[0]
    assert "an answer when it ends" not in found.why[0]
    assert not any("position" in note for note in found.notes)
    ended = replace(one, total=replace(one.total, server="llama.cpp"))
    told = judge(ended, plan=plan(1.5)).why[0]
    assert "llama.cpp counts an answer when it ends" in told


def test_nothing_accepted_at_all_is_judged_by_a_plan() -> None:
    none = window(0)
    parts = tuple(replace(part, accepted=0.0) for part in none.parts)
    total = replace(none.total, accepted=0.0, accepted_by_position=(0.0,) * 4)
    found = judge(replace(none, total=total, parts=parts), plan=plan(1.5))
    assert found.state == "losing"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"draft": None, "max_draft_tokens": 0}, "decode without drafts"),
        ({"expected": Expected()}, "doesn't say"),
    ],
)
def test_a_plan_that_says_too_little_judges_nothing(how: dict[str, Any], why: str) -> None:
    found = judge(window(0), plan=plan(**how))
    assert found.state == "unknown"
    assert why in found.why[0]


def test_few_drafted_rounds_are_never_judged() -> None:
    found = judge(window(0, seconds=1), plan=plan())
    assert found.state == "unknown"
    assert "at least 50 are needed" in found.why[0]


def test_acceptance_that_is_not_the_plans_is_named_by_position() -> None:
    low = judge(window(0, acceptance=0.3), plan=plan(1.2))
    assert any(note.startswith("At position 1") and "less" in note for note in low.notes)
    as_planned = [judge(window(seed), plan=plan(1.2)).notes for seed in range(30)]
    assert sum(any("position" in note for note in notes) for notes in as_planned) <= 2


def test_without_a_plan_or_a_baseline_nothing_is_claimed() -> None:
    found = judge(window(0))
    assert found.state == "unknown"
    assert "Acceptance alone" in found.why[0]


def test_sglang_is_judged_by_its_verified_rounds() -> None:
    one = window(0)

    def seen(c: Counters) -> Counters:
        return Counters("SGLang", steps=c.rounds, generated=c.timed_tokens)

    found = judge(
        replace(one, total=seen(one.total), parts=tuple(map(seen, one.parts)), running=1.0),
        plan=plan(1.5),
    )
    assert found.state == "paying"


# States, limits, statistics.


@pytest.mark.parametrize(
    ("value", "low", "high", "state"),
    [
        (1.3, 1.1, 1.5, "paying"),
        (0.8, 0.7, 0.9, "losing"),
        (1.01, 1.005, 1.015, "breaking even"),
        (0.99, 0.985, 0.995, "breaking even"),
        (1.0, 0.95, 1.05, "breaking even"),
        (1.0, 0.7, 1.4, "unknown"),
        (1.3, 0.9, 1.8, "unknown"),
    ],
)
def test_states(value: float, low: float, high: float, state: str) -> None:
    assert state_of(Interval(value, low, high)) == state


def test_exit_codes() -> None:
    assert exit_code(["paying"]) == exit_code(["breaking even"]) == 0
    assert exit_code(["losing"]) == exit_code(["paying", "losing", "unknown"]) == 3
    assert exit_code(["losing", "paying"]) == 0
    assert exit_code(["unknown"]) == exit_code([]) == 1


def test_a_lower_limit_is_named_where_it_would_have_paid() -> None:
    """Position 1 is good, the others never: a limit of 1 gives all of it for a quarter."""
    one = window(0)
    total = replace(
        one.total,
        drafts=100.0,
        drafted=400.0,
        accepted=70.0,
        rounds=100.0,
        accepted_by_position=(70.0, 0.0, 0.0, 0.0),
    )
    some = replace(one, total=total)
    gains = speedup_by_limit(some, RoundCost(2.0, 4.0))
    assert gains == pytest.approx({0: 1.0, 1: 1.7 / 1.25, 2: 1.7 / 1.5, 3: 1.7 / 1.75, 4: 0.85})
    told = advice(some, "losing", RoundCost(2.0, 4.0))
    assert told is not None
    assert '"num_speculative_tokens": 1' in told
    assert "limit of 1 would have given a speedup of 1.36" in told


def test_rounds_without_a_draft_weigh_in() -> None:
    one = window(0)
    total = replace(
        one.total,
        drafts=50.0,
        drafted=200.0,
        rounds=100.0,
        accepted_by_position=(50.0, 50.0, 50.0, 50.0),
    )
    gains = speedup_by_limit(replace(one, total=total), RoundCost(3.0, 4.0))
    assert gains[4] == pytest.approx((1 + 5) / (1 + 3))


@pytest.mark.parametrize(
    ("server", "off"),
    [
        ("vLLM", "--speculative-config"),
        ("SGLang", "--speculative-algorithm"),
        ("TensorRT-LLM", "speculative_config"),
        ("llama.cpp", "--spec-type none"),
    ],
)
def test_every_engine_is_told_in_its_own_words(server: str, off: str) -> None:
    one = window(0, acceptance=0.05)
    there = replace(one, total=replace(one.total, server=server))
    assert off in str(advice(there, "losing", RoundCost(2.0, 4.0)))


def test_no_limit_is_named_where_positions_are_not_counted() -> None:
    one = window(0)
    there = replace(one, total=replace(one.total, accepted_by_position=()))
    told = str(advice(there, "losing", RoundCost(4.0, 4.0)))
    assert told.startswith("Start it without --speculative-config, or try a lower limit")
    assert advice(there, "paying", RoundCost(1.1, 4.0)) is None


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """1,000 ratios of independent parts; 95 % intervals."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(1000):
        bottoms = rng.uniform(50, 150, 12)
        tops = 2.0 * bottoms * rng.normal(1, 0.1, 12)
        found = of_ratio(Sums(tuple(tops), tuple(bottoms)))
        held += found.low <= 2.0 <= found.high
    assert 930 <= held <= 1000


def test_what_disturbs_a_server_and_its_control_alike_is_taken_out() -> None:
    shared = np.random.default_rng(1).uniform(0.5, 2, 12)
    ones = (100.0,) * 12
    over, under = Sums(tuple(3 * shared), ones), Sums(tuple(2 * shared), ones)
    pairs = of_quotient(over, under, together=True)
    alone = of_quotient(over, under, together=False)
    assert pairs.high - pairs.low < 1e-6
    assert alone.high - alone.low > 0.3


def test_parts_that_hold_the_same_answers_widen_the_interval() -> None:
    """Each value stands in four parts in a row: as if there were a quarter as many."""
    values = np.random.default_rng(2).normal(1, 0.2, 10)
    repeated = tuple(np.repeat(values, 4))
    wide = of_ratio(Sums(repeated, (1.0,) * 40))
    narrow = of_ratio(Sums(tuple(np.random.default_rng(3).permutation(repeated)), (1.0,) * 40))
    assert wide.high - wide.low > 1.4 * (narrow.high - narrow.low)


def test_students_t() -> None:
    assert t(1) == 12.71
    assert t(11) == 2.201
    assert t(30) == pytest.approx(2.042, abs=0.004)
    assert t(1000) == pytest.approx(1.962, abs=0.001)


def test_a_window_survives_json() -> None:
    one = window(0, drafts=False)
    again = msgspec.convert(json.loads(json.dumps(one.as_json())), Window)
    assert again.total == one.total
    assert again.time == one.time
    assert isinstance(again, Window)


def test_a_plan_that_gains_in_small_batches_names_the_setting_by_load() -> None:
    expected = Expected(break_even_tokens=3.5, gain=Gain(value=1.2))
    told = judge(crowded(window(0), 8), plan=plan(expected=expected)).change
    assert told is not None
    assert "num_speculative_tokens_per_batch_size" in told


def test_the_interval_is_students_of_the_parts_errors() -> None:
    """By hand: errors of five parts 0, ±0.01 and ±0.02, of which n/(n − 1) times the squares' sum
    is 5/4 · 0.001; t of four degrees of freedom is 2.776."""
    tops = tuple(0.2 + e for e in (0.0, 0.01, -0.01, 0.02, -0.02))
    found = of_ratio(Sums(tops, (0.1,) * 5))
    assert found.value == pytest.approx(2)
    assert found.high == pytest.approx(2 * np.exp(2.776 * np.sqrt(0.00125)))
    assert found.low == pytest.approx(2 * np.exp(-2.776 * np.sqrt(0.00125)))
