"""What the departures of a lossy verifier add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.types import Divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceStats:
    """Pooled over output tokens, the prompt's first one and those emitted without a draft included
    (they are 0 away).

    tokens                 how many there are
    kl_nats_per_token      mean KL of the distribution a token was emitted from, from the target's
    variation_per_token    mean total variation between them: the share of tokens that exact
                           decoding would at least have emitted otherwise
    largest_kl_nats        the largest KL at a token
    """

    tokens: int
    kl_nats_per_token: float
    variation_per_token: float
    largest_kl_nats: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        return (
            f"{self.kl_nats_per_token:.3g} nats per token from the target, "
            f"{self.variation_per_token:.1%} of tokens changed"
        )


def pool(divergences: Sequence[Divergence]) -> DivergenceStats | None:
    """None if there are none."""
    if not divergences:
        return None
    count = len(divergences)
    return DivergenceStats(
        tokens=count,
        kl_nats_per_token=sum(d.kl_nats for d in divergences) / count,
        variation_per_token=sum(d.variation for d in divergences) / count,
        largest_kl_nats=max(d.kl_nats for d in divergences),
    )
