"""A lock between processes. The system lets go of it when its holder dies, so none goes stale."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.2

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    _BUSY: tuple[type[OSError], ...] = (PermissionError,)
else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    _BUSY: tuple[type[OSError], ...] = (BlockingIOError,)


def taken(descriptor: int) -> bool:
    """Lock an open file until it is closed, without waiting; False if another has it."""
    try:
        _take(descriptor)
    except _BUSY:
        return False
    return True


@contextmanager
def held(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at `path`, waiting for whoever has it; `on_wait` is called once if so.

    The empty file stays: removing it would let a third process lock a file that is no longer
    there for the others.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        waited = False
        while not taken(descriptor):
            if not waited:
                on_wait()
            waited = True
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
