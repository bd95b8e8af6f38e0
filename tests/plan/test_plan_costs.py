"""From costs alone to a plan: what hangs on an assumption says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.errors import SettingError
from paceline.plan.break_even import make_plan
from paceline.plan.costs import decide_costs
from paceline.plan.document import PlanDocument, decode_plan
from paceline.policy.adaptive import Source
from paceline.policy.break_even import Prices, speed_up
from paceline.policy.costs import Costs, Point

METADATA = {
    "lookup": {"draft": "lookup"},
    "d": {"draft": "model", "model": "d", "path": "/m/d"},
    "dear": {"draft": "model", "model": "dear"},
}
TARGET = {"model": "t", "engine": "llamacpp"}


def flat(base: float, each: float) -> tuple[Point, ...]:
    return tuple(Point(w, 1, 0, base + each * (w - 1)) for w in range(1, 10))


DRAFTS = {
    "d": Costs(key={}, points=flat(0.1, 0.1)),
    "dear": Costs(key={}, points=flat(1.2, 0.1)),
}


def decided(
    *names: str, acceptances: tuple[float, ...] = (), each: float = 0.1, **changes: Any
) -> PlanDocument:
    """Of a target whose rows cost so much more each."""
    costs = Costs(
        **{
            "key": {**TARGET, "cpu": "A CPU"},
            "points": flat(1.0, each),
            "overhead_s": 0.2,
            "drafts": DRAFTS,
            **changes,
        }
    )
    free = {"lookup": Source("lookup", previewable=True, has_confidence=True)}
    sources = [free.get(name) or Source(name, costs=DRAFTS[name]) for name in names]
    plan = decide_costs(make_plan(costs, sources, acceptances), TARGET, METADATA, file="c.json")
    assert decode_plan(json.dumps(plan.as_json())) == plan
    return plan


def test_a_draft_at_an_acceptance_that_is_assumed() -> None:
    plan = decided("d", acceptances=(0.7,))
    expected, max_draft_tokens = plan.expected, plan.max_draft_tokens
    assert plan.draft is not None
    assert (plan.draft.kind, plan.draft.model) == ("model", "/m/d")
    assert max_draft_tokens
    assert expected.acceptance_at == pytest.approx(
        [0.7**at for at in range(1, max_draft_tokens + 1)]
    )
    tokens = 1 + sum(expected.acceptance_at)
    assert expected.tokens_per_round == expected.tokens_per_drafted_round == pytest.approx(tokens)
    assert expected.acceptance_rate == pytest.approx((tokens - 1) / max_draft_tokens)
    # Every drafted token takes a tenth of a pass in the draft and one in the target.
    seconds = 1 + 0.1 * max_draft_tokens + 0.1 * max_draft_tokens + 0.2
    assert expected.break_even_tokens == pytest.approx(seconds / 1.2)
    assert expected.gain is not None
    assert (expected.gain.low, expected.gain.high) == (None, None)
    priced = Prices(lambda w: 0.9 + 0.1 * w, draft_cost=0.1, overhead=0.2)
    best = max(speed_up(1 + sum(0.7**i for i in range(1, k + 1)), k, priced) for k in range(1, 8))
    assert expected.gain.value == pytest.approx(best, abs=1e-3)
    assert expected.gain.value == pytest.approx(tokens / expected.break_even_tokens, abs=1e-3)
    assert (plan.measured.source, plan.measured.file) == ("costs", "c.json")
    assert (plan.measured.prompts, plan.measured.when) == (0, "")
    assert plan.measured.machine["cpu"] == "A CPU"
    assert plan.notes[:2] == (
        "Predicted from costs alone, nothing was decoded.",
        "It rests on an acceptance of 0.7 at every position, which was assumed, not measured.",
    )


def test_of_a_lookup_only_rounds_that_offer_something_are_known() -> None:
    plan = decided("lookup", acceptances=(0.7,))
    assert plan.expected.gain is None
    assert plan.expected.tokens_per_round is None
    assert plan.expected.tokens_per_drafted_round is not None
    assert plan.mean_draft_tokens is None
    assert any("how many those are no costs tell" in said for said in plan.notes)


@pytest.mark.parametrize(
    ("names", "acceptances", "said"),
    [
        (("d",), (), "hangs on how often it is accepted, and none is given."),
        (("d",), (0.5, 0.7), "hangs on how often it is accepted, and 2 are given."),
        (
            ("d", "lookup"),
            (0.7,),
            "There are 2 drafts that could pay (d, lookup), each of which is",
        ),
        (("d", "dear"), (), "Whether d pays hangs on how often it is accepted"),
    ],
)
def test_what_would_have_to_be_guessed_is_refused(names, acceptances, said) -> None:
    with pytest.raises(SettingError) as raised:
        decided(*names, acceptances=acceptances)
    assert said in str(raised.value)


def test_what_can_never_pay_needs_no_acceptance() -> None:
    plan = decided("dear")
    assert (plan.draft, plan.max_draft_tokens) == (None, 0)
    assert "dear can't pay here: a drafted token costs 1.20 of a target pass" in plan.notes[1]
    assert decided("dear", "d", each=1.3).draft is None
    assert decided("dear", acceptances=(1.0,)).draft is None
    beside = decided("d", "dear", acceptances=(0.9,))
    assert beside.draft is not None
    assert beside.draft.name == "d"
    assert any(said.startswith("dear can't pay here") for said in beside.notes)


def test_less_than_5_percent_is_baseline_decoding() -> None:
    plan = decided("d", acceptances=(0.19,))
    assert plan.draft is None
    assert plan.expected.gain is None
    assert plan.notes[2].startswith(
        "Ordinary decoding, because less than 5 % is more than predictions can tell: the best to "
        "choose from is d, speedup 1.0"
    )


def test_where_a_model_lies_is_not_told_by_costs() -> None:
    metadata = METADATA["d"]
    METADATA["d"] = {"draft": "eagle3", "model": "EAGLE-3 for t"}
    try:
        plan = decided("d", acceptances=(0.9,))
    finally:
        METADATA["d"] = metadata
    assert plan.draft is not None
    assert (plan.draft.kind, plan.draft.model) == ("eagle3", None)
    assert "EAGLE-3 for t is its name only." in plan.notes[-1]


def test_interrupted_costs_are_said() -> None:
    said = "Measuring the costs was interrupted: wider forwards may be missing."
    assert said in decided("d", acceptances=(0.9,), complete=False).notes
