"""How many tokens a library may put through the layers at once, tried out before a model is used.

A library takes other kernels for wide forwards than for narrow ones, and they may round otherwise,
or be wrong: ik_llama.cpp 0.1.5 reads a prompt of Q4_1 weights in forwards of 32 tokens or more with
a loss of 1.89 nats a token where narrow ones give 1.35 (AVX2 without VNNI; docs/log.md).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.engines.cpu import cpu_field
from paceline.engines.gguf.batch import Batch, BatchSegment
from paceline.engines.gguf.library import Library
from paceline.errors import ModelError, SettingError, UnknownModelError
from paceline.models.catalog import cache_dir
from paceline.types import Array

WIDE = 128
"""Most tokens in a forward. What a forward needs beside weights and cache grows with it; prompts
are read as fast as with llama.cpp's 512, because 128 rows are already many more than it takes for
arithmetic, not reading the weights, to set the pace."""

NARROW = 15
"""Most tokens in a forward where wide ones are not to be trusted: ik_llama.cpp takes other kernels
from 16 rows on for some types of weights, from 24, 32 or 64 on for others."""

TOLERANCE = 0.2
"""Most error of a wide forward's logits against narrow ones', relative to their spread. Rounding
gives a few hundredths, a kernel that overflows 0.7 or more."""

_TOKENS, _TAIL = 64, 30
_TRIED = (1, 2, 3, NARROW)  # of the tail they leave no single token, but 1


@dataclass(frozen=True, slots=True)
class Widths:
    """Of one model in one library on one kind of processor.

    most     tokens the library puts through the layers at once
    least    rows of a forward from which on a row's logits are the same to the bit whatever else is
             in it; 0 where that isn't so, or wasn't asked
    """

    most: int = WIDE
    least: int = 0


def find_widths(
    library: Library, model: Any, path: Path, threads: int, *, same_text: bool
) -> Widths:
    """The widths to use, tried out once a model and machine and then remembered.

    same_text    a row's logits must not depend on the forward it is in

    Raises SettingError where that can't be had, UnknownModelError where the model's logits depend
    on how it is fed far beyond rounding.
    """
    if not library.kernels_by_width:
        return Widths()
    place = _remembered(library, path, same_text=same_text)
    try:
        return Widths(**json.loads(place.read_bytes()))
    except (OSError, ValueError, TypeError):
        pass
    found = _try_out(library, model, path.name, threads, same_text=same_text)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(f".{os.getpid()}.part")
        beside.write_text(json.dumps(asdict(found)), encoding="utf-8")
        beside.replace(place)
    except OSError:
        pass  # it is tried out again next time
    return found


def _remembered(library: Library, path: Path, *, same_text: bool) -> Path:
    """Where what was found is kept: another file, library or processor has another place."""
    facts = path.stat()
    cpu = cpu_field("model name"), cpu_field("flags")
    key = repr((path.name, facts.st_size, facts.st_mtime_ns, library.versions(), cpu, same_text))
    return cache_dir() / "widths" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _try_out(library: Library, model: Any, name: str, threads: int, *, same_text: bool) -> Widths:
    trial = _Trial(library, model, threads)
    try:
        narrow, wide = trial.rows(8, 8), trial.rows(_TOKENS, _TOKENS)
        error = float(np.linalg.norm(wide - narrow) / np.linalg.norm(narrow - narrow.mean()))
        most = WIDE if error <= TOLERANCE else NARROW
        if not np.isfinite(narrow).all():
            raise UnknownModelError(
                f"{library.name} gives logits of {name} that are not finite.",
                "Use the engine llamacpp.",
            )
        if not same_text:
            return Widths(most)
        # From here on: to the bit.
        if not np.array_equal(wide, narrow):
            most = NARROW
        rows = {width: trial.rows(8, width) for width in _TRIED}
    finally:
        trial.close()
    for least in (1, 2):
        if all(np.array_equal(each, narrow) for width, each in rows.items() if width >= least):
            return Widths(most, least)
    raise SettingError(
        f"Rows of {name} depend on the width of their forward in {library.name} here.",
        "Leave --same-text out.",
    )


class _Trial:
    """A context of its own, in which one text is read in forwards of several widths."""

    def __init__(self, library: Library, model: Any, threads: int) -> None:
        self._library, self._call = library, library.functions
        parameters = library.context_parameters(ids=1, sequences=1)
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 256, WIDE, WIDE
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = self._call.llama_init_from_model(model, parameters)
        if not self._context:
            raise ModelError(f"No context of 256 tokens: {library.reason()}.", "Free memory.")
        self._memory = self._call.llama_get_memory(self._context)
        self._batch = Batch(self._call.llama_batch, WIDE, 1)
        vocabulary = self._call.llama_model_get_vocab(model)
        self._size = self._call.llama_vocab_n_tokens(vocabulary)
        self._text = np.random.default_rng(1).integers(0, self._size, _TOKENS).tolist()

    def rows(self, head: int, tail: int) -> Array:
        """The logits after each token of the text's tail, float32, raw: what comes before is read
        `head` tokens at a time, the tail `tail` at a time. Shape (tokens, vocabulary)."""
        self._call.llama_memory_seq_rm(self._memory, 0, -1, -1)
        begin = 0 if head >= _TOKENS else _TOKENS - _TAIL
        for at in range(0, begin, head):
            self._read(at, min(at + head, begin))
        found = [self._read(at, min(at + tail, _TOKENS)) for at in range(begin, _TOKENS, tail)]
        return np.concatenate(found)[-_TAIL:]

    def _read(self, start: int, end: int) -> Array:
        segment = BatchSegment(0, start, self._text[start:end], output=True)
        [count] = self._batch.fill([segment])
        status = self._call.llama_decode(self._context, self._batch.struct)
        if status:
            raise ModelError(
                f"{self._library.name} could not score {count} tokens: llama_decode returned "
                f"{status}.",
                "Use another model.",
            )
        logits = self._call.llama_get_logits(self._context)
        return np.array(np.ctypeslib.as_array(logits, (count, self._size)))

    def close(self) -> None:
        self._call.llama_free(self._context)
