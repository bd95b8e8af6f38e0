"""Language models in OpenVINO, with paged attention.

Tokens of all sequences go through the model as one flat row; keys and values lie in blocks that
sequences own or share. What is taken back is overwritten, never read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as AbstractSequence
from typing import Any

import numpy as np

from paceline.engines.base import (
    Capabilities,
    Engine,
    Job,
    Sequence,
    TokenizerOnly,
    forwards,
    rows_by_job,
)
from paceline.engines.cpu import default_threads
from paceline.engines.load import check_range, fitting_context
from paceline.engines.openvino.cache import BLOCK, PagedCache
from paceline.engines.openvino.graph import Graphs
from paceline.engines.openvino.library import ov
from paceline.engines.openvino.model import (
    Arithmetic,
    Paged,
    check_device,
    compile_paged,
)
from paceline.engines.openvino.source import Ir, find_ir, find_place, find_tokenizer
from paceline.errors import ModelError
from paceline.types import Array


class OpenVinoSequence(Sequence):
    """A list of the cache's blocks."""

    engine: OpenVinoEngine

    def __init__(self, engine: OpenVinoEngine, slot: int) -> None:
        super().__init__(engine, slot)
        self.blocks: list[int] = []

    def _copy(self, source: OpenVinoSequence) -> None:
        self.blocks = list(source.blocks)
        self.engine.cache.blocks.share(self.blocks)

    def _rewind(self, length: int) -> None:
        self.engine.cache.cut(self.blocks, length)

    def _keep(self, length: int, path: AbstractSequence[int]) -> None:
        self.engine.cache.gather(self.blocks, length, path)
        self.engine.cache.cut(self.blocks, length + len(path))

    def _close(self) -> None:
        self.engine.cache.cut(self.blocks, 0)
        super()._close()


