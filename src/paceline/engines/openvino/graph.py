"""Compiled graphs of one model over one cache: the inputs of a paged forward, and which graph runs
it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline.engines.base import TokenSegment
from paceline.engines.openvino.cache import BLOCK, Layout, PagedCache
from paceline.engines.openvino.library import last_line, ov
from paceline.errors import ModelError
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


class Inputs:
    """The input tensors of a request. Making and setting one takes OpenVINO longer than filling it,
    so each has room for more than a forward needs, and only its shape changes."""

    def __init__(self, request: Any, compiled: Any) -> None:
        self._request = request
        self._at = {port.any_name: index for index, port in enumerate(compiled.inputs)}
        self._kept: dict[str, tuple[Any, ov.Tensor]] = {}
        self._longest = np.zeros((), np.int32)
        self._put("max_context_len", ov.Tensor(self._longest, shared_memory=True))

    def fill(self, segments: Sequence[TokenSegment]) -> int:
        """Put a forward's inputs in place. Returns how many rows of logits it gives: those that
        are wanted, or one where none is."""
        tokens: list[int] = []
        positions: list[int] = []
        begins, blocks, block_begins = [0], list[int](), [0]
        rows: list[int] = []
        for segment in segments:
            tokens += segment.tokens
            positions += segment.positions()
            begins.append(len(tokens))
            blocks += segment.sequence.blocks[: -(-segment.end // BLOCK)]
            block_begins.append(len(blocks))
            rows += range(len(tokens) - segment.rows, len(tokens))
        rows = rows or [len(tokens) - 1]
        self._longest[()] = max(segment.end for segment in segments)
        self._write("input_ids", tokens)
        self._write("position_ids", positions)
        self._write("past_lens", [segment.start for segment in segments])
        self._write("subsequence_begins", begins)
        self._write("block_indices", blocks)
        self._write("block_indices_begins", block_begins)
        self._write(ROWS, rows)
        self._write_trees(segments)
        return len(rows)

    def _write_trees(self, segments: Sequence[TokenSegment]) -> None:
        """Which of a forward's own tokens each one sees, where that isn't all before it."""
        begins, seen = [0], list[Any]()
        for segment in segments:
            if segment.tree is not None:
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


def visible(segment: TokenSegment) -> Array:
    """uint8, shape (tokens, tokens): 1 where the row's token sees the column's."""
    seen = np.tri(segment.count, dtype=np.uint8)
    if segment.tree is not None:
        trunk = segment.tree.base - segment.start
        seen[trunk:, trunk:] = segment.tree.seen()
    return seen


class Graph:
    """A compiled model with the cache's tensors, of the shapes of its layout, in place."""

    def __init__(self, compiled: Any, cache: dict[str, ov.Tensor]) -> None:
        self._request: Any = compiled.create_infer_request()
        for name, tensor in cache.items():
            self._request.set_tensor(name, tensor)
        self.inputs = Inputs(self._request, compiled)

    def run(self, segments: Sequence[TokenSegment]) -> Array:
        """The wanted rows of all segments: float32, shape (rows, vocabulary size), a view that
        holds until the next run. Raises ModelError."""
        rows = self.inputs.fill(segments)
        try:
            self._request.infer()
        except Exception as error:  # OpenVINO raises RuntimeError for everything
            raise ModelError(
                f"OpenVINO failed in a forward: {last_line(error)}.",
                "Use a smaller context, or another engine.",
            ) from error
        logits: Array = self._request.get_output_tensor(0).data
        return logits.reshape(rows, -1)


class Graphs:
    """A graph for every forward, and for models that aren't large one more for single rows.

    A graph prepares each of its nodes anew when a forward has another number of rows than the one
    before it. A decoder with drafts goes from one row to several and back all the time. `cache` has
    tensors of the shapes of its layout.
    """

    def __init__(self, compiled: Any, single: Any | None, cache: dict[str, ov.Tensor]) -> None:
        self.any_rows = Graph(compiled, cache)
        self._single = None if single is None else Graph(single, cache)

    def run(self, segments: Sequence[TokenSegment]) -> Array:
        """As `Graph.run`."""
        # One token is never a tree: of those only whole ones come, with more than one.
        if self._single is not None and len(segments) == 1 and len(segments[0].tokens) == 1:
            return self._single.run(segments)
        return self.any_rows.run(segments)


def warm_up(compiled: Any, layers: Sequence[Layout]) -> None:
    """Run a graph once, in a cache of its own. With its first forward it lays the weights out anew,
    which takes longer than reading a prompt, and belongs to loading."""
    cache = PagedCache(layers, 1)
    Graph(compiled, cache.tensors).run([TokenSegment(SimpleNamespace(blocks=[0]), 0, [0, 0], 1)])
