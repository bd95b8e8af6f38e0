"""The options that choose prompts: what is read, drawn and told, and what doesn't go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.prompts.workload import Workload
from paceline.cli.options import SHOWN, PromptOptions, notes, say
from paceline.cli.settings import Parser, add_options, read_options
from paceline.errors import SettingError
from paceline.train.texts import corpus_texts


def chosen(*arguments: str, turns: bool = True) -> Workload:
    parser = Parser()
    add_options(parser, PromptOptions)
    return read_options(vars(parser.parse_args(arguments)), PromptOptions).workload(turns=turns)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Prompts of two categories, one of them asked in turns, and more broken lines than shown."""
    lines = [json.dumps({"prompt": f"{n}", "id": f"p{n}", "category": "x"}) for n in range(6)]
    lines.append(json.dumps({"turns": ["a", "b"], "question_id": 9, "category": "y"}))
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(lines + ["{"] * (SHOWN + 3)), encoding="utf-8")
    return str(path)


def test_the_demo_prompts_are_the_default(capsys) -> None:
    assert chosen().name == "demo"
    assert capsys.readouterr().err == ""


def test_what_was_left_out_is_told_at_a_bearable_length(file: str, capsys) -> None:
    assert len(chosen("--prompts", file).prompts) == 8
    told = capsys.readouterr().err.splitlines()
    assert len(told) == SHOWN + 1
    assert "repeat" not in "".join(told)
    assert told[0] == "p.jsonl: Line 8 is not JSON. Left out."
    assert told[-1] == "p.jsonl: 3 more lines are left out."


def test_repeated_prompts_are_counted_among_those_that_are_measured(tmp_path, capsys) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "same"}\n' * 4, encoding="utf-8")
    chosen("--prompts", str(path))
    assert "Prompts that repeat an earlier one: 3." in capsys.readouterr().err
    chosen("--prompts", str(path), "--sample", "1")
    assert "repeat" not in capsys.readouterr().err


def test_a_verb_without_turns_says_that_it_leaves_them_out(file: str, capsys) -> None:
    workload = chosen("--prompts", file, turns=False)
    assert [p.id for p in workload.prompts][-2:] == ["p5", "9"]
    assert "1 later turns are left out" in capsys.readouterr().err


def test_categories_are_chosen_before_a_sample_is_drawn(file: str) -> None:
    workload = chosen("--prompts", file, "--categories", "x", "--sample", "2")
    assert {p.category for p in workload.prompts} == {"x"}
    assert workload.metadata()["sample"] == {"count": 2, "of": 6, "seed": 0}
    other = chosen("--prompts", file, "--categories", "x,y", "--sample", "3", "--sample-seed", "5")
    assert other.metadata()["sample"] == {"count": 3, "of": 7, "seed": 5}


def test_a_seed_without_a_sample_is_refused(file: str) -> None:
    with pytest.raises(SettingError, match="--sample-seed is 5 without --sample"):
        chosen("--prompts", file, "--sample-seed", "5")


def test_a_corpus_takes_answers_and_every_turn_once(tmp_path, capsys) -> None:
    """`paceline derive --corpus` counts tokens in the prompts and in what was answered."""
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"prompt": "a", "completion": "b"}\n{\n{"turns": ["c", "d"]}\n', encoding="utf-8"
    )
    assert list(corpus_texts([str(path)], lambda workload: say(*notes(workload)))) == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert "Line 2 is not JSON" in capsys.readouterr().err


def test_raw_is_honoured_in_every_workload(file: str) -> None:
    assert all(p.raw for p in chosen("--raw").prompts)
    assert all(p.raw for p in chosen("--raw", "--prompts", file).prompts)
