"""A model's proposals as a tree: several tokens for one place, where the draft is unsure.

Grown level by level: every forward of the draft scores all tokens that were added last, and the
next ones go where they seem likeliest to be accepted, as in EAGLE-2 (Li et al. 2024) for tokens
deterministic, and drawn without replacement, as in Sequoia (Chen et al. 2024), where the request
samples. It pays where many rows cost the target hardly more than one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from paceline.drafts.base import Context, Contexts, Limits
from paceline.drafts.calibrate import is_greedy
from paceline.drafts.model import ModelDraft
from paceline.engines.base import Engine, Job
from paceline.errors import SettingError
from paceline.sampling.distribution import Distribution, without
from paceline.sampling.top_k import likeliest
from paceline.types import Proposal, path_of

DEPTH, BRANCHES = 4, 8


@dataclass(slots=True)
class _Growth:
    """One context's tree in the making.

    reach      per token how likely it is to be accepted, by the draft's own distributions
    waiting    places for a further child, the likeliest first: what it would reach, a number that
               keeps the order, the token it hangs on, and how many siblings come before it
    """

    context: Context
    limit: int
    greedy: bool
    most_branches: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    told: list[Distribution | None] = field(default_factory=list)
    reach: dict[int, float] = field(default_factory=lambda: {-1: 1.0})
    distributions: dict[int, Distribution] = field(default_factory=dict)
    best: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    waiting: list[tuple[float, int, int, int]] = field(default_factory=list)
    unscored: list[int] = field(default_factory=list)

    def expand(self, node: int, distribution: Distribution | None) -> None:
        """Let children hang on a token (-1: the last committed one), by the draft's distribution
        there."""
        if distribution is not None:
            self.distributions[node] = distribution
            self.best[node] = likeliest(distribution, self.most_branches)
            self._offer(node, 0)

    def _offer(self, node: int, rank: int) -> None:
        """A place for one more child. How likely it is to be accepted is told by the distribution,
        before its token is known: to draw it first and then to leave it out would break
        exactness."""
        if rank < len(self.best[node]):
            reached = self.reach[node] * self.best[node][rank][1]
            heapq.heappush(self.waiting, (-reached, len(self.waiting), node, rank))

    def add(self, most: int) -> None:
        """Up to `most` more tokens at the likeliest places."""
        most = min(most, self.limit - len(self.tokens))
        while self.waiting and most > 0:
            _, _, node, rank = heapq.heappop(self.waiting)
            token, told = self._child(node, rank)
            self.tokens.append(token)
            self.parents.append(node)
            self.told.append(told)
            index = len(self.tokens) - 1
            self.reach[index] = self.reach[node] * float(self.distributions[node].prob(token))
            self._offer(node, rank + 1)
            if token not in self.context.stop_tokens:
                self.unscored.append(index)
            most -= 1

    def _child(self, node: int, rank: int) -> tuple[int, Distribution | None]:
        if self.greedy:
            return self.best[node][rank][0], None
        siblings = [
            t for t, parent in zip(self.tokens, self.parents, strict=True) if parent == node
        ]
        rest = without(self.distributions[node], siblings) if siblings else self.distributions[node]
        return self.context.rng.sample(rest), None if rest.single is not None else rest

    def path(self, node: int) -> list[int]:
        return [self.tokens[index] for index in path_of(self.parents, node)]


class TreeDraft(ModelDraft):
    """Trees of another model, for several sequences in one draft forward.

    depth       most levels, each a forward of the draft; a level takes an equal part of the limit
    branches    most children of a token

    At temperature 0 the likeliest tokens by the draft's distribution at temperature 1 are
    deterministic.
    """

    name = "tree"
    summary = "a smaller model's likeliest branches; needs a target and verifier for trees"
    options: ClassVar = {"depth": int, "branches": int}
    branches = True
    can_continue = False

    def __init__(
        self, engine: Engine, target: Engine, *, depth: int = DEPTH, branches: int = BRANCHES
    ) -> None:
        for label, value in (("depth", depth), ("branches", branches)):
            if value < 1:
                raise SettingError(f"{label} is {value}.", "It must be 1 or more.")
        for which, model in (("target", target), ("draft", engine)):
            if not model.capabilities.trees:
                raise SettingError(
                    f"The draft 'tree' scores trees, and the {which} {model.model} can't on the "
                    f"engine {model.name}.",
                    "Take the draft 'model'.",
                )
        super().__init__(engine, target)
        self.depth = self.forwards = depth
        self.most_branches = branches

    def open(self, context: Context) -> None:
        super().open(context)
        if is_greedy(context.sampling):  # its distributions would name one token each
            self._states[context].sampling = replace(
                context.sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0
            )

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        growths = [
            _Growth(context, limit, is_greedy(context.sampling), self.most_branches)
            for context, limit in zip(contexts, limits, strict=True)
        ]
        levels = [-(-limit // self.depth) for limit in limits]
        distributions = self.next_distributions(contexts, [()] * len(contexts))
        for growth, distribution, level in zip(growths, distributions, levels, strict=True):
            growth.expand(-1, distribution)
            growth.add(level)
        for _ in range(self.depth - 1):
            if not self._deepen(growths):
                break
            for growth, level in zip(growths, levels, strict=True):
                growth.add(level)
        return [
            Proposal(tuple(g.tokens), self.name, tuple(g.told), tuple(g.parents)) for g in growths
        ]

    def _deepen(self, growths: list[_Growth]) -> bool:
        """Score what was added last; False if nothing can grow on. The whole tree is fed again: no
        engine need extend one."""
        active = [g for g in growths if g.unscored and len(g.tokens) < g.limit]
        active = [g for g in active if self._follows(self._states[g.context], g.tokens)]
        if not active:
            return False
        jobs = []
        for growth in active:
            sequence = self._states[growth.context].sequence
            rows = len(growth.tokens) - growth.unscored[0]
            jobs.append(Job(sequence, growth.tokens, rows, tuple(growth.parents)))
        scored = self.engine.score(jobs)
        for growth, rows in zip(active, scored, strict=True):
            first = len(growth.tokens) - len(rows)
            unscored, growth.unscored = growth.unscored, []
            for node in unscored:
                at = node - first
                growth.expand(
                    node, self._distribution(growth.context, rows[at : at + 1], growth.path(node))
                )
            self._states[growth.context].sequence.rewind(len(growth.context.history))
        return True

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "depth": self.depth, "branches": self.most_branches}
