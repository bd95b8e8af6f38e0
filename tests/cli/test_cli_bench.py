"""`paceline bench` with several configurations, and a file that another run began."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from time import sleep

import pytest

from paceline.bench.local.file import read_result


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
        ("baseline", "baseline"),
        ("baseline --temperature 1.0 --seed 3", "baseline --temperature 1.0 --seed 3"),
        ("baseline --target toy:4", "baseline --target toy:4"),
        ("lookup:min_match=1 -n 2", "baseline"),
        ("lookup:min_match=1 -n 5 --verifier block", "baseline"),
        ("toy:3 -n 2 --temperature 1.0 --seed 3", "baseline --temperature 1.0 --seed 3"),
        ("lookup -n 2 --target toy:4", "baseline --target toy:4"),
    ]
    assert len(result.runs) == 2 * 7
    by_name = {one.name: one for one in result.configurations}
    assert by_name["lookup:min_match=1 -n 5 --verifier block"].verifier == "block"
    sampled = by_name["toy:3 -n 2 --temperature 1.0 --seed 3"]
    assert (sampled.sampling.temperature, sampled.sampling.seed) == (1.0, 3)
    models = {one.target["model"] for one in result.configurations}
    assert len(models) == 2
    assert "as fast as baseline --target toy:4" in out
    for one in result.drafted:
        assert (
            result.comparison(one.name).ratio()
            == result.comparison(one.name, beside=one.baseline).ratio()
        )
        assert (
            result.comparison(one.name).ratio()
            == result.comparison(one.name, beside="baseline").ratio()
        ) == (one.baseline == "baseline")
    assert "texts are not compared: sampled" in out
    for run in result.runs:
        one = by_name[run.configuration]
        compared = one.greedy and not one.is_baseline
        assert run.equal_to_baseline is (True if compared else None)


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
    "two that are warm": (
        ("-d", "lookup:store=x", "-n", "2,5", "--warm"),
        "one could tell the other its answers",
    ),
    "one file for both": (("--record", "out.jsonl"), "is the file of runs too"),
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


def test_a_warm_draft_meets_what_it_saw_before(run, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "abcabc", "id": name} for name in ("one", "two")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    accepted = {}
    for name, more in (("cold", ()), ("warm", ("--warm",))):
        draft = "lookup:min_match=4" + (",store=warm-test" if more else "")
        given = ("-d", draft, "-n", "3", *more, "-o", f"{name}.jsonl")
        command = ("bench", "toy:3", "--prompts", str(path), "--max-tokens", "12", *given)
        assert run(*command)[0] == 0
        runs = read_result(f"{name}.jsonl").runs_of(f"{draft} -n 3")
        accepted[name] = [one.stats.accepted for one in runs]
    assert accepted["cold"][0] == accepted["cold"][1] == accepted["warm"][0]
    assert accepted["warm"][1] > accepted["warm"][0]  # the second asks what the first did


def test_what_an_also_does_not_need_is_not_inherited(bench, run) -> None:
    assert run("profile", "toy:3", "--sweeps", "2", "-o", "costs.json")[0] == 0
    code, _, err = bench("-n", "auto", "--costs", "costs.json", "--also", "-n 3")
    assert code == 0, err
    result = read_result("out.jsonl")
    assert result.configuration("lookup -n auto").recorded_costs
    Path("out.jsonl").unlink()
    lossy = ("--verifier", "tolerance:budget=0.1", "--lossy", "-n", "3")
    assert bench(*lossy, "--also", "--verifier chain")[0] == 0
    assert [one.lossy for one in read_result("out.jsonl").drafted] == [True, False]
    Path("out.jsonl").unlink()
    tree = ("-d", "tree:toy:4", "-n", "3", "--verifier", "chain", "--allow-chains")
    assert bench(*tree, "--also", "-d lookup")[0] == 0
    assert [one.chains_for_trees for one in read_result("out.jsonl").drafted] == [True, False]


def test_other_recorded_costs_are_another_run(bench, run) -> None:
    assert run("profile", "toy:3", "--sweeps", "2", "-o", "costs.json")[0] == 0
    given = ("-n", "auto", "--costs", "costs.json")
    assert bench(*given)[0] == 0
    assert bench(*given)[0] == 0
    costs = json.loads(Path("costs.json").read_text())
    costs["points"][0]["seconds"] *= 2
    Path("costs.json").write_text(json.dumps(costs))
    code, _, err = bench(*given)
    assert code == 2
    assert "holds another run" in err


def test_other_prompts_of_the_same_names_are_another_run(run, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "abcabc", "id": "one"}\n')
    command = ("bench", "toy:3", "--prompts", str(path), "--max-tokens", "12", "-n", "2")
    assert run(*command, "-o", "out.jsonl")[0] == 0
    for change in (("--raw",), ()):
        code, _, err = run(*command, *change, "-o", "out.jsonl")
        assert (code, "holds another run: its workload" in err) == (
            (2, True) if change else (0, False)
        )
    path.write_text('{"prompt": "abcab", "id": "one"}\n')
    assert "holds another run: its workload" in run(*command, "-o", "out.jsonl")[2]


def test_a_recording_goes_over_none_but_its_own(bench, monkeypatch) -> None:
    Path("mine.txt").write_text("dear diary\n")
    assert "mine.txt is there already" in bench("-n", "2", "--record", "mine.txt")[2]
    assert Path("mine.txt").read_text() == "dear diary\n"
    assert bench("-n", "2", "--record", "r.jsonl")[0] == 0
    assert bench("-n", "2", "--record", "r.jsonl")[0] == 0  # the same command


@pytest.mark.parametrize(("device", "told"), [("cpu", True), ("cuda:0", False)])
def test_memory_is_read_where_the_target_is(bench, monkeypatch, device: str, told: bool) -> None:
    from paceline.engines.toy import ToyEngine

    real = ToyEngine.metadata
    monkeypatch.setattr(ToyEngine, "metadata", lambda self: real(self) | {"device": device})
    assert bench("-n", "2")[0] == 0
    bandwidth = read_result("out.jsonl").header.bandwidth_bytes_per_s
    assert (bandwidth is not None) == told


def test_slowdowns_stand_first_also_without_categories(bench, monkeypatch) -> None:
    from paceline.drafts.lookup import LookupDraft

    real = LookupDraft.propose

    def slow(self, contexts, limits):
        sleep(0.01)
        return real(self, contexts, limits)

    monkeypatch.setattr(LookupDraft, "propose", slow)
    out = bench("-n", "2")[1]
    assert "slower by a tenth or more in 2 of 2 prompts" in out.splitlines()[1]


def test_json_keeps_all_prompts_and_the_category_of_that_name_apart(run, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "abcabc"}, *({"prompt": text, "category": "x"} for text in ("bab", "hg"))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("bench", "toy:3", "--prompts", str(path), "--max-tokens", "12", "-n", "2")
    document = json.loads(run(*command, "-o", "out.jsonl", "--json")[1])
    result = read_result("out.jsonl")
    [_, drafted] = document["configurations"]
    assert drafted["speedup"]["value"] == pytest.approx(
        result.comparison("lookup -n 2").ratio().value, rel=0.01
    )
    assert set(drafted["speedup_by_category"]) == {"all", "x"}
    one = drafted["speedup_by_category"]["all"]["value"]
    assert one == pytest.approx(result.comparison("lookup -n 2").ratio("all").value, rel=0.01)


def test_another_run_s_file_is_refused(bench) -> None:
    assert bench("-n", "2")[0] == 0
    before = Path("out.jsonl").read_bytes()
    code, out, err = bench("-n", "3")
    assert (code, out) == (2, "")
    assert "out.jsonl holds another run: its configurations are baseline, lookup -n 2" in err
    assert Path("out.jsonl").read_bytes() == before


def test_a_finished_bench_started_again_says_it_again(bench) -> None:
    first = bench("-n", "2")
    before = read_result("out.jsonl").runs
    second = bench("-n", "2")
    assert first[:2] == second[:2]
    assert "All 4 runs are in that file already" in second[2]
    assert read_result("out.jsonl").runs == before


def test_a_bench_that_is_all_disturbed_keeps_its_file_and_gives_no_figure(
    bench, run, monkeypatch
) -> None:
    monkeypatch.setattr("paceline.bench.local.bench.shortage", lambda *_: 0.5)
    code, out, _ = bench("-n", "2")
    assert code == 0
    assert out.startswith("Nothing can be said: other programs disturbed every prompt.")
    assert "times as fast" not in out
    kept = read_result("out.jsonl").runs
    assert [(one.disturbed, one.attempts) for one in kept] == [(True, 3)] * 4
    assert run("plan", "out.jsonl")[0] != 0
    assert run("report", "out.jsonl")[0] == 0


def test_two_turns_are_asked_after_the_baseline_answer(run, tmp_path: Path) -> None:
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
        answer = next(
            r for r in result.runs if r.id == first and r.configuration == "baseline"
        ).text
        lengths = {r.prompt_tokens for r in result.runs if r.id == second}
        assert len(lengths) == 1
        before = next(r for r in result.runs if r.id == first).prompt_tokens
        asked[lengths.pop() - before - len(answer)] += 1
    assert list(asked.values()) == [2]  # what stands around an answer is as long in both
