"""What a run takes: processor time and memory of the block, not of what came before."""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np
import pytest

from paceline.bench.machine import read_bandwidth, watched


def test_processor_time_is_that_of_the_block() -> None:
    with watched() as busy:
        ends = perf_counter() + 0.2
        while perf_counter() < ends:
            pass
    with watched() as idle:
        pass
    assert busy.cpu_s > 0.01  # the machine may give us less than all of it
    assert idle.cpu_s < busy.cpu_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_the_peak_is_that_of_the_block() -> None:
    with watched() as large:
        np.ones(40_000_000)
    with watched() as small:
        np.ones(1000)
    assert large.peak_memory_bytes - small.peak_memory_bytes > 200_000_000


def test_a_peak_that_cannot_be_forgotten_is_the_whole_life_s(monkeypatch, tmp_path) -> None:
    from paceline.bench import machine

    monkeypatch.setattr(machine, "_PROCESS", tmp_path / "no" / "proc")
    with watched() as taken:
        pass
    assert taken.peak_memory_bytes == machine.peak_memory_bytes()


def test_memory_gives_some_bytes_a_second() -> None:
    assert 1e7 < read_bandwidth(size=1 << 24, seconds=0.01) < 1e13


def stat(user: int, idle: int, stolen: int = 0) -> str:
    return f"cpu  {user} 0 0 {idle} 7 0 0 {stolen} 5 0\ncpu0 1 2 3\n"


def test_what_others_kept_busy_is_the_machine_s_time_less_its_own(monkeypatch, tmp_path) -> None:
    from paceline.bench import machine

    file = tmp_path / "stat"
    file.write_text(stat(100, 900))
    clock = iter([0.0, 4.0])
    monkeypatch.setattr(machine, "_MACHINE", file)
    monkeypatch.setattr(machine, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "process_time", iter([1.0, 3.0]).__next__)
    monkeypatch.setattr(machine.os, "sysconf", lambda _: 100)
    with watched() as taken:
        file.write_text(stat(600, 1100, stolen=100))
    assert taken.cpu_s == 2.0
    assert taken.others_cores == (6.0 - 2.0) / 4.0


def test_a_short_block_and_a_system_that_does_not_tell_say_nothing(monkeypatch, tmp_path) -> None:
    from paceline.bench import machine

    with watched() as unknown:
        pass
    file = tmp_path / "stat"
    file.write_text(stat(100, 900))
    monkeypatch.setattr(machine, "_MACHINE", file)
    with watched() as short:
        pass
    assert unknown.others_cores is short.others_cores is None


@pytest.mark.parametrize(
    ("others", "threads", "lacked"),
    [(None, 2, 0), (0.0, 2, 0), (1.0, 2, 0.5), (1.0, 1, 0), (2.0, 1, 1.0), (1.0, None, 0.5)],
)
def test_others_count_as_far_as_they_leave_too_few_processors(
    others, threads, lacked, monkeypatch
) -> None:
    from paceline.bench import machine

    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    assert machine.shortage(others, threads) == lacked
