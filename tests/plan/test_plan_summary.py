"""A plan as a card of 80 columns."""

from __future__ import annotations

from msgspec.structs import replace

from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
    Step,
    Target,
)
from paceline.plan.summary import plan_summary

PLAN = PlanDocument(
    target=Target(name="a-target-with-a-long-name.gguf", engine="llamacpp", path=f"/m{'/x' * 60}"),
    draft=PlannedDraft(kind="model", name="d", model="/m/d.gguf", settings={"calibrate": True}),
    max_draft_tokens=1,
    schedule=(
        Step(from_batch=1, to_batch=1, max_draft_tokens=1),
        Step(from_batch=2, to_batch=4, max_draft_tokens=1),
        Step(from_batch=5, to_batch=None, max_draft_tokens=0),
    ),
    expected=Expected(
        acceptance_at=tuple(0.9**at for at in range(20)),
        tokens_per_round=1.9,
        tokens_per_drafted_round=2.1,
        acceptance_rate=0.9,
        break_even_tokens=1.4,
        gain=Gain(value=1.5, low=1.2, high=1.8),
        gain_by_category={"code": Gain(value=1.6), "chat": Gain(value=0.9)},
    ),
    measured=Measurement(
        source="endpoint",
        file="run.jsonl",
        when="2026-03-01T12:00:00+00:00",
        machine={"server": "vLLM", "version": "0.32.0", "cpu": "A CPU", "cores": 2},
        sampling={"temperature": 0.8},
        prompts=12,
        tokens=600,
    ),
    notes=(
        "A sentence that is so long that it can't stand on one line of eighty columns, as many.",
    ),
)


def test_what_to_run_comes_first_and_nothing_is_left_out() -> None:
    assert plan_summary(replace(PLAN, target=replace(PLAN.target, path=None))).splitlines() == [
        "Run a-target-with-a-long-name.gguf with the draft d, at most 1 token a round.",
        "",
        "target    a-target-with-a-long-name.gguf on llamacpp",
        "draft     model, model /m/d.gguf, calibrate True",
        "batch     1: at most 1 token",
        "          2 to 4: at most 1 token",
        "          5 and more: no draft",
        "expected  speedup 1.50 (95 % interval 1.20 to 1.80), measured",
        "          1.90 tokens per round; 2.10 per drafted round; drafting pays from",
        "            1.40 tokens per drafted round",
        "          90% of drafted tokens accepted",
        "          accepted at position 1, 2 …, of all drafted rounds: 100% 90% 81% 73%",
        "            66% 59% 53% 48% 43% 39% 35% 31% 28% 25% 23% 21% …",
        "          by category: chat 0.90, code 1.60",
        "evidence  endpoint, run.jsonl, 2026-03-01T12:00:00+00:00",
        "          12 prompts, 600 tokens, temperature 0.8, batch 1",
        "          vLLM, 0.32.0, A CPU, 2 cores",
        "",
        "- A sentence that is so long that it can't stand on one line of eighty columns,",
        "  as many.",
    ]


def test_only_what_has_no_space_goes_past_80_columns() -> None:
    long = [line for line in plan_summary(PLAN).splitlines() if len(line) > 80]
    assert [line.strip() for line in long] == [PLAN.target.path]


def test_without_a_draft_and_where_the_policy_chose() -> None:
    baseline = replace(
        PLAN, draft=None, max_draft_tokens=0, schedule=(), expected=Expected(), notes=()
    )
    assert plan_summary(baseline).startswith(
        "Run a-target-with-a-long-name.gguf without a draft.\n"
    )
    assert "expected" not in plan_summary(baseline)
    auto = " ".join(
        plan_summary(replace(PLAN, max_draft_tokens=None, mean_draft_tokens=2.34)).split()
    )
    assert "as many tokens a round as Paceline's policy chooses (2.3 on average)." in auto


def test_predicted_is_not_called_measured_and_lossy_is_marked() -> None:
    predicted = replace(PLAN, measured=replace(PLAN.measured, source="replay", exact=False))
    card = plan_summary(predicted)
    assert "1.80), predicted" in card
    assert "LOSSY: the output distribution was not the target's" in card


def test_parts_of_a_draft_are_named() -> None:
    part = {"kind": "lookup", "name": "lookup", "model": None, "settings": {}}
    draft = PlannedDraft(kind="several", name="lookup + d", settings={"drafts": [part]})
    assert "draft     several, lookup (lookup)" in plan_summary(replace(PLAN, draft=draft))
