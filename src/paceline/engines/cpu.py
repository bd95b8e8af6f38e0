"""What an engine may use of this machine: threads, and memory that is free."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
_GROUPS = Path("/sys/fs/cgroup")
_MY_GROUPS = Path("/proc/self/cgroup")


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
    """Whole CPUs that a container's control group (version 2) grants; None where it sets no
    limit."""
    try:
        granted, period = (_GROUPS / "cpu.max").read_text().split()
        return max(1, int(granted) // int(period))
    except (OSError, ValueError):
        return None


def free_bytes() -> int | None:
    """Memory that can be had without swapping, by the system and the control groups that are seen
    from here; None where none says."""
    told = [_free_of_system(), *map(_free_of_group, _groups())]
    return min((each for each in told if each is not None), default=None)


def _free_of_system() -> int | None:
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _groups() -> set[Path]:
    """The folders of the control groups that this process is in, from its own up."""
    found = {_GROUPS, _GROUPS / "memory"}  # a container sees its own at the root
    try:
        lines = _MY_GROUPS.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "" or "memory" in kinds.split(","):  # version 2, or the old kind of groups
            root = _GROUPS / "memory" if kinds else _GROUPS
            own = root / path.strip("/")
            found.update(place for place in (own, *own.parents) if place.is_relative_to(root))
    return found


_NAMES = (  # of a limit, what is used, and files in memory, which can be dropped
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def _free_of_group(place: Path) -> int | None:
    """None where the group sets no limit."""
    for limit, used, files in _NAMES:
        try:
            most, now = (int((place / name).read_text()) for name in (limit, used))
            held = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
            return max(0, most - now + sum(int(held.get(name, 0)) for name in files))
        except (OSError, ValueError):  # no such file; no limit is the word max
            continue
    return None


def cpu_field(name: str) -> str:
    """A field of the first processor in Linux's words, such as flags; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(rf"^{name}\s*:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
