"""From a replay's document to a plan: predictions by batch size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.bench.local.model_metadata import draft_metadata, target_metadata
from paceline.bench.prompts.workload import Workload
from paceline.drafts.create import create_draft
from paceline.engines.load import load
from paceline.errors import DataError, SettingError
from paceline.plan.document import PlanDocument, Step, decode_plan
from paceline.plan.replay import decide_replay
from paceline.policy.costs import Costs, Point
from paceline.simulate.fixed_limits import Answers
from paceline.simulate.record import sources_of
from paceline.simulate.replay import Log, LoggedAnswer, counts_of, replay
from paceline.simulate.result import AUTO, ReplayDocument, ReplayedDraft, decode_replay, predict
from paceline.simulate.simulate import policy_named, seconds_of, simulate
from paceline.simulate.trace import Recording, RecordingHeader

LOOKUP = {"draft": "lookup", "min_match": None, "reach": None, "shared_store": False}
MODEL = {"draft": "model", "model": "d", "path": "/m/d", "vocabulary_size": 9}


def outcome(rounds: int, drafted: int, accepted: tuple[int, ...], offered: tuple[int, ...]) -> Any:
    """Of rounds that offered more than i tokens `offered[i]`, `accepted[i]` accepted so many."""
    return {
        "tokens": rounds + sum(accepted),
        "rounds": rounds,
        "drafted_rounds": drafted,
        "proposed": sum(offered),
        "accepted": sum(accepted),
        "acceptance": [a / o for a, o in zip(accepted, offered, strict=True)],
        "offered": list(offered),
        "tokens_per_round": (rounds + sum(accepted)) / rounds,
        "acceptance_rate": sum(accepted) / sum(offered),
    }


def limits(*numbers: int) -> dict[str, Any]:
    return {str(n): {"all": outcome(10, 8, (6, 2), (8, 4)), "categories": {}} for n in numbers}


def price(value: float | None, spread: float = 0.05) -> dict[str, Any]:
    if value is None:
        return {"speedup": None, "missing": "Fewer answers than a batch of 64."}
    ratio = {"value": value, "low": value - spread, "high": value + spread}
    return {"speedup": ratio, "missing": None}


def document(
    predicted: dict[int, dict[str, float | None]], spread: float = 0.05, **changes: Any
) -> dict[str, Any]:
    """By batch size and policy, the predicted gain; of category "song" a tenth less."""
    return {
        "kind": "paceline replay",
        "version": 2,
        "complete": True,
        "target": {"engine": "llamacpp", "model": "t", "path": "/m/t", "tokenizer_only": True},
        "workload": {"name": "log.jsonl", "prompts": 9, "skipped": ["Line 2 is not JSON."]},
        "temperature": 0.0,
        "answers": {
            "replayed": 9,
            "tokens": 400,
            "unanswered": 0,
            "cut": 0,
            "respelled": [],
            "failed": [],
        },
        "drafts": {
            "lookup": {"metadata": LOOKUP, "limits": limits(1, 3, 7)},
            "d": {"metadata": MODEL, "limits": limits(1, 3, 7)},
        },
        "costs": "costs.json",
        "predicted": {
            str(batch): {
                "policies": {
                    name: {
                        "all": price(value, spread),
                        "categories": {
                            "tale": price(value, spread),
                            "song": price(value and 0.9 * value, spread),
                        },
                    }
                    for name, value in policies.items()
                },
                "best": {"all": None, "categories": {}},
            }
            for batch, policies in predicted.items()
        },
        "notes": ["The costs are of t."],
        **changes,
    }


def decided(found: Any, **how: Any) -> PlanDocument:
    return decide_replay(decode_replay(json.dumps(found), "replay.json"), **how)


def checked(plan: PlanDocument) -> PlanDocument:
    assert decode_plan(json.dumps(plan.as_json())) == plan
    return plan


def test_the_best_fixed_limit_with_what_its_rounds_came_to() -> None:
    gains = {"measured": 1.3, "lookup:3": 1.4, "d:3": 1.2, "lookup:7": 1.1}
    plan = checked(decided(document({1: gains}), file="replay.json"))
    assert plan.draft is not None
    assert (plan.draft.kind, plan.draft.name, plan.max_draft_tokens) == ("lookup", "lookup", 3)
    expected = plan.expected
    assert expected.acceptance_at == pytest.approx((6 / 8, 2 / 8))  # acceptance would be 3/4, 1/2
    assert expected.tokens_per_round == 1.8
    assert expected.tokens_per_drafted_round == 2.0
    assert expected.acceptance_rate == 8 / 12
    assert expected.gain is not None
    assert expected.gain.value == 1.4
    assert expected.gain_by_category["song"].value == pytest.approx(1.26)
    # Ten rounds last 18 / 1.4 plain ones, and two of them are plain.
    assert expected.break_even_tokens == pytest.approx((18 / 1.4 - 2) / 8)
    assert plan.mean_draft_tokens == 12 / 8
    assert plan.schedule == ()
    assert (plan.measured.prompts, plan.measured.tokens) == (9, 391)  # less the prompts' own
    assert plan.measured.machine == {"costs": "costs.json"}
    assert (plan.measured.source, plan.measured.configuration) == ("replay", "lookup:3")
    assert plan.notes[0] == "Times are predicted from costs, none was measured."
    assert any(said.startswith("Worst in song: speedup 1.26") for said in plan.notes)
    assert "The costs are of t." in plan.notes
    assert not any("own policy" in said for said in plan.notes)


def test_the_schedule_has_the_best_limit_of_that_draft_at_every_batch() -> None:
    plan = checked(
        decided(
            document(
                {
                    16: {"lookup:1": 0.9, "lookup:3": 0.8, "d:1": 1.5},
                    1: {"lookup:1": 1.2, "lookup:3": 1.4, "lookup:7": 1.3},
                    8: {"lookup:1": 1.3, "lookup:3": 1.1, "lookup:7": 1.6},
                    4: {"lookup:1": 1.1, "lookup:3": 1.2, "lookup:7": 1.1},
                }
            )
        )
    )
    assert plan.schedule == (
        Step(from_batch=1, to_batch=4, max_draft_tokens=3),
        Step(from_batch=5, to_batch=8, max_draft_tokens=1),  # never above the limit of the plan
        Step(from_batch=9, to_batch=None, max_draft_tokens=0),
    )
    assert (plan.max_draft_tokens, plan.measured.batch) == (3, 1)


def test_where_it_pays_from_some_batch_on_the_figures_are_of_that_one() -> None:
    predicted = {1: {"lookup:3": 0.9}, 4: {"lookup:3": 1.2}}
    plan = checked(decided(document(predicted)))
    assert plan.measured.batch == 4
    assert plan.schedule == (
        Step(from_batch=1, to_batch=1, max_draft_tokens=0),
        Step(from_batch=2, to_batch=4, max_draft_tokens=3),
    )


@pytest.mark.parametrize(
    ("value", "spread", "why"),
    [
        (
            0.8,
            0.05,
            "because no draft pays: the best to choose from is lookup:3 at ",
        ),
        (1.2, 0.25, "because the interval reaches 1, which is no evidence: "),
        (
            1.04,
            0.01,
            "because less than 5 % is more than predictions can tell: ",
        ),
    ],
)
def test_what_does_not_clearly_pay_is_baseline_decoding(value, spread, why) -> None:
    plan = checked(decided(document({1: {"lookup:3": value}}, spread)))
    assert (plan.draft, plan.max_draft_tokens, plan.schedule) == (None, 0, ())
    assert plan.expected.gain is None
    assert plan.notes[1].startswith(f"Ordinary decoding, {why}")


def test_a_better_one_in_doubt_hides_none_that_pays() -> None:
    """At either batch the largest limit has the largest gain, and an interval that reaches 1."""
    gains = {"lookup:1": 1.2, "lookup:3": 1.3, "lookup:7": 1.5}
    found = document({1: gains, 4: {**gains, "lookup:3": 1.25, "lookup:7": 1.1}})
    for batch, name in (("1", "lookup:7"), ("4", "lookup:3")):
        price = found["predicted"][batch]["policies"][name]["all"]
        price["speedup"] |= {"low": 0.95, "high": 2.4}
    plan = checked(decided(found))
    assert plan.measured.configuration == "lookup:3"
    assert plan.notes[1] == (
        "Not chosen: lookup:7, speedup 1.50 (95 % interval 0.95 to 2.40): its interval reaches 1."
    )
    assert plan.schedule == (
        Step(from_batch=1, to_batch=1, max_draft_tokens=3),
        Step(from_batch=2, to_batch=4, max_draft_tokens=1),
    )
    named = checked(decided(found, configuration="lookup:1"))
    assert not any(said.startswith("Not chosen") for said in named.notes)


@pytest.mark.parametrize("value", [10**400, float("inf")])
def test_a_gain_that_is_no_finite_number_is_refused(value: float) -> None:
    found = document({1: {"lookup:3": 1.4}})
    found["predicted"]["1"]["policies"]["lookup:3"]["all"]["speedup"]["high"] = value
    with pytest.raises(DataError, match="replay.json (can't be read|is not JSON)"):
        decided(found, file="replay.json")


def test_one_answer_is_no_evidence() -> None:
    one = document({1: {"lookup:3": 1.5}})
    for each in one["predicted"]["1"]["policies"]["lookup:3"].values():
        if "speedup" in each:
            each["speedup"] |= {"low": None, "high": None}
    plan = checked(decided(one))
    assert plan.draft is None
    assert plan.notes[1].startswith("Ordinary decoding, because one answer is no evidence")


def test_a_plug_in_s_draft_hides_none_that_a_plan_can_name() -> None:
    gains = {1: {"measured": 1.2, "lookup:3": 1.3, "d:3": 1.7}}
    found = document(gains)
    found["drafts"]["d"]["metadata"] = {"draft": "oracle"}
    plan = checked(decided(found))
    assert plan.draft is not None
    assert plan.draft.name == "lookup"
    assert "no engine but Paceline knows the draft 'oracle'." in " ".join(plan.notes)
    with pytest.raises(SettingError, match="oracle"):
        decided(found, configuration="d:3")


def test_our_policy_is_named_where_it_is_better_and_taken_where_it_is_asked_for() -> None:
    found = document({1: {"measured": 1.6, "lookup:3": 1.4}})
    plan = checked(decided(found))
    assert plan.measured.configuration == "lookup:3"
    assert (
        "Paceline's own policy, with all drafts of the replay, has a speedup of 1.60; "
        "name it with --configuration measured."
    ) in plan.notes
    named = checked(decided(found, configuration="measured"))
    assert named.draft is not None
    assert (named.draft.kind, named.max_draft_tokens, named.mean_draft_tokens) == (
        "several",
        None,
        None,
    )
    assert named.expected.gain is not None
    assert named.expected.gain.value == 1.6
    assert named.expected.tokens_per_round is None  # not counted, so not told


def test_a_named_one_keeps_its_limit_and_is_said_not_to_pay() -> None:
    found = document({1: {"lookup:1": 1.3, "lookup:3": 0.9}, 4: {"lookup:1": 1.2, "lookup:3": 0.8}})
    plan = checked(decided(found, configuration="lookup:3"))
    assert (plan.max_draft_tokens, plan.schedule) == (3, ())
    assert plan.notes[1].startswith(
        "lookup:3 was asked for, though it isn't known to pay: speedup 0.90"
    )
    with pytest.raises(SettingError, match="Did you mean 'lookup:3'"):
        decided(found, configuration="lookup:4")


def test_a_batch_without_figures_is_left_out_and_named() -> None:
    predicted = {1: {"lookup:3": 1.4}, 4: {"lookup:3": 1.2}, 64: {"lookup:3": None}}
    plan = checked(decided(document(predicted)))
    assert plan.schedule == (Step(from_batch=1, to_batch=4, max_draft_tokens=3),)
    assert "Not priced, so not in the schedule: batches of 64." in plan.notes
    with pytest.raises(DataError, match="has no figure of any draft"):
        decided(document({64: {"lookup:3": None}}))


def test_what_was_left_out_or_interrupted_is_said() -> None:
    answers = document({1: {}})["answers"] | {"unanswered": 3, "failed": ["x: too long."]}
    plan = checked(decided(document({1: {"lookup:3": 1.4}}, answers=answers, complete=False)))
    assert plan.measured.workload["skipped"] == 1
    for said in (
        "9 answers are few: intervals of fewer than 10 are too narrow.",
        "The replay was interrupted: these are the answers replayed so far.",
        "Prompts without an answer, left out: 3.",
        "Answers that couldn't be replayed: 1.",
        "Lines of the workload that were skipped: 1.",
    ):
        assert said in plan.notes


def test_a_model_s_place_goes_along() -> None:
    plan = checked(decided(document({1: {"d:3": 1.4, "lookup:3": 1.2}})))
    assert plan.draft is not None
    assert (plan.draft.kind, plan.draft.model, plan.draft.vocabulary_size) == ("model", "/m/d", 9)
    assert plan.target.path == "/m/t"


def test_without_costs_nothing_is_known_of_speed() -> None:
    with pytest.raises(DataError, match="predicts no times, and acceptance alone says nothing"):
        decided(document({}))


@pytest.mark.parametrize("lost", ["drafts", "answers", "target", "complete", "notes"])
def test_a_document_without_a_field_is_refused_by_its_name(lost: str) -> None:
    found = document({1: {"lookup:3": 1.4}})
    del found[lost]
    with pytest.raises(DataError, match=f"can't be read: Object missing required field `{lost}`"):
        decided(found, file="replay.json")


def test_a_document_of_another_form_is_refused() -> None:
    for changes in ({"predicted": {"x": {}}}, {"drafts": []}, {"predicted": {"1": 5}}):
        with pytest.raises(DataError, match="can't be read"):
            decided(document({1: {"lookup:3": 1.4}}) | changes)


def test_a_real_replay_s_break_even_is_the_seconds_of_its_drafted_rounds() -> None:
    """The document tells gains and counts; what a drafted round takes is worked out of them. The
    simulator knows it."""
    points = tuple(Point(w, 1, 0, 1 + 0.12 * (w - 1)) for w in range(1, 34))
    costs = Costs(key={}, points=points, overhead_s=0.1)
    target = load("toy:1")
    drafts = {"lookup": create_draft("lookup", target)}
    answers = tuple(
        LoggedAnswer(str(i), "all", (0, 1, 2), tuple([1, 2, 3, i % 4] * 6 + [i % 5] * 5), 60)
        for i in range(8)
    )
    log = Log(answers)
    traces = tuple(replay(log, drafts, target))
    header = RecordingHeader(
        target=target.metadata(),
        temperature=0.0,
        sources=sources_of(drafts),
        has_confidence=("lookup",),
    )
    recording = Recording(header, traces)
    limits = {4: Answers(traces, "lookup").outcomes(4)}
    result = ReplayDocument(
        complete=True,
        target=target_metadata(target),
        workload=Workload("w", ()).metadata(),
        temperature=0.0,
        answers=counts_of(log, 8),
        drafts={"lookup": ReplayedDraft(draft_metadata(drafts["lookup"]), limits)},
        costs="costs.json",
        predicted={1: predict(recording, costs, [AUTO, "lookup:4"], 1)},
        notes=[],
    )
    plan = decided(result.as_json(), configuration="lookup:4")

    policy = policy_named("lookup:4", costs, recording.known_sources, header.has_confidence)
    served = simulate(recording, costs, policy).served
    rounds = [round for one in served for round in one.rounds if not round.prefill]
    drafted = [round for round in rounds if round.width > 1]
    assert 0 < len(drafted) < len(rounds)
    assert plan.expected.tokens_per_drafted_round == pytest.approx(
        1 + sum(round.accepted for round in drafted) / len(drafted)
    )
    assert plan.expected.break_even_tokens == pytest.approx(
        seconds_of(drafted) / len(drafted) / 1.1, rel=1e-6
    )
    assert plan.expected.acceptance_at[1] == pytest.approx(
        sum(round.accepted > 1 for round in drafted) / len(drafted)
    )
