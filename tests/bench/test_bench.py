"""Bench: interleaved, complete or resumable, and its counters add up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paceline import Sampling, StopConditions, generate
from paceline.bench.local import bench
from paceline.bench.local.bench import Configuration, header_of, run_bench, with_baseline
from paceline.bench.local.result import BenchResult, as_document
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.bench.summary import bench_summary
from paceline.drafts.lookup import LookupDraft, Store
from paceline.drafts.model import ModelDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import DataError, SettingError
from paceline.plan.bench import decide_bench


def toy_workload(count: int = 5) -> Workload:
    prompts = [
        WorkloadPrompt(
            f"p{i}",
            "odd" if i % 2 else "even",
            ({"role": "user", "content": "abcab"[: i + 1] * 3},),
        )
        for i in range(count)
    ]
    return Workload("toy", tuple(prompts))


def lookup_configuration(max_draft_tokens: int = 4) -> Configuration:
    return Configuration(
        f"lookup -n {max_draft_tokens}", {"lookup": LookupDraft()}, max_draft_tokens
    )


def test_bench_runs_everything_interleaved_and_adds_up() -> None:
    engine, order = ToyEngine(8, seed=2), []
    result = run_bench(
        engine,
        [lookup_configuration(2), lookup_configuration(4)],
        toy_workload(),
        max_tokens=20,
        on_progress=lambda *names: order.append(names),
    )
    assert result.complete
    assert [prompt for prompt, _ in order] == [f"p{i}" for i in range(5) for _ in range(3)]
    groups = [tuple(name for _, name in order[i : i + 3]) for i in range(0, 15, 3)]
    assert {frozenset(group) for group in groups} == {frozenset(groups[0])}
    assert len(set(groups)) > 1  # drawn anew for each prompt
    assert all(run.equal_to_baseline for run in result.runs if run.configuration != "baseline")
    document = as_document(result)
    json.loads(json.dumps(document, allow_nan=False))
    for configuration in document["configurations"]:
        runs = [r for r in document["runs"] if r["configuration"] == configuration["name"]]
        for key in ("tokens", "rounds", "proposed", "accepted"):
            assert configuration["stats"][key] == sum(r["stats"][key] for r in runs)
        stats = configuration["stats"]
        assert stats["tokens"] == sum(r["output_tokens"] for r in runs) - len(runs)
        assert stats["tokens"] == stats["rounds"] + stats["accepted"]
    text = bench_summary(result)
    for part in ("lookup -n 2", "lookup -n 4", "even", "odd", "all prompts", "5 of 5 runs"):
        assert part in text


def test_a_prompt_that_fails_is_left_out_of_all_and_named() -> None:
    engine = ToyEngine(8, seed=2, context_size=40)
    long = WorkloadPrompt("long", "even", ({"role": "user", "content": "a" * 60},))
    workload = toy_workload(2)
    workload = Workload("toy", (workload.prompts[0], long, workload.prompts[1]))
    result = run_bench(engine, [lookup_configuration()], workload, max_tokens=8)
    assert {run.id for run in result.runs} == {"p0", "p1"}
    assert list(result.failed) == ["long"]
    assert result.failed["long"].startswith("The prompt has 60 tokens")
    assert result.complete
    assert "Left out: long" in bench_summary(result)


def test_an_interrupt_keeps_what_was_measured() -> None:
    engine = ToyEngine(8, seed=2)

    class Interrupting(LookupDraft):
        calls = 0

        def open(self, context) -> None:
            Interrupting.calls += 1
            if Interrupting.calls == 4:  # the warm-up is the first
                raise KeyboardInterrupt
            super().open(context)

    every = with_baseline([Configuration("x", {"x": Interrupting()}, 3)])
    result = BenchResult(header_of(engine, every, toy_workload(), max_tokens=8))
    with pytest.raises(KeyboardInterrupt):
        run_bench(engine, every, toy_workload(), max_tokens=8, keeper=result)
    assert not result.complete
    assert [run.configuration for run in result.runs].count("x") == 2
    assert [run.id for run in result.runs[:4]] == ["p0", "p0", "p1", "p1"]
    assert "Interrupted" in bench_summary(result)
    assert engine.sequences_open == 0


def test_repeats_of_one_prompt_make_no_interval() -> None:
    result = run_bench(
        ToyEngine(8, seed=2), [lookup_configuration()], toy_workload(1), max_tokens=8, repeats=4
    )
    assert len(result.runs) == 8
    assert result.comparison("lookup -n 4").ratio().low is None


def test_a_draft_that_remembers_is_not_benched() -> None:
    draft = LookupDraft(store=Store())
    with pytest.raises(SettingError, match="remembers earlier requests"):
        run_bench(ToyEngine(8), [Configuration("x", {"x": draft}, 3)], toy_workload(), max_tokens=8)


def test_sampled_texts_are_not_compared() -> None:
    engine = ToyEngine(8, seed=2)
    draft = ModelDraft(ToyEngine(8, seed=4), engine)
    result = run_bench(
        engine,
        [Configuration("m", {"m": draft}, 3)],
        toy_workload(2),
        max_tokens=8,
        sampling=Sampling(temperature=1.0, seed=1),
    )
    assert all(run.equal_to_baseline is None for run in result.runs)
    assert "not compared: sampled" in bench_summary(result)


def test_baseline_has_nothing_drafted() -> None:
    result = run_bench(ToyEngine(8), [lookup_configuration()], toy_workload(2), max_tokens=8)
    assert generate(ToyEngine(8), [1, 2], stop=StopConditions(max_tokens=4)).stats.proposed == 0
    assert all(r.stats.drafted_rounds == 0 for r in result.runs_of("baseline"))


def test_a_text_is_held_against_its_own_baseline_one() -> None:
    """An engine whose rows move with width: its drafted texts differ, and a bench says so."""
    engine = ToyEngine(6, seed=3, order=2, jitter=0.4, sharpness=1.0)
    prompts = tuple(
        WorkloadPrompt(f"p{i}", "all", ({"role": "user", "content": f"{letter}bc{letter}"},))
        for i, letter in enumerate("abcdef")
    )
    result = run_bench(engine, [lookup_configuration()], Workload("toy", prompts), max_tokens=40)
    drafted = result.runs_of("lookup -n 4")
    different = [run for run in drafted if not run.equal_to_baseline]
    assert len(different) >= 2
    for run in drafted:
        [baseline] = [r for r in result.runs_of("baseline") if r.id == run.id]
        assert run.equal_to_baseline is (run.tokens == baseline.tokens)
        assert (run.first_difference is None) is run.equal_to_baseline
    assert any(run.first_difference.numeric for run in different)


def test_a_warm_draft_has_seen_the_prompts_before_and_nothing_else() -> None:
    store = Store()
    engine = ToyEngine(8, seed=2)
    warm = Configuration("warm", {"lookup": LookupDraft(store=store)}, 3, warm=True)
    result = run_bench(engine, [warm], toy_workload(2), max_tokens=8)
    runs = result.runs_of("warm")
    assert len(runs) == 2
    # Each text and the mark behind it, once: the warm-up left nothing.
    seen = sum(run.prompt_tokens + len(run.tokens) + 1 for run in runs)
    assert len(store.automaton.text) == seen


def test_bytes_a_second_are_those_of_weights_and_cache_read_once_a_pass() -> None:
    result = run_bench(ToyEngine(8), [lookup_configuration()], toy_workload(2), max_tokens=8)
    assert result.bytes_per_s("baseline") is None  # a toy has no weights
    metadata = {"weights_bytes": 1000, "cache_bytes": 400, "context_size": 20, "max_sequences": 2}
    told = tuple(replace(one, target=metadata) for one in result.configurations)
    result.header = replace(result.header, configurations=told)
    rounds = [round for round in result.rounds_of("baseline") if not round.prefill]
    read = 1000 * len(rounds) + 10 * sum(round.context for round in rounds)
    seconds = sum(round.verify_s for round in rounds)
    assert result.bytes_per_s("baseline") == pytest.approx(read / seconds)
    halved = [
        replace(run, rounds=tuple(replace(r, batch=2) for r in run.rounds)) for run in result.runs
    ]
    result.runs = halved
    assert result.bytes_per_s("baseline") == pytest.approx((read - 500 * len(rounds)) / seconds)


# -- disturbed by other programs


def disturbed_bench(monkeypatch: pytest.MonkeyPatch, lacked: list[float]) -> BenchResult:
    """A bench of one prompt, after a warm-up; `lacked` is what each decoding of it lacks."""
    told = iter(lacked)
    monkeypatch.setattr(bench, "shortage", lambda *_: next(told))
    return run_bench(ToyEngine(8, seed=2), [lookup_configuration()], toy_workload(2), max_tokens=8)


def test_a_disturbed_run_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    result = disturbed_bench(monkeypatch, [0.9, 0.0, 0.05, 0, 0])
    assert [run.attempts for run in result.runs] == [2, 1, 1, 1]
    assert not result.disturbed
    assert "isturbed" not in bench_summary(result)


def test_what_stays_disturbed_is_marked_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    result = disturbed_bench(monkeypatch, [0.9, 0.3, 0.5, 0, 0, 0])
    [bad] = result.disturbed
    assert (bad.id, bad.attempts) == ("p0", 3)
    assert {run.id for run in result.finished.runs} == {"p1"}
    assert result.complete
    text = bench_summary(result)
    assert "Other programs disturbed 1 of 2 prompts, which are left out." in text
    assert (
        f"Left out as disturbed: p0: other programs used 0.0 processors while {bad.configuration}"
        in text
    )
    [sentence] = as_document(result)["disturbed"]
    assert sentence.startswith("p0: ")
    comparison = result.finished.comparison("lookup -n 4")
    assert [one.id for one in comparison.prompts] == ["p1"]


def test_where_all_is_disturbed_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = disturbed_bench(monkeypatch, [0.5] * 12)
    text = bench_summary(result)
    assert text.startswith("Nothing can be said: other programs disturbed every prompt.")
    assert "disturbed 2 of 2 prompts" in text
    with pytest.raises(DataError, match="other programs disturbed 2"):
        decide_bench(result)


def test_a_draft_that_remembers_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([0.9] * 8)
    monkeypatch.setattr(bench, "shortage", lambda *_: next(told))
    draft = LookupDraft(store=Store())
    warm = Configuration("warm", {"lookup": draft}, 4, warm=True)
    result = run_bench(ToyEngine(8, seed=2), [warm], toy_workload(1), max_tokens=8)
    attempts = {run.configuration: run.attempts for run in result.runs}
    assert attempts == {"baseline": 3, "warm": 1}
