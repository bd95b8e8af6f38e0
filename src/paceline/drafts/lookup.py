"""Lookup: propose what followed the longest, most recent match of the text's end.

Prompt lookup (Saxena 2023) with the suffix automaton of SAM-Decoding (Hu et al. 2025) in place of
n-grams. Tokens are deterministic (one-hot), so acceptance is p(token); no model, no training.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.drafts.automaton import Follower, SuffixAutomaton
from paceline.drafts.base import AnswerPreviews, Context, Contexts, Draft, Drafted, Limits
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.sampling.distribution import Distribution
from paceline.types import Preview, Proposal

# Unless given, under a fixed limit; docs/log.md says how they were chosen.
MIN_MATCH, REACH = 2, 2.0

_SEPARATOR = -2  # between the texts of a store; no token, so no match crosses it


class Store:
    """Finished texts of several requests, to be matched by requests that name it.

    most_tokens    the store stops growing here (about 250 bytes a token)
    """

    def __init__(self, most_tokens: int = 1_000_000) -> None:
        self.most_tokens = most_tokens
        self.automaton = SuffixAutomaton()

    def add(self, tokens: AbstractSequence[int]) -> None:
        """Append a finished text, if there is room for it."""
        if len(self.automaton.text) + len(tokens) < self.most_tokens:
            self.automaton.extend([*tokens, _SEPARATOR])


_NAMED_STORES: dict[tuple[str, str, str, int], Store] = {}


@dataclass(slots=True)
class _State:
    own: SuffixAutomaton
    shared: Follower | None
    watched: bool = False  # a policy looks at each proposal before it asks


class LookupDraft(Draft):
    """Proposals from the request's own prompt and output; nothing passes between requests unless
    they share a named store.

    min_match    shortest match that is followed, in tokens
    reach        tokens proposed per token of match length: short matches are weak evidence
                 Unless given, both are 2 under a fixed limit, and bound nothing under a policy
                 that watches the draft: it judges each match by its record
    store        matched too where its match is longer; each request joins it when it ends
    """

    name = "lookup"
    summary = "what followed the last longest match in prompt and output; needs nothing"

    options: ClassVar = {"min_match": int, "reach": float, "store": lambda store: store}
    previewable = True
    has_confidence = True
    can_continue = True

    def __init__(
        self,
        *,
        min_match: int | None = None,
        reach: float | None = None,
        store: Store | None = None,
    ) -> None:
        if min_match is not None and min_match < 1:
            raise SettingError(f"min_match is {min_match}.", "It must be 1 or more.")
        if reach is not None and not 0 < reach <= 1e6:
            raise SettingError(f"reach is {reach}.", "It must be above 0 and at most 1e6.")
        self.min_match, self.reach, self.store = min_match, reach, store
        self._states: dict[Context, _State] = {}

    @classmethod
    def create(cls, target: Engine, **written: Any) -> Draft:
        """The option `store` is a name: requests of this process that give the same name and
        target share it."""
        if "store" in written:
            key = (written["store"], target.name, target.model, target.vocabulary_size)
            written["store"] = _NAMED_STORES.setdefault(key, Store())
        return super().create(target, **written)

    def open(self, context: Context) -> None:
        shared = Follower(self.store.automaton) if self.store is not None else None
        self._states[context] = _State(SuffixAutomaton(), shared)

    def prefill(self, contexts: Contexts) -> None:
        for context in contexts:
            self.observe(context, context.history.tokens)

    def observe(self, context: Context, committed: AbstractSequence[int]) -> None:
        state = self._states[context]
        state.own.extend(committed)
        if state.shared is not None:
            state.shared.extend(committed)

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        return [
            Proposal(tuple(self._found(self._states[context], limit)[0]), self.name)
            for context, limit in zip(contexts, limits, strict=True)
        ]

    @property
    def remembers(self) -> bool:
        return self.store is not None

    def preview(self, context: Context, most: int) -> Preview:
        state = self._states[context]
        state.watched = True
        tokens, match_length = self._found(state, most)
        return Preview(tokens, match_length)

    def preview_answer(
        self, prompt: AbstractSequence[int], output: AbstractSequence[int], most: int
    ) -> AnswerPreviews | None:
        """None with a store, whose text is other requests'."""
        if self.store is not None or not output:
            return None
        own = SuffixAutomaton(prompt)
        lengths, ends = [own.match_length], [own.match_end]
        own.extend(output[:-1], (lengths, ends))
        text = [*prompt, *output]
        reached = range(max(lengths) + 1)
        watched, unwatched = (
            [self._count(length, most, flag) for length in reached] for flag in (True, False)
        )
        offered = [watched[length] for length in lengths]
        agreed = _agreed(text, ends, len(prompt), most)
        right = list(map(min, offered, agreed))
        return AnswerPreviews(lengths, offered, right, [unwatched[length] for length in lengths])

    def next_distributions(self, contexts: Contexts, drafted: Drafted) -> list[Distribution | None]:
        """One-hot, or None without a match. Drafted tokens are matched like committed ones: what
        comes behind them counts only if they are accepted."""
        asked = zip(contexts, drafted, strict=True)
        found = [self._next(self._states[context], tokens) for context, tokens in asked]
        return [None if token is None else Distribution.one_hot(token) for token in found]

    def _next(self, state: _State, drafted: AbstractSequence[int]) -> int | None:
        own, length = state.own.next_behind(drafted)
        if state.shared is not None:
            shared = state.shared.pending_tokens(drafted)
            token = shared.continuation(1)
            if shared.match_length > length and token and token[0] != _SEPARATOR:
                own, length = token, shared.match_length
        # A match has grown by the drafted tokens that it goes through; reach is counted from what
        # it was before them.
        committed = max(1, length - len(drafted))
        enough = length >= (MIN_MATCH if self.min_match is None else self.min_match)
        within = self.reach is None or len(drafted) < max(1, int(self.reach * committed))
        return own[0] if own and enough and within else None

    def _found(self, state: _State, limit: int) -> tuple[list[int], int]:
        """What to offer, and the length of the match before it."""
        own, shared = state.own, state.shared
        if shared is not None and shared.match_length > own.match_length:
            length = shared.match_length
            tokens = shared.continuation(self._count(length, limit, state.watched))
            found = tokens[: tokens.index(_SEPARATOR)] if _SEPARATOR in tokens else tokens
            if found:
                return found, length
        length = own.match_length
        return own.continuation(self._count(length, limit, state.watched)), length

    def _count(self, match_length: int, limit: int, watched: bool) -> int:
        """Tokens to offer after a match."""
        least, reach = self.min_match, self.reach
        if least is None:
            least = 1 if watched else MIN_MATCH
        if match_length < least:
            return 0
        if reach is None:
            if watched:
                return limit
            reach = REACH
        return min(limit, max(1, int(reach * match_length)))

    def close(self, context: Context) -> None:
        if self._states.pop(context, None) is not None and self.store is not None:
            self.store.add(context.history.tokens)

    def metadata(self) -> dict[str, Any]:
        return {
            "draft": self.name,
            "min_match": self.min_match,  # None: 2 under a fixed limit, 1 under a watching policy
            "reach": self.reach,  # None: 2 under a fixed limit, without bound under such a policy
            "shared_store": self.store is not None,
        }


def _agreed(text: list[int], ends: list[int], start: int, most: int) -> list[int]:
    """Entry t: how many of the tokens from `ends[t]` on are those from `start + t` on; `most` or
    more where it is that many.

    A continuation that reaches the end of what was then committed repeats itself, and so does the
    text as long as the two agree: so the text alone is compared.
    """
    counts = [0] * len(ends)
    agreed = 0
    following = -1  # the place that the next moment compares with
    for t in range(len(ends) - 1, -1, -1):
        place, here = ends[t], start + t
        if text[place] != text[here]:
            agreed = 0
        elif following == place + 1:
            agreed += 1
        else:
            agreed = 1
            end = min(most, len(text) - here)
            while agreed < end and text[place + agreed] == text[here + agreed]:
                agreed += 1
        following, counts[t] = place, agreed
    return counts
