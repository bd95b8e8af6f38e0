"""A table-driven engine of a few tokens, for tests, docs and trying out drafts.

Each row is computed by itself from the tokens before it, so it is independent, to the bit, of how
many rows share the forward: on this engine drafted and ordinary decoding must agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as AbstractSequence
from typing import Any

import numpy as np

from paceline.engines.base import Capabilities, Engine, Job, Sequence, TokenizerOnly
from paceline.engines.tokenizer import Message, Tokenizer
from paceline.errors import SettingError
from paceline.types import Array, path_of

Table = Mapping[tuple[int, ...], AbstractSequence[float]]
"""Logits by the last tokens: looked up under the longest suffix of the context that is a key
(the empty key is the last resort)."""


class ToyTokenizer(Tokenizer):
    """One token a character of `alphabet`; `end` tokens have no text."""

    def __init__(self, alphabet: str, size: int, end_tokens: frozenset[int]) -> None:
        self.alphabet = alphabet
        self.size = size
        self.end_tokens = end_tokens
        self.end_token = min(end_tokens, default=None)

    def encode(self, text: str) -> list[int]:
        unknown = sorted(set(text) - set(self.alphabet))
        if unknown:
            raise SettingError(
                f"The toy vocabulary has no {unknown[0]!r}.", f"It has {self.alphabet!r}."
            )
        return [self.alphabet.index(letter) for letter in text]

    def encode_chat(self, messages: AbstractSequence[Message]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self.end_tokens else self.piece(token).encode()

    def piece(self, token: int) -> str:
        return self.alphabet[token] if token < len(self.alphabet) else ""


class ToySequence(Sequence):
    """Its tokens are all its state."""

    def _copy(self, source: Sequence) -> None:
        pass

    def _keep(self, length: int, path: AbstractSequence[int]) -> None:
        pass


def _contexts(job: Job, context: list[int]) -> list[list[int]]:
    """What each wanted row of a job stands after."""
    parents = job.parents or ()
    branch = len(context) - len(parents)
    trunks = range(len(context) - job.rows, branch)
    paths = [path_of(parents, index) for index in range(len(parents))][-job.rows :]
    return [context[: place + 1] for place in trunks] + [
        context[:branch] + [context[branch + index] for index in path] for path in paths
    ]


class ToyEngine(Engine):
    """Logits from a table, from a function of the context, or pseudo-random ones.

    vocabulary_size    tokens; the tokenizer names them by letters of the alphabet
    table              logits by context suffix, or a function from a context to logits
    order              without a table: how many last tokens the pseudo-random logits depend on
    sharpness          without a table: standard deviation of the logits
    seed               without a table: which pseudo-random model this is
    end_tokens         ids that end an answer
    trees              whether it says that it can score trees
    jitter             adds this much width-dependent noise to the logits, as real engines' kernels
                       do; 0 is the exact engine
    """

    name = "toy"
    sequence_type = ToySequence
    needs = "nothing; a table-driven model of a few letters (toy, toy:SEED)"

    def __init__(
        self,
        vocabulary_size: int = 8,
        *,
        table: Table | Callable[[list[int]], AbstractSequence[float]] | None = None,
        order: int = 2,
        sharpness: float = 2.0,
        seed: int = 0,
        end_tokens: AbstractSequence[int] = (),
        alphabet: str = "abcdefghijklmnopqrstuvwxyz .,:;!?0123456789",
        context_size: int = 512,
        max_sequences: int = 64,
        jitter: float = 0.0,
        trees: bool = True,
    ) -> None:
        self.model = f"toy:{seed}"
        self.vocabulary_size = vocabulary_size
        self.capabilities = Capabilities(
            context_size=context_size, max_sequences=max_sequences, trees=trees
        )
        self.tokenizer = ToyTokenizer(
            alphabet[:vocabulary_size], vocabulary_size, frozenset(end_tokens)
        )
        self.forwards = 0
        self.rows_fed = 0
        self._table = table
        self._order, self._sharpness, self._seed, self._jitter = order, sharpness, seed, jitter
        self._rows: dict[tuple[int, ...], Array] = {}

    @classmethod
    def load(
        cls,
        target: str,
        *,
        context_size: int | None = None,
        max_sequences: int = 64,
        **options: Any,
    ) -> ToyEngine:
        """Load toy:SEED. Raises SettingError for another name or an unknown option."""
        cls.refuse_options(options)
        name, _, seed = target.partition(":")
        if name != "toy" or not (seed.isdecimal() or not seed):
            raise SettingError(f"{target!r} is not a toy model.", "Write toy or toy:SEED.")
        return cls(
            27,
            seed=int(seed or 0),
            context_size=context_size or 512,
            end_tokens=(26,),
            max_sequences=max_sequences,
        )

    @classmethod
    def load_tokenizer(cls, target: str) -> TokenizerOnly:
        """The tokenizer of toy:SEED. Raises SettingError for another name."""
        toy = cls.load(target)
        return TokenizerOnly(cls.name, toy.model, toy.tokenizer, toy.vocabulary_size)

    @property
    def sequences_open(self) -> int:
        """How many sequences are open."""
        return self.capabilities.max_sequences - len(self.free_slots)

    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        self.forwards += 1
        self.rows_fed += sum(len(job.tokens) for job in jobs)
        scored = []
        for job in jobs:
            context = [*job.sequence.tokens, *job.tokens]
            rows = np.stack([self.logits(before) for before in _contexts(job, context)])
            if self._jitter and len(job.tokens) > 1:
                noise = np.random.default_rng(len(context)).standard_normal(rows.shape)
                rows = rows + (self._jitter * noise).astype(np.float32)
            scored.append(rows)
        return scored

    def logits(self, context: list[int]) -> Array:
        """The row of logits after a context: float32, shape (vocabulary_size,)."""
        if callable(self._table):
            return np.asarray(self._table(context), dtype=np.float32)
        if self._table is not None:
            for start in range(len(context) + 1):
                row = self._table.get(tuple(context[start:]))
                if row is not None:
                    return np.asarray(row, dtype=np.float32)
            raise ValueError(f"the table has no row for {context} and no empty key")
        key = tuple(context[-self._order :]) if self._order else ()
        if key not in self._rows:
            random = np.random.default_rng([self._seed, len(key), *key])
            made = self._sharpness * random.standard_normal(self.vocabulary_size)
            self._rows[key] = made.astype(np.float32)
        return self._rows[key]

    def metadata(self) -> dict[str, Any]:
        """Engine, model, device and dtype."""
        return {"engine": self.name, "model": self.model, "device": "cpu", "dtype": "float32"}
