"""The protocol of an engine: something that holds sequences and scores tokens after them.

A sequence says what it holds; whoever uses it feeds what is missing and rewinds to a length, never
by a count. An engine runs one forward for several sequences with uneven numbers of tokens.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from paceline.engines.tokenizer import Tokenizer
from paceline.errors import ModelError, PromptError, SettingError, unknown_name
from paceline.types import Array, checked_parents, is_chain

FORWARD_TOKENS = 512
"""Most tokens in one forward: a longer prompt is fed in parts, so that what a forward needs beside
weights and cache stays small."""


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

    slot      its number among the engine's open sequences, from 0
    tokens    the tokens whose state is held, in order. Read it; only the engine changes it.
    branch    the length at which a scored tree begins, None while a chain is held. The tokens from
              there on are the tree's; nothing is scored behind them before a rewind.
    """

    def __init__(self, engine: Any, slot: int) -> None:
        self.engine, self.slot = engine, slot
        self.tokens: list[int] = []
        self.branch: int | None = None
        self.closed = False

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return len(self.tokens)

    def rewind(self, length: int, path: AbstractSequence[int] = ()) -> None:
        """Forget all tokens from index `length` on. The next scores are those of a sequence that
        never held them. Raises ValueError if fewer tokens are held.

        path    of a scored tree, which begins at `length`: the tokens to keep after all, by their
                indices in the tree, each the child of the one before it
        """
        self.engine.check_open()  # its memory may be freed
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
        """Give the slot back to the engine. Closing twice does nothing."""
        if not self.closed:
            self.closed = True
            self._close()
            self.tokens = []

    def fork(self) -> Sequence:
        """A new sequence that holds the same tokens and goes its own way."""
        if self.branch is not None:
            raise ValueError("the sequence holds a tree: rewind it first")
        fork: Sequence = self.engine.open()
        try:
            fork._copy(self)
        except BaseException:
            fork.close()
            raise
        fork.tokens = list(self.tokens)
        return fork

    @abc.abstractmethod
    def _copy(self, source: Any) -> None:
        """Hold the state of another sequence of the engine too."""

    def _rewind(self, length: int) -> None:  # noqa: B027
        """Nothing to do where what lies behind a sequence's length is overwritten, never read."""

    def _keep(self, length: int, path: AbstractSequence[int]) -> None:
        """Hold the first `length` tokens and those of a path. For engines that score trees."""
        raise NotImplementedError

    def _close(self) -> None:
        self.engine.free_slots.append(self.slot)


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

    def tree(self) -> TokenTree | None:
        """The tree that the last tokens are, if they are one."""
        if self.parents is None:
            return None
        return TokenTree(self.sequence.length + self.trunk, self.parents)


class TokenTree:
    """A tree at the end of a sequence. Its tokens lie one behind the other; each has the position
    that its depth gives it, and sees the tree's tokens on its own path only.

    base       the place of the tree's first token, which is the length of the trunk
    parents    as in a job
    depths     of each token, 0 for those behind the trunk
    """

    def __init__(self, base: int, parents: AbstractSequence[int]) -> None:
        self.base, self.parents = base, parents
        self.depths: list[int] = []
        for parent in parents:
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)

    def position(self, place: int) -> int:
        """The position of the token at a place of the sequence."""
        return place if place < self.base else self.base + self.depths[place - self.base]

    def seen(self) -> Array:
        """Which of the tree's tokens (columns) are on the path of each (rows), itself included:
        bool, shape (tokens, tokens)."""
        seen = np.eye(len(self.parents), dtype=bool)
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                seen[index] |= seen[parent]
        return seen


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """Consecutive tokens of one sequence in a forward.

    start     how many of the sequence's tokens come before these
    rows      of how many of the last tokens logits are wanted
    tree      which the last of these tokens belong to, if they do
    number    of the job, in its batch
    """

    sequence: Any
    start: int
    tokens: AbstractSequence[int]
    rows: int = 0
    tree: TokenTree | None = None
    number: int = 0

    @property
    def count(self) -> int:
        """How many tokens are fed."""
        return len(self.tokens)

    @property
    def end(self) -> int:
        """How many tokens the sequence holds with these."""
        return self.start + len(self.tokens)

    def positions(self) -> list[int]:
        """Of each token: in a tree, that of its depth."""
        places = range(self.start, self.end)
        return [*places] if self.tree is None else [self.tree.position(at) for at in places]


def forwards(
    jobs: AbstractSequence[Job], limit: int = FORWARD_TOKENS, *, whole_trees: bool = False
) -> Iterator[list[TokenSegment]]:
    """Cut jobs into forwards of at most `limit` tokens, each a list of segments in job order.

    whole_trees    never cut a tree: one of more tokens than `limit` has a forward of its own
    """
    segments: list[TokenSegment] = []
    left = limit
    for number, job in enumerate(jobs):
        first, total, held = 0, len(job.tokens), job.sequence.length
        tree, trunk = job.tree(), job.trunk
        whole = trunk if whole_trees and tree is not None else total
        while first < total:
            if first == whole and total - first > left and segments:
                yield segments
                segments, left = [], limit
            count = total - first if first == whole else min(left, total - first)
            if first < whole < first + count < total:
                count = whole - first
            end = first + count
            rows = max(0, min(count, end - (total - job.rows)))
            part = tree if end > trunk else None
            tokens = job.tokens[first:end]
            segments.append(TokenSegment(job.sequence, held + first, tokens, rows, part, number))
            first, left = end, left - count
            if left <= 0:
                yield segments
                segments, left = [], limit
    if segments:
        yield segments


