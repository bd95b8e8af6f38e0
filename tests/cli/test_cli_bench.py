"""`paceline bench` with several configurations, and a file that another run began."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from paceline.measure.run_file import read_result


@pytest.fixture
def bench(run, tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "abcabc", "id": "one"}\n{"prompt": "bab", "id": "two"}\n')

    def command(*given: str) -> tuple[int, str, str]:
        prompts = ("--prompts", str(path), "--max-tokens", "12", "-o", "out.jsonl")
        return run("bench", "toy:3", *prompts, *given)

    return command


def test_also_adds_what_it_changes(bench) -> None:
    also = (
        "--also",
        "-n 5 --verifier block",
        "--also",
        "--temperature 1 --seed 3 -d toy:3 -n 2",
        "--also",
        "--target toy:4 -d lookup -n 2",
    )
    code, out, _ = bench("-d", "lookup:min_match=1", "-n", "2", *also)
    assert code == 0
    result = read_result("out.jsonl")
    assert [(one.name, one.baseline) for one in result.configurations] == [
        ("plain", "plain"),
        ("plain --temperature 1.0 --seed 3", "plain --temperature 1.0 --seed 3"),
        ("plain --target toy:4", "plain --target toy:4"),
        ("lookup:min_match=1 -n 2", "plain"),
        ("lookup:min_match=1 -n 5 --verifier block", "plain"),
        ("toy:3 -n 2 --temperature 1.0 --seed 3", "plain --temperature 1.0 --seed 3"),
        ("lookup -n 2 --target toy:4", "plain --target toy:4"),
    ]
    assert len(result.runs) == 2 * 7
    by_name = {one.name: one for one in result.configurations}
    assert by_name["lookup:min_match=1 -n 5 --verifier block"].verifier == "block"
    sampled = by_name["toy:3 -n 2 --temperature 1.0 --seed 3"]
    assert (sampled.sampling.temperature, sampled.sampling.seed) == (1.0, 3)
    models = {one.target["model"] for one in result.configurations}
    assert len(models) == 2
    assert "as fast as plain --target toy:4" in out
    for one in result.drafted:
        assert result.ratio(one.name) == result.ratio(one.name, beside=one.baseline)
        assert (result.ratio(one.name) == result.ratio(one.name, beside="plain")) == (
            one.baseline == "plain"
        )
    assert "texts are not compared: sampled" in out
    for run in result.runs:
        one = by_name[run.configuration]
        compared = one.greedy and not one.is_plain
        assert run.equal_to_plain is (True if compared else None)


def test_what_is_drawn_in_two_configurations_is_independent(bench) -> None:
    assert bench("--temperature", "1", "--seed", "3", "-n", "0,2")[0] == 0
    texts = answers("one")
    assert len(set(texts.values())) == 3  # each drawn with numbers of its own
    Path("out.jsonl").unlink()
    assert bench("--temperature", "1", "--seed", "3", "-n", "0,2")[0] == 0
    assert answers("one") == texts


def answers(id: str) -> dict[str, str]:
    return {run.configuration: run.text for run in read_result("out.jsonl").runs if run.id == id}


REFUSED = {
    "nothing": (("--also", ""), "--also changes nothing"),
    "unknown option": (("--also", "--no-such"), "nrecognized arguments: --no-such"),
    "quotation": (("--also", "-d 'lookup"), "No closing quotation"),
    "bare word": (("--also", "lookup"), "nrecognized arguments: lookup"),
    "verifier": (("--also", "--verifier typical"), "is lossy"),
    "costs": (("--also", "-n 3 --costs x.json"), "no limit is auto"),
    "twice the same": (("-n", "3", "--also", "-n 3"), "Two configurations are 'lookup -n 3'"),
    "recorded": (
        ("--record", "r.jsonl", "--also", "--temperature 1"),
        "A recording holds one target and one sampling",
    ),
    "a store": (("-d", "lookup:store=x", "-n", "3"), "or allow it with --warm"),
    "warm repeats": (
        ("-d", "lookup:store=x", "-n", "3", "--warm", "--repeats", "2"),
        "may remember its answer",
    ),
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_is_refused_at_the_door(bench, given: str) -> None:
    options, said = REFUSED[given]
    try:
        code, out, err = bench(*options)
    except SystemExit as stop:  # argparse's way
        pytest.fail(f"escaped with {stop.code}")
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("out.jsonl").exists()


def test_a_warm_draft_meets_what_it_saw_before(bench) -> None:
    given = ("-d", "lookup:store=warm-test,min_match=1", "-n", "3")
    assert bench(*given, "--warm")[0] == 0
    assert read_result("out.jsonl").drafted[0].warm


def test_another_run_s_file_is_refused(bench) -> None:
    assert bench("-n", "2")[0] == 0
    before = Path("out.jsonl").read_bytes()
    code, out, err = bench("-n", "3")
    assert (code, out) == (2, "")
    assert "out.jsonl holds another run: its configurations are plain, lookup -n 2" in err
    assert Path("out.jsonl").read_bytes() == before


def test_a_finished_bench_started_again_says_it_again(bench) -> None:
    first = bench("-n", "2")
    before = read_result("out.jsonl").runs
    second = bench("-n", "2")
    assert first[:2] == second[:2]
    assert read_result("out.jsonl").runs == before


def test_two_turns_are_asked_after_the_plain_answer(run, tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    questions = ("abcabc", "bab"), ("hg", "bab")
    path.write_text(
        "".join(
            json.dumps({"question_id": number, "category": "x", "turns": turns}) + "\n"
            for number, turns in enumerate(questions)
        )
    )
    code, _, err = run(
        *("bench", "toy:3", "--prompts", str(path), "--max-tokens", "12", "-n", "2,4"),
        *("-o", "out.jsonl"),
    )
    assert code == 0, err
    result = read_result("out.jsonl")
    ids = [id for id, _ in result.header.prompts]
    asked = Counter()
    for first, second in (ids[:2], ids[2:]):
        answer = next(r for r in result.runs if r.id == first and r.configuration == "plain").text
        lengths = {r.prompt_tokens for r in result.runs if r.id == second}
        assert len(lengths) == 1
        before = next(r for r in result.runs if r.id == first).prompt_tokens
        asked[lengths.pop() - before - len(answer)] += 1
    assert list(asked.values()) == [2]  # what stands around an answer is as long in both
