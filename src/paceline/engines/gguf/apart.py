"""Several sequences of one model, each in a context of its own.

Where a sequence's tokens lie in a cache changes the lanes in which a processor sums them, and so
the last bits of its logits. In a cache of its own a sequence lies as it would alone.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from dataclasses import replace
from typing import Any

from paceline.engines.base import Engine, Job, Sequence
from paceline.engines.gguf.engine import GgufEngine, GgufSequence
from paceline.types import Array


class SequenceApart(GgufSequence):
    """The only sequence of a context."""

    def fork(self) -> Sequence:
        """A new sequence that has read the same tokens, to the same bits."""
        together = self.engine.together
        assert together is not None
        fork: Sequence = together.open()
        try:
            if self.tokens:
                fork.engine.score([Job(fork, self.tokens)])
        except BaseException:
            fork.close()
            raise
        return fork


class EngineApart(Engine):
    """A GGUF model with a context for each sequence; a forward of several jobs is one for each."""

    needs = ""

    def __init__(self, engines: AbstractSequence[GgufEngine]) -> None:
        """Takes over engines of one model, each with room for one sequence."""
        first = engines[0]
        self._engines, self.free_slots = list(engines), []  # theirs are given out
        self.name, self.model, self.place = first.name, first.model, first.place  # type: ignore[misc]
        self.tokenizer, self.vocabulary_size = first.tokenizer, first.vocabulary_size
        self.capabilities = replace(first.capabilities, max_sequences=len(engines))
        for engine in engines:
            engine.together, engine.sequence_type = self, SequenceApart  # type: ignore[misc]

    @classmethod
    def load(cls, target: str, **_: Any) -> Engine:
        """Not for use: GgufEngine.load makes one."""
        raise TypeError(f"{target} is loaded by GgufEngine.load")

    def open(self) -> Any:
        self.check_open()
        free = next((engine for engine in self._engines if engine.free_slots), None)
        return super().open() if free is None else free.open()

    def score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        self.check_open()
        if any(getattr(job.sequence.engine, "together", None) is not self for job in jobs):
            raise ValueError("the sequence is another engine's")
        if len({id(job.sequence) for job in jobs}) != len(jobs):
            raise ValueError("a sequence may appear once in a forward")
        before = [job.sequence.length for job in jobs]
        try:
            return [job.sequence.engine.score([job])[0] for job in jobs]
        except BaseException:
            for job, length in zip(jobs, before, strict=True):
                if job.sequence.length > length:
                    job.sequence.rewind(length)
            raise

    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        return self.score(jobs)

    def metadata(self) -> dict[str, Any]:
        count, told = len(self._engines), self._engines[0].metadata()
        told |= {"max_sequences": count, "cache_bytes": count * told["cache_bytes"]}
        return told

    def _close(self) -> None:
        for engine in self._engines:
            engine.close()
