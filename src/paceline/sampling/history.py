"""The tokens a sampling setting may depend on, kept so that a row's view of them is cheap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np


class History:
    """Prompt and committed output of one request. Drafted tokens are never in it: a row after
    some of them is asked for with them (`seen`, `counts`), and they leave no trace.

    tokens           prompt and output, in order
    prompt_length    how many of them are prompt
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        self.tokens: list[int] = list(prompt)
        self.prompt_length = len(self.tokens)
        self._seen = dict.fromkeys(self.tokens)
        self._seen_array: np.ndarray | None = None
        self._output_counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        """The committed tokens behind the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        """How many of them there are."""
        return len(self.tokens) - self.prompt_length

    def commit(self, token: int) -> None:
        """Append an emitted token."""
        self.tokens.append(token)
        self._output_counts[token] += 1
        if token not in self._seen:
            self._seen[token] = None
            self._seen_array = None

    def seen(self, drafted: Sequence[int]) -> np.ndarray:
        """Distinct tokens of prompt, output and drafted prefix: int64, shape (n,)."""
        if self._seen_array is None:
            self._seen_array = np.fromiter(self._seen, dtype=np.int64, count=len(self._seen))
        new = [token for token in dict.fromkeys(drafted) if token not in self._seen]
        if not new:
            return self._seen_array
        return np.concatenate([self._seen_array, np.asarray(new, dtype=np.int64)])

    def counts(self, drafted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Distinct tokens of output and drafted prefix, int64, and how often each occurs there,
        float32; shape (n,) both."""
        counts = self._output_counts
        if drafted:
            counts = counts + Counter(drafted)
        tokens = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
        return tokens, np.fromiter(counts.values(), dtype=np.float32, count=len(counts))

    def ends_with(self, sequence: Sequence[int], drafted: Sequence[int]) -> bool:
        """Whether history and drafted prefix together end with this sequence."""
        length = len(sequence)
        from_draft = min(length, len(drafted))
        if tuple(drafted[len(drafted) - from_draft :]) != tuple(sequence[length - from_draft :]):
            return False
        rest = length - from_draft
        if rest > len(self.tokens):
            return False
        return rest == 0 or tuple(self.tokens[-rest:]) == tuple(sequence[:rest])
