"""Measuring costs on the toy engine: what is measured, kept, refused and measured again."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from paceline import create_draft, generate
from paceline.bench.profile import measured_policy as adaptive
from paceline.bench.profile import profile
from paceline.bench.profile.profile import (
    Timings,
    cached,
    costs_for,
    costs_key,
    keep,
    measure_costs,
)
from paceline.engines.toy import ToyEngine
from paceline.errors import DataError, SettingError
from paceline.policy.costs import Costs, Point
from paceline.types import StopConditions


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    return tmp_path / "costs"


class SlowInWidth(ToyEngine):
    """Tells its own time: a forward takes as many seconds as this says, without taking them."""

    clock = 0.0

    def _score(self, jobs):
        rows = sum(len(job.tokens) for job in jobs)
        type(self).clock += 1.0 if rows % 4 == 0 else 1.0 + 0.1 * rows
        return super()._score(jobs)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> SlowInWidth:
    SlowInWidth.clock = 0.0
    monkeypatch.setattr(profile, "perf_counter", lambda: SlowInWidth.clock)
    return SlowInWidth(context_size=1000, max_sequences=8)


def measured(engine: ToyEngine, **options) -> Timings:
    samples = Timings()
    measure_costs(engine, samples, sweeps=3, **options)
    return samples


def test_every_width_batch_and_context_is_measured_as_it_is(told: SlowInWidth) -> None:
    samples = measured(told)
    costs = samples.costs(costs_key(told))
    assert samples.complete
    assert costs.complete
    assert costs.sequences == [1, 2, 4, 8]
    assert costs.contexts == [profile.SHORT, profile.LONG]
    for width in profile.WIDTHS:
        assert costs.forward_s(width) == pytest.approx(1.0 if width % 4 == 0 else 1 + 0.1 * width)
    assert costs.forward_s(6, 2) == pytest.approx(1.6)
    assert costs.forward_s(8, 8) == pytest.approx(1.0)
    assert costs.feed_s(128) == pytest.approx(1.0)
    assert told.sequences_open == 0


def test_steps_between_coarse_widths_are_looked_into(told: SlowInWidth) -> None:
    rows = {cell.width for cell in measured(told).seconds if cell.sequences == 1}
    assert rows > set(profile.WIDTHS)


def test_quick_is_one_sequence_and_wide_only_where_that_is_cheap(told: SlowInWidth) -> None:
    cells = measured(told, quick=True, feeds=False).seconds
    assert {cell.sequences for cell in cells} == {1}
    assert not any(cell.feed for cell in cells)
    assert {cell.width for cell in cells} == {*profile.QUICK_WIDTHS, *profile.WIDE_IF_FLAT}

    class Steep(SlowInWidth):
        def _score(self, jobs):
            SlowInWidth.clock += sum(len(job.tokens) for job in jobs)
            return ToyEngine._score(self, jobs)

    steep = measured(Steep(context_size=1000), quick=True).seconds
    assert {cell.width for cell in steep if not cell.feed} == set(profile.QUICK_WIDTHS)


def test_an_interrupt_keeps_what_was_measured(told: SlowInWidth) -> None:
    samples = Timings()

    def interrupt(share: float) -> None:
        if share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_costs(told, samples, sweeps=4, on_progress=interrupt)
    assert told.sequences_open == 0
    costs = samples.costs(costs_key(told))
    assert not costs.complete
    assert costs.forward_s(1) == pytest.approx(1.1)
    with pytest.raises(DataError, match="no point for one row"):
        Timings().costs({})


def test_a_small_context_and_one_sequence_are_enough() -> None:
    costs = measured(ToyEngine(context_size=20, max_sequences=1)).costs({})
    assert costs.sequences == [1]
    assert 8 <= len(costs.table()) - 1 <= 10


def test_a_profile_is_measured_once_and_again_when_its_key_is_stale(cache, monkeypatch) -> None:
    said: list[str] = []
    engine = ToyEngine(seed=3, context_size=300)
    first = costs_for(engine, on_measure=said.append)
    assert costs_for(engine, on_measure=said.append) == first == cached(engine)
    assert len(said) == 1
    assert "toy:3" in said[0]
    assert cached(ToyEngine(seed=4)) is None
    monkeypatch.setattr(profile, "machine_metadata", lambda: {"cpu": "another", "cores": 2})
    assert cached(engine) is None
    costs_for(engine, on_measure=said.append)
    assert len(said) == 2


def test_a_profile_that_was_disturbed_is_not_kept(cache, monkeypatch) -> None:
    said: list[str] = []
    engine = ToyEngine(seed=3, context_size=300)
    monkeypatch.setattr(profile, "shortage", lambda *_: 0.4)
    assert costs_for(engine, on_measure=said.append).forward_s(1) > 0
    assert cached(engine) is None
    assert said[1] == "Other programs disturbed that. It is measured again next time."


def test_a_spoiled_cache_is_measured_again(cache) -> None:
    engine = ToyEngine(seed=3, context_size=300)
    place = keep(costs_for(engine))
    document = json.loads(place.read_text())
    for spoiled in ("", "{}", json.dumps(document | {"key": {"model": "other"}})):
        place.write_text(spoiled)
        assert cached(engine) is None
    assert costs_for(engine).forward_s(1) > 0


def test_recorded_costs_of_another_model_are_refused_by_name() -> None:
    engine, other = (ToyEngine.load(name, context_size=300) for name in ("toy:3", "toy:4"))
    lookup = {"lookup": create_draft("lookup", engine)}
    costs = costs_for(other)
    with pytest.raises(SettingError, match="are for model 'toy:4'; here it is 'toy:3'"):
        adaptive.measured_policy(engine, lookup, costs=costs)
    right = costs_for(engine)
    assert adaptive.measured_policy(engine, lookup, costs=right).costs.frozen
    pair = {"toy:5": create_draft("toy:5", engine)}
    with pytest.raises(SettingError, match="have no draft 'toy:5'"):
        adaptive.measured_policy(engine, pair, costs=right)


def test_files_of_a_model_are_part_of_its_key(tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "model.gguf"

    def key(text: str) -> dict:
        place.write_text(text)
        engine = ToyEngine()
        engine.model, engine.place = place.name, place
        return costs_key(engine)

    one, two = key("one"), key("two")
    assert one["model"] == "model.gguf"
    assert one["fingerprint"] != two["fingerprint"]
    monkeypatch.chdir(tmp_path)
    assert key("one") == one, "wherever it is run from"


def test_quartiles_never_leave_what_was_measured() -> None:
    cell = profile.ProfileCell(1, 1, 64)
    costs = Timings({cell: [0.1, 0.9]}).costs({})
    assert costs.points[0].low == pytest.approx(0.3)
    assert not Timings({cell._replace(width=4): [1.0]}).has_base


def test_a_profile_of_a_smaller_context_is_measured_again_for_a_larger() -> None:
    said: list[str] = []
    small = costs_for(ToyEngine(seed=3, context_size=20), on_measure=said.append)
    large = costs_for(ToyEngine(seed=3, context_size=300), on_measure=said.append)
    assert len(said) == 2
    assert len(small.table()) < 17 <= len(large.table())


def test_measuring_leaves_the_caller_s_random_numbers_alone() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    measured(ToyEngine(seed=3, context_size=300))
    assert random.random() == expected


def test_the_library_s_generate_drafts_by_itself() -> None:
    engine = ToyEngine(6, order=1, seed=2, context_size=300)
    stop = StopConditions(max_tokens=60)
    baseline = generate(engine, [1, 2], stop=stop)
    drafts = {"lookup": create_draft("lookup", engine)}
    drafted = generate(engine, [1, 2], draft=drafts, stop=stop)
    assert drafted.tokens == baseline.tokens
    assert drafted.stats.drafted_rounds > 0, "a toy's rows cost nearly nothing"
    with pytest.raises(SettingError, match="max_draft_tokens is 3 and there is no draft"):
        generate(engine, [1], max_draft_tokens=3, stop=stop)
    with pytest.raises(SettingError, match="max_draft_tokens is 3 and 2 drafts are on offer"):
        generate(
            engine, [1], draft={**drafts, "b": drafts["lookup"]}, max_draft_tokens=3, stop=stop
        )


def test_costs_of_a_width_of_one_only_draft_nothing() -> None:
    engine = ToyEngine(6, order=1, seed=2, context_size=300)
    costs = Costs(key=costs_key(engine), points=(Point(1, 1, 0, 0.1),))
    lookup = {"lookup": create_draft("lookup", engine)}
    chosen = adaptive.measured_policy(engine, lookup, costs=costs)
    got = generate(engine, [1, 2], draft=lookup, policy=chosen, stop=StopConditions(max_tokens=40))
    assert got.stats.drafted_rounds == 0
