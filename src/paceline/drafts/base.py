"""The protocol of a draft. A third party's needs a class, an entry point, and nothing else:
docs/drafts.md has one in twenty lines.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from paceline import plugins
from paceline.engines.base import Engine, Sequence
from paceline.sampling.distribution import Distribution
from paceline.sampling.history import History
from paceline.sampling.rng import NumpyRng, Rng
from paceline.sampling.rows import RowDistributions
from paceline.types import Array, Preview, Proposal, Sampling


@dataclass(eq=False, slots=True)
class Context:
    """What a draft may see of one sequence. It is its own key: equal only to itself.

    history        prompt and committed output; `history.tokens` is the list
    sampling       how the request wants its tokens drawn
    rng            the draft's own random numbers for this request
    stop_tokens    end and stop tokens: nothing need be drafted behind one
    sequence       the target's own, for drafts that are part of it; it holds all committed tokens
                   but the last when a proposal is asked for. Others leave it alone
    """

    history: History
    sampling: Sampling = field(default_factory=Sampling)
    rng: Rng = field(default_factory=NumpyRng)
    stop_tokens: frozenset[int] = frozenset()
    sequence: Sequence | None = None


@dataclass(frozen=True, slots=True)
class VerifiedRound:
    """A round as the target saw it, for drafts that learn from its rows.

    proposal         what was verified; empty in a round without a draft
    accepted         indices of the accepted tokens, root to leaf
    last             the committed token that row 0 stands after
    logits           the target's raw rows, shape (1 + drafted tokens, vocabulary): row 0, then one
                     per drafted token, in the proposal's order
    distributions    of these rows, after temperature; None inside another engine

    Logits and distributions hold for this call only.
    """

    proposal: Proposal
    accepted: tuple[int, ...]
    last: int
    logits: Array
    distributions: RowDistributions | None = None

    @property
    def tokens(self) -> list[int]:
        """Per row the token it stands after."""
        return [self.last, *self.proposal.tokens]


class AnswerPreviews(NamedTuple):
    """What a previewable draft would offer at each moment of a finished answer: entry t is the
    moment when t output tokens are committed.

    match_length     `Preview.match_length`
    offered      tokens in the preview
    right        how many of the first of them are what was then emitted
    unwatched    tokens that `propose` would offer to a policy that doesn't look first
    """

    match_length: AbstractSequence[int]
    offered: AbstractSequence[int]
    right: AbstractSequence[int]
    unwatched: AbstractSequence[int]


Contexts: TypeAlias = AbstractSequence[Context]
Limits: TypeAlias = AbstractSequence[int]
"""Per context the most tokens that may be offered."""
Drafted: TypeAlias = AbstractSequence[AbstractSequence[int]]
"""Per context the drafted tokens that stand behind its history and in none."""


class Draft(abc.ABC):
    """Proposes tokens for many sequences at once.

    A subclass needs `propose`, and nothing else. The other members have defaults, in three groups:
    how it is made, what the policy may know of it, and what the loop tells it. The loop calls
    `open`, then `prefill` once, then `propose` and `observe` round by round, then `close`.

    Decoding stays exact, however bad the draft, as long as every proposal carries the distribution
    that each token was sampled from, or None where the token is deterministic.
    """

    @abc.abstractmethod
    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        """A proposal per context, of at most its limit (1 or more) of tokens. Fewer, or none, is
        a legal answer.

        What is proposed and how much may depend on anything but the sampled tokens themselves
        being likely or not: a token sampled from a distribution and then left out for its own
        probability breaks exactness (docs/exactness.md, non-anticipation).
        """

    # What it is called, and how it is made.

    name: ClassVar[str] = ""
    """What it is called; unless given, its class's name: BigramDraft is "bigram"."""

    summary: ClassVar[str] = ""
    """One line for `paceline list`: what it proposes and what it needs; unless given, the first
    line of its class's docstring."""

    takes: ClassVar[str] = ""
    """What a specification names behind its options: "model", "drafts", or "" for nothing. `create`
    then gets the loaded `engine`, which is the draft's to close, or the list `drafts`, which are
    the draft's to release."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Never inherited: a draft that proposes in another way must not be replayed so.
        cls.teacher_forced = vars(cls).get("teacher_forced", False)
        if not cls.name:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()
            cls.name = cls.name.removesuffix("-draft") or cls.name
        if not cls.summary:
            cls.summary = (cls.__doc__ or "").strip().partition("\n")[0]

    options: ClassVar[Mapping[str, Callable[[str], Any]]] = {}
    """What reads each option that a specification may give: int, float, str, `plugins.yes_or_no`.
    `create` passes them to the constructor by name."""

    @classmethod
    def create(cls, target: Engine, **written: Any) -> Draft:
        """A draft for a target, from the options of the command line's `-d name:key=value,…`, and
        from the `engine` or the `drafts` that it takes. The constructor gets `engine, target`, or
        `drafts`, or neither, and the options. Raises SettingError for one that it doesn't have."""
        parts: tuple[Any, ...] = ()
        if cls.takes == "model":
            parts = written.pop("engine"), target
        elif cls.takes == "drafts":
            parts = (written.pop("drafts"),)
        return cls(*parts, **plugins.read_options("draft", cls.name, written, cls.options))

    # What the policy may know.

    engine: Engine | None = None
    """Whose forwards a proposal takes; None where it takes none, or none that can be priced."""

    forwards: int | None = None
    """Most forwards of `engine` that a proposal takes; None is one for each token."""

    branches: bool = False
    """Whether its proposals may be trees."""

    previewable: bool = False
    """Whether `preview` tells a proposal before it is asked for. Such a draft costs next to
    nothing, and all its tokens are deterministic."""

    has_confidence: bool = False
    """Whether its previews tell a match length or confidences."""

    prior: AbstractSequence[float] | None = None
    """The probability that a token is right by its match length or confidence 0, 1, 2, …, before
    anything was counted; the last one holds beyond. None leaves it to the policy."""

    teacher_forced: bool = False
    """Whether its greedy proposals are the tokens with the largest logits of `engine`, so that one
    pass over a finished answer tells them all (teacher forcing)."""

    observes_logits: bool = False
    """Whether it wants to see the target's rows of every round (`observe_logits`)."""

    can_continue: bool = False
    """Whether it can go on behind drafted tokens that another draft offers
    (`next_distributions`)."""

    @property
    def remembers(self) -> bool:
        """Whether anything passes from one request to another; a bench refuses such a draft."""
        return False

    def preview(self, context: Context, most: int) -> Preview:
        """The first `most` tokens that `propose` would offer now to a policy that looks first. Only
        for a previewable draft."""
        raise NotImplementedError(f"the draft {self.name} is not previewable")

    def preview_answer(
        self,
        prompt: AbstractSequence[int],  # noqa: ARG002
        output: AbstractSequence[int],  # noqa: ARG002
        most: int,  # noqa: ARG002
    ) -> AnswerPreviews | None:
        """What `preview` and `propose`, asked for `most` tokens, would say before each token of a
        finished answer, found in one pass. None where that takes asking token by token. Only for a
        previewable draft, which need not have it."""
        return None

    def pending_tokens(self, context: Context) -> int:  # noqa: ARG002
        """How many committed tokens it has yet to read before its next proposal; asked also before
        `open`, when that is all of them."""
        return 0

    def next_distributions(self, contexts: Contexts, drafted: Drafted) -> list[Distribution | None]:
        """Per context the distribution of its next token behind these drafted tokens, its own or
        another's, which stand behind the history and in none; None where it has nothing to offer.
        Only for a draft that `can_continue`.

        The distribution may depend on all that comes before the token, and on nothing of the token
        itself.
        """
        raise NotImplementedError(f"the draft {self.name} can't continue behind drafted tokens")

    def metadata(self) -> dict[str, Any]:
        """What a reader of a measurement must know of this draft."""
        return {"draft": self.name}

    # What the loop tells.

    def open(self, context: Context) -> None:  # noqa: B027
        """A request begins."""

    def prefill(self, contexts: Contexts) -> None:  # noqa: B027
        """Read the prompts, so that the first proposal costs what every other costs."""

    def observe(self, context: Context, committed: AbstractSequence[int]) -> None:  # noqa: B027
        """These tokens were just committed (they already stand at the history's end)."""

    def observe_logits(self, context: Context, verified: VerifiedRound) -> None:  # noqa: B027
        """A round was verified, whoever proposed, and this is what the target said; nothing of it
        is committed yet. What is learned serves later rounds only."""

    def observe_best(  # noqa: B027
        self, context: Context, proposed: AbstractSequence[int], best: AbstractSequence[int]
    ) -> None:
        """What `observe_logits` tells, where of each row only the likeliest token is known: of the
        row behind the committed tokens, and behind each proposed one. Inside another engine."""

    def close(self, context: Context) -> None:  # noqa: B027
        """The request ended; forget it."""

    def release(self) -> None:  # noqa: B027
        """Free what the draft holds, a model for instance."""


