"""What a draft that is always asked comes to on recorded answers, by limit and category: rounds and
tokens only, no seconds, and fast enough for a whole log.

The rounds are those of `simulate` with the policy DRAFT:LIMIT, walked for all answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.simulate.result import ByCategory, Outcome, ReplayDocument
from paceline.simulate.trace import Recording, Trace


class Answers:
    """The traces of one draft as arrays, an entry per moment of every answer.

    Raises ValueError if a moment of the draft is unknown.
    """

    def __init__(self, traces: Sequence[Trace], source: str) -> None:
        lengths = np.asarray([trace.output_tokens for trace in traces])
        known = [trace.sources[source] for trace in traces]
        if any(None in one.right or None in one.unwatched for one in known):
            raise ValueError(f"not every moment of {source!r} is known")
        self._right = _joined([one.right for one in known])
        self._offered = _joined([one.unwatched for one in known])
        starts = np.cumsum(lengths) - lengths
        at = np.arange(len(self._right)) - np.repeat(starts, lengths)
        self._left = np.repeat(lengths, lengths) - at
        self._room = np.repeat([trace.most_tokens for trace in traces], lengths) - at
        # The first token came with the prompt; an answer of one token has no round.
        self._begins = (starts + 1)[lengths > 1]
        names = list(dict.fromkeys(trace.category for trace in traces))
        numbers = [names.index(trace.category) for trace in traces]
        self._category, self._names = np.repeat(numbers, lengths), names

    def outcomes(self, max_draft_tokens: int) -> ByCategory[Outcome]:
        """What always asking for so many tokens comes to."""
        drafted = np.minimum(np.minimum(self._room - 1, max_draft_tokens), self._offered)
        right = np.minimum(drafted, self._right)
        emitted = np.minimum(right + 1, self._left)
        last = emitted == self._left
        visited = self._walk(np.where(last, -1, np.arange(len(last)) + emitted))
        # An end inside the block leaves the tokens behind it unjudged.
        judged = np.where(last & (right == self._left), right, drafted)
        rounds = np.stack([judged, right, emitted, drafted > 0])[:, visited]
        category = self._category[visited]
        return ByCategory(
            _outcome(rounds),
            {
                name: _outcome(rounds[:, category == number])
                for number, name in enumerate(self._names)
            },
        )

    def _walk(self, following: np.ndarray) -> np.ndarray:
        """The moments at which rounds begin: of every answer the first, then of all those that
        aren't at their end the next."""
        visited, moments = [np.zeros(0, dtype=np.int64)], self._begins
        while moments.size:
            visited.append(moments)
            moments = following[moments]
            moments = moments[moments >= 0]
        return np.concatenate(visited)


def _joined(lists: Sequence[Sequence[int | None]]) -> np.ndarray:
    return np.concatenate([np.asarray(entries, dtype=np.int64) for entries in lists])


def _outcome(rounds: np.ndarray) -> Outcome:
    proposed, accepted, emitted, drafted = rounds
    offered, survived = (_more_than(counts) for counts in (proposed, accepted))
    survived = np.append(survived, np.zeros(len(offered) - len(survived), dtype=np.int64))
    tokens, count = int(emitted.sum()), rounds.shape[1]
    asked, right = int(proposed.sum()), int(accepted.sum())
    return Outcome(
        tokens=tokens,
        rounds=count,
        drafted_rounds=int(drafted.sum()),
        proposed=asked,
        accepted=right,
        acceptance=tuple((survived / np.maximum(offered, 1)).tolist()),
        offered=tuple(offered.tolist()),
        tokens_per_round=tokens / count if count else None,
        acceptance_rate=right / asked if asked else None,
    )


def _more_than(counts: np.ndarray) -> np.ndarray:
    """Entry i: how many of these are above i, up to the largest of them."""
    found = np.bincount(counts, minlength=1)[1:]
    return np.asarray(found[::-1].cumsum()[::-1])


def fill_outcomes(document: ReplayDocument, recording: Recording, limits: Sequence[int]) -> None:
    """What each draft got right at each limit."""
    for name, draft in document.drafts.items():
        answers = Answers(recording.traces, name)
        outcomes = {limit: answers.outcomes(limit) for limit in limits}
        document.drafts[name] = replace(draft, limits=outcomes)
