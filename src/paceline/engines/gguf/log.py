"""llama.cpp's own log: kept off the terminal, read for its errors and for the sizes it states."""

from __future__ import annotations

import ctypes
import re
from collections import deque

from paceline.engines.gguf.llama_cpp import llama_cpp

_ERROR = 4
_KEEP = 1000
_GENERAL = re.compile(r"failed to (load model|decode|initialize batch)")
_ORIGIN = re.compile(r"^\w+: (error loading model: )?")
_CACHE = re.compile(r"(\w+) KV buffer size = +([\d.]+) MiB")
_WINDOWED = "SWA KV cache, size"
_WHOLE = "non-SWA"

_records: deque[tuple[int, str]] = deque(maxlen=_KEEP)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _record(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    _records.append((level, text.decode("utf-8", errors="replace").strip()))


def begin() -> None:
    """Take the log, and start with an empty record. llama.cpp has one log for the whole process;
    it is taken at each load because another user of llama.cpp may have taken it since."""
    forget()
    llama_cpp.llama_log_set(_record, ctypes.c_void_p(0))


forget = _records.clear


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
        if _WINDOWED in text:
            in_window = _WHOLE not in text
        found = _CACHE.search(text)
        if found and device in found[1] and (in_window or not windowed):
            total += float(found[2])
    return round(total * 2**20)
