from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_index import FakeIndex


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test of this folder has its own cache."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("PACELINE_CACHE", str(directory))
    return directory


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An index on this machine, chosen by the environment."""
    index = FakeIndex()
    monkeypatch.setenv("PACELINE_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    yield index
    index.close()
