"""The nouns that the packages exchange. Nothing here computes; docs/glossary.md says each word."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from paceline.errors import SettingError

if TYPE_CHECKING:
    from paceline.sampling.distribution import Distribution

Array: TypeAlias = Any
"""An array of the array API standard: a NumPy array, or a torch tensor where the engine has it."""


class FinishReason(Enum):
    """Why decoding a request ended."""

    END_TOKEN = "end_token"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_END = "context_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a next-token distribution is made from logits. The defaults are greedy decoding.

    The order is fixed, and the same for every scored row (see `paceline.sampling.processors`):
    repetition penalty, presence and frequency penalties, logit bias, banned and allowed tokens,
    banned sequences, minimum tokens; then temperature, top-k, top-p, min-p.

    temperature          0 is greedy: all mass on the largest processed logit (lowest id on a tie).
    top_k                keep the k most probable tokens (Fan et al. 2018); 0 keeps all.
    top_p                then the smallest set of most probable tokens with at least this mass
                         (nucleus sampling: Holtzman et al. 2020, section 3.1).
    min_p                then the tokens with at least this share of the largest probability
                         (Nguyen et al. 2024).
    repetition_penalty   divides positive and multiplies negative logits of tokens in prompt or
                         output (Keskar et al. 2019, CTRL, section 4.1); 1 is off.
    presence_penalty     subtracted once from the logit of each token in the output.
    frequency_penalty    subtracted per occurrence in the output.
    logit_bias           added to the logits of these tokens.
    banned_tokens        never emitted.
    allowed_tokens       if given, nothing else is emitted (end tokens need naming too).
    banned_sequences     token sequences that never appear in prompt-and-output's growing end.
    min_tokens           no end token, stop token or stop string before this many output tokens.
    seed                 of this request's own random numbers; None takes fresh entropy.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        # Beyond these bounds float32 logits overflow, and the distribution would be no
        # distribution.
        sensible = self.temperature == 0 or 1e-6 <= self.temperature <= 1e6
        _require(sensible, "temperature", self.temperature, "0 (greedy) or from 1e-6 to 1e6")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        _require(
            0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            self.repetition_penalty,
            "above 0",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require(math.isfinite(getattr(self, name)), name, getattr(self, name), "finite")
        for token, bias in self.logit_bias.items():
            _require(math.isfinite(bias), f"logit_bias[{token}]", bias, "finite (to ban: banned)")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        _require(
            self.allowed_tokens is None or len(self.allowed_tokens) > 0,
            "allowed_tokens",
            self.allowed_tokens,
            "None or at least one token",
        )
        _require(all(self.banned_sequences), "banned_sequences", "empty", "of 1 or more tokens")
        _require(self.seed is None or self.seed >= 0, "seed", self.seed, "0 or more")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise SettingError(f"{name} is {value}.", f"It must be {wanted}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConditions:
    """When a request ends, besides the model's own end tokens and the context's end.

    max_tokens    most output tokens; None goes on to the context's end.
    strings       the text ends before the first of these to appear.
    tokens        the output ends with the first of these; it is counted, its text is not shown.
    ignore_end    the model's end tokens end nothing (for measuring).
    """

    max_tokens: int | None = None
    strings: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    ignore_end: bool = False

    def __post_init__(self) -> None:
        most = self.max_tokens
        _require(most is None or most >= 1, "max_tokens", most, "1 or more")
        _require(all(self.strings), "stop strings", list(self.strings), "non-empty texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to decode.

    draft          use only the draft of this name; None leaves the choice to the policy.
    max_draft_tokens    most tokens a draft may offer in a round; 0 is off, None leaves it to the
                   policy.
    logprobs       also return the target's log-probability of each emitted token, from its raw
                   logits (before penalties and temperature), as ordinary decoding gives it.
    margins        also return, per emitted token, by how much its processed logit (before
                   temperature) exceeds the best other one: what a greedy near-tie is told by.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    stop: StopConditions = field(default_factory=StopConditions)
    draft: str | None = None
    max_draft_tokens: int | None = None
    logprobs: bool = False
    margins: bool = False

    def __post_init__(self) -> None:
        limit, most = self.max_draft_tokens, self.stop.max_tokens
        _require(limit is None or limit >= 0, "max_draft_tokens", limit, "0 or more")
        least = self.sampling.min_tokens
        _require(most is None or least <= most, "min_tokens", least, f"at most max_tokens, {most}")


def checked_parents(parents: Sequence[int]) -> tuple[int, ...]:
    """Parents of a tree's tokens as a tuple. Raises ValueError where one doesn't come before its
    child."""
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise ValueError(f"token {index} of a tree has the parent {parent}")
    return tuple(parents)


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each token's parent is the one before it."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def path_of(parents: Sequence[int], index: int) -> list[int]:
    """Indices of a tree's tokens from the root to one of them, itself included."""
    path: list[int] = []
    while index >= 0:
        path.append(index)
        index = parents[index]
    path.reverse()
    return path


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a draft offers for one sequence in one round.

    tokens     the offered tokens; empty is a legal answer.
    source     the draft's name.
    distributions    per token the distribution it was sampled from, or None where it was
               deterministic (a one-hot distribution); None for the whole means that all were. Of
               siblings, each distribution is the one its token was sampled from after those before
               it were.
    parents    per token the index of the token before it, always an earlier one, -1 for the last
               committed token; None is a chain (-1, 0, 1, …), and a chain is always None.
    """

    tokens: tuple[int, ...]
    source: str
    distributions: tuple[Distribution | None, ...] | None = None
    parents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, part in (("distributions", self.distributions), ("parents", self.parents)):
            if part is not None and len(part) != len(self.tokens):
                raise ValueError(f"{len(self.tokens)} tokens but {len(part)} {name}")
        if self.parents is not None:
            parents = checked_parents(self.parents)
            object.__setattr__(self, "parents", None if is_chain(parents) else parents)

    def path(self, index: int) -> list[int]:
        """Indices of the tokens from the root to this one, itself included; of none for -1."""
        if self.parents is None:
            return list(range(index + 1))
        return path_of(self.parents, index)

    def distribution(self, index: int) -> Distribution | None:
        """The distribution that a token was sampled from; None where it is deterministic."""
        return None if self.distributions is None else self.distributions[index]


class Preview(NamedTuple):
    """What a draft would offer if it were asked now, told without asking it. Only a draft whose
    tokens are all deterministic has one: to look at a token that was sampled, and then to leave it
    out, would break exactness (docs/exactness.md, non-anticipation).

    tokens          the continuation it would offer
    match_length    how much speaks for it: the length of the match, for a lookup. An accepted token
                    counts as one more. 0 where the draft tells none
    confidences     instead, per token, how much speaks for it by itself, given those before it
    parents         of a tree, as in a proposal; its first tokens are a tree too
    """

    tokens: Sequence[int]
    match_length: int
    confidences: Sequence[int] | None = None
    parents: Sequence[int] | None = None


class Divergence(NamedTuple):
    """How far the distribution o that a token was emitted from is from the target's p, given the
    tokens before it.

    kl_nats      KL(o‖p). Summed over a text, and averaged over texts, it is what the distribution
                 of whole texts is away, or more (chain rule)
    variation    total variation: the share of cases in which exact decoding, however its luck is
                 coupled with ours, emits another token here
    """

    kl_nats: float
    variation: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target makes of a proposal: accepted indices from root to leaf, and the next token,
    which replaces the first rejected one or comes after the last accepted one (the bonus).

    divergences    of a lossy verifier, per emitted token, the next one included; empty of an exact
                  one, and of one that can't tell
    """

    accepted: tuple[int, ...]
    next_token: int
    divergences: tuple[Divergence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of one sequence. Seconds are this sequence's share of a batch's time, drafting being
    shared by those that asked, so that sums over rounds are wall time.

    proposed         drafted tokens judged; those after a stop inside the block are not counted
    accepted         drafted tokens emitted (bonus and replacement excluded)
    emitted          tokens emitted, bonus or replacement included
    source           name of the draft that was asked, or None
    max_draft_tokens    most tokens it was asked for; 0 in a round without a draft
    width            rows scored in the target's forward
    batch            sequences that shared the forward
    context          tokens committed before the round
    prefill          the round read the prompt; it is kept out of decode figures
    path             of a tree, the indices of the accepted tokens; None: the first `accepted` ones
    draft_s          seconds in the draft: proposing and observing
    verify_s         seconds in the target's forward
    other_s          all else: distributions, verdict, stops, text, rewinding
    """

    proposed: int
    accepted: int
    emitted: int
    source: str | None
    max_draft_tokens: int
    width: int
    batch: int
    context: int
    prefill: bool
    draft_s: float
    verify_s: float
    other_s: float
    path: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy wants for one sequence in one round: which draft, and its most tokens."""

    source: str | None
    max_draft_tokens: int
