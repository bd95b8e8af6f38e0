"""What rounds add up to. Every count is pooled: sums over rounds divided by sums, never a mean of
rates. The reading of the prompt is kept apart; docs/glossary.md defines each figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.types import Divergence, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Pooled figures of the rounds after the prompt was read.

    tokens               tokens emitted in these rounds
    rounds               how many there were, and in how many of them a draft offered anything
    acceptance_rate      accepted / proposed; None if nothing was proposed
    tokens_per_round     emitted / rounds, bonus included: the mean accepted length τ
    ms_per_token         decode milliseconds per emitted token
    other_ms_per_round   milliseconds a round spent outside the target's and the draft's passes
    acceptance           entry i: share of the rounds that offered more than i tokens in which
                         drafted tokens 0…i were all accepted
    offered              entry i: in how many rounds more than i tokens were offered
    decode_s             seconds, split into draft_s, verify_s and other_s
    prefill_s            seconds of reading the prompt, the first token included
    """

    tokens: int
    rounds: int
    drafted_rounds: int
    proposed: int
    accepted: int
    acceptance_rate: float | None
    tokens_per_round: float | None
    ms_per_token: float | None
    other_ms_per_round: float | None
    decode_s: float
    draft_s: float
    verify_s: float
    other_s: float
    prefill_s: float
    acceptance: tuple[float, ...]
    offered: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def stats(rounds: Iterable[Round]) -> Stats:
    """Pool rounds of one or of many requests."""
    everything = list(rounds)
    decoding = [round for round in everything if not round.prefill]
    tokens = sum(round.emitted for round in decoding)
    proposed = sum(round.proposed for round in decoding)
    accepted = sum(round.accepted for round in decoding)
    draft_s = sum(round.draft_s for round in decoding)
    verify_s = sum(round.verify_s for round in decoding)
    other_s = sum(round.other_s for round in decoding)
    decode_s = draft_s + verify_s + other_s
    acceptance, offered = _acceptance(decoding)
    return Stats(
        tokens=tokens,
        rounds=len(decoding),
        drafted_rounds=sum(round.width > 1 for round in decoding),
        proposed=proposed,
        accepted=accepted,
        acceptance_rate=_ratio(accepted, proposed),
        tokens_per_round=_ratio(tokens, len(decoding)),
        ms_per_token=_ratio(1e3 * decode_s, tokens),
        other_ms_per_round=_ratio(1e3 * other_s, len(decoding)),
        decode_s=decode_s,
        draft_s=draft_s,
        verify_s=verify_s,
        other_s=other_s,
        prefill_s=sum(r.draft_s + r.verify_s + r.other_s for r in everything if r.prefill),
        acceptance=acceptance,
        offered=offered,
    )


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _acceptance(rounds: list[Round]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """By position, of chains: the n-th token of a tree stands at no position of its own."""
    rounds = [round for round in rounds if round.path is None]
    most = max((round.proposed for round in rounds), default=0)
    offered = tuple(sum(round.proposed > i for round in rounds) for i in range(most))
    survived = (sum(round.accepted > i for round in rounds) for i in range(most))
    return tuple(s / o for s, o in zip(survived, offered, strict=True)), offered


def one_line(pooled: Stats) -> str:
    """The figures as one line for a terminal."""
    if not pooled.tokens:
        return f"prompt read in {pooled.prefill_s:.2f} s, nothing decoded after the first token"
    parts = [
        f"{pooled.tokens} tokens in {pooled.decode_s:.2f} s",
        f"{pooled.ms_per_token:.1f} ms per token",
        f"{pooled.tokens_per_round:.2f} tokens per round",
    ]
    if pooled.acceptance_rate is None:
        parts.append("nothing drafted")
    else:
        parts.append(f"{pooled.acceptance_rate:.0%} of {pooled.proposed} drafted tokens accepted")
    return " · ".join([*parts, f"prompt read in {pooled.prefill_s:.2f} s"])


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
        """As a JSON object."""
        return asdict(self)

    def sentence(self) -> str:
        """In words."""
        return (
            f"{self.kl_nats_per_token:.3g} nats per token from the target, "
            f"{self.variation_per_token:.1%} of tokens changed"
        )


def pool_divergences(divergences: Sequence[Divergence]) -> DivergenceStats | None:
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
