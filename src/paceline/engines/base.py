"""The protocol of an engine: something that holds sequences and scores tokens after them.

A sequence says what it holds; whoever uses it feeds what is missing and rewinds to a length, never
by a count. An engine runs one forward for several sequences with uneven numbers of tokens.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from paceline.engines.tokenizer import Tokenizer
from paceline.errors import ModelError, PromptError
from paceline.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine declares of itself and its model. Rewinding is not among it: what can't be
    undone is refused at load.

    context_size     most tokens one sequence can hold
    max_sequences    most sequences open at once
    trees            can score several continuations of one sequence in one forward
    """

    context_size: int
    max_sequences: int
    trees: bool = False


class Sequence(abc.ABC):
    """The state of one sequence inside an engine.

    tokens    the tokens whose state is held, in order. Read it; only the engine changes it.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rewind(self, length: int) -> None:
        """Forget all tokens from index `length` on. The next scores are those of a sequence that
        never held them. Raises ValueError if fewer tokens are held."""
        if not 0 <= length <= self.length:
            raise ValueError(f"can't rewind to {length}: {self.length} tokens are held")
        if length < self.length:
            self._rewind(length)
            del self.tokens[length:]

    def close(self) -> None:
        """Give the room back to the engine. Closing twice does nothing."""
        if not self.closed:
            self.closed = True
            self._close()
            self.tokens = []

    @abc.abstractmethod
    def fork(self) -> Sequence:
        """A new sequence that holds the same tokens and goes its own way."""

    @abc.abstractmethod
    def _rewind(self, length: int) -> None: ...

    @abc.abstractmethod
    def _close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """Tokens to feed to one sequence, and for how many of the last of them a row of logits is
    wanted (at least 1, at most all)."""

    sequence: Sequence
    tokens: AbstractSequence[int]
    rows: int = 1


class Engine(abc.ABC):
    """A model that scores tokens. Subclasses fill in `_score`; `score` keeps the books.

    name                engine name, as on the command line
    model               what was loaded, as the user would recognise it
    place               the file or directory it was loaded from, if there is one
    vocabulary_size     length of a row of logits, padding rows included
    """

    name: ClassVar[str]
    needs: ClassVar[str]
    """One line for `paceline list`: what must be installed and which models it reads."""

    model: str
    place: Path | None = None
    vocabulary_size: int
    capabilities: Capabilities
    tokenizer: Tokenizer

    @classmethod
    @abc.abstractmethod
    def load(
        cls, target: str, *, context_size: int | None = None, max_sequences: int = 1, **options: Any
    ) -> Engine:
        """Load a model. Unknown options are refused by name (TypeError is not for users)."""

    @abc.abstractmethod
    def open(self) -> Sequence:
        """A new, empty sequence. Raises ModelError when `max_sequences` are open."""

    def score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        """Feed every job's tokens in one forward and return, per job, the logits of its last
        `rows` tokens: float32, shape (rows, vocabulary_size), raw (before any processing).

        The arrays may be views into the engine's own memory: they hold until the next `score`.
        After an error no sequence holds more than before.
        """
        for job in jobs:
            self._check(job)
        if len({id(job.sequence) for job in jobs}) != len(jobs):
            raise ValueError("a sequence may appear once in a forward")
        logits = self._score(jobs)
        for job in jobs:
            job.sequence.tokens.extend(job.tokens)
        return logits

    def _check(self, job: Job) -> None:
        if job.sequence.closed:
            raise ValueError("the sequence is closed")
        if not 1 <= job.rows <= len(job.tokens):
            raise ValueError(f"{job.rows} rows wanted of {len(job.tokens)} tokens")
        total = job.sequence.length + len(job.tokens)
        if total > self.capabilities.context_size:
            raise PromptError(
                f"{total} tokens are more than the context of {self.capabilities.context_size}.",
                "Shorten the prompt or load the model with a larger context.",
            )
        low, high = min(job.tokens), max(job.tokens)
        if low < 0 or high >= self.vocabulary_size:
            raise PromptError(
                f"Token {low if low < 0 else high} is outside the vocabulary of "
                f"{self.vocabulary_size}.",
                "Use this model's own tokenizer.",
            )

    @abc.abstractmethod
    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]: ...

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a reader of a measurement must know: version, device, dtype, threads, bytes of
        weights and cache. JSON values only; the keys end in their unit."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free the model. Closing twice does nothing."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def too_many_sequences(limit: int) -> ModelError:
    """The error every engine raises when all its sequences are in use."""
    return ModelError(
        f"All {limit} sequences of this engine are open.",
        "Close one, or load the model with a larger max_sequences.",
    )