def rows_by_job(
    logits: Array, segments: AbstractSequence[TokenSegment]
) -> Iterator[tuple[int, Array]]:
    """The wanted rows of each job that has any in a forward, with the job's number.

    logits    raw, of shape (rows, vocabulary_size), as the segments want them
    """
    begin = 0
    for segment in segments:
        if segment.rows:
            yield segment.number, logits[begin : begin + segment.rows]
            begin += segment.rows


class Engine(abc.ABC):
    """A model that scores tokens. Subclasses fill in `_score`; `score` keeps the books.

    name                engine name, as on the command line
    needs               one line for `paceline list`: what must be installed, and what it reads
    sequence_type       of its sequences, where `open` isn't its own
    model               what was loaded, as the user would recognise it
    place               the file or directory it was loaded from, if there is one
    vocabulary_size     length of a row of logits, padding rows included
    """

    name: ClassVar[str]
    needs: ClassVar[str]
    sequence_type: ClassVar[type[Sequence]]

    model: str
    place: Path | None = None
    vocabulary_size: int
    capabilities: Capabilities
    tokenizer: Tokenizer
    closed = False

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

    @classmethod
    def refuse_options(cls, options: Mapping[str, Any]) -> None:
        """Raise SettingError for options beyond those that `load` names."""
        if "same_text" in options:
            raise SettingError(
                f"With the engine {cls.name} a token's logits depend on how many share its "
                "forward, so drafted text may differ from ordinary decoding's.",
                "Leave --same-text out, or use a GGUF file with the engine ik.",
            )
        if options:
            parameters = inspect.signature(cls.load).parameters.values()
            known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
            raise unknown_name(f"option of the {cls.name} engine", min(options), known)

    @functools.cached_property
    def free_slots(self) -> list[int]:
        """Numbers that new sequences can have."""
        return list(reversed(range(self.capabilities.max_sequences)))

    def open(self) -> Any:
        """A new, empty sequence. Raises ModelError when `max_sequences` are open."""
        self.check_open()
        if not self.free_slots:
            raise ModelError(
                f"All {self.capabilities.max_sequences} sequences of this engine are open.",
                "Close one, or load the model with a larger max_sequences.",
            )
        return self.sequence_type(self, self.free_slots.pop())

    def check_open(self) -> None:
        """Raises ValueError after `close`."""
        if self.closed:
            raise ValueError("the engine is closed")

    def score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        """Feed every job's tokens in one forward and return, per job, the logits of its last
        `rows` tokens: float32, shape (rows, vocabulary_size), raw (before any processing and
        temperature).

        The arrays may be views into the engine's own memory: they hold until the next `score`.
        After an error no sequence holds more than before.
        """
        self.check_open()
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
        if job.sequence.engine is not self:
            raise ValueError("the sequence is another engine's")
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

    def close(self) -> None:
        """Free the model. Closing twice does nothing."""
        if not self.closed:
            self.closed = True
            self._close()

    def _close(self) -> None:  # noqa: B027
        """Free the model, if there is anything to free."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TokenizerOnly(Engine):
    """Stands for a model of which only the tokenizer is loaded: it reads texts and never runs.

    engine             name of the engine that would run the model
    vocabulary_size    what that engine's would be: padding rows included
    free               gives back what the tokenizer holds
    longest_context    most tokens the model is good for; None if that isn't read
    """

    needs = ""

    def __init__(
        self,
        engine: str,
        model: str,
        tokenizer: Tokenizer,
        vocabulary_size: int,
        place: Path | None = None,
        free: Callable[[], None] = lambda: None,
        longest_context: int | None = None,
    ) -> None:
        self.engine, self.model, self.place = engine, model, place
        self.tokenizer, self.vocabulary_size = tokenizer, vocabulary_size
        self.capabilities = Capabilities(context_size=0, max_sequences=1)
        self.longest_context, self._close = longest_context, free  # type: ignore[method-assign]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the engine that would run the model."""
        return self.engine

    @classmethod
    def load(cls, target: str, **_: Any) -> NoReturn:
        """Not for use: an engine's `load_tokenizer` makes one."""
        raise TypeError(f"{target} is loaded by its engine's load_tokenizer")

    def open(self) -> NoReturn:
        """Raises ValueError."""
        raise ValueError("only the tokenizer is loaded")

    def _score(self, jobs: AbstractSequence[Job]) -> NoReturn:  # noqa: ARG002
        raise ValueError("only the tokenizer is loaded")

    def metadata(self) -> dict[str, Any]:
        """Engine, model, and that only the tokenizer is loaded."""
        return {"engine": self.engine, "model": self.model, "tokenizer_only": True}
