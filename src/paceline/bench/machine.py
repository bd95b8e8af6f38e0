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

_PROCESS = Path("/proc/self")


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
    peak_memory_bytes    most resident memory in the block, where the system can tell (Linux);
                         elsewhere the most the process has ever had
    """

    cpu_s: float = 0.0
    peak_memory_bytes: int | None = None


@contextmanager
def watched() -> Iterator[Taken]:
    """Count what a block takes."""
    taken = Taken()
    fresh = _forget_peak()
    started = process_time()
    try:
        yield taken
    finally:
        taken.cpu_s = process_time() - started
        taken.peak_memory_bytes = (_peak_since() if fresh else None) or peak_memory_bytes()


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
