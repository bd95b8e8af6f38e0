"""Compiled graphs of one model over one cache, and which of them runs a forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.engines.openvino.cache import Layout, PagedCache
from paceline.engines.openvino.inputs import Inputs, InputSegment
from paceline.engines.openvino.library import last_line, ov
from paceline.errors import ModelError
from paceline.types import Array


class Graph:
    """A compiled model with the cache's tensors, of the shapes of its layout, in place."""

    def __init__(self, compiled: Any, cache: dict[str, ov.Tensor]) -> None:
        self._request: Any = compiled.create_infer_request()
        for name, tensor in cache.items():
            self._request.set_tensor(name, tensor)
        self.inputs = Inputs(self._request, compiled)

    def run(self, segments: Sequence[InputSegment]) -> Array:
        """The wanted rows of all stretches: float32, shape (rows, vocabulary size), a view that
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

    def run(self, segments: Sequence[InputSegment]) -> Array:
        """As `Graph.run`."""
        # One token is never a tree: of those only whole ones come, with more than one.
        if self._single is not None and len(segments) == 1 and len(segments[0].tokens) == 1:
            return self._single.run(segments)
        return self.any_rows.run(segments)


def warm_up(compiled: Any, layers: Sequence[Layout]) -> None:
    """Run a graph once, in a cache of its own. With its first forward it lays the weights out anew,
    which takes longer than reading a prompt, and belongs to loading."""
    cache = PagedCache(layers, 1)
    Graph(compiled, cache.tensors).run([InputSegment([0, 0], 0, [0], 1)])
