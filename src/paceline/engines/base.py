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
from paceline.errors import ModelError, PromptError, SettingError
from paceline.types import Array, checked_parents, is_chain


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
    branch    the length at which a scored tree begins, None while a plain sequence is held. The
              tokens from there on are the tree's; nothing is scored behind them before a rewind.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.branch: int | None = None
        self.closed = False

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        return len(self.tokens)

    def rewind(self, length: int, path: AbstractSequence[int] = ()) -> None:
        """Forget all tokens from index `length` on. The next scores are those of a sequence that
        never held them. Raises ValueError if fewer tokens are held.

        path    of a scored tree, which begins at `length`: the tokens to keep after all, by their
                indices in the tree, each the child of the one before it
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"can't rewind to {length}: {self.length} tokens are held")
        if self.branch is not None and (length > self.branch or (path and length != self.branch)):
            raise ValueError(f"can't rewind to {length}: a tree begins at {self.branch}")
        if path:
            if self.branch is None:
                raise ValueError("a path is of a tree, and none is held")
            kept = [self.tokens[length + index] for index in path]
            self._keep(length, path)
            self.tokens[length:] = kept
        elif length < self.length:
            self._rewind(length)
            del self.tokens[length:]
        self.branch = None

    def close(self) -> None:
        """Give the room back to the engine. Closing twice does nothing."""
        if not self.closed:
            self.closed = True
            self._close()
            self.tokens = []

    def fork(self) -> Sequence:
        """A new sequence that holds the same tokens and goes its own way."""
        if self.branch is not None:
            raise ValueError("the sequence holds a tree: rewind it first")
        return self._fork()

    @abc.abstractmethod
    def _fork(self) -> Sequence: ...

    @abc.abstractmethod
    def _rewind(self, length: int) -> None: ...

    def _keep(self, length: int, path: AbstractSequence[int]) -> None:
        """Hold the first `length` tokens and those of a path. For engines that score trees."""
        raise NotImplementedError

    @abc.abstractmethod
    def _close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """Tokens to feed to one sequence, and for how many of the last of them a row of logits is
    wanted (at least 1, at most all).

    parents    the last of the tokens are a tree: for each of them the index of its parent in the
               tree, -1 for the last token before it. A row of a tree's token depends on those on
               its path alone. None, or a chain, is no tree.
    """

    sequence: Sequence
    tokens: AbstractSequence[int]
    rows: int = 1
    parents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.parents is not None and is_chain(self.parents):
            object.__setattr__(self, "parents", None)

    @property
    def trunk(self) -> int:
        """How many of the tokens come before the tree."""
        return len(self.tokens) - len(self.parents or ())


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

    @classmethod
    def load_tokenizer(cls, target: str) -> Engine:
        """What reads a model's texts without its weights: an engine that scores nothing. Raises
        SettingError where there is no such thing."""
        raise SettingError(
            f"The engine {cls.name} can't load the tokenizer of {target} alone.",
            "Use a model of the engine llamacpp or transformers.",
        )

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
            if job.parents is not None:
                job.sequence.branch = job.sequence.length + job.trunk
            job.sequence.tokens.extend(job.tokens)
        return logits

    def _check(self, job: Job) -> None:
        if job.sequence.closed:
            raise ValueError("the sequence is closed")
        if not 1 <= job.rows <= len(job.tokens):
            raise ValueError(f"{job.rows} rows wanted of {len(job.tokens)} tokens")
        if job.sequence.branch is not None:
            raise ValueError("the sequence holds a tree: rewind it first")
        if job.parents is not None:
            self._check_tree(job)
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

    def _check_tree(self, job: Job) -> None:
        if not self.capabilities.trees:
            raise SettingError(
                f"The engine {self.name} can't score a tree with {self.model}.",
                "Use a draft that offers chains.",
            )
        assert job.parents is not None
        checked_parents(job.parents)
        if job.sequence.length + job.trunk < 1:
            raise ValueError("a tree has no token before it")

    @abc.abstractmethod
    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]: ...

    @abc.abstractmethod
    def metadata(self) -> dict[str, Any]:
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
