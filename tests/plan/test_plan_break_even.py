"""Plans against arithmetic by hand."""

from __future__ import annotations

import pytest

from paceline.errors import DataError, SettingError
from paceline.plan.break_even import as_document, lines, make_plan, sentence, target_words
from paceline.policy.adaptive import Source
from paceline.policy.costs import Costs, Point


def costs(*seconds: float, overhead_s: float = 0.0, drafts: dict | None = None, **key) -> Costs:
    """Costs of widths 1, 2, 3, …"""
    points = tuple(Point(width, 1, 0, s) for width, s in enumerate(seconds, start=1))
    return Costs(key=key, points=points, overhead_s=overhead_s, drafts=drafts or {})


def model(draft_s: float, **key) -> Source:
    return Source("small", costs=costs(draft_s, **key))


TARGET = costs(0.1, 0.14, 0.16, 0.135)  # r: 1, 1.4, 1.6, 1.35: four rows cost less than three


def test_the_best_limit_is_found_behind_a_step() -> None:
    (draft,) = make_plan(TARGET, [model(0.01)], [0.5]).drafts
    # c = 0.1. Limit 1: 1.5 / 1.5 = 1; limit 2: 1.75 / 1.8 < 1; limit 3: 1.875 / 1.65.
    assert (draft.best[0.5].max_draft_tokens, draft.best[0.5].speedup) == (
        3,
        round(1.875 / 1.65, 3),
    )
    assert draft.speedup(0.5) == pytest.approx([1, 1, 1.75 / 1.8, 1.875 / 1.65])
    assert draft.break_even[1] == pytest.approx(0.5, abs=1e-5)  # r(2) + c − 1
    # 1 + α + α² = 1.8 has its root at (√4.2 − 1) / 2.
    assert draft.break_even[2] == pytest.approx((4.2**0.5 - 1) / 2, abs=1e-5)
    assert list(draft.break_even) == [1, 2, 3]
    assert draft.least is not None
    assert draft.least[0] == 3


def test_overhead_counts_in_baseline_rounds_too() -> None:
    (draft,) = make_plan(costs(0.1, 0.12, overhead_s=0.1), [model(0.02)], [0.5]).drafts
    # Plain 0.2 s a token; limit 1: 1.5 tokens in 0.12 + 0.02 + 0.1 = 0.24 s.
    assert draft.best[0.5].speedup == pytest.approx(1.25)


def test_a_draft_that_always_loses_is_told_with_its_figures() -> None:
    plan = make_plan(TARGET, [Source("lookup", True, True), model(0.1, model="Small-0.5B")])
    lookup, small = plan.drafts
    assert small.least is None
    assert set(small.break_even.values()) == {None}
    assert {best.max_draft_tokens for best in small.best.values()} == {0}
    said = sentence(plan)
    assert said.startswith("Draft with lookup, 3 tokens on ")
    assert said.endswith(
        "; small (Small-0.5B) can't pay here: a drafted token costs 1.00 of a target pass and two "
        "rows cost 1.40, break-even acceptance is above 1."
    )
    assert lookup.least is not None


def test_what_pays_is_said_first() -> None:
    assert sentence(make_plan(TARGET, [model(0.1), Source("lookup", True, True)])).startswith(
        "Draft"
    )


def test_decode_plainly_where_width_costs_as_much_as_rounds() -> None:
    plan = make_plan(costs(0.1, 0.2, 0.3), [Source("lookup", True, True)])
    assert sentence(plan).startswith("Decode without drafts; lookup ")
    assert all((best.max_draft_tokens, best.speedup) == (0, 1.0) for best in plan.drafts[0].matches)


def test_long_matches_bear_longer_drafts_than_short_ones() -> None:
    # A step at width 3: after a short match one token pays, after a long one all five do.
    plan = make_plan(costs(0.1, 0.12, 0.25, 0.26, 0.27, 0.28), [Source("lookup", True, True)])
    limits = {best.case: best.max_draft_tokens for best in plan.drafts[0].matches}
    assert (limits["short"], limits["long"]) == (1, 5)
    assert "1 token on short and medium matches, 5 tokens on long matches" in sentence(plan)


def test_given_acceptances_decide() -> None:
    sources = [Source("lookup", True, True), model(0.01)]
    low = make_plan(TARGET, sources, [0.1])
    assert sentence(low).startswith("Decode without drafts; lookup doesn't pay at acceptance 0.1: ")
    high = make_plan(TARGET, sources, [0.9, 0.1])
    # Free: 3.439 tokens in 1.35 passes; with the model: in 1.65.
    assert "3 tokens at acceptance 0.9 (speedup 2.55), none at 0.1" in sentence(high)
    assert "3 tokens at acceptance 0.9 (speedup 2.08), none at 0.1" in sentence(high)


def test_lines_and_document_tell_the_same() -> None:
    plan = make_plan(TARGET, [Source("lookup", True, True), model(0.01)])
    text = "\n".join(lines(plan))
    assert "100.00 ms a forward of one row" in text
    assert "r(w)       1.00  1.40  1.60  1.35" in text
    assert "small: a drafted token costs 0.10 of a target pass" in text
    document = as_document(plan)
    assert document["r"][4] == pytest.approx(1.35)
    assert document["decision"] == sentence(plan)
    assert [d["draft_cost"] for d in document["drafts"]] == pytest.approx([0.0, 0.1])
    assert document["drafts"][1]["least"]["max_draft_tokens"] == 3


def test_words_for_a_target() -> None:
    assert target_words(costs(1, model="M", engine="toy", device="cpu", cpu="X")) == (
        "M with toy on X"
    )
    assert target_words(costs(1, model="M", device="cuda:0", cpu="X")) == "M on cuda:0"
    assert target_words(costs(1)) == "a model"


def test_a_name_that_is_the_model_is_not_said_twice() -> None:
    draft = Source("small.gguf", costs=costs(0.01, model="small.gguf"))
    assert make_plan(TARGET, [draft]).drafts[0].title == "small.gguf"


@pytest.mark.parametrize("acceptance", [-0.1, 1.01, float("nan")])
def test_an_acceptance_outside_0_to_1_is_refused(acceptance: float) -> None:
    with pytest.raises(SettingError, match="from 0 to 1"):
        make_plan(TARGET, [Source("lookup", True, True)], [acceptance])


def test_nothing_to_plan_is_refused() -> None:
    with pytest.raises(SettingError, match="no draft"):
        make_plan(TARGET, [])
    with pytest.raises(DataError, match="one row only"):
        make_plan(costs(0.1), [Source("lookup", True, True)])
