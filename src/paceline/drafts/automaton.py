"""A suffix automaton that grows with a text and knows where its end has stood before.

Blumer et al. 1985: the smallest automaton of all substrings, built online in amortised O(1) a
token and at most two states a token. After each token, the suffix link of the newest state is the
class of the longest suffix that also occurs earlier: that is the match, without any search.

Nearly every state has one way on, so a state keeps that one in flat lists and gets a dict only when
it branches: about 100 bytes a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_NONE = -1

# Each token renews the position of the states on its path of ever shorter suffixes. Text has few of
# them (about 10), but a text that repeats itself has one per repetition, and following them all
# would cost O(n) a token. Beyond this many the positions stay older, and still are true matches.
_MOST_RENEWED = 32


class SuffixAutomaton:
    """A text, and for its end the longest match before it.

    text            the tokens so far
    match_length    length of the longest suffix of the text that also occurs earlier in it
    match_end       where the latest earlier occurrence ends: text[match_end] came next there
    """

    __slots__ = (
        "_branches",
        "_last",
        "_length",
        "_link",
        "_next_state",
        "_next_token",
        "_position",
        "match_end",
        "match_length",
        "text",
    )

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.text: list[int] = []
        self.match_length = 0
        self.match_end = 0
        self._length = [0]
        self._link = [_NONE]
        self._position = [0]  # end of the latest known occurrence
        self._next_token = [_NONE]  # the only way on, where there is but one
        self._next_state = [_NONE]
        self._branches: dict[int, dict[int, int]] = {}
        self._last = 0
        self.extend(tokens)

    def extend(
        self, tokens: Iterable[int], matches: tuple[list[int], list[int]] | None = None
    ) -> None:
        """Append tokens to the text.

        matches    two lists, to which `match_length` and `match_end` after each token are added
        """
        length, link, position = self._length, self._link, self._position
        next_token, next_state, branches = self._next_token, self._next_state, self._branches
        text, last = self.text, self._last
        match_length, match_end = self.match_length, self.match_end
        for token in tokens:
            text.append(token)
            end = len(text)
            new = len(length)
            length.append(end)
            link.append(0)
            position.append(end)
            next_token.append(_NONE)
            next_state.append(_NONE)
            state, found = last, _NONE
            while state != _NONE:
                if next_token[state] == token:
                    found = next_state[state]
                    break
                if next_token[state] == _NONE:
                    next_token[state], next_state[state] = token, new
                else:
                    ways = branches.get(state)
                    if ways is None:
                        branches[state] = {token: new}
                    elif token in ways:
                        found = ways[token]
                        break
                    else:
                        ways[token] = new
                state = link[state]
            if found != _NONE:
                if length[found] != length[state] + 1:
                    found = self._split(state, token, found)
                link[new] = found
            last = new
            match = link[new]
            match_length, match_end = length[match], position[match]
            if matches is not None:
                matches[0].append(match_length)
                matches[1].append(match_end)
            for _ in range(_MOST_RENEWED):
                if match <= 0:
                    break
                position[match] = end
                match = link[match]
        self._last = last
        self.match_length, self.match_end = match_length, match_end

    def _split(self, state: int, token: int, found: int) -> int:
        """Part the shorter strings of `found` into a state of their own, and lead to it."""
        length, link = self._length, self._link
        next_token, next_state, branches = self._next_token, self._next_state, self._branches
        clone = len(length)
        length.append(length[state] + 1)
        link.append(link[found])
        self._position.append(self._position[found])
        next_token.append(next_token[found])
        next_state.append(next_state[found])
        if found in branches:
            branches[clone] = dict(branches[found])
        link[found] = clone
        while state != _NONE:
            if next_token[state] == token:
                if next_state[state] != found:
                    break
                next_state[state] = clone
            else:
                ways = branches.get(state)
                if ways is None or ways.get(token) != found:
                    break
                ways[token] = clone
            state = link[state]
        return clone

    def _way(self, state: int, token: int) -> int:
        if self._next_token[state] == token:
            return self._next_state[state]
        ways = self._branches.get(state)
        return _NONE if ways is None else ways.get(token, _NONE)

    def continuation(self, count: int) -> list[int]:
        """What followed the match, `count` tokens of it. Where the match reaches the text's end
        (the text repeats itself), the continuation repeats on. Empty without a match."""
        if not self.match_length or not count:
            return []
        found = self.text[self.match_end : self.match_end + count]
        period = len(self.text) - self.match_end
        while len(found) < count:
            found.append(found[len(found) - period])
        return found

    def next_behind(self, drafted: Sequence[int]) -> tuple[list[int], int]:
        """What came next, one token or none, after the latest earlier occurrence of the longest
        suffix of the text and these tokens behind it that the text holds; and that suffix's length.
        Nothing is appended."""
        if not drafted:
            return self.continuation(1), self.match_length
        place = Follower(self)
        place._state = self._link[self._last]
        place.match_length = self.match_length
        place.extend(drafted)
        if not place.match_length:
            return [], 0
        end = self._position[place._state]
        return [self.text[end] if end < len(self.text) else drafted[0]], place.match_length


class Follower:
    """Keeps the place in an automaton of the longest suffix of another, growing text: how a
    request is matched against a store of other requests.

    match_length    length of that suffix
    """

    def __init__(self, store: SuffixAutomaton) -> None:
        self._store = store
        self._state = 0
        self.match_length = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the other text."""
        for token in tokens:
            self._step(token)

    def pending_tokens(self, drafted: Iterable[int]) -> Follower:
        """Another one, where this one would be after these tokens."""
        clone = Follower(self._store)
        clone._state, clone.match_length = self._state, self.match_length
        clone.extend(drafted)
        return clone

    def _step(self, token: int) -> None:
        store, state = self._store, self._state
        while True:
            following = store._way(state, token)
            if following != _NONE:
                self.match_length = min(self.match_length, store._length[state]) + 1
                self._state = following
                return
            if state == 0:
                self._state = self.match_length = 0
                return
            # The store may have grown since the last step and parted this state, so its link can
            # stand for longer strings than were matched.
            state = store._link[state]
            self.match_length = min(self.match_length, store._length[state])

    def continuation(self, count: int) -> list[int]:
        """What followed the match in the store, at most `count` tokens."""
        if not self.match_length:
            return []
        end = self._store._position[self._state]
        return self._store.text[end : end + count]
