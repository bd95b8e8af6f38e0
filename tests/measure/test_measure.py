"""Measuring: workloads, pooled ratios, divergences told apart, interrupts that lose nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, decode, fixed, generate
from paceline.decode.generate import Generation
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft, Store
from paceline.drafts.model import ModelDraft
from paceline.engines.base import Job
from paceline.engines.toy import ToyEngine
from paceline.errors import DataError, SettingError
from paceline.measure.bench import BenchResult, Configuration, as_document, run_bench
from paceline.measure.card import card
from paceline.measure.divergence import block_margins, explain, first_difference
from paceline.measure.selfcheck import check_bookkeeping
from paceline.measure.stats import Pair, speed_ratio
from paceline.measure.workload import Workload, WorkloadPrompt, built_in, read_workload
from paceline.verify.chain import ChainVerifier


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_a_broken_line_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        '{"prompt": "one", "id": "a", "category": "x"}',
        "{not json",
        "",
        '{"messages": [{"role": "user", "content": "two"}]}',
        '{"text": "no prompt"}',
        '{"prompt": "  "}',
        '["a list"]',
        '{"messages": [{"role": "user"}]}',
    )
    workload = read_workload(path)
    assert [(p.id, p.category) for p in workload.prompts] == [("a", "x"), ("line-4", "all")]
    assert workload.skipped == (
        "Line 2 is not JSON.",
        "Line 5 has neither a prompt text nor messages.",
        "Line 6 has an empty prompt.",
        "Line 7 is no JSON object.",
        "Line 8 has a message without role and content texts.",
    )


def test_lines_are_lines_of_json_whatever_their_text_holds(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    text = '\ufeff{"prompt": "one\u2028two", "id": "a"}\n{"prompt": "x", "id": "a"}\n'
    path.write_text(text + '{"prompt": "x", "messages": []}', encoding="utf-8")
    workload = read_workload(str(path))
    assert [p.id for p in workload.prompts] == ["a", "a (line 2)"]
    assert workload.prompts[0].messages[0]["content"] == "one\u2028two"
    assert workload.skipped == ("Line 3 has both a prompt and messages.",)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no prompt. Line 1 is not JSON"):
        read_workload(write(tmp_path / "p.jsonl", "nope"))
    with pytest.raises(DataError, match="can't be read"):
        read_workload(str(tmp_path / "missing.jsonl"))
    (tmp_path / "latin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="can't be read"):
        read_workload(str(tmp_path / "latin"))


def test_the_built_in_prompts_are_six_of_six_kinds() -> None:
    workload = built_in()
    assert len(workload.prompts) == len({p.category for p in workload.prompts}) == 6
    assert not workload.skipped


def test_a_ratio_is_one_of_sums() -> None:
    pairs = [Pair(10, 100, 5, 100), Pair(1, 10, 4, 10)]
    ratio = speed_ratio(pairs)
    assert ratio.value == pytest.approx((11 / 110) / (9 / 110))
    assert ratio.low == pytest.approx(0.25)
    assert ratio.high == pytest.approx(2.0)
    assert speed_ratio(pairs) == ratio, "the interval must not change from call to call"
    assert speed_ratio([Pair(1, 10, 2, 10)]).low is None
    assert speed_ratio([]) is None
    assert speed_ratio([Pair(1, 0, 1, 0)]) is None


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """300 samples of 40 prompts; seed fixed. A right 95 % interval covers fewer than 267 of 300
    with probability below 1e-6; the percentile bootstrap of 40 pairs is a little narrow."""
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        speeds = random.lognormal(0.3, 0.4, 40)
        ratio = speed_ratio([Pair(1.0, 10, 1 / s, 10) for s in speeds], resamples=300)
        truth = np.exp(0.3 - 0.4**2 / 2)  # one over the mean of 1/s
        covered += ratio.low <= truth <= ratio.high
    assert covered > 260


def test_the_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([1, 2], [1, 2, 3]) == 2


def asked(prompt: list[int], **sampling) -> Request:
    return Request(
        prompt=tuple(prompt),
        sampling=Sampling(**sampling),
        stop=StopConditions(max_tokens=120),
        margins=True,
    )


def greedy(engine: ToyEngine, limit: int, prompt: list[int], **sampling) -> Generation:
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), fixed("lookup", limit))
    return decode(decoder, [asked(prompt, **sampling)])[0]


def test_margins_are_those_of_the_processed_logits() -> None:
    settings = {"repetition_penalty": 1.4, "logit_bias": {2: 0.7}, "min_tokens": 30}
    engine = ToyEngine(6, seed=3, end_tokens=(5,))
    plain = greedy(engine, 0, [1, 2, 3], **settings)
    request = asked([1, 2, 3], **settings)
    assert block_margins(engine, request, plain.tokens, 4) == pytest.approx(plain.margins)
    assert min(plain.margins) >= 0


def test_a_flip_by_rounding_is_called_numeric() -> None:
    engine, found = ToyEngine(6, seed=3, order=2, jitter=0.4, sharpness=1.0), 0
    for start in range(6):
        prompt = [start, 1, 2, start]
        plain, drafted = greedy(engine, 0, prompt), greedy(engine, 4, prompt)
        told = explain(engine, asked(prompt), plain.tokens, drafted.tokens, plain.margins, {5})
        if told is not None:
            found += 1
            assert told.numeric, told
            assert plain.tokens[told.position] == told.plain_token != told.drafted_token
    assert found >= 2


def test_a_flip_that_width_cannot_explain_is_called_a_fault() -> None:
    engine = ToyEngine(6, seed=3)
    plain = greedy(engine, 0, [1, 2, 3])
    wrong = list(plain.tokens)
    wrong[7] = (wrong[7] + 1) % 6
    told = explain(engine, asked([1, 2, 3]), plain.tokens, wrong, plain.margins, {5})
    assert (told.position, told.numeric, told.verdict) == (7, False, "fault")
    assert told.margin == pytest.approx(plain.margins[7])
    longer = explain(engine, asked([1, 2, 3]), plain.tokens, [*plain.tokens, 1], plain.margins, {5})
    assert not longer.numeric


def test_block_margins_are_plain_margins_on_an_exact_engine() -> None:
    engine = ToyEngine(6, seed=3)
    plain = greedy(engine, 0, [1, 2, 3])
    for width in (1, 2, 5, 64):
        again = block_margins(engine, asked([1, 2, 3]), plain.tokens, width)
        assert again == list(plain.margins)
    assert engine.sequences_open == 0


class Forgetful(ToyEngine):
    """Rewinds one token too few and says nothing: the fault this project exists to find."""

    def open(self):
        sequence = super().open()
        kept: dict[str, list[int]] = {}

        def rewind(length: int) -> None:
            kept["ghost"] = sequence.tokens[length : length + 1]
            del sequence.tokens[length:]

        sequence.rewind = rewind
        sequence.ghost = kept
        return sequence

    def _score(self, jobs):
        haunted = []
        for job in jobs:
            ghost = job.sequence.ghost.pop("ghost", [])
            haunted.append(Job(Shadow([*job.sequence.tokens, *ghost]), job.tokens, job.rows))
        return super()._score(haunted)


class Shadow:
    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens


def test_the_target_as_its_own_draft_tells_sound_engines_from_forgetful_ones() -> None:
    good = check_bookkeeping(ToyEngine(8, seed=2), [1, 2, 3])
    assert good.sound
    assert good.proposed == good.accepted > 30
    assert good.rewinds > 10
    noisy = check_bookkeeping(ToyEngine(8, seed=2, order=1, jitter=0.5, sharpness=0.5), [1, 2, 3])
    assert noisy.rejections
    assert noisy.sound
    bad = check_bookkeeping(Forgetful(8, seed=2, order=4), [1, 2, 3])
    assert bad.proposed == bad.accepted, "accepting all, it never rewinds: not enough of a test"
    assert not bad.sound
    assert not bad.rewound.numeric


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


def lookup_configuration(limit: int = 4) -> Configuration:
    return Configuration(f"lookup -n {limit}", {"lookup": LookupDraft()}, limit)


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
    first = [configuration for _, configuration in order[::3]]
    assert first == ["plain", "lookup -n 2", "lookup -n 4", "plain", "lookup -n 2"]
    assert all(run.equal_to_plain for run in result.runs if run.configuration != "plain")
    document = as_document(result)
    json.loads(json.dumps(document, allow_nan=False))
    for configuration in document["configurations"]:
        runs = [r for r in document["runs"] if r["configuration"] == configuration["name"]]
        for key in ("tokens", "rounds", "proposed", "accepted"):
            assert configuration["figures"][key] == sum(r["figures"][key] for r in runs)
        figures = configuration["figures"]
        assert figures["tokens"] == sum(r["output_tokens"] for r in runs) - len(runs)
        assert figures["tokens"] == figures["rounds"] + figures["accepted"]
    text = card(result)
    for part in ("lookup -n 2", "lookup -n 4", "even", "odd", "all prompts", "5 of 5 runs"):
        assert part in text


def test_a_prompt_that_fails_is_left_out_of_all_and_named() -> None:
    engine = ToyEngine(8, seed=2, context_size=40)
    long = WorkloadPrompt("long", "even", ({"role": "user", "content": "a" * 60},))
    workload = toy_workload(2)
    workload = Workload("toy", (workload.prompts[0], long, workload.prompts[1]))
    result = run_bench(engine, [lookup_configuration()], workload, max_tokens=8)
    assert {run.prompt.id for run in result.runs} == {"p0", "p1"}
    assert len(result.failed) == 1
    assert result.failed[0].startswith("long: The prompt has 60 tokens")
    assert "Left out: long" in card(result)


def test_an_interrupt_keeps_what_was_measured() -> None:
    engine = ToyEngine(8, seed=2)

    class Interrupting(LookupDraft):
        calls = 0

        def open(self, context) -> None:
            Interrupting.calls += 1
            if Interrupting.calls == 4:  # the warm-up is the first
                raise KeyboardInterrupt
            super().open(context)

    configurations = [Configuration("x", {"x": Interrupting()}, 3)]
    result = BenchResult(
        engine.facts(), [Configuration("plain"), *configurations], toy_workload(), Sampling(), 8
    )
    with pytest.raises(KeyboardInterrupt):
        run_bench(engine, configurations, result.workload, max_tokens=8, result=result)
    assert not result.complete
    assert [run.configuration for run in result.runs] == ["plain", "x", "x", "plain", "plain"]
    assert "Interrupted" in card(result)
    assert engine.sequences_open == 0


def test_repeats_of_one_prompt_make_no_interval() -> None:
    result = run_bench(
        ToyEngine(8, seed=2), [lookup_configuration()], toy_workload(1), max_tokens=8, repeats=4
    )
    assert len(result.runs) == 8
    assert result.ratio("lookup -n 4").low is None


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
    assert all(run.equal_to_plain is None for run in result.runs)
    assert "not compared: sampled" in card(result)


def test_plain_has_nothing_drafted() -> None:
    result = run_bench(ToyEngine(8), [lookup_configuration()], toy_workload(2), max_tokens=8)
    assert generate(ToyEngine(8), [1, 2], stop=StopConditions(max_tokens=4)).figures.proposed == 0
    assert all(r.figures.drafted_rounds == 0 for r in result.runs_of("plain"))
