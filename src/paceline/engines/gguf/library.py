"""llama.cpp as a library: the one place where it is imported, because something must be set before
that, and its log, kept off the terminal and read for its errors and the sizes it states.

llama.cpp's threads wait for each other after every operation. GNU's OpenMP lets a waiting thread
turn in circles first, for about a millisecond; where another program wants that core, every
operation then waits for the scheduler. Measured on two cores with one other busy program, a 135M
model took 728 ms a token that way and 58 ms with a short wait; with nothing else running 20.5
against 16.6 ms (docs/log.md). So the wait is made short, unless the user has set it.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import llama_cpp

__all__ = ["begin_log", "cache_bytes", "forget_log", "llama_cpp", "openmp_wait", "reason"]

_ERROR = 4
_GENERAL = re.compile(r"failed to (load model|decode|initialize batch)")
_ORIGIN = re.compile(r"^\w+: (error loading model: )?")
_CACHE = re.compile(r"(\w+) KV buffer size = +([\d.]+) MiB")

_records: deque[tuple[int, str]] = deque(maxlen=1000)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _record(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    _records.append((level, text.decode("utf-8", errors="replace").strip()))


def begin_log() -> None:
    """Take the log, and start with an empty record. llama.cpp has one log for the whole process;
    it is taken at each load because another user of llama.cpp may have taken it since."""
    forget_log()
    llama_cpp.llama_log_set(_record, ctypes.c_void_p(0))


forget_log = _records.clear


def reason() -> str:
    """Why llama.cpp failed, in its own words: the first error that says more than that it did."""
    errors = [text for level, text in _records if level == _ERROR]
    telling = [text for text in errors if not _GENERAL.search(text)] or errors
    return _ORIGIN.sub("", telling[0]).rstrip(".") if telling else "llama.cpp gave no reason"


def cache_bytes(*, device: str = "", windowed: bool = False) -> int:
    """Bytes of keys and values that the last context said it made (it rounds to 0.01 MiB).

    device      only buffers there ("CPU"); by default all
    windowed    only the layers with a sliding window
    """
    total, in_window = 0.0, False
    for _, text in _records:
        if "SWA KV cache, size" in text:
            in_window = "non-SWA" not in text
        found = _CACHE.search(text)
        if found and device in found[1] and (in_window or not windowed):
            total += float(found[2])
    return round(total * 2**20)


def openmp_wait() -> str:
    """How long OpenMP's threads turn in circles, for the engine's metadata."""
    policy = os.environ.get("OMP_WAIT_POLICY")
    return policy or f"spin count {os.environ.get('GOMP_SPINCOUNT', 'default')}"
