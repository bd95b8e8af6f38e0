"""The target's distributions over one scored block, worked out when a verifier asks for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.errors import SettingError
from paceline.sampling.distribution import Distribution, checked_maximum
from paceline.sampling.history import History
from paceline.sampling.processors import (
    distribution_of,
    greedy_tokens,
    is_plain,
    log_prob,
    process_logits,
)
from paceline.types import Array, Sampling, path_of


class RowDistributions:
    """Distributions, after temperature and filters, of the rows of one sequence: row 0 stands after
    the history and `after`, row i + 1 after drafted token i and those before it. Rows behind the
    first rejection are never worked out.

    logits         raw, shape (len(drafted) + 1, vocabulary_size)
    stop_tokens    what `min_tokens` holds back
    after          tokens between the history and the first row (a draft's own, so far)
    parents        of a tree's drafted tokens (`Proposal.parents`); None is a chain
    """

    def __init__(
        self,
        logits: Array,
        sampling: Sampling,
        history: History,
        drafted: Sequence[int] = (),
        stop_tokens: Collection[int] = (),
        after: Sequence[int] = (),
        parents: Sequence[int] | None = None,
    ) -> None:
        self.logits = logits
        self._sampling, self._history = sampling, history
        self._drafted, self._stop_tokens = [*after, *drafted], stop_tokens
        self._after, self._parents = len(after), parents
        self._distributions: list[Distribution | None] = [None] * (len(drafted) + 1)
        if sampling.temperature == 0 and is_plain(sampling):
            tokens = greedy_tokens(logits)
            self._distributions = [
                None if token is None else Distribution.one_hot(token) for token in tokens
            ]

    def __len__(self) -> int:
        return len(self._distributions)

    def __getitem__(self, row: int) -> Distribution:
        distribution = self._distributions[row]
        if distribution is None:
            distribution = self._distributions[row] = self._distribution(row)
        return distribution

    def _processed(self, row: int) -> Array:
        if self._parents is None:
            drafted = self._drafted[: self._after + row]
        else:
            path = path_of(self._parents, row - 1)
            drafted = self._drafted[: self._after] + [self._drafted[self._after + i] for i in path]
        return process_logits(
            self.logits[row], self._sampling, self._history, drafted, self._stop_tokens
        )

    def _distribution(self, row: int) -> Distribution:
        where = f"after {len(self._history)} tokens, row {row},"
        raw = self.logits[row]
        checked_maximum(raw, where)
        logits = self._processed(row)
        if logits is not raw and float(logits.max()) == float("-inf"):
            raise SettingError(
                f"The masks leave no token {where.rstrip(',')}.",
                "Ban fewer tokens, or allow more (end tokens need allowing too).",
            )
        return distribution_of(logits, self._sampling, where)

    def log_prob(self, row: int, token: int) -> float:
        """The raw log-probability of a token in a row, as ordinary decoding gives it."""
        return log_prob(self.logits[row], token)

    def margin(self, row: int, token: int) -> float:
        """The token's processed logit less the best other one; negative if another leads."""
        return margin(self._processed(row), token)


def margin(logits: Array, token: int) -> float:
    """A token's logit less the best other of a row, shape (vocabulary_size,), raw or processed."""
    parts = [part for part in (logits[:token], logits[token + 1 :]) if part.shape[0]]
    others = max((float(part.max()) for part in parts), default=float("-inf"))
    return float(logits[token]) - others
