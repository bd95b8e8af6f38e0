"""Loading a GGUF file: what is refused, how large the cache gets, how it is set."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.engines.cpu import free_bytes
from paceline.engines.gguf.library import Library
from paceline.engines.gguf.widths import Widths
from paceline.engines.load import check_range, fitting_context, is_gguf
from paceline.errors import ModelError, UnknownModelError

BATCH_TOKENS = 512
"""Most tokens in one llama_decode. It can't be interrupted, so longer prompts go in several."""

LEAST_BRANCHES, MOST_BRANCHES = 32, 128
"""Branches of a tree for which each sequence has room, if there is room for the least. Each takes
an id, of which llama.cpp has a few hundred; a model with a sliding window has none to spare (see
`make_context`)."""

_CELLS = 256
_VOCABULARY_NONE = 0  # LLAMA_VOCAB_TYPE_NONE
_UNKNOWN = re.compile(r"unknown (model architecture|type)|ggml type")
MOST_THREADS = 512


@dataclass(frozen=True, slots=True)
class GgufContext:
    """A context, and what it holds.

    ids_per_sequence    under how many ids the library knows each sequence (see `make_context`)
    branch_ids          further ids, for the branches of trees; 0 where trees can't be scored
    window_tokens       of layers with a sliding window; None where there are none
    window_bytes        what keeping all their cells adds
    """

    pointer: Any
    ids_per_sequence: int
    branch_ids: int
    context_size: int
    max_sequences: int
    threads: int
    widths: Widths
    cache_bytes: int
    window_tokens: int | None
    window_bytes: int


def load_model(library: Library, path: Path, *, vocabulary_only: bool = False) -> Any:
    """A pointer to the model in a file, with its weights unless only its vocabulary is wanted.

    Raises ModelError for a file that is missing, damaged or not a GGUF file, and for models whose
    state can't be rewound; UnknownModelError for one that the library has no code for.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a directory.", "Give the GGUF file in it.")
    if not path.is_file():
        raise ModelError(f"There is no file {path}.", "Check the path.")
    if not is_gguf(path):
        raise ModelError(f"{path} is not a GGUF file.", "Give a GGUF file.")
    functions = library.functions
    parameters = library.model_parameters(vocabulary_only=vocabulary_only)
    library.begin_log()
    model = library.load_model(os.fsencode(path), parameters)
    if not model:
        reason = library.reason()
        kind = UnknownModelError if _UNKNOWN.search(reason) else ModelError
        raise kind(
            f"{path} ({path.stat().st_size:,} bytes) can't be loaded: {reason}.",
            f"Fetch the file again, or choose a model that this {library.name} knows.",
        )
    problem = _unfit(library, model)
    if problem:
        architecture = metadata(functions, model, "general.architecture")
        functions.llama_model_free(model)
        raise ModelError(
            f"{path.name} ({architecture}) {problem}.", "Choose a decoder with attention only."
        )
    gap = library.gap(model, metadata(functions, model, "general.architecture"))
    if gap:
        functions.llama_model_free(model)
        raise UnknownModelError(f"{library.name} {gap}.", "Use the engine llamacpp.")
    return model


def _unfit(library: Library, model: Any) -> str:
    """Why a model can't be an engine here; empty if it can."""
    functions = library.functions
    if functions.llama_model_is_recurrent(model):
        return "is recurrent: its state can't be rewound"
    if functions.llama_model_is_hybrid(model):
        return "is hybrid: the state of its recurrent layers can't be rewound"
    if functions.llama_model_has_encoder(model):
        return "has an encoder: its text isn't one sequence"
    if library.is_diffusion(model):
        return "is a diffusion model: it doesn't write from left to right"
    if functions.llama_vocab_type(functions.llama_model_get_vocab(model)) == _VOCABULARY_NONE:
        return "has no vocabulary"
    return ""


def metadata(functions: Any, model: Any, key: str) -> str:
    """A string of the model's metadata; empty if it isn't there or is longer than 255 bytes."""
    buffer = bytes(256)
    length = functions.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer[: max(0, min(length, 255))].decode("utf-8", errors="replace")