class OpenVinoEngine(Engine):
    """A decoder in OpenVINO's IR, or one that is exported to it once: a GGUF file, or a model
    directory.

    Rows of logits are views into OpenVINO's own buffer: they hold until the next score or close.
    """

    name = "openvino"
    sequence_type = OpenVinoSequence
    needs = (
        "pip install paceline[openvino]; OpenVINO model directories, GGUF files with "
        "paceline[ik] or [llamacpp] too, model directories with paceline[openvino-export]"
    )

    def __init__(
        self, reader: TokenizerOnly, ir: Ir, paged: Paged, settings: dict[str, Any]
    ) -> None:
        """Takes over what `find_tokenizer`, `find_ir` and `compile_paged` gave. Use `load`."""
        self.model, self.tokenizer = reader.model, reader.tokenizer
        self.vocabulary_size = paged.vocabulary_size
        context_size, sequences = settings["context_size"], settings["max_sequences"]
        blocks = sequences * -(-context_size // BLOCK)
        try:
            self.cache = PagedCache(paged.layers, blocks)
        except MemoryError as error:
            raise ModelError(
                f"The cache for {sequences} x {context_size} tokens isn't granted.",
                "Ask for a smaller context, or fewer sequences.",
            ) from error
        self.capabilities = Capabilities(
            context_size=context_size, max_sequences=sequences, trees=True
        )
        self._reader, self._ir, self._settings = reader, ir, settings
        self._metadata = self._all_metadata(paged, blocks)
        self._graphs = Graphs(paged.compiled, paged.single, self.cache.tensors)

    @classmethod
    def load(
        cls,
        target: str,
        *,
        context_size: int | None = None,
        max_sequences: int = 1,
        threads: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
        precision: str | None = None,
        cache_type: str | None = None,
        **options: Any,
    ) -> OpenVinoEngine:
        """Load a model.

        context_size     most tokens a sequence holds; by default what the model was made for, at
                         most 4096
        threads          CPU threads; by default one for each physical core this process may use
        dtype            weights of a model directory that is exported: int8 (default), int4,
                         bfloat16, float16, float32
        device           CPU; no other writes into a cache that lies in main memory
        precision        auto: the arithmetic that the plugin prefers; strict: float32, and
                         activations aren't rounded to eight bits
        cache_type       of keys and values: float32, bfloat16 or float16; by default that of the
                         arithmetic

        Raises ModelError for a model that can't be found, exported or paged, or doesn't fit into
        memory; SettingError for a setting out of range or unknown.
        """
        cls.refuse_options(options)
        check_range("max_sequences", max_sequences)
        check_range("threads", threads)
        # Settings, tokenizer and context are looked at before a model is exported, which may take
        # minutes. Whether it fits into memory shows by its export only.
        device = (device or "CPU").upper()
        check_device(device)
        arithmetic = Arithmetic(precision or "auto", cache_type, threads or default_threads())
        place = find_place(target, dtype)
        reader = find_tokenizer(target, place)
        try:
            size = fitting_context(target, reader.longest_context, context_size)
            ir = find_ir(place, dtype)
            paged = compile_paged(target, ir.xml, device, arithmetic, size, max_sequences)
            settings = {
                "context_size": size,
                "max_sequences": max_sequences,
                "precision": arithmetic.precision,
            }
            engine = cls(reader, ir, paged, settings)
        except BaseException:
            reader.close()
            raise
        engine.place = reader.place
        return engine

    @classmethod
    def load_tokenizer(cls, target: str) -> TokenizerOnly:
        """Raises ModelError as `load` does."""
        return find_tokenizer(target, find_place(target))

    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        try:
            return self._rows(jobs)
        except BaseException:
            for job in jobs:  # nothing more is held than before
                job.sequence._rewind(job.sequence.length)
            raise

    def _rows(self, jobs: AbstractSequence[Job]) -> list[Array]:
        cut = list(forwards(jobs, whole_trees=True))
        rows: list[list[Array]] = [[] for _ in jobs]
        for segments in cut:
            for segment in segments:
                self.cache.own(segment.sequence.blocks, segment.start, segment.end)
            logits = self._graphs.run(segments)
            for number, found in rows_by_job(logits, segments):
                rows[number].append(found if len(cut) == 1 else np.array(found))
        return [found[0] if len(found) == 1 else np.concatenate(found) for found in rows]

    def _all_metadata(self, paged: Paged, blocks: int) -> dict[str, Any]:
        compiled, settings = paged.compiled, self._settings
        return {
            "engine": self.name,
            "model": self.model,
            "device": "cpu",
            "threads": _property(compiled, "INFERENCE_NUM_THREADS"),
            "dtype": self._numbers(paged),
            "dynamic_quantization_group": _property(compiled, "DYNAMIC_QUANTIZATION_GROUP_SIZE"),
            "weights_bytes": self._ir.xml.with_suffix(".bin").stat().st_size,
            "cache_bytes": blocks * self.cache.block_bytes,
            "context_size": settings["context_size"],
            "max_sequences": settings["max_sequences"],
            "attention": "paged, ragged batch without padding",
            "build": paged.build,
            "openvino_version": ov.__version__.split("-")[0],
            "weights": paged.weights,
            **self._ir.metadata,
        }

    def _numbers(self, paged: Paged) -> str:
        """What the model computes in, in one string: costs hold for this alone."""
        arithmetic = _property(paged.compiled, "INFERENCE_PRECISION_HINT")
        weights = self._ir.metadata.get("weights", paged.weights)
        keys, values = paged.layers[0].types
        cache = keys if keys == values else f"{keys}/{values}"
        told = f"{arithmetic}, weights {weights}, cache {cache}"
        return f"{told}, strict" if self._settings["precision"] == "strict" else told

    def metadata(self) -> dict[str, Any]:
        return {
            **self._metadata,
            "cache_used_bytes": self.cache.blocks.used * self.cache.block_bytes,
        }

    def _close(self) -> None:
        del self._graphs
        self.cache.close()
        self._reader.close()


def _property(compiled: Any, name: str) -> Any:
    """A property as JSON can hold it; None where the plugin hasn't it."""
    with contextlib.suppress(Exception):  # RuntimeError for an unknown property
        value = compiled.get_property(name)
        return value if isinstance(value, int | str | float) else value.get_type_name()
    return None
