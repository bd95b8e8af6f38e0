"""The machine: its facts, what a run takes of it besides time, and how fast its memory is read."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

TOLERATED_SHORTAGE = 0.1
"""The share of its processors that other programs may take from what is measured. Threads wait for
each other after every operation, so a tenth of their time costs more than a tenth of the speed; a
quiet machine stays below a thirtieth."""

_LEAST_S = 0.5  # Linux counts in hundredths of a second
_PROCESS, _MACHINE = Path("/proc/self"), Path("/proc/stat")


def machine_metadata() -> dict[str, Any]:
    """CPU, cores this process may use, memory, system, Python; JSON values."""
    import paceline

    return {
        "cpu": _cpu_model(),
        "cpu_features": _features(),
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "paceline": paceline.__version__,
    }


def usable_cores() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory_bytes() -> int | None:
    """Most memory this process has had resident; None where the system doesn't tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def _cpu_model() -> str:
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _features() -> list[str]:
    """What decides how much a wider forward costs."""
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), "").split()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return [flag for flag in wanted if flag in flags]


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


class Taken:
    """Filled when the watched block ends.

    cpu_s                processor seconds, all threads of this process
    others_cores         processors that other programs kept busy, on average; None where the
                         system doesn't tell (only Linux does), or of a block too short to tell
    peak_memory_bytes    most resident memory in the block, where the system can tell (Linux);
                         elsewhere the most the process has ever had
    """

    cpu_s: float = 0.0
    others_cores: float | None = None
    peak_memory_bytes: int | None = None


@contextmanager
def watched() -> Iterator[Taken]:
    """Count what a block takes."""
    taken = Taken()
    fresh = _forget_peak()
    started, cpu_s, busy_s = perf_counter(), process_time(), _busy_s()
    try:
        yield taken
    finally:
        taken.cpu_s = process_time() - cpu_s
        busy, wall = _busy_s(), perf_counter() - started
        if busy is not None and busy_s is not None and wall > _LEAST_S:
            taken.others_cores = max(0.0, busy - busy_s - taken.cpu_s) / wall
        taken.peak_memory_bytes = (_peak_since() if fresh else None) or peak_memory_bytes()


def _busy_s() -> float | None:
    """Processor seconds that the whole machine has worked since it started, for virtual machines
    beside it too (proc(5), stat: all but idle and waiting for disks; guests are in user time)."""
    try:
        first = _MACHINE.read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _, _, *rest = map(int, first[1:])
        return float(user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def shortage(others_cores: float | None, threads: int | None) -> float:
    """What share of the processors that a run has threads for others used: 0 where enough were
    left, or where it isn't known. A container's /proc/stat is its host's, whose other cores may be
    busy with anything, so what others do counts only as far as it leaves the run too few."""
    if others_cores is None:
        return 0.0
    needed = min(threads or usable_cores(), usable_cores())
    return max(0.0, others_cores + needed - (os.cpu_count() or 1)) / needed


def _forget_peak() -> bool:
    """Have Linux count the peak anew (proc(5), clear_refs); whether it does."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _peak_since() -> int | None:
    try:
        lines = (_PROCESS / "status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def read_bandwidth(
    *, threads: int | None = None, size: int = 1 << 29, seconds: float = 0.5
) -> float:
    """Bytes a second that memory gives when it is only read: the bound of a pass that has to read
    all weights. The best of several sweeps over more than any cache holds, every thread over its
    own part.

    size    bytes to sweep
    """
    count = threads or usable_cores()
    parts = [np.ones(size // count // 8, dtype=np.int64) for _ in range(count)]
    total = sum(part.nbytes for part in parts)
    best, ends = 0.0, perf_counter() + seconds
    with ThreadPoolExecutor(count) as pool:
        while perf_counter() < ends or not best:
            started = perf_counter()
            list(pool.map(_read, parts))
            best = max(best, total / (perf_counter() - started))
    return best


def _read(part: np.ndarray) -> int:
    return int(np.bitwise_or.reduce(part))
