"""Any causal language model of the transformers library, on CPU or CUDA.

Tokens of all sequences go through the model as one row, without padding; only attention tells
them apart (see `cache`). A sequence is a slot of one cache made when loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as AbstractSequence
from pathlib import Path
from typing import Any

import torch

import transformers
from paceline.engines.base import (
    Capabilities,
    Engine,
    Job,
    Sequence,
    TokenizerOnly,
    TokenSegment,
    forwards,
    rows_by_job,
)
from paceline.engines.load import check_range, fitting_context, longest_context
from paceline.engines.transformers.cache import CachePlan, KeyValueCache
from paceline.engines.transformers.load import Loaded, load_model, load_tokenizer, readable
from paceline.engines.transformers.self_test import SelfTest, run, try_out
from paceline.engines.transformers.tokenizer import TransformersTokenizer
from paceline.types import Array


class TransformersSequence(Sequence):
    """A slot of the cache. Rewinding takes nothing: what lies behind its length is never read."""

    engine: TransformersEngine

    def _copy(self, source: Sequence) -> None:
        with torch.inference_mode():
            self.engine.cache.copy(source.slot, self.slot, source.length)

    def _keep(self, length: int, path: AbstractSequence[int]) -> None:
        with torch.inference_mode():
            self.engine.cache.gather(self.slot, length, path)


class TransformersEngine(Engine):
    """A causal language model in torch.

    target           a model directory, a GGUF file (converted once), or a hub name
    context_size     most tokens a sequence holds; by default what the model was made for, at most
                     4096
    max_sequences    slots in the cache
    dtype            auto, float32, bfloat16 or float16; auto takes the checkpoint's on CUDA, and
                     on a CPU bfloat16 where it multiplies that itself, else float32
    device           cpu, cuda or cuda:NUMBER; by default CUDA where there is one
    threads          CPU threads; torch has one number for the whole process
    """

    name = "transformers"
    sequence_type = TransformersSequence
    needs = "pip install paceline[transformers]; model directories, hub names and GGUF files"

    def __init__(self, target: str, loaded: Loaded, context_size: int, max_sequences: int) -> None:
        self.model = target
        self._loaded, self._model = loaded, loaded.model
        self.vocabulary_size = self._model.get_output_embeddings().weight.shape[0]
        self.capabilities = Capabilities(
            context_size=context_size, max_sequences=max_sequences, trees=True
        )
        generation = getattr(self._model, "generation_config", None)
        self.tokenizer = TransformersTokenizer(
            loaded.tokenizer, listed(getattr(generation, "eos_token_id", None))
        )
        self.cache = KeyValueCache(max_sequences, context_size)
        self._self_test: SelfTest = try_out(target, self._model, self.vocabulary_size, loaded.dtype)

    @classmethod
    def load(
        cls,
        target: str,
        *,
        context_size: int | None = None,
        max_sequences: int = 1,
        dtype: str | None = None,
        device: str | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> TransformersEngine:
        """Load a model. Raises ModelError if it can't be found, read or rewound."""
        cls.refuse_options(options)
        check_range("max_sequences", max_sequences)
        check_range("threads", threads)
        if threads is not None:
            torch.set_num_threads(threads)
        loaded = load_model(target, dtype, device)
        text = loaded.model.config.get_text_config(decoder=True)
        size = fitting_context(target, longest_context(text.to_dict()), context_size)
        with readable(target):
            engine = cls(target, loaded, size, max_sequences)
        place = Path(target)
        engine.place = place.absolute() if place.exists() else None
        return engine

    @property
    def module(self) -> Any:
        """The torch module, for what runs parts of it."""
        return self._model

    @property
    def dtype(self) -> str:
        """The type of its weights, as torch names it."""
        return self._loaded.dtype

    @property
    def windows(self) -> Mapping[int, int]:
        """Most tokens a row sees, by layer; 0: all."""
        return self._self_test.windows

    @classmethod
    def load_tokenizer(cls, target: str) -> TokenizerOnly:
        """Of a directory or hub name. Raises ModelError if it can't be read."""
        tokenizer, config, ends = load_tokenizer(target)
        place = Path(target)
        return TokenizerOnly(
            cls.name,
            target,
            TransformersTokenizer(tokenizer, listed(ends)),
            config.get_text_config(decoder=True).vocab_size,
            place.absolute() if place.exists() else None,
        )

    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        rows: list[list[Array]] = [[] for _ in jobs]
        with torch.inference_mode():
            for segments in forwards(jobs):
                plan = CachePlan(self.cache, segments, self.windows)
                logits = run(self._model, plan, kept(segments))
                for number, found in rows_by_job(logits, segments):
                    rows[number].append(found)
        if self._loaded.device.type == "cuda":
            # The forward is over when it is over, not when it was asked for: whoever times a score,
            # the policy for one, must see what it took. The rows are read right afterwards anyway.
            torch.cuda.synchronize(self._loaded.device)
        # Copies, because tensors of inference mode can't be changed in place by whoever gets them.
        return [found[0].clone() if len(found) == 1 else torch.cat(found) for found in rows]

    def metadata(self) -> dict[str, Any]:
        capabilities, by_layer = self.capabilities, self._self_test.bytes_per_token
        held = capabilities.context_size * capabilities.max_sequences
        metadata = {
            "engine": self.name,
            "model": self.model,
            "architecture": type(self._model).__name__,
            "device": device_name(self._loaded.device),
            "dtype": self._loaded.dtype,
            "dtype_reason": self._loaded.dtype_reason,
            "threads": torch.get_num_threads(),
            "weights_bytes": self._self_test.weights_bytes,
            "cache_bytes": held * sum(by_layer.values()),
            "context_size": capabilities.context_size,
            "max_sequences": capabilities.max_sequences,
            "attention": "ragged batch without padding, torch scaled_dot_product_attention",
            "patched_linear_layers": self._self_test.patched_layers,
            "self_test_error": self._self_test.error,
            "torch_version": torch.__version__,
            "transformers_version": transformers.__version__,
        }
        if self._loaded.converted:
            metadata["converted_to"] = self._loaded.converted
        return metadata | self._window_metadata()

    def _window_metadata(self) -> dict[str, Any]:
        """What keeping sliding windows whole costs, if the model has any."""
        windows = {at: size for at, size in self._self_test.windows.items() if size}
        if not windows:
            return {}
        context, sequences = self.capabilities.context_size, self.capabilities.max_sequences
        extra = sum(
            max(0, context - window) * self._self_test.bytes_per_token[at]
            for at, window in windows.items()
        )
        return {
            "sliding_window_tokens": max(windows.values()),
            "sliding_window_layers": len(windows),
            "sliding_window_kept": "whole, so that it can be rewound",
            "sliding_window_extra_bytes": extra * sequences,
        }

    def _close(self) -> None:
        self._model = None
        self._loaded = None  # type: ignore[assignment]
        self.cache = KeyValueCache(0, 0)


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU with its own name: costs differ between two of them."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def listed(tokens: int | list[int] | None) -> list[int]:
    """Token ids of a configuration, which names none, one or several, as a list."""
    return [] if tokens is None else [tokens] if isinstance(tokens, int) else list(tokens)


def kept(segments: list[TokenSegment]) -> int | list[int]:
    """Which rows need logits, as transformers' `logits_to_keep` wants it: the last ones as a
    number, others as a list."""
    if len(segments) == 1 and segments[0].rows:
        return segments[0].rows
    rows: list[int] = []
    end = 0
    for segment in segments:
        end += segment.count
        rows.extend(range(end - segment.rows, end))
    return 0 if len(rows) == end else rows
