"""A model draft over a finished answer, by teacher forcing: one pass of the draft, none of the
target.

Fed what was written, the draft says at every place which token it likes best there. As long as
those are the written ones, they are what a greedy draft offers, token after token: so the length of
that stretch is how far its proposal is right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.drafts.model import ModelDraft
from paceline.engines.base import Job
from paceline.policy.acceptance import MOST
from paceline.sampling.processors import greedy_tokens
from paceline.simulate.trace import SourceTrace

ROWS = 64
"""Rows that are asked for at once: of a vocabulary of 150,000 they take 40 MB."""


def forced(
    draft: ModelDraft, prompt: Sequence[int], output: Sequence[int], ends: Collection[int]
) -> SourceTrace:
    """What a greedy draft would have offered before each token of an answer. In the prompt's
    round nothing is drafted, so the entry before the first token is 0.

    ends    tokens behind which nothing is drafted

    A proposal that has left the answer is taken to go on to the limit. In decoding it may end
    sooner, by an end token that the draft comes to on a way that nobody went: then fewer tokens are
    rejected, and none are accepted that aren't here.
    """
    choices = likeliest(draft, prompt, output)
    right, offered = [0] * len(output), [0] * len(output)
    agreed = 0
    for t in range(len(output) - 1, 0, -1):
        agreed = agreed + 1 if choices[t] == output[t] else 0
        right[t] = min(agreed, MOST)
        offered[t] = min(_offered(choices, output, t, agreed, ends), MOST)
    known = tuple(offered)
    return SourceTrace((0,) * len(output), tuple(right), known, known)


def _offered(
    choices: Sequence[int | None], output: Sequence[int], t: int, agreed: int, ends: Collection[int]
) -> int:
    """How many tokens a proposal has whose first `agreed` are right, as far as is known."""
    pending_tokens = t + agreed
    if agreed and output[pending_tokens - 1] in ends:
        return agreed
    if pending_tokens == len(output):
        return MOST
    if choices[pending_tokens] is None:
        return agreed
    return agreed + 1 if choices[pending_tokens] in ends else MOST


def likeliest(draft: ModelDraft, prompt: Sequence[int], output: Sequence[int]) -> list[int | None]:
    """Entry t: the draft's token with the largest logit after the prompt and t tokens of the
    output. None where it can't follow: beyond its context, behind a token that it has no row for,
    and from a row on that is no distribution."""
    engine = draft.engine
    text = [*prompt, *output[:-1]]
    known = next((i for i, token in enumerate(text) if token >= engine.vocabulary_size), len(text))
    end = min(known, engine.capabilities.context_size)
    found: list[int | None] = []
    sequence = engine.open()
    try:
        if len(prompt) > 1 and end >= len(prompt):
            engine.score([Job(sequence, text[: len(prompt) - 1])])
        for start in range(len(prompt) - 1, end, ROWS):
            part = text[start : min(start + ROWS, end)]
            [rows] = engine.score([Job(sequence, part, rows=len(part))])
            found += greedy_tokens(rows[:, : draft.usable])
            if None in found:
                del found[found.index(None) :]
                break
    finally:
        sequence.close()
    return found + [None] * (len(output) - len(found))
