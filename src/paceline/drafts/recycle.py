"""Recycle: propose what the target itself thought likely after the same tokens before.

Token Recycling (Luo et al. 2025, ACL): every scored row, of accepted and of rejected tokens alike,
says which tokens the target holds likely after the token it stands after. Those that were not
emitted are thrown away by others; here the best few are kept in a table, and the next proposal
follows them, as a tree where target and verifier take trees. Tokens are deterministic
(one-hot); no model, no training, next to no time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from paceline.drafts.base import Context, Contexts, Draft, Limits, VerifiedRound
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.plugins import yes_or_no
from paceline.sampling.top_k import candidates
from paceline.types import Array, Preview, Proposal

LEAST = 0.02
"""Tokens that seem less likely than this to be reached are not offered."""

AFTER_TWO, AFTER_ONE = 0.6, 0.25
"""How much of its probability back then a token keeps when the same two tokens, or only the last
one, are met again (counted over a model's answers to 14 prompts: docs/log.md)."""


Successors: TypeAlias = list[tuple[int, float]]
"""Tokens with the target's probabilities (before temperature) when it was last asked, likeliest
first."""


@dataclass(slots=True)
class SuccessorTable:
    """Successors by the token before them, and by the two tokens before them.

    most_keys    the table forgets what is oldest beyond so many (about 500 bytes each)
    """

    most_keys: int = 100_000
    _after: dict[tuple[int, ...], Successors] = field(default_factory=dict)

    def learn(self, before: int | None, token: int, found: Successors) -> None:
        """Remember what the target held likely after a token, and after it and the one `before`."""
        keys = [(token,)] if before is None else [(token,), (before, token)]
        for key in keys:
            self._after.pop(key, None)  # so that it becomes the newest
            self._after[key] = found
        while len(self._after) > self.most_keys:
            del self._after[next(iter(self._after))]

    def successors(self, before: int | None, token: int) -> tuple[Successors, float]:
        """After these two tokens if they were seen together, else after the last of them; and by
        how much to discount their probabilities."""
        found = None if before is None else self._after.get((before, token))
        if found is not None:
            return found, AFTER_TWO
        return self._after.get((token,), []), AFTER_ONE


class RecycleDraft(Draft):
    """Proposals from the target's earlier rows; nothing passes between requests unless asked.

    branches    most successors of a token that are offered; 1 offers chains
    kept        successors remembered of each row
    lasting     one table for all requests of this draft: it grows better, and a request's
                proposals (never its output distribution) depend on earlier ones
    """

    name = "recycle"
    summary = "what the target held likely after the same tokens; trees; needs nothing"

    options: ClassVar = {"branches": int, "kept": int, "lasting": yes_or_no}
    previewable = True
    has_confidence = True
    observes_logits = True
    prior = (0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)

    def __init__(self, *, branches: int = 8, kept: int = 8, lasting: bool = False) -> None:
        for label, value in (("branches", branches), ("kept", kept)):
            if value < 1:
                raise SettingError(f"{label} is {value}.", "It must be 1 or more.")
        self.most_branches, self.kept, self.lasting = branches, max(branches, kept), lasting
        self.branches = branches > 1
        self._shared = SuccessorTable()
        self._tables: dict[Context, SuccessorTable] = {}

    @classmethod
    def create(cls, target: Engine, **written: Any) -> Draft:
        """Without the option `branches`, trees where the target can score them, else chains."""
        if not target.capabilities.trees:
            written.setdefault("branches", "1")
        return super().create(target, **written)

    @property
    def remembers(self) -> bool:
        return self.lasting

    def open(self, context: Context) -> None:
        self._tables[context] = self._shared if self.lasting else SuccessorTable()

    def close(self, context: Context) -> None:
        self._tables.pop(context, None)

    def observe_logits(self, context: Context, verified: VerifiedRound) -> None:
        table, proposal = self._tables[context], verified.proposal
        committed = context.history.tokens
        first = committed[-2] if len(committed) > 1 else None
        found = likeliest(verified.logits, self.kept)
        for row, token in enumerate(verified.tokens):
            before = first
            if row:
                path = proposal.path(row - 1)
                before = proposal.tokens[path[-2]] if len(path) > 1 else verified.last
            table.learn(before, token, found[row])

    def observe_best(
        self, context: Context, proposed: AbstractSequence[int], best: AbstractSequence[int]
    ) -> None:
        """The likeliest tokens count as certain; how often they are right is for a policy to
        count."""
        table, committed = self._tables[context], context.history.tokens
        text = [*committed[-2:], *proposed]
        first = len(text) - len(proposed) - 1
        for row, token in enumerate(best):
            at = first + row
            table.learn(text[at - 1] if at else None, text[at], [(token, 1.0)])

    def preview(self, context: Context, most: int) -> Preview:
        tokens, parents, probs = self._grow(context, most)
        return Preview(tokens, 0, [level(p) for p in probs], parents)

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        grown = map(self._grow, contexts, limits)
        return [Proposal(tuple(t), self.name, parents=tuple(parents)) for t, parents, _ in grown]

    def _grow(self, context: Context, most: int) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents, and each token's chance given its parent. Always the likeliest token
        that is left next, so that the first n tokens of a tree are the tree for n."""
        table, committed = self._tables[context], context.history.tokens
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[float] = []
        waiting: list[tuple[float, int, int, int, int, float]] = []
        order = 0

        def add(parent: int, reached: float, before: int | None, token: int) -> None:
            nonlocal order
            found, kept = table.successors(before, token)
            for successor, prob in found[: self.most_branches]:
                order += 1  # equally likely ones in the order in which they came
                right = kept * prob
                entry = (-reached * right, order, parent, token, successor, right)
                heapq.heappush(waiting, entry)

        add(-1, 1.0, committed[-2] if len(committed) > 1 else None, committed[-1])
        while waiting and len(tokens) < most:
            negative, _, parent, before, token, right = heapq.heappop(waiting)
            if -negative < LEAST:
                break
            tokens.append(token)
            parents.append(parent)
            probs.append(right)
            if token not in context.stop_tokens:
                add(len(tokens) - 1, -negative, before, token)
        return tokens, parents, probs

    def metadata(self) -> dict[str, Any]:
        return {
            "draft": self.name,
            "branches": self.most_branches,
            "kept": self.kept,
            "lasting": self.lasting,
        }


def likeliest(logits: Array, count: int) -> list[Successors]:
    """Per row the `count` likeliest tokens, likeliest first, with their probabilities among the few
    hundred likeliest ones. Rows of shape (rows, vocabulary), raw; one that is no distribution has
    none."""
    return [_successors(ids, values, count) for ids, values in candidates(logits, count)]


def _successors(ids: np.ndarray, values: np.ndarray, count: int) -> Successors:
    largest = float(values.max())
    if not math.isfinite(largest):
        return []
    weights = np.exp(values - largest)
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")[:count]
    pairs = zip(ids[order].tolist(), weights[order].tolist(), strict=True)
    return [(token, weight) for token, weight in pairs if weight > 0]


def level(probability: float) -> int:
    """A token's likelihood as evidence: an index into `RecycleDraft.prior`. A policy counts how
    often each level is right."""
    return max(0, min(len(RecycleDraft.prior) - 1, round(10 * probability)))
