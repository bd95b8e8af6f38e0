"""Which graph runs a forward, and when there are two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("openvino_genai")
pytest.importorskip("llama_cpp")

import tiny_openvino as tiny

from paceline.engines.base import Job
from paceline.engines.openvino import engine as engine_module
from paceline.engines.openvino import graph as openvino_graph
from paceline.engines.openvino import model as openvino_model
from paceline.engines.openvino.cache import BLOCK
from paceline.engines.openvino.engine import OpenVinoEngine
from paceline.errors import ModelError


def test_single_rows_have_a_graph_of_their_own_where_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a block's end too, where a row's own keys lie in another block."""
    lengths = [1, 3, 1, 1, 2, 1, BLOCK - 10, *[1] * 4]

    def rows(engine: OpenVinoEngine) -> Any:
        sequence, rng = engine.open(), np.random.default_rng(0)
        return np.concatenate(
            [
                np.array(engine.score([Job(sequence, rng.integers(2, 262, n).tolist(), n)])[0])
                for n in lengths
            ]
        )

    with tiny.load(64, 1) as engine:
        assert engine.metadata()["build"] == "two graphs, one of them for single rows"
        both = rows(engine)
        free = 3 * engine.metadata()["weights_bytes"]
    monkeypatch.setattr(openvino_model, "free_bytes", lambda: free)
    with tiny.load(64, 1) as engine:
        assert engine.metadata()["build"] == "one graph: memory is short for two"
        np.testing.assert_allclose(both, rows(engine), atol=1e-5)


def test_a_prompt_cut_to_one_last_token_is_read_in_both_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tiny.load(64, 2) as engine:
        whole = np.array(engine.score([Job(engine.open(), list(range(5, 22)))])[0])
        cut = engine_module.forwards
        monkeypatch.setattr(
            engine_module, "forwards", lambda jobs, **how: cut(jobs, limit=16, **how)
        )
        [parts] = engine.score([Job(engine.open(), list(range(5, 22)))])
        np.testing.assert_allclose(parts, whole, atol=1e-4)


def test_which_graph_runs_a_forward() -> None:
    with tiny.load(64, 2) as engine:
        graphs = engine._graphs
        assert graphs is not None
        assert graphs._single is not None
        ran: list[str] = []
        for name, graph in (("single", graphs._single), ("any", graphs.any_rows)):
            run = graph.run
            graph.run = lambda s, name=name, run=run: (ran.append(name), run(s))[1]  # type: ignore[method-assign]
        one, other = engine.open(), engine.open()
        engine.score([Job(one, [5, 6], 1)])
        engine.score([Job(one, [7])])
        engine.score([Job(one, [8]), Job(other, [9])])
        assert ran == ["any", "single", "any"]


def test_the_first_forward_belongs_to_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = openvino_graph.Graph.run

    def noted(graph: Any, segments: Any) -> Any:
        rows = run(graph, segments)
        ran.append(len(rows))
        return rows

    monkeypatch.setattr(openvino_graph.Graph, "run", noted)
    with tiny.load(32, 1) as engine:
        assert ran == [1]
        assert engine.cache.blocks.used == 0


def test_a_second_graph_that_openvino_cant_make_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Core:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def compile_model(self, model: Any, *how: Any) -> Any:
            if model.input("input_ids").partial_shape.is_static:
                raise RuntimeError("no such shape")
            return self.real.compile_model(model, *how)

    core = Core(openvino_model.core())
    monkeypatch.setattr(openvino_model, "core", lambda: core)
    with tiny.load(64, 1) as engine:
        told = "one graph: OpenVINO makes none for single rows"
        assert engine.metadata()["build"] == told
        engine.score([Job(engine.open(), [5])])


@pytest.mark.parametrize(
    ("held", "cache", "free", "why"),
    [
        (100, 10, None, None),
        (100, 200, 400, None),
        (100, 10, 399, "memory is short"),
        (100, 201, 400, "memory is short"),
        (3 * 2**30, 10, None, "too large"),
    ],
)
def test_why_a_model_gets_one_graph(
    held: int, cache: int, free: int | None, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_model, "free_bytes", lambda: free)
    assert (why or "None") in str(openvino_model.why_one_graph(held, cache))


def test_bfloat16_weights_take_more_where_it_isnt_computed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tiny.load(32, 1) as engine:
        file = engine.metadata()["weights_bytes"]
    monkeypatch.setattr(openvino_model, "stored_weights", lambda _: "bfloat16")
    monkeypatch.setattr(openvino_model, "free_bytes", lambda: 4 * file)
    with pytest.raises(ModelError, match="weights in int8 or int4"):
        tiny.load(32, 1, precision="strict")
