"""Quantised GGUF files from the file to the logits, beside the same weights in float16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("openvino_genai")
pytest.importorskip("llama_cpp")
gguf = pytest.importorskip("gguf")

import tiny_gguf  # noqa: E402

from paceline.engines.base import Job  # noqa: E402
from paceline.engines.openvino import gguf as openvino_gguf  # noqa: E402
from paceline.engines.openvino.engine import OpenVinoEngine  # noqa: E402

Q = gguf.GGMLQuantizationType
SHAPE = tiny_gguf.Shape(layers=2, width=256, inner=256, heads=8, key_heads=2, head=32)
SPREAD = 0.09
"""Standard deviation of the weights, about."""

HALVES: dict[Any, list[tuple[int, float]]] = {
    Q.Q4_0: [(0, SPREAD / 4.6)],
    Q.Q4_1: [(0, SPREAD / 4.6), (2, -7.5 * SPREAD / 4.6)],
    Q.Q4_K: [(0, SPREAD / 147), (2, 7.5 * SPREAD / 147)],
    Q.Q6_K: [(208, SPREAD / 1400)],
    Q.Q8_0: [(0, SPREAD / 74)],
}
"""Where the float16 numbers of a block begin, and their size: chosen so that any codes give weights
around 0."""

FILES = {
    Q.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
    Q.Q4_1: gguf.LlamaFileType.MOSTLY_Q4_1,
    Q.Q4_K: gguf.LlamaFileType.MOSTLY_Q4_K_M,
    Q.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
}


class Packed:
    """Random blocks of a type, the same for every writing; Q4_K files hold Q6_K too, as usual."""

    def __init__(self, kind: Any, *, dequantized: bool) -> None:
        self.kind, self.dequantized = kind, dequantized
        self.random = np.random.default_rng(11)

    def __call__(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Any]:
        kind = Q.Q6_K if self.kind == Q.Q4_K and "ffn_down" in name else self.kind
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (array.shape[0], array.shape[1] // weights)
        data = self.random.integers(0, 256, (*shape, size), dtype=np.uint8)
        for at, most in HALVES[kind]:
            halves = (most * self.random.uniform(0.8, 1.2, (*shape, 1))).astype(np.float16)
            data[..., at : at + 2] = halves.view(np.uint8)
        data = data.reshape(array.shape[0], -1)
        if self.dequantized:
            return gguf.dequantize(data, kind).astype(np.float16), Q.F16
        return data, kind


def logits(path: Path) -> np.ndarray:
    tokens = np.random.default_rng(0).integers(2, 262, 40).tolist()
    with OpenVinoEngine.load(str(path), precision="strict", context_size=64, threads=1) as engine:
        [rows] = engine.score([Job(engine.open(), tokens, 40)])
        return np.array(rows)


def apart(ours: np.ndarray, truth: np.ndarray) -> float:
    """Root mean square of the differences, in standard deviations of the logits."""
    return float(np.sqrt(np.mean((ours - truth) ** 2)) / truth.std())


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


def write(path: Path, kind: Any, *, dequantized: bool) -> Path:
    file_type = gguf.LlamaFileType.MOSTLY_F16 if dequantized else FILES[kind]
    matrices = tiny_gguf.Matrices(file_type, Packed(kind, dequantized=dequantized))
    return tiny_gguf.write(path, "llama", shape=SHAPE, matrices=matrices)


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.name)
def test_an_export_computes_with_the_files_weights(tmp_path: Path, kind: Any) -> None:
    ours = logits(write(tmp_path / "quantized.gguf", kind, dequantized=False))
    truth = logits(write(tmp_path / "half.gguf", kind, dequantized=True))
    assert apart(ours, truth) < 0.01


def test_without_the_files_minima_it_would_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_gguf, "repair_zero_points", lambda path, model: None)
    ours = logits(write(tmp_path / "quantized.gguf", Q.Q4_1, dequantized=False))
    truth = logits(write(tmp_path / "half.gguf", Q.Q4_1, dequantized=True))
    assert apart(ours, truth) > 0.1
