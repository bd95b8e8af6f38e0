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

from paceline.engines.openvino import gguf as openvino_gguf  # noqa: E402
from paceline.engines.openvino.gguf import BLOCK, READERS, repair_zero_points, rows_of  # noqa: E402
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
    repair_zero_points(path, model)
    np.testing.assert_allclose(matrix_of(model, 256), wanted, atol=2e-2)


@pytest.mark.parametrize("step", [0.0, 1e-7], ids=["none", "vanishing"])
def test_a_block_without_a_step_is_its_minimum_whatever_its_codes(
    tmp_path: Path, step: float
) -> None:
    data = raw(Q.Q4_1, columns=64)
    data[2, :2] = np.float16([step]).view(np.uint8)
    path = written(tmp_path / "m.gguf", Q.Q4_1, data)
    rows = list(READERS[Q.Q4_1](data))
    codes = np.stack([codes_of(packed) for packed, _, _ in rows])
    assert codes[2, 0].any()
    model = graph(codes, np.stack([row[1] for row in rows]), np.zeros((6, 2)))
    repair_zero_points(path, model)
    np.testing.assert_allclose(matrix_of(model, 64), gguf.dequantize(data, Q.Q4_1), atol=2e-3)


LEFT_OUT: dict[str, tuple[dict[str, Any], str, str]] = {
    "another family": ({}, "gemma2", "is of the family gemma2"),
    "scaled positions": ({"rope.scaling.type": "yarn"}, "llama", r"rotary positions \(yarn\)"),
    "an old factor": ({"rope.scale_linear": 4.0}, "llama", r"rotary positions \(linear by 4\)"),
    "a factor alone": ({"rope.scaling.factor": 0.5}, "llama", r"positions \(linear by 0\.5\)"),
    "some dimensions": ({"rope.dimension_count": 4}, "llama", "only 4 of a head's 8 dimensions"),
    "a type": ({"stored": Q.Q5_0}, "llama", "stores output.weight as Q5_0"),
    "parts": ({"split.count": 3}, "llama", "one of 3 parts"),
    "factors": ({"tensor": "rope_freqs.weight"}, "llama", "a tensor rope_freqs.weight"),
    "a bias": ({"tensor": "blk.0.attn_q.bias"}, "llama", "a tensor blk.0.attn_q.bias"),
    "experts": ({"tensor": "blk.0.ffn_gate_exps.weight"}, "qwen2", "ffn_gate_exps"),
}


def headed(path: Path, told: dict[str, Any], family: str) -> Path:
    """A file with some settings and one tensor."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_embedding_length(16)
    writer.add_head_count(2)
    for key, value in told.items():
        if key == "split.count":
            writer.add_uint16(key, value)
        elif isinstance(value, int) and key != "stored":
            writer.add_uint32(f"{family}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{family}.{key}", value)
        elif key not in ("tensor", "stored"):
            writer.add_string(f"{family}.{key}", value)
    data, stored = np.zeros((2, 16), np.float32), told.get("stored")
    if stored is not None:
        data = gguf.quantize(np.zeros((2, 32), np.float32), stored)
    writer.add_tensor(told.get("tensor", "output.weight"), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_the_reader_would_pass_over_is_refused(tmp_path: Path, case: str) -> None:
    told, family, message = LEFT_OUT[case]
    with pytest.raises(ModelError, match=message):
        openvino_gguf.refuse_what_is_left_out(headed(tmp_path / "m.gguf", told, family))


@pytest.mark.parametrize(
    ("told", "family"),
    [
        ({"tensor": "blk.0.attn_q.bias"}, "qwen2"),
        ({"tensor": "blk.10.attn_q_norm.weight"}, "qwen3"),
        ({"rope.dimension_count": 8, "rope.scaling.type": "none", "split.count": 1}, "llama"),
        ({"rope.scaling.factor": 1.0, "rope.scale_linear": 1.0}, "llama"),
    ],
)
def test_what_the_reader_knows_is_taken(tmp_path: Path, told: dict[str, Any], family: str) -> None:
    openvino_gguf.refuse_what_is_left_out(headed(tmp_path / "m.gguf", told, family))


def test_weights_that_arent_the_files_are_refused(tmp_path: Path) -> None:
    data = raw(Q.Q4_1, columns=32)
    path = written(tmp_path / "m.gguf", Q.Q4_1, data)
    rows = list(READERS[Q.Q4_1](data))
    codes = np.stack([codes_of(packed) for packed, _, _ in rows])
    codes[1, 0, 7] ^= 1
    model = graph(codes, np.stack([row[1] for row in rows]), np.zeros((6, 1)))
    with pytest.raises(ModelError, match="other weights of .*m.gguf"):
        repair_zero_points(path, model)


def test_rows_that_were_stored_in_another_way_are_refused(tmp_path: Path) -> None:
    data = raw(Q.Q4_1, columns=32)
    path = written(tmp_path / "m.gguf", Q.Q4_1, data)
    given = ops.parameter([1, 32], ov.Type.f32)
    matrix = ops.constant(gguf.dequantize(data, Q.Q4_1))
    with pytest.raises(ModelError, match="other weights of .*m.gguf"):
        repair_zero_points(path, ov.Model([ops.matmul(given, matrix, False, True)], [given]))


def test_a_copy_of_rows_that_was_stored_in_another_way_is_refused(tmp_path: Path) -> None:
    data = np.concatenate([raw(Q.Q4_1, columns=32)] * 2)
    path = written(tmp_path / "m.gguf", Q.Q4_1, data)
    rows = list(READERS[Q.Q4_1](data))[:6]
    codes = np.stack([codes_of(packed) for packed, _, _ in rows])
    model = graph(codes, np.stack([row[1] for row in rows]), np.zeros((6, 1)))
    with pytest.raises(ModelError, match="other weights of .*m.gguf"):
        repair_zero_points(path, model)


def test_rows_that_cant_be_told_apart_are_refused(tmp_path: Path) -> None:
    data = raw(Q.Q4_1, columns=32)
    data[4] = data[2]
    minima, counts = rows_of(written(tmp_path / "same.gguf", Q.Q4_1, data))
    assert len(minima) == 5
    assert sorted(counts.values()) == [1, 1, 1, 1, 2]
    data[4, 2:4] = np.float16([0.7]).view(np.uint8)
    with pytest.raises(ModelError, match="minima alone"):
        rows_of(written(tmp_path / "other.gguf", Q.Q4_1, data))
