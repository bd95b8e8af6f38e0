"""Model directories through optimum-intel, held against transformers. It needs the extra
openvino-export, which wants an environment of its own; in one with pytest too:

    export/bin/python -m pytest tests/engines/test_openvino_directory.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("optimum.intel")
torch = pytest.importorskip("torch")

import tiny_transformers as tiny  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from paceline.cli.main import main  # noqa: E402
from paceline.engines.base import Job  # noqa: E402
from paceline.engines.openvino.engine import OpenVinoEngine  # noqa: E402

LENGTH = 400
"""Far enough for rotary frequencies that were rounded to show."""

APART = {"float32": 1e-3, "float16": 1e-3, "bfloat16": 1e-3, "int8": 0.2, "int4": 1.5}
"""Root mean square of the logits' differences, in their standard deviations: at most."""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    config = tiny.llama()
    config.max_position_embeddings = 512
    return tiny.save(config, tmp_path / "model")


@pytest.mark.parametrize("dtype", APART)
def test_an_export_is_the_model(directory: Path, dtype: str) -> None:
    tokens = np.random.default_rng(0).integers(2, 300, LENGTH).tolist()
    options: dict[str, Any] = {"dtype": dtype, "precision": "strict", "threads": 1}
    with OpenVinoEngine.load(str(directory), **options) as engine:
        assert engine.metadata()["weights"] == dtype
        assert engine.capabilities.context_size == 512
        [rows] = engine.score([Job(engine.open(), tokens, LENGTH)])
        ours = np.array(rows)
    theirs = truth(directory, tokens, getattr(torch, dtype, torch.float32))
    apart = np.sqrt(np.mean((ours - theirs) ** 2)) / theirs.std()
    assert apart < APART[dtype]


def truth(directory: Path, tokens: list[int], kind: Any) -> np.ndarray:
    """Float32 arithmetic on matrices rounded to a type."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        if kind in (torch.bfloat16, torch.float16):
            for matrix in (weights for weights in model.parameters() if weights.ndim == 2):
                matrix.copy_(matrix.to(kind).float())
        logits: np.ndarray = model(torch.tensor([tokens])).logits[0].numpy()
    return logits


def test_models_export_makes_it_once_and_says_where(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dtype in ("int8", "int8", "float16"):
        assert main(["models", "export", str(directory), "--dtype", dtype]) == 0
    first, second, third = capsys.readouterr().out.split()
    assert first == second
    assert first.endswith("int8")
    assert third.endswith("float16")


def test_a_family_that_the_exporter_doesnt_know(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (directory / "config.json").read_text()
    (directory / "config.json").write_text(text.replace('"llama"', '"marsupial"'))
    assert main(["models", "export", str(directory)]) == 2
    assert "can't be exported to OpenVINO's form" in capsys.readouterr().err


def test_a_directory_without_a_tokenizer_is_refused_first(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "tokenizer.json").unlink()
    assert main(["models", "export", str(directory)]) == 2
    told = capsys.readouterr().err
    assert "no tokenizer.json" in told
    assert "Exporting" not in told
