"""Four-bit weights of a GGUF file, as OpenVINO's graph must have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("openvino_genai")
gguf = pytest.importorskip("gguf")

import openvino as ov  # noqa: E402
from openvino import opset13 as ops  # noqa: E402

from paceline.engines import openvino_gguf  # noqa: E402
from paceline.engines.openvino_gguf import BLOCK, READERS, mend, rows_of  # noqa: E402
from paceline.errors import ModelError  # noqa: E402

Q = gguf.GGMLQuantizationType
SIZES = {Q.Q4_0: (18, 32), Q.Q4_1: (20, 32), Q.Q4_K: (144, 256)}
"""Bytes and weights of a block."""


def raw(kind: Any, rows: int = 6, columns: int = 512) -> np.ndarray:
    """Random rows of a type, their scales small numbers."""
    size, weights = SIZES[kind]
    random = np.random.default_rng(3)
    data = random.integers(0, 256, (rows, columns // weights, size), dtype=np.uint8)
    most = 0.003 if kind == Q.Q4_K else 0.2  # times up to 63
    halves = random.uniform(most / 10, most, (rows, columns // weights, 2)).astype(np.float16)
    count = 1 if kind == Q.Q4_0 else 2
    data[..., : 2 * count] = halves[..., :count].copy().view(np.uint8)
    return data.reshape(rows, -1)


def codes_of(packed: np.ndarray) -> np.ndarray:
    flat = packed.reshape(-1)
    return np.stack([flat & 15, flat >> 4], -1).reshape(-1, BLOCK)


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.name)
def test_rows_are_read_as_the_format_says(kind: Any) -> None:
    data = raw(kind)
    whole = gguf.dequantize(data, kind)
    for (packed, scales, minima), row in zip(READERS[kind](data), whole, strict=True):
        ours = codes_of(packed) * scales[:, None].astype(np.float32) + minima[:, None]
        # Scales of Q4_K are products, which are rounded to float16 here, as in the graph.
        np.testing.assert_allclose(ours.reshape(-1), row, atol=2e-3 if kind == Q.Q4_K else 1e-5)


def graph(codes: np.ndarray, scales: np.ndarray, points: np.ndarray) -> ov.Model:
    """A matrix as the reader leaves it: (codes - points) * scales, points whole numbers."""
    rows, blocks = scales.shape
    left = ops.convert(four_bits(codes, [rows, blocks, BLOCK]), "f16")
    right = ops.convert(four_bits(points, [rows, blocks, 1]), "f16")
    product = ops.multiply(ops.subtract(left, right), ops.constant(scales[..., None]))
    matrix = ops.convert(ops.reshape(product, [rows, blocks * BLOCK], False), "f32")
    given = ops.parameter([1, blocks * BLOCK], ov.Type.f32)
    return ov.Model([ops.matmul(given, matrix, False, True)], [given])


def four_bits(codes: np.ndarray, shape: list[int]) -> ov.Node:
    flat = codes.reshape(-1).astype(np.uint8)
    packed = flat[0::2] | flat[1::2] << 4
    _KEPT.append(packed)  # the constant only points to it
    return ops.constant(ov.Tensor(packed, ov.Shape(shape), ov.Type.u4))


_KEPT: list[np.ndarray] = []


def matrix_of(model: ov.Model, columns: int) -> np.ndarray:
    """What the model multiplies with, found by multiplying."""
    compiled = openvino_gguf.core().compile_model(
        model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    )
    return np.stack([compiled(row[None])[0][0] for row in np.eye(columns, dtype=np.float32)], 1)


def written(path: Path, kind: Any, data: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.name)
def test_a_graph_gets_the_files_minima_wherever_its_rows_went(tmp_path: Path, kind: Any) -> None:
    data = raw(kind, columns=256)
    path = written(tmp_path / "m.gguf", kind, data)
    order = [3, 0, 5, 1, 4, 2]  # the reader sorts the rows of queries and keys otherwise
    rows = [list(READERS[kind](data))[at] for at in order]
    codes = np.stack([codes_of(packed) for packed, _, _ in rows])
    scales, minima = np.stack([row[1] for row in rows]), np.stack([row[2] for row in rows])
    rounded = np.clip(np.round(-minima / scales), 0, 15)
    model = graph(codes, scales, rounded)
    wanted = gguf.dequantize(data, kind)[order]
    mend(path, model)
    np.testing.assert_allclose(matrix_of(model, 256), wanted, atol=2e-2)


def test_a_block_of_one_value_keeps_it(tmp_path: Path) -> None:
    data = raw(Q.Q4_1, columns=32)
    data[2, :2] = 0  # no step
    data[2, 4:] = 0
    path = written(tmp_path / "m.gguf", Q.Q4_1, data)
    rows = list(READERS[Q.Q4_1](data))
    codes = np.stack([codes_of(packed) for packed, _, _ in rows])
    model = graph(codes, np.stack([row[1] for row in rows]), np.zeros((6, 1)))
    mend(path, model)
    ours, wanted = matrix_of(model, 32), gguf.dequantize(data, Q.Q4_1)
    assert np.ptp(wanted[2]) == 0
    np.testing.assert_allclose(ours, wanted, atol=2e-3)


def test_weights_that_arent_the_files_are_refused(tmp_path: Path) -> None:
    data = raw(Q.Q4_1, columns=32)
    path = written(tmp_path / "m.gguf", Q.Q4_1, data)
    rows = list(READERS[Q.Q4_1](data))
    codes = np.stack([codes_of(packed) for packed, _, _ in rows])
    codes[1, 0, 7] ^= 1
    model = graph(codes, np.stack([row[1] for row in rows]), np.zeros((6, 1)))
    with pytest.raises(ModelError, match="other weights of .*m.gguf"):
        mend(path, model)


def test_rows_that_cant_be_told_apart_are_refused(tmp_path: Path) -> None:
    data = raw(Q.Q4_1, columns=32)
    data[4] = data[2]
    assert len(rows_of(written(tmp_path / "same.gguf", Q.Q4_1, data))) == 5
    data[4, 2:4] = np.float16([0.7]).view(np.uint8)
    with pytest.raises(ModelError, match="minima alone"):
        rows_of(written(tmp_path / "other.gguf", Q.Q4_1, data))
