"""What the GGUF engine asks of a C library: llama.cpp's functions, and its log, kept off the
terminal and read for errors and the sizes it states.

The threads of these libraries wait for each other after every operation. GNU's OpenMP lets a
waiting thread turn in circles first, for about a millisecond; where another program wants that
core, every operation then waits for the scheduler. Measured on two cores with one other busy
program, a 135M model took 728 ms a token that way and 58 ms with a short wait; with nothing else
running 20.5 against 16.6 ms (docs/log.md). So the wait is made short, unless the user has set it.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import os
import re
from collections import deque
from typing import Any, ClassVar

if "OMP_WAIT_POLICY" not in os.environ:  # read when a library's OpenMP is loaded: set it before
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

ERROR = 4  # the level of an error in a log
_GENERAL = re.compile(r"failed to (load model|decode|initialize batch)")
_ORIGIN = re.compile(r"^\w+: (error loading model: )?")
_CACHE = re.compile(r"(\w+) KV buffer size = +([\d.]+) MiB")

_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Library(abc.ABC):
    """A build of llama.cpp or of one of its forks.

    name                as its users know it
    functions           its C functions, by the names that llama.cpp gives them today
    kernels_by_width    wide forwards take kernels that may be wrong (see `widths`)
    holes               the cache may not have free cells between used ones when it is read
    """

    name: str
    functions: Any
    kernels_by_width: ClassVar[bool] = False
    holes: ClassVar[bool] = False

    def __init__(self) -> None:
        self._records: deque[tuple[int, str]] = deque(maxlen=1000)
        self._callback = _log_callback(self._record)
        self.forget_log = self._records.clear

    # -- what differs between builds

    @abc.abstractmethod
    def model_parameters(self, *, vocabulary_only: bool) -> Any:
        """How a file is loaded."""

    @abc.abstractmethod
    def context_parameters(self, *, ids: int, sequences: int) -> Any:
        """A context of one cache for all sequences, from which any tail can be taken again.

        ids          under which sequences and branches of trees are held
        sequences    that are open at once
        """

    @abc.abstractmethod
    def window(self, model: Any) -> int:
        """Tokens that layers with a sliding window look back; 0 where there are none, or where the
        library always keeps their whole cache."""

    @abc.abstractmethod
    def most_ids(self) -> int:
        """Under how many ids a context can hold tokens."""

    @abc.abstractmethod
    def held(self, memory: Any, number: int) -> tuple[int, int]:
        """The first and the last position held under an id, as far as the library knows; -1, -1
        where nothing is held."""

    @abc.abstractmethod
    def attributes(self, model: Any, token: int) -> int:
        """A token's LLAMA_TOKEN_ATTR bits."""

    @abc.abstractmethod
    def versions(self) -> dict[str, Any]:
        """What the engine's metadata say of the library."""

    def close_holes(self, memory: Any) -> None:  # noqa: B027
        """Move what a cache holds together. Raises ModelError if that fails."""

    def load_model(self, path: bytes, parameters: Any) -> Any:
        """A pointer to the model in a file; null where that fails, for a `reason`."""
        return self.functions.llama_model_load_from_file(path, parameters)

    def is_diffusion(self, model: Any) -> bool:  # noqa: ARG002
        """Whether a model doesn't write from left to right."""
        return False

    def gap(self, model: Any, architecture: str) -> str:  # noqa: ARG002
        """What of a model it has loaded the library can't run after all; empty if it can."""
        return ""

    # -- the log

    @functools.cached_property
    def _start(self) -> None:
        self.functions.llama_backend_init()

    def _record(self, level: int, text: bytes, _: ctypes.c_void_p | None) -> None:
        self._records.append((level, text.decode("utf-8", errors="replace").strip()))

    def begin_log(self) -> None:
        """Take the log, and start with an empty record. There is one log for the whole process; it
        is taken at each load because another user of the library may have taken it since."""
        self.forget_log()
        self.functions.llama_log_set(self._callback, None)
        self._start  # noqa: B018 (once)

    def reason(self) -> str:
        """Why the library failed, in its own words: the first error that says more than that it
        did."""
        errors = [text for level, text in self._records if level == ERROR]
        telling = [text for text in errors if not _GENERAL.search(text)] or errors
        return _ORIGIN.sub("", telling[0]).rstrip(".") if telling else f"{self.name} gave no reason"

    def cache_bytes(self, *, device: str = "", windowed: bool = False) -> int:
        """Bytes of keys and values that the last context said it made (it rounds to 0.01 MiB).

        device      only buffers there ("CPU"); by default all
        windowed    only the layers with a sliding window
        """
        total, in_window = 0.0, False
        for _, text in self._records:
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


def description(functions: Any, model: Any) -> str:
    """Architecture, size and type of a model, as in "llama 1B Q4_K - Medium"; "?B" for a size that
    the library doesn't know."""
    buffer = ctypes.create_string_buffer(128)
    functions.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", errors="replace")
