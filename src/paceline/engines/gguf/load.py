"""Loading a GGUF file into llama.cpp: what is refused, how large the cache gets, how it is set."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.engines.cpu import free_bytes
from paceline.engines.gguf.library import begin_log, cache_bytes, llama_cpp, reason
from paceline.engines.load import check_range, fitting_context, is_gguf
from paceline.errors import ModelError

BATCH_TOKENS = 512
"""Most tokens in one llama_decode. It can't be interrupted, so longer prompts go in several."""

FORWARD_TOKENS = 128
"""Most tokens llama.cpp puts through the layers at once. What a forward needs beside weights and
cache grows with it; prompts are read as fast as with llama.cpp's 512, because 128 rows are
already many more than it takes for arithmetic, not reading the weights, to set the pace."""

LEAST_BRANCHES, MOST_BRANCHES = 32, 128
"""Branches of a tree for which each sequence has room, if there is room for the least. Each takes
an id, of which llama.cpp has a few hundred; a model with a sliding window has none to spare (see
`_ids`)."""

_CELLS = 256
_VOCABULARY_NONE = 0
_MOST_THREADS = 512


@dataclass(frozen=True, slots=True)
class LlamaContext:
    """A llama.cpp context, and what it holds.

    ids_per_sequence    under how many ids llama.cpp knows each sequence (see `_ids`)
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
    cache_bytes: int
    window_tokens: int | None
    window_bytes: int


_start = functools.cache(llama_cpp.llama_backend_init)


def load_model(path: Path, *, vocabulary_only: bool = False) -> Any:
    """A pointer to the model in a file, with its weights unless only its vocabulary is wanted.
    Raises ModelError for a file that is missing, damaged or
    not a GGUF file, and for models whose state can't be rewound."""
    if path.is_dir():
        raise ModelError(f"{path} is a directory.", "Give the GGUF file in it.")
    if not path.is_file():
        raise ModelError(f"There is no file {path}.", "Check the path.")
    if not is_gguf(path):
        raise ModelError(f"{path} is not a GGUF file.", "Give a GGUF file.")
    parameters = llama_cpp.llama_model_default_params()
    # Mapping the file would keep it resident beside the copy that llama.cpp makes of every
    # tensor it rearranges for the CPU: half as much memory again for the usual quantisations.
    parameters.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
    parameters.vocab_only = vocabulary_only
    begin_log()
    _start()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), parameters)
    if not model:
        raise ModelError(
            f"{path} ({path.stat().st_size:,} bytes) can't be loaded: {reason()}.",
            "Fetch the file again, or choose a model that this llama.cpp knows.",
        )
    problem = _unfit(model)
    if problem:
        architecture = metadata(model, "general.architecture")
        llama_cpp.llama_model_free(model)
        raise ModelError(
            f"{path.name} ({architecture}) {problem}.", "Choose a decoder with attention only."
        )
    return model


def _unfit(model: Any) -> str:
    """Why a model can't be an engine here; empty if it can."""
    if llama_cpp.llama_model_is_recurrent(model):
        return "is recurrent: its state can't be rewound"
    if llama_cpp.llama_model_is_hybrid(model):
        return "is hybrid: the state of its recurrent layers can't be rewound"
    if llama_cpp.llama_model_is_diffusion(model):
        return "is a diffusion model: it doesn't write from left to right"
    if llama_cpp.llama_model_has_encoder(model):
        return "has an encoder: its text isn't one sequence"
    if llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(model)) == _VOCABULARY_NONE:
        return "has no vocabulary"
    return ""


def metadata(model: Any, key: str) -> str:
    """A string of the model's metadata; empty if it isn't there or is longer than 255 bytes."""
    buffer = bytes(256)
    length = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer[: max(0, min(length, 255))].decode("utf-8", errors="replace")


def trained_context(model: Any) -> int | None:
    """Most tokens the model was trained for, of a vocabulary alone too; None if it isn't said."""
    architecture = metadata(model, "general.architecture")
    told = metadata(model, f"{architecture}.context_length")
    return int(told) if told.isdigit() else None


