"""What an engine may use of this machine: threads, and memory that is free."""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
_GROUP = Path("/sys/fs/cgroup")
"""The control group (version 2) of a container, as it sees it."""


def default_threads() -> int:
    """The CPUs this process may run on, counted in physical cores where that can be known.

    An engine's threads wait for each other after every operation, so two on one core, or more
    than a container's quota lets run at once, are slower than fewer.
    """
    cpus = _allowed_cpus()
    cores = {_core(cpu) for cpu in cpus}
    count = len(cpus) if None in cores else len(cores)
    quota = _quota()
    return max(1, count if quota is None else min(count, quota))


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core(cpu: int) -> tuple[str, str] | None:
    folder = Path(_TOPOLOGY.format(cpu))
    try:
        package = (folder / "physical_package_id").read_text().strip()
        return package, (folder / "core_id").read_text().strip()
    except OSError:
        return None


def _quota() -> int | None:
    """Whole CPUs that the control group grants; None where it sets no limit."""
    try:
        granted, period = (_GROUP / "cpu.max").read_text().split()
        return max(1, int(granted) // int(period))
    except (OSError, ValueError):
        return None


def free_bytes() -> int | None:
    """Memory that can be had without swapping, by the system and the control group; None where
    neither says."""
    told = [each for each in (_free_of_system(), _free_of_group()) if each is not None]
    return min(told, default=None)


def _free_of_system() -> int | None:
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _free_of_group() -> int | None:
    """None where the control group sets no limit. Files that it holds in memory can be dropped."""
    try:
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        held = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        files = int(held.get("inactive_file", 0)) + int(held.get("active_file", 0))
    except (OSError, ValueError):  # no limit is the word max
        return None
    return max(0, limit - used + files)
