"""A plan's file: what is written is read, and whatever else is named and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from paceline.errors import DataError
from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
    Step,
    Target,
    calls_itself_plan,
    decode_plan,
    read_plan,
)

PLAN = PlanDocument(
    target=Target(name="t.gguf", engine="llamacpp", path="/m/t.gguf", vocabulary_size=100),
    draft=PlannedDraft(
        kind="model",
        name="d.gguf",
        model="/m/d.gguf",
        settings={"calibrate": True},
        vocabulary_size=100,
        vocabulary_hash="ab",
    ),
    max_draft_tokens=7,
    mean_draft_tokens=6.5,
    schedule=(
        Step(from_batch=1, to_batch=4, max_draft_tokens=7),
        Step(from_batch=5, to_batch=16, max_draft_tokens=3),
        Step(from_batch=17, to_batch=None, max_draft_tokens=0),
    ),
    expected=Expected(
        acceptance_at=(0.8, 0.5),
        tokens_per_round=2.1,
        tokens_per_drafted_round=2.3,
        acceptance_rate=0.65,
        break_even_tokens=1.4,
        gain=Gain(value=1.5, low=1.2, high=1.8),
        gain_by_category={"code": Gain(value=1.6, low=1.3, high=1.9), "chat": Gain(value=0.9)},
    ),
    measured=Measurement(
        source="bench",
        file="run.jsonl",
        when="2026-03-01T12:00:00+00:00",
        machine={"cpu": "A CPU", "cores": 2},
        workload={"prompts": 12},
        sampling={"temperature": 0.0},
        prompts=12,
        tokens=600,
        configuration="d.gguf -n 7",
        verifier="chain",
    ),
    notes=("Worst in chat.", "“Quoted”."),
)
BASELINE = replace(
    PLAN,
    draft=None,
    max_draft_tokens=0,
    mean_draft_tokens=None,
    schedule=(),
    expected=Expected(),
    notes=(),
)


def document(plan: PlanDocument = PLAN) -> dict[str, Any]:
    return json.loads(json.dumps(plan.as_json()))


def changed(path: str, value: Any) -> dict[str, Any]:
    found = document()
    *way, last = path.split(".")
    inner: Any = found
    for key in way:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[int(last) if isinstance(inner, list) else last] = value
    return found


@pytest.mark.parametrize("plan", [PLAN, BASELINE, replace(PLAN, max_draft_tokens=None)])
def test_what_is_written_is_read(tmp_path: Path, plan: PlanDocument) -> None:
    plan.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


def test_fields_with_a_default_may_be_left_out() -> None:
    document = {
        "kind": "paceline plan",
        "version": 2,
        "target": {"name": "t", "engine": "vLLM"},
        "draft": {"kind": "ngram", "name": "ngram"},
        "max_draft_tokens": 4,
        "measured": {"source": "costs"},
    }
    found = decode_plan(json.dumps(document))
    assert found.draft == PlannedDraft(kind="ngram", name="ngram")
    assert found.expected == Expected()
    assert found.measured.exact


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (PlanDocument, ""),
        (Target, "target."),
        (PlannedDraft, "draft."),
        (Step, "schedule.0."),
        (Gain, "expected.gain."),
        (Gain, "expected.gain_by_category.chat."),
        (Measurement, "measured."),
    ],
)
def test_a_field_without_a_default_is_missed_by_name(made: type, where: str) -> None:
    needed = [one.name for one in fields(made) if one.required]
    assert needed
    for name in needed:
        found = changed(f"{where}{name}", None)
        inner: Any = found
        for key in where.split(".")[:-1]:
            inner = inner[int(key) if isinstance(inner, list) else key]
        del inner[name]
        with pytest.raises(DataError, match=rf"missing required field `{name}`"):
            decode_plan(json.dumps(found))


@pytest.mark.parametrize(
    "where",
    ["", "target.", "draft.", "expected.", "expected.gain.", "measured.", "schedule.1."],
)
def test_an_unknown_field_is_refused_by_name(where: str) -> None:
    with pytest.raises(DataError, match=r"unknown field `limits`"):
        decode_plan(json.dumps(changed(f"{where}limits", 3)))


def every_field() -> list[str]:
    """The path of every field that a plan has."""
    inner = {
        "target": Target,
        "draft": PlannedDraft,
        "expected": Expected,
        "measured": Measurement,
        "expected.gain": Gain,
        "expected.gain_by_category.code": Gain,
        "schedule.0": Step,
    }
    return [one.name for one in fields(PlanDocument) if one.name not in ("kind", "version")] + [
        f"{where}.{one.name}" for where, made in inner.items() for one in fields(made)
    ]


@pytest.mark.parametrize("path", every_field())
def test_every_field_of_another_type_is_refused_by_name(path: str) -> None:
    last = path.split(".")[-1]
    wrong = [[True]]
    for value in (wrong, {"a": wrong}, [wrong]):
        if isinstance(value, dict) and last in ("machine", "workload", "sampling", "settings"):
            continue  # an object of whatever there is
        with pytest.raises(DataError, match=last):
            decode_plan(json.dumps(changed(path, value)))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("target.name", "", "target.name is '': expected `str` of length >= 1"),
        ("target.engine", "", "target.engine is '': expected `str` of length >= 1"),
        ("target.path", "", "target.path is '': expected `str` of length >= 1"),
        ("target.path", 5, "target.path is 5: expected `str | null`, got `int`"),
        ("target.vocabulary_size", 0, "target.vocabulary_size is 0: expected `int` >= 1"),
        (
            "target.vocabulary_size",
            1.5,
            "target.vocabulary_size is 1.5: expected `int | null`, got `float`",
        ),
        ("draft.kind", "eagle5", "draft: kind is 'eagle5', not one of lookup,"),
        ("draft.model", "", "draft.model is '': expected `str` of length >= 1"),
        ("draft.settings", ["a"], "draft.settings: expected `object`, got `array`"),
        ("max_draft_tokens", 0, "max_draft_tokens is 0, below 1"),
        ("max_draft_tokens", True, "max_draft_tokens is True: expected `int | null`, got `bool`"),
        ("max_draft_tokens", "7", "max_draft_tokens is '7': expected `int | null`, got `str`"),
        ("max_draft_tokens", 6, "schedule.max_draft_tokens is 7, above max_draft_tokens 6"),
        ("draft", None, "there is no draft, and max_draft_tokens is not 0"),
        ("mean_draft_tokens", -1, "mean_draft_tokens is -1: expected `float` >= 0.0"),
        ("schedule.0.from_batch", 2, "schedule begins at a batch of 2, not 1"),
        ("schedule.0.to_batch", 0, "schedule[0]: a step goes from 1 to 0"),
        ("schedule.1.from_batch", 6, "schedule doesn't go on from 4 to 6"),
        ("schedule.1.from_batch", 4, "schedule doesn't go on from 4 to 4"),
        ("schedule.1.to_batch", None, "schedule doesn't go on from None to 17"),
        (
            "schedule.2.max_draft_tokens",
            -1,
            "schedule[2].max_draft_tokens is -1: expected `int` >= 0",
        ),
        ("schedule", {}, "schedule: expected `array`, got `object`"),
        ("schedule", 0, "schedule is 0: expected `array`, got `int`"),
        ("expected", [], "expected: expected `object`, got `array`"),
        (
            "expected.acceptance_at.1",
            1.1,
            "expected.acceptance_at[1] is 1.1: expected `float` <= 1.0",
        ),
        (
            "expected.acceptance_at.0",
            -0.1,
            "expected.acceptance_at[0] is -0.1: expected `float` >= 0.0",
        ),
        (
            "expected.acceptance_at.0",
            None,
            "expected.acceptance_at[0]: expected `float`, got `null`",
        ),
        (
            "expected.acceptance_rate",
            1.2,
            "expected.acceptance_rate is 1.2: expected `float` <= 1.0",
        ),
        (
            "expected.tokens_per_round",
            -1,
            "expected.tokens_per_round is -1: expected `float` >= 0.0",
        ),
        (
            "expected.tokens_per_drafted_round",
            -1,
            "tokens_per_drafted_round is -1: expected `float` >= 0.0",
        ),
        (
            "expected.break_even_tokens",
            -1,
            "expected.break_even_tokens is -1: expected `float` >= 0.0",
        ),
        ("expected.gain.value", 0, "expected.gain.value is 0: expected `float` > 0.0"),
        ("expected.gain.low", None, "expected.gain: it has one end of an interval"),
        ("expected.gain.low", 2.0, "expected.gain: it has an interval from 2.0 to 1.8"),
        (
            "expected.gain_by_category.chat.value",
            -1,
            "expected.gain_by_category[...].value: expected `float` > 0.0",
        ),
        (
            "expected.gain_by_category",
            [],
            "expected.gain_by_category: expected `object`, got `array`",
        ),
        ("measured", None, "measured: expected `object`, got `null`"),
        ("measured.source", "rumour", "measured: source is 'rumour', not one of bench, replay,"),
        ("measured.prompts", -1, "measured.prompts is -1: expected `int` >= 0"),
        ("measured.tokens", -1, "measured.tokens is -1: expected `int` >= 0"),
        ("measured.batch", 0, "measured.batch is 0: expected `int` >= 1"),
        ("measured.exact", 1, "measured.exact is 1: expected `bool`, got `int`"),
        ("notes", "Worst", "notes is 'Worst': expected `array`, got `str`"),
        ("notes.0", 5, "notes[0] is 5: expected `str`, got `int`"),
    ],
)
def test_what_is_out_of_range_is_named_with_its_value(path: str, value: Any, said: str) -> None:
    with pytest.raises(DataError) as raised:
        decode_plan(json.dumps(changed(path, value)), "plan.json")
    assert str(raised.value).startswith("plan.json can't be read: ")
    assert said in str(raised.value)


def test_without_a_draft_the_schedule_has_none_either() -> None:
    found = document(BASELINE) | {
        "schedule": [{"from_batch": 1, "to_batch": None, "max_draft_tokens": 3}]
    }
    with pytest.raises(DataError, match="there is no draft"):
        decode_plan(json.dumps(found))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {"kind": "paceline costs"},
            "plan.json is not a paceline plan file: its kind is 'paceline costs'.",
        ),
        ([], "plan.json is not a paceline plan file: it has no kind."),
        ({}, "plan.json is not a paceline plan file: it has no kind."),
        ("text", "plan.json is not a paceline plan file: it has no kind."),
        (
            {"kind": "paceline plan", "version": 1},
            "plan.json has version 1 of the format, and this Paceline reads version 2.",
        ),
        (
            {"kind": "paceline plan"},
            "plan.json has version None of the format, and this Paceline reads",
        ),
    ],
)
def test_another_kind_or_version_is_said(found: Any, said: str) -> None:
    with pytest.raises(DataError) as raised:
        decode_plan(json.dumps(found), "plan.json")
    assert said in str(raised.value)


def test_files_that_hold_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(DataError, match="can't be read: No such file"):
        read_plan(path)
    text = json.dumps(PLAN.as_json())
    for end in (0, 1, 100, len(text) - 1):
        path.write_text(text[:end], encoding="utf-8")
        with pytest.raises(DataError, match="is not JSON"):
            read_plan(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is not JSON"):
        read_plan(path)
    for number in ("NaN", "Infinity", "-Infinity"):
        path.write_text(text.replace("2.3", number), encoding="utf-8")
        with pytest.raises(DataError, match="is not JSON"):
            read_plan(path)


def test_a_number_too_large_for_a_float_and_too_deep_a_nest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mean_draft_tokens|Number out of range"):
        decode_plan(json.dumps(changed("mean_draft_tokens", 10**400)))
    path = tmp_path / "plan.json"
    path.write_text("[" * 200_000, encoding="utf-8")
    with pytest.raises(DataError, match="is not JSON"):
        read_plan(path)


def test_a_file_that_says_it_is_a_plan_is_one_though_it_cant_be_read(tmp_path: Path) -> None:
    path, text = tmp_path / "plan.json", json.dumps(PLAN.as_json(), indent=1)
    assert not calls_itself_plan(path)
    ours = (text, text[:50], '{"version": 9, "kind": "paceline plan"}')
    others = (
        "",
        "[1]",
        "{}",
        '{"kind": "paceline bench"}',
        '{"note": "paceline plan"',
        "[" * 200_000,
    )
    for content in (*ours, *others):
        path.write_text(content, encoding="utf-8")
        assert calls_itself_plan(path) == (content in ours), content[:50]
    path.write_bytes(b"\xff\xfe\x00")
    assert not calls_itself_plan(path)


def test_where_it_cant_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be written: No such file or directory"):
        PLAN.write(tmp_path / "nowhere" / "plan.json")