class NoDraft(Draft):
    """Offers nothing: every round is one of ordinary decoding. Also the smallest draft there can
    be."""

    name = "none"
    summary = "ordinary decoding; needs nothing"

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:  # noqa: ARG002
        """Nothing for each."""
        return [Proposal((), self.name) for _ in contexts]


@dataclass(slots=True)
class _StepwiseTurn:
    """One context's proposal in the making."""

    context: Context
    limit: int
    before: AbstractSequence[int]
    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution | None] = field(default_factory=list)

    @property
    def drafted(self) -> list[int]:
        return [*self.before, *self.tokens]

    def take(self, distribution: Distribution | None) -> bool:
        """One more token, with its distribution; False if the proposal ends here.

        Ending before a draw is exact: nothing has been drawn that could be dropped. A token that
        was drawn is kept before stopping: to drop it for what it is would break exactness.
        """
        if distribution is None:
            return False
        self.tokens.append(self.context.rng.sample(distribution))
        self.distributions.append(None if distribution.single is not None else distribution)
        return self.may_go_on

    @property
    def may_go_on(self) -> bool:
        if len(self.tokens) >= self.limit:
            return False
        last = self.tokens or self.before
        return not last or last[-1] not in self.context.stop_tokens


def draw_on(
    draft: Draft,
    contexts: Contexts,
    limits: AbstractSequence[int],
    before: AbstractSequence[AbstractSequence[int]] | None = None,
) -> list[Proposal]:
    """A proposal per context, drawn token by token from `draft.next_distributions`, up to its
    limit, a stop token, or where the draft has nothing to offer.

    before    per context the drafted tokens behind which it begins; they are no part of what is
              returned
    """
    starts = before if before is not None else [()] * len(contexts)
    turns = [_StepwiseTurn(*turn) for turn in zip(contexts, limits, starts, strict=True)]
    active = [turn for turn in turns if turn.may_go_on]
    while active:
        distributions = draft.next_distributions(
            [t.context for t in active], [t.drafted for t in active]
        )
        active = [
            turn
            for turn, distribution in zip(active, distributions, strict=True)
            if turn.take(distribution)
        ]
    return [Proposal(tuple(t.tokens), draft.name, tuple(t.distributions)) for t in turns]
