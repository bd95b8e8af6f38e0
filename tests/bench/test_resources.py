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