def trained_context(functions: Any, model: Any) -> int | None:
    """Most tokens the model was trained for, of a vocabulary alone too; None if it isn't said."""
    architecture = metadata(functions, model, "general.architecture")
    told = metadata(functions, model, f"{architecture}.context_length")
    return int(told) if told.isdigit() else None


def make_context(
    library: Library,
    model: Any,
    context_size: int | None,
    max_sequences: int,
    threads: int,
    widths: Widths,
) -> GgufContext:
    """A context for `max_sequences` of `context_size` tokens each.

    Raises SettingError for numbers out of range, ModelError where memory doesn't suffice or
    the library refuses.
    """
    functions = library.functions
    trained = functions.llama_model_n_ctx_train(model)
    context_size = fitting_context("The model", trained, context_size)
    window = library.window(model)
    # Where a library gives away cells that their sequence looks past, even with the whole cache
    # kept and others empty, it does not give away those of two sequences. So each is held under
    # two ids, and a rewind finds everything it needs.
    ids = 2 if window else 1
    known = library.most_ids()
    check_range("max_sequences", max_sequences, known // ids, f"This {library.name}")
    # A forward that is too narrow takes one token more for a while.
    cells = -(-(context_size * max_sequences + (widths.least > 1)) // _CELLS) * _CELLS
    _check_memory(library, model, cells, context_size, max_sequences)
    library.begin_log()
    each = min(MOST_BRANCHES, known // max_sequences - 1) if ids == 1 else 0
    if widths.least:  # what is kept of a tree would lie elsewhere than a chain's tokens
        each = 0
    branches = each * max_sequences if each >= LEAST_BRANCHES else 0
    held = max_sequences * ids + branches
    pointer = _new(library, model, threads, widths.most, cells, held, max_sequences)
    if not pointer:
        raise ModelError(
            f"No context for {max_sequences} x {context_size} tokens: {library.reason()}.",
            "Ask for a smaller context_size or max_sequences.",
        )
    if not functions.llama_get_memory(pointer):
        functions.llama_free(pointer)
        raise ModelError(
            "This model keeps no state between forwards.", "Choose a decoder with attention only."
        )
    needed = -(-min(cells, window * max_sequences + widths.most) // _CELLS) * _CELLS
    kept = library.cache_bytes(windowed=True) if window else 0
    return GgufContext(
        pointer,
        ids,
        branches,
        context_size,
        max_sequences,
        threads,
        widths,
        cache_bytes=library.cache_bytes(),
        window_tokens=window or None,
        window_bytes=round(kept * (1 - needed / cells)),
    )


def _new(
    library: Library,
    model: Any,
    threads: int,
    forward_tokens: int,
    cells: int,
    ids: int,
    sequences: int,
) -> Any:
    """A new context's pointer, null where the library fails."""
    parameters = library.context_parameters(ids=ids, sequences=sequences)
    parameters.n_ctx, parameters.n_batch = cells, max(BATCH_TOKENS + 1, ids)
    parameters.n_ubatch = forward_tokens
    parameters.n_threads = parameters.n_threads_batch = threads
    return library.functions.llama_init_from_model(model, parameters)


def _check_memory(
    library: Library, model: Any, cells: int, context_size: int, max_sequences: int
) -> None:
    """Refuse a cache that doesn't fit: a system that promises more memory than it has would kill
    the process when the cache is cleared."""
    free = free_bytes()
    if free is None:
        return
    library.begin_log()
    self_test = _new(library, model, 1, 1, _CELLS, 1, 1)
    if not self_test:
        return  # the real context will fail in the same way, and say why
    library.functions.llama_free(self_test)
    needed = library.cache_bytes(device="CPU") * cells // _CELLS
    if needed > free:
        raise ModelError(
            f"The cache for {max_sequences} x {context_size} tokens needs {needed / 2**30:.1f} GiB;"
            f" {free / 2**30:.1f} GiB of memory are free.",
            "Ask for a smaller context_size or max_sequences.",
        )
