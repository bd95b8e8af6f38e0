"""Tools for testing drafts, verifiers and whatever is built on them.

`ToyEngine` decodes without a model and independently of width. `enumerate_outcomes` works out the
exact distribution of anything that draws only through a `Rng`. `verified_distribution` uses it
to prove a verifier: the distribution of everything emitted, given how proposals are sampled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from paceline.engines.toy import ToyEngine
from paceline.sampling.distribution import Distribution
from paceline.sampling.rng import Rng
from paceline.types import Proposal, Round
from paceline.verify.base import Verifier

__all__ = [
    "ToyEngine",
    "baseline_distribution",
    "enumerate_outcomes",
    "rational_distribution",
    "sample_round",
    "verified_distribution",
]

Outcome = TypeVar("Outcome", bound=Hashable)
DistributionOf = Callable[[tuple[int, ...]], Distribution]
"""A distribution for each context; rational, so that nothing is rounded."""


def rational_distribution(
    weights: Sequence[int | Fraction] | Mapping[int, int | Fraction],
) -> Distribution:
    """A distribution of exact rational probabilities in proportion to the weights. A mapping gives
    a sparse distribution, a sequence a dense one; a mapping of one token a one-hot distribution.

    >>> rational_distribution([1, 3]).prob(1)
    Fraction(3, 4)
    """
    if isinstance(weights, Mapping):
        tokens = sorted(weights)
        return Distribution(_normalised([weights[token] for token in tokens]), np.asarray(tokens))
    return Distribution(_normalised(weights))


def _normalised(weights: Sequence[int | Fraction]) -> np.ndarray:
    total = Fraction(sum(weights))
    probs = np.empty(len(weights), dtype=object)
    probs[:] = [Fraction(weight) / total for weight in weights]
    return probs


class _Path:
    """An Rng that follows recorded answers and notes where it could have gone otherwise."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.answers = list(answers)
        self.branches: list[list[Any]] = []
        self.weight: Any = Fraction(1)

    def _choose(self, options: list[tuple[Any, Any]]) -> Any:
        options = [option for option in options if option[1] > 0]
        step = len(self.branches)
        index = self.answers[step] if step < len(self.answers) else 0
        self.branches.append(options)
        value, probability = options[index]
        self.weight *= probability
        return value

    def bernoulli(self, probability: Any) -> bool:
        probability = max(0, min(1, probability))
        return bool(self._choose([(True, probability), (False, 1 - probability)]))

    def sample(self, distribution: Distribution) -> int:
        return int(self._choose(distribution.items()))


def enumerate_outcomes(experiment: Callable[[Rng], Outcome]) -> dict[Outcome, Any]:
    """The exact probability of every outcome of an experiment whose only randomness is its
    Rng.

    >>> coin = rational_distribution([1, 1])
    >>> enumerate_outcomes(lambda rng: rng.sample(coin) + rng.sample(coin))
    {0: Fraction(1, 4), 1: Fraction(1, 2), 2: Fraction(1, 4)}
    """
    distribution: dict[Outcome, Any] = {}
    pending: deque[list[int]] = deque([[]])
    while pending:
        answers = pending.popleft()
        path = _Path(answers)
        outcome = experiment(path)
        distribution[outcome] = distribution.get(outcome, 0) + path.weight
        taken = answers + [0] * (len(path.branches) - len(answers))
        for step in range(len(answers), len(path.branches)):
            for index in range(1, len(path.branches[step])):
                pending.append([*taken[:step], index])
    return distribution


def verified_distribution(
    verifier: Verifier, target: DistributionOf, draft: Callable[[Rng], Proposal], length: int
) -> dict[tuple[int, ...], Any]:
    """The distribution of the first `length` tokens after the empty context, when a drafted and
    verified round is followed by ordinary decoding. A verifier is exact if and only if this equals
    the target's own, `baseline_distribution`, for every draft.

    target    the distribution after each context
    draft     samples a proposal; it must sample through the Rng it is given
    """

    def round_of(rng: Rng) -> tuple[int, ...]:
        proposal = draft(rng)
        tokens = proposal.tokens
        paths = [proposal.path(index) for index in range(-1, len(tokens))]
        rows = [target(tuple(tokens[index] for index in path)) for path in paths]
        verdict = verifier.verify(proposal, rows, rng)
        return (*(tokens[index] for index in verdict.accepted), verdict.next_token)

    return _continued(enumerate_outcomes(round_of), target, length)


def baseline_distribution(target: DistributionOf, length: int) -> dict[tuple[int, ...], Any]:
    """The distribution of the first `length` tokens by ordinary decoding."""
    return _continued({(): Fraction(1)}, target, length)


def _continued(
    emitted: dict[tuple[int, ...], Any], target: DistributionOf, length: int
) -> dict[tuple[int, ...], Any]:
    """Texts of exactly `length` tokens, when ordinary decoding goes on from what was emitted."""
    whole: dict[tuple[int, ...], Any] = {}
    pending = list(emitted.items())
    while pending:
        tokens, weight = pending.pop()
        if len(tokens) >= length:
            whole[tokens[:length]] = whole.get(tokens[:length], 0) + weight
        else:
            pending += [((*tokens, t), weight * p) for t, p in target(tokens).items()]
    return whole


def sample_round(*, max_draft_tokens: int = 0, accepted: int = 0, **changes: Any) -> Round:
    """A round of one sequence, for testing what reads rounds: one without a draft, or one in which
    a draft offered `max_draft_tokens` tokens. `changes` are fields of `Round`.

    >>> sample_round(max_draft_tokens=3, accepted=1).emitted
    2
    """
    proposed = changes.pop("proposed", max_draft_tokens)
    fields: dict[str, Any] = {
        "emitted": accepted + 1,
        "source": "draft" if max_draft_tokens else None,
        "width": proposed + 1,
        "batch": 1,
        "context": 5,
        "prefill": False,
        "draft_s": 0.001,
        "verify_s": 0.010,
        "other_s": 0.001,
    }
    return Round(
        max_draft_tokens=max_draft_tokens,
        proposed=proposed,
        accepted=accepted,
        **(fields | changes),
    )
