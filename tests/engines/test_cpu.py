"""What an engine may use of a machine, by its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.engines import cpu


def test_threads_are_physical_cores_within_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_allowed_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(cpu, "_core", lambda cpu: ("0", str(cpu // 2)))
    monkeypatch.setattr(cpu, "_quota", lambda: None)
    assert cpu.default_threads() == 2
    monkeypatch.setattr(cpu, "_quota", lambda: 1)
    assert cpu.default_threads() == 1
    monkeypatch.setattr(cpu, "_quota", lambda: None)
    monkeypatch.setattr(cpu, "_core", lambda _: None)
    assert cpu.default_threads() == 4


@pytest.mark.parametrize(
    ("content", "cpus"),
    [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("", None)],
)
def test_quota(
    content: str, cpus: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(content)
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path)
    assert cpu._quota() == cpus


GROUP = {"memory.max": "4000", "memory.current": "3000", "memory.stat": "anon 1\nactive_file 500"}


@pytest.mark.parametrize(
    ("told", "free"),
    [
        ({}, 1500),
        ({"memory.stat": "inactive_file 100\nactive_file 500"}, 1600),
        ({"memory.current": "4700"}, 0),
        ({"memory.max": "max"}, 8192),
        ({"memory.max": "90000"}, 8192),
        ({"memory.stat": None}, 8192),
    ],
)
def test_free_memory_is_the_containers_where_it_has_less(
    told: dict[str, str | None], free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    for name, content in (GROUP | told).items():
        if content is not None:
            (tmp_path / name).write_text(content)
    monkeypatch.setattr(cpu, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path)
    monkeypatch.setattr(cpu, "_MY_GROUPS", tmp_path / "none")
    assert cpu.free_bytes() == free


OLD = {
    "memory.limit_in_bytes": "5000",
    "memory.usage_in_bytes": "3000",
    "memory.stat": "active_file 9\ntotal_active_file 100",
}


@pytest.mark.parametrize(
    ("mine", "place", "told", "free"),
    [
        ("0::/user/job", "user", GROUP, 1500),  # the limit of a group above
        ("0::/user/job", "user/job", GROUP, 1500),
        ("0::/user/job", "user/other", GROUP, 8192),
        ("4:cpu,memory:/user/job", "memory/user", OLD, 2100),
        ("4:memory:/user/job", "memory", OLD, 2100),
        ("4:cpu:/user/job", "user", GROUP, 8192),
    ],
)
def test_groups_are_looked_for_from_ones_own_up(
    mine: str,
    place: str,
    told: dict[str, str],
    free: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 8 kB\n")
    (tmp_path / "mine").write_text(f"9:pids:/else\n{mine}\n")
    (tmp_path / "groups" / place).mkdir(parents=True)
    for name, content in told.items():
        (tmp_path / "groups" / place / name).write_text(content)
    monkeypatch.setattr(cpu, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(cpu, "_MY_GROUPS", tmp_path / "mine")
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path / "groups")
    assert cpu.free_bytes() == free
