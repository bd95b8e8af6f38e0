"""Measuring: workloads, pooled ratios, divergences told apart, interrupts that lose nothing."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, fixed
from paceline.bench import stats
from paceline.bench.local import divergence as divergence_module
from paceline.bench.local.check import check_bookkeeping
from paceline.bench.local.divergence import block_margins, explain, first_difference
from paceline.bench.stats import Pair, speed_ratio
from paceline.decode.generate import Generation, decode
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.engines.base import Job
from paceline.engines.toy import ToyEngine
from paceline.verify.chain import ChainVerifier


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


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


def test_an_interval_takes_little_memory_and_is_the_one_of_all_resamples_at_once(monkeypatch):
    draw = np.random.default_rng(3)
    pairs = [Pair(draw.random(), 9, draw.random(), 8) for _ in range(131)]
    in_parts = speed_ratio(pairs)
    monkeypatch.setattr(stats, "_MOST_PICKS", 1 << 30)
    assert speed_ratio(pairs) == in_parts
    monkeypatch.undo()
    tracemalloc.start()
    try:
        speed_ratio([Pair(draw.random(), 9, draw.random(), 8) for _ in range(10_000)], resamples=99)
        assert tracemalloc.get_traced_memory()[1] < 20e6, "99 resamples at once are 40 MB"
    finally:
        tracemalloc.stop()


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


def greedy(engine: ToyEngine, max_draft_tokens: int, prompt: list[int], **sampling) -> Generation:
    decoder = Decoder(
        engine, {"lookup": LookupDraft()}, ChainVerifier(), fixed("lookup", max_draft_tokens)
    )
    return decode(decoder, [asked(prompt, **sampling)])[0]


def test_margins_are_those_of_the_processed_logits() -> None:
    settings = {"repetition_penalty": 1.4, "logit_bias": {2: 0.7}, "min_tokens": 30}
    engine = ToyEngine(6, seed=3, end_tokens=(5,))
    baseline = greedy(engine, 0, [1, 2, 3], **settings)
    request = asked([1, 2, 3], **settings)
    assert block_margins(engine, request, baseline.tokens, [4]) == pytest.approx(baseline.margins)
    assert min(baseline.margins) >= 0


def test_a_flip_by_rounding_is_called_numeric() -> None:
    engine, found = ToyEngine(6, seed=3, order=2, jitter=0.4, sharpness=1.0), 0
    for start in range(6):
        prompt = [start, 1, 2, start]
        baseline, drafted = greedy(engine, 0, prompt), greedy(engine, 4, prompt)
        told = explain(
            engine, asked(prompt), baseline.tokens, drafted.tokens, baseline.margins, [5]
        )
        if told is not None:
            found += 1
            assert told.numeric, told
            assert baseline.tokens[told.position] == told.baseline_token != told.drafted_token
    assert found >= 2


def test_a_flip_that_width_cannot_explain_is_called_a_fault() -> None:
    engine = ToyEngine(6, seed=3)
    baseline = greedy(engine, 0, [1, 2, 3])
    wrong = list(baseline.tokens)
    wrong[7] = (wrong[7] + 1) % 6
    told = explain(engine, asked([1, 2, 3]), baseline.tokens, wrong, baseline.margins, [5])
    assert (told.position, told.numeric, told.verdict) == (7, False, "fault")
    assert told.margin == pytest.approx(baseline.margins[7])
    longer = explain(
        engine, asked([1, 2, 3]), baseline.tokens, [*baseline.tokens, 1], baseline.margins, [5]
    )
    assert not longer.numeric


def test_block_margins_are_baseline_margins_on_an_exact_engine() -> None:
    engine = ToyEngine(6, seed=3)
    baseline = greedy(engine, 0, [1, 2, 3])
    for width in (1, 2, 5, 64):
        again = block_margins(engine, asked([1, 2, 3]), baseline.tokens, [width])
        assert again == list(baseline.margins)
    mixed = block_margins(engine, asked([1, 2, 3]), baseline.tokens, [3, 1, 2])
    assert mixed == list(baseline.margins)
    assert engine.sequences_open == 0


def test_movement_is_looked_for_in_blocks_alike_and_as_they_came(monkeypatch) -> None:

    real, scored = divergence_module.block_margins, []

    def noted(engine, request, output, widths):
        scored.append(tuple(widths))
        again = real(engine, request, output, widths)
        return [gap + (0.3 if widths == (4, 1, 2) else 0.0) for gap in again]

    monkeypatch.setattr(divergence_module, "block_margins", noted)
    engine = ToyEngine(6, seed=3)
    baseline = greedy(engine, 0, [1, 2, 3])
    moved = divergence_module.largest_movement(
        engine, asked([1, 2, 3]), baseline.tokens, baseline.margins, [4, 1, 2]
    )
    assert sorted(scored) == [(2,), (4,), (4, 1, 2)]
    assert moved == pytest.approx(0.3)
    scored.clear()
    divergence_module.largest_movement(
        engine, asked([1, 2, 3]), baseline.tokens, baseline.margins, [1, 1]
    )
    assert scored == [(2,)]


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
