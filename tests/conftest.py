"""What tests share: the one real model, and text to decode with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.models import catalog

# A background job of a shell without job control ignores interrupts, which tests send themselves.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _undisturbed() -> Iterator[None]:
    """Tests run beside each other, which a bench would notice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.bench.machine._MACHINE", Path("/nowhere/stat"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _widths_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is tried out of tiny models doesn't go into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("widths")
        patch.setattr("paceline.engines.gguf.widths.cache_dir", lambda: folder)
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The demo model's GGUF file. `make test` pulls it; without it these tests are skipped."""
    model = catalog.find("smollm2-135m")
    if not catalog.is_present(model):
        pytest.skip("run `paceline models pull smollm2-135m` first")
    return catalog.path_of(model)
