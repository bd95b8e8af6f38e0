"""The inputs of one paged forward: a flat row of tokens, and which places belong to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.engines.openvino.cache import BLOCK
from paceline.engines.openvino.library import ov
from paceline.types import Array

ROWS = "rows_wanted"
"""The input that we add: of which tokens logits are computed."""

FILLED = frozenset(
    {
        *("input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices"),
        *("block_indices_begins", "max_context_len", "qq_bias", "qq_bias_begins", ROWS),
    }
)
"""The inputs that every forward is given; the cache's tensors lie in place."""

_TYPES: dict[str, type[np.generic]] = {
    "input_ids": np.int64,
    "position_ids": np.int64,
    "qq_bias": np.uint8,
}
_ROOM = 1024
"""Values that an input has room for at first."""


@dataclass(frozen=True, slots=True)
class InputSegment:
    """Tokens of one sequence in a forward.

    start      how many tokens come before them
    blocks     the sequence's blocks, those of these tokens included
    rows       of how many of the last tokens logits are wanted
    parents    the last tokens are a tree (see `engines.base.Job`); None: a chain
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    rows: int
    parents: tuple[int, ...] | None = None


class Inputs:
    """The input tensors of a request. Making and setting one takes OpenVINO longer than filling it,
    so each has room for more than a forward needs, and only its shape changes."""

    def __init__(self, request: Any, compiled: Any) -> None:
        self._request = request
        self._at = {port.any_name: index for index, port in enumerate(compiled.inputs)}
        self._kept: dict[str, tuple[Any, ov.Tensor]] = {}
        self._longest = np.zeros((), np.int32)
        self._put("max_context_len", ov.Tensor(self._longest, shared_memory=True))

    def fill(self, segments: Sequence[InputSegment]) -> int:
        """Put a forward's inputs in place. Returns how many rows of logits it gives: those that
        are wanted, or one where none is."""
        tokens: list[int] = []
        positions: list[int] = []
        begins, blocks, block_begins = [0], list[int](), [0]
        rows: list[int] = []
        longest = 0
        for segment in segments:
            end = segment.start + len(segment.tokens)
            tokens += segment.tokens
            positions += _positions(segment)
            begins.append(len(tokens))
            blocks += segment.blocks[: -(-end // BLOCK)]
            block_begins.append(len(blocks))
            rows += range(len(tokens) - segment.rows, len(tokens))
            longest = max(longest, end)
        rows = rows or [len(tokens) - 1]
        self._longest[()] = longest
        self._write("input_ids", tokens)
        self._write("position_ids", positions)
        self._write("past_lens", [segment.start for segment in segments])
        self._write("subsequence_begins", begins)
        self._write("block_indices", blocks)
        self._write("block_indices_begins", block_begins)
        self._write(ROWS, rows)
        self._write_trees(segments)
        return len(rows)

    def _write_trees(self, segments: Sequence[InputSegment]) -> None:
        """Which of a forward's own tokens each one sees, where that isn't all before it."""
        begins, seen = [0], list[Any]()
        for segment in segments:
            if segment.parents is not None:
                seen.append(visible(segment).ravel())
            begins.append(sum(each.size for each in seen))
        self._write("qq_bias_begins", begins)
        self._write("qq_bias", np.concatenate(seen) if seen else ())

    def _write(self, name: str, values: Sequence[int] | Array) -> None:
        size = len(values)
        kept = self._kept.get(name)
        if kept is None or size > len(kept[0]):
            array = np.empty(max(_ROOM, 2 * size), _TYPES.get(name, np.int32))
            kept = self._kept[name] = array, ov.Tensor(array, shared_memory=True)
            kept[1].shape = (size,)  # before it is set: a graph for one row takes no other
            self._put(name, kept[1])
        array, tensor = kept
        if tensor.get_size() != size:
            tensor.shape = (size,)
        array[:size] = values

    def _put(self, name: str, tensor: ov.Tensor) -> None:
        self._request.set_input_tensor(self._at[name], tensor)


def _positions(segment: InputSegment) -> list[int]:
    """A tree's tokens stand at the place that their path gives them."""
    if segment.parents is None:
        return list(range(segment.start, segment.start + len(segment.tokens)))
    trunk = len(segment.tokens) - len(segment.parents)
    positions = list(range(segment.start, segment.start + trunk))
    root = segment.start + trunk - 1
    for parent in segment.parents:
        positions.append(1 + (root if parent < 0 else positions[trunk + parent]))
    return positions


def visible(segment: InputSegment) -> Any:
    """uint8, shape (tokens, tokens): 1 where the row's token sees the column's."""
    assert segment.parents is not None
    count = len(segment.tokens)
    trunk = count - len(segment.parents)
    seen = np.tri(count, dtype=np.uint8)
    seen[trunk:, trunk:] = 0
    for index, parent in enumerate(segment.parents):
        if parent >= 0:
            seen[trunk + index, trunk:] = seen[trunk + parent, trunk:]
        seen[trunk + index, trunk + index] = 1
    return seen