def make_context(
    model: Any, context_size: int | None, max_sequences: int, threads: int
) -> LlamaContext:
    """A context for `max_sequences` of `context_size` tokens each.

    Raises SettingError for numbers out of range, ModelError where memory doesn't suffice or
    llama.cpp refuses.
    """
    trained = llama_cpp.llama_model_n_ctx_train(model)
    context_size = fitting_context("The model", trained, context_size)
    ids = _ids(model)
    known = llama_cpp.llama_max_parallel_sequences()
    check_range("max_sequences", max_sequences, known // ids, "This llama.cpp")
    check_range("threads", threads, _MOST_THREADS, "llama.cpp")
    cells = -(-context_size * max_sequences // _CELLS) * _CELLS
    _check_memory(model, cells, context_size, max_sequences)
    begin_log()
    each = min(MOST_BRANCHES, known // max_sequences - 1) if ids == 1 else 0
    branches = each * max_sequences if each >= LEAST_BRANCHES else 0
    pointer = _new(model, cells, max_sequences * ids + branches, threads, FORWARD_TOKENS)
    if not pointer:
        raise ModelError(
            f"No context for {max_sequences} x {context_size} tokens: {reason()}.",
            "Ask for a smaller context_size or max_sequences.",
        )
    if not llama_cpp.llama_get_memory(pointer):
        llama_cpp.llama_free(pointer)
        raise ModelError(
            "This model keeps no state between forwards.", "Choose a decoder with attention only."
        )
    window = max(0, llama_cpp.llama_model_n_swa(model))
    needed = -(-min(cells, window * max_sequences + FORWARD_TOKENS) // _CELLS) * _CELLS
    return LlamaContext(
        pointer,
        ids,
        branches,
        context_size,
        max_sequences,
        threads,
        cache_bytes=cache_bytes(),
        window_tokens=window or None,
        window_bytes=round(cache_bytes(windowed=True) * (1 - needed / cells)) if window else 0,
    )


def _ids(model: Any) -> int:
    """Two for a model with a sliding window, else one. In layers with a window llama.cpp gives
    away cells that their sequence looks past, even where the whole cache is kept and others are
    empty; not so cells of two sequences. So there each sequence is held under two ids, and
    a rewind finds everything it needs."""
    return 2 if llama_cpp.llama_model_n_swa(model) > 0 else 1


def _new(model: Any, cells: int, ids: int, threads: int, forward_tokens: int) -> Any:
    """A new context's pointer, null where llama.cpp fails."""
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_seq_max = cells, ids
    parameters.n_batch = max(BATCH_TOKENS, ids)
    parameters.n_ubatch = forward_tokens
    parameters.n_threads = parameters.n_threads_batch = threads
    # With a cache apart for each sequence llama.cpp cuts a batch into pieces of equally many
    # tokens of each: 1, 3 and 9 tokens of three sequences would read the weights three times.
    # With one cache for all it is one forward, and a fork shares its cells with its trunk.
    parameters.kv_unified = True
    # On a CPU flash attention sums values in half precision, in an order that depends on how many
    # rows there are: of a float32 model the same token's logits differ a thousand times more
    # between widths, so drafted text differs from ordinary decoding's sooner. It is slower, too
    # (1.25 to 2 times at contexts of 2000 tokens).
    parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    # Layers with a sliding window keep all their cells, or a rewind would find them gone.
    parameters.swa_full = True
    return llama_cpp.llama_init_from_model(model, parameters)


def _check_memory(model: Any, cells: int, context_size: int, max_sequences: int) -> None:
    """Refuse a cache that doesn't fit: a system that promises more memory than it has would kill
    the process when llama.cpp clears it."""
    free = free_bytes()
    if free is None:
        return
    begin_log()
    self_test = _new(model, _CELLS, 1, 1, 1)
    if not self_test:
        return  # the real context will fail in the same way, and say why
    llama_cpp.llama_free(self_test)
    needed = cache_bytes(device="CPU") * cells // _CELLS
    if needed > free:
        raise ModelError(
            f"The cache for {max_sequences} x {context_size} tokens needs {needed / 2**30:.1f} GiB;"
            f" {free / 2**30:.1f} GiB of memory are free.",
            "Ask for a smaller context_size or max_sequences.",
        )
