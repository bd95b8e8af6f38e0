"""Jobs cut into forwards."""

from __future__ import annotations

from paceline.engines.base import Job
from paceline.engines.forwards import ForwardPart, forwards

TREE = (-1, 0, 0, -1, 3)


def jobs(*sizes: tuple[int, int]) -> list[Job]:
    return [Job(None, list(range(tokens)), rows) for tokens, rows in sizes]  # type: ignore[arg-type]


def tree(trunk: int, rows: int = 6) -> Job:
    return Job(None, list(range(trunk + 5)), rows, TREE)  # type: ignore[arg-type]


def test_small_jobs_share_one_forward() -> None:
    assert list(forwards(jobs((3, 1), (1, 1), (5, 5)), limit=512)) == [
        [ForwardPart(0, 0, 3, 1), ForwardPart(1, 0, 1, 1), ForwardPart(2, 0, 5, 5)]
    ]


def test_large_jobs_are_cut_and_keep_their_last_rows() -> None:
    assert list(forwards(jobs((7, 5), (2, 1)), limit=4)) == [
        [ForwardPart(0, 0, 4, 2)],
        [ForwardPart(0, 4, 3, 3), ForwardPart(1, 0, 1, 0)],
        [ForwardPart(1, 1, 1, 1)],
    ]


def test_a_tree_is_cut_unless_it_must_be_whole() -> None:
    assert list(forwards([tree(1)], limit=4)) == [
        [ForwardPart(0, 0, 4, 4)],
        [ForwardPart(0, 4, 2, 2)],
    ]


def test_a_whole_tree_that_fits_stays_with_its_trunk() -> None:
    [parts] = forwards([*jobs((2, 1)), tree(3)], limit=10, whole_trees=True)
    assert parts == [ForwardPart(0, 0, 2, 1), ForwardPart(1, 0, 8, 6)]


def test_a_whole_tree_that_doesnt_fit_has_the_next_forward() -> None:
    assert list(forwards([*jobs((2, 1)), tree(3), *jobs((1, 1))], limit=7, whole_trees=True)) == [
        [ForwardPart(0, 0, 2, 1), ForwardPart(1, 0, 3, 1)],
        [ForwardPart(1, 3, 5, 5), ForwardPart(2, 0, 1, 1)],
    ]


def test_a_tree_larger_than_a_forward_is_whole_all_the_same() -> None:
    assert list(forwards([tree(1), *jobs((1, 1))], limit=3, whole_trees=True)) == [
        [ForwardPart(0, 0, 1, 1)],
        [ForwardPart(0, 1, 5, 5)],
        [ForwardPart(1, 0, 1, 1)],
    ]
