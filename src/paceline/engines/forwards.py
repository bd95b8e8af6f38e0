"""Jobs cut into forwards: a long prompt is fed in parts, so that what a forward needs beside
weights and cache stays small."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass

from paceline.engines.base import Job

FORWARD_TOKENS = 512
"""Most tokens in one forward."""


@dataclass(frozen=True, slots=True)
class ForwardPart:
    """The tokens `first` to `first + count` of a job, of whose rows the last `rows` are wanted."""

    number: int
    first: int
    count: int
    rows: int


def forwards(
    jobs: AbstractSequence[Job], limit: int = FORWARD_TOKENS, *, whole_trees: bool = False
) -> Iterator[list[ForwardPart]]:
    """Cut jobs into forwards of at most `limit` tokens, each a list of parts in job order.

    whole_trees    never cut a tree: one of more tokens than `limit` has a forward of its own
    """
    parts: list[ForwardPart] = []
    room = limit
    for number, job in enumerate(jobs):
        first, total = 0, len(job.tokens)
        tree = job.trunk if whole_trees and job.parents is not None else total
        while first < total:
            if first == tree and total - first > room and parts:
                yield parts
                parts, room = [], limit
            count = total - first if first == tree else min(room, total - first)
            if first < tree < first + count < total:
                count = tree - first
            unwanted = total - job.rows - first
            parts.append(ForwardPart(number, first, count, max(0, count - max(0, unwanted))))
            first, room = first + count, room - count
            if room <= 0:
                yield parts
                parts, room = [], limit
    if parts:
        yield parts
