"""What a paged forward is told: places, and who sees whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from paceline.engines.base import TokenSegment, TokenTree
from paceline.engines.openvino.cache import BLOCK
from paceline.engines.openvino.graph import ROWS, Inputs, visible

NAMES = (
    "input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices",
    "block_indices_begins", "max_context_len", ROWS, "qq_bias", "qq_bias_begins",
)  # fmt: skip
TREE = (-1, 0, 0, -1, 3)


def segment(tokens, start, blocks, rows, parents=None) -> TokenSegment:
    tree = TokenTree(start + len(tokens) - len(parents), parents) if parents else None
    return TokenSegment(SimpleNamespace(blocks=blocks), start, tokens, rows, tree)


class Port:
    def __init__(self, name: str) -> None:
        self.any_name = name


class Request:
    """A stand-in that keeps what it is given."""

    inputs = tuple(map(Port, NAMES))

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.calls: list[str] = []

    def set_input_tensor(self, index: int, tensor: Any) -> None:
        self.given[NAMES[index]] = tensor
        self.calls.append(NAMES[index])

    def values(self, name: str) -> list[int]:
        return np.atleast_1d(self.given[name].data).tolist()


def test_a_ragged_batch_is_one_row() -> None:
    request = Request()
    rows = Inputs(request, request).fill(
        [segment([7, 8, 9], 2, [5], 3), segment([4], BLOCK, [1, 6, 3], 1)]
    )
    assert rows == 4
    expected = {
        "input_ids": [7, 8, 9, 4],
        "position_ids": [2, 3, 4, BLOCK],
        "past_lens": [2, BLOCK],
        "subsequence_begins": [0, 3, 4],
        "block_indices": [5, 1, 6],  # of blocks only those that the tokens reach
        "block_indices_begins": [0, 1, 3],
        "max_context_len": [BLOCK + 1],
        ROWS: [0, 1, 2, 3],
        "qq_bias": [],
        "qq_bias_begins": [0, 0, 0],
    }
    assert {name: request.values(name) for name in NAMES} == expected


def test_only_wanted_rows_are_asked_for_and_one_where_none_is() -> None:
    request = Request()
    inputs = Inputs(request, request)
    assert inputs.fill([segment([7, 8, 9], 0, [5], 1), segment([4, 5], 0, [1], 1)]) == 2
    assert request.values(ROWS) == [2, 4]
    assert inputs.fill([segment([7, 8, 9], 0, [5], 0)]) == 1
    assert request.values(ROWS) == [2]


def test_a_tensor_is_set_once_and_changes_its_shape() -> None:
    request = Request()
    inputs = Inputs(request, request)
    inputs.fill([segment([7], 0, [5], 1)])
    request.calls.clear()
    for tokens in ([8], [8, 9], [3]):
        inputs.fill([segment(tokens, 2, [5], len(tokens))])
        assert request.values("input_ids") == tokens
        assert request.values(ROWS) == list(range(len(tokens)))
    assert request.calls == []


def test_a_prompt_longer_than_its_tensors_gets_larger_ones() -> None:
    request = Request()
    inputs = Inputs(request, request)
    inputs.fill([segment([7], 0, [5], 1)])
    request.calls.clear()
    long = list(range(3000))
    inputs.fill([segment(long, 0, list(range(94)), 1)])
    assert request.calls == ["input_ids", "position_ids"]
    assert request.values("input_ids") == request.values("position_ids") == long
    inputs.fill([segment([4, 2], 0, [1], 1)])
    assert request.values("input_ids") == [4, 2]


def test_a_trees_tokens_stand_and_see_as_their_paths_say() -> None:
    one = segment([1, 2, 10, 11, 12, 13, 14], 5, [0], 6, TREE)
    request = Request()
    Inputs(request, request).fill([segment([9], 3, [2], 1), one])
    assert request.values("position_ids") == [3, 5, 6, 7, 8, 8, 7, 8]
    assert request.values("qq_bias_begins") == [0, 0, 49]
    seen = np.array(request.values("qq_bias")).reshape(7, 7)
    np.testing.assert_array_equal(seen, visible(one))
    paths = {0: [0], 1: [0, 1], 2: [0, 2], 3: [3], 4: [3, 4]}
    for index, path in paths.items():
        assert np.flatnonzero(seen[2 + index]).tolist() == [0, 1, *(2 + i for i in path)]
    assert np.flatnonzero(seen[0]).tolist() == [0]


def test_a_forward_without_a_tree_forgets_the_last_ones() -> None:
    request = Request()
    inputs = Inputs(request, request)
    inputs.fill([segment([1, 10, 11], 5, [0], 3, (-1, -1))])
    assert len(request.values("qq_bias")) == 9
    inputs.fill([segment([1], 5, [0], 1)])
    assert request.values("qq_bias") == []
    assert request.values("qq_bias_begins") == [0, 0]
