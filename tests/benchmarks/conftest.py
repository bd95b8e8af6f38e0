"""benchmarks/peers is a folder of scripts, not a package: its modules are found by their folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"

if PEERS.is_dir():
    sys.path.insert(0, str(PEERS))
else:  # a source distribution has no benchmarks
    collect_ignore = ["test_peers.py"]


@pytest.fixture
def peers_folder() -> Path:
    return PEERS
