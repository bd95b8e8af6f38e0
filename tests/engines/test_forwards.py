"""Jobs cut into forwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from paceline.engines.base import Job, forwards

Part = tuple[int, int, int, int]
TREE = (-1, 0, 0, -1, 3)


HELD: Any = SimpleNamespace(length=7)


def jobs(*sizes: tuple[int, int]) -> list[Job]:
    return [Job(HELD, list(range(tokens)), rows) for tokens, rows in sizes]


def tree(trunk: int, rows: int = 6) -> Job:
    return Job(HELD, list(range(trunk + 5)), rows, TREE)


def parts(jobs: list[Job], **how: Any) -> list[list[Part]]:
    """Of each forward's segments: job, first token, tokens and rows."""
    told = []
    for segments in forwards(jobs, **how):
        for segment in segments:
            first, job = segment.start - HELD.length, jobs[segment.number]
            assert segment.tokens == job.tokens[first : first + segment.count]
            assert (segment.tree is not None) == (first + segment.count > job.trunk)
        told.append([(s.number, s.start - HELD.length, s.count, s.rows) for s in segments])
    return told


def test_small_jobs_share_one_forward() -> None:
    assert parts(jobs((3, 1), (1, 1), (5, 5)), limit=512) == [
        [(0, 0, 3, 1), (1, 0, 1, 1), (2, 0, 5, 5)]
    ]


def test_large_jobs_are_cut_and_keep_their_last_rows() -> None:
    assert parts(jobs((7, 5), (2, 1)), limit=4) == [
        [(0, 0, 4, 2)],
        [(0, 4, 3, 3), (1, 0, 1, 0)],
        [(1, 1, 1, 1)],
    ]


def test_a_tree_is_cut_unless_it_must_be_whole() -> None:
    assert parts([tree(1)], limit=4) == [
        [(0, 0, 4, 4)],
        [(0, 4, 2, 2)],
    ]


def test_a_whole_tree_that_fits_stays_with_its_trunk() -> None:
    [found] = parts([*jobs((2, 1)), tree(3)], limit=10, whole_trees=True)
    assert found == [(0, 0, 2, 1), (1, 0, 8, 6)]


def test_a_whole_tree_that_doesnt_fit_has_the_next_forward() -> None:
    assert parts([*jobs((2, 1)), tree(3), *jobs((1, 1))], limit=7, whole_trees=True) == [
        [(0, 0, 2, 1), (1, 0, 3, 1)],
        [(1, 3, 5, 5), (2, 0, 1, 1)],
    ]


def test_a_tree_larger_than_a_forward_is_whole_all_the_same() -> None:
    assert parts([tree(1), *jobs((1, 1))], limit=3, whole_trees=True) == [
        [(0, 0, 1, 1)],
        [(0, 1, 5, 5)],
        [(1, 0, 1, 1)],
    ]
