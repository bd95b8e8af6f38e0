"""The OpenVINO engine beyond what all engines promise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("openvino_genai")
pytest.importorskip("llama_cpp")

import openvino as ov
import tiny_gguf
import tiny_openvino as tiny
from openvino import opset13 as ops

from paceline.cli.main import main
from paceline.engines.base import Job
from paceline.engines.load import engine_of
from paceline.engines.openvino import engine as engine_module
from paceline.engines.openvino import model as openvino_model
from paceline.engines.openvino.cache import BLOCK
from paceline.engines.openvino.engine import OpenVinoEngine
from paceline.errors import ModelError, SettingError


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache that holds the tiny model's export."""
    monkeypatch.setenv("PACELINE_CACHE", tiny.folder())


@pytest.fixture
def exported(cache: None) -> Path:
    """The directory of the tiny model's IR."""
    with tiny.load(64, 1) as engine:
        return Path(engine.metadata()["exported_to"])


def model_directory(exported: Path, directory: Path) -> Path:
    """An IR as an exporter leaves it, with its tokenizer."""
    transformers = pytest.importorskip("tiny_transformers")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        shutil.copyfile(exported / name, directory / name)
    transformers.byte_level_tokenizer().save_pretrained(directory)
    (directory / "config.json").write_text('{"max_position_embeddings": 48}')
    return directory


def test_importing_it_reports_to_nobody(tmp_path: Path) -> None:
    pytest.importorskip("openvino_telemetry")
    look = "import openvino_telemetry as t; print(t.Telemetry().consent)"
    alone = {k: v for k, v in os.environ.items() if k != "CI"} | {"HOME": str(tmp_path)}

    def consent(first: str) -> str:
        command = [sys.executable, "-c", f"{first}; {look}; import os; print(os.environ.get('CI'))"]
        return subprocess.run(command, env=alone, capture_output=True, text=True).stdout

    assert consent("import paceline.engines.openvino.export") == "False\nNone\n"


class TestScoring:
    def test_the_rows_are_llamacpps(self) -> None:
        tokens = np.random.default_rng(0).integers(2, 262, 40).tolist()
        with tiny.load(64, 1) as ours, tiny_gguf.load("llama", 64, 1) as theirs:
            [mine] = ours.score([Job(ours.open(), tokens, 40)])
            [other] = theirs.score([Job(theirs.open(), tokens, 40)])
            # One holds its weights in float16, the other in float32.
            np.testing.assert_allclose(mine, other, atol=0.05)

    def test_prompts_longer_than_a_forward_are_fed_in_parts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = np.random.default_rng(0).integers(2, 262, 90).tolist()
        with tiny.load(96, 2) as engine:
            [whole] = engine.score([Job(engine.open(), tokens, 50)])
            whole = whole.copy()
            cut = engine_module.forwards
            monkeypatch.setattr(
                engine_module, "forwards", lambda jobs, **how: cut(jobs, limit=16, **how)
            )
            [parts] = engine.score([Job(engine.open(), tokens, 50)])
            np.testing.assert_allclose(parts, whole, atol=1e-3)

    def test_a_fork_shares_what_it_has_in_common(self) -> None:
        with tiny.load(96, 3) as engine:
            trunk, used = engine.open(), engine.cache.blocks
            engine.score([Job(trunk, [5] * (2 * BLOCK + 3))])
            assert used.used == 3
            forks = [trunk.fork(), trunk.fork()]
            assert used.used == 3
            engine.score([Job(fork, [6]) for fork in forks])
            assert used.used == 5
            assert engine.metadata()["cache_used_bytes"] == 5 * engine.cache.block_bytes
            trunk.close()
            assert used.used == 4
            for fork in forks:
                fork.close()
            assert used.used == 0

    def test_all_sequences_can_be_full_forks_of_one(self) -> None:
        with tiny.load(96, 3) as engine:
            trunk = engine.open()
            engine.score([Job(trunk, [5] * 96)])
            every = [trunk, trunk.fork(), trunk.fork()]
            for number, sequence in enumerate(every):
                sequence.rewind(3)  # inside a block that is shared
                engine.score([Job(sequence, [number + 2] * 93)])
            assert engine.cache.blocks.used == 9

    def test_a_tree_whose_prompt_takes_several_forwards(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = np.random.default_rng(0).integers(2, 262, 26).tolist()
        tree = (-1, 0, 0, -1, 3)
        with tiny.load(64, 2) as engine:
            job = Job(engine.open(), tokens, 6, tree)
            whole = np.array(engine.score([job])[0])
            cut = engine_module.forwards
            monkeypatch.setattr(
                engine_module, "forwards", lambda jobs, **how: cut(jobs, limit=8, **how)
            )
            [parts] = engine.score([Job(engine.open(), tokens, 6, tree)])
            np.testing.assert_allclose(parts, whole, atol=1e-3)

    def test_after_a_failure_no_sequence_holds_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Failing:
            def __init__(self, request: Any) -> None:
                self.request, self.left = request, 1

            def __getattr__(self, name: str) -> Any:
                return getattr(self.request, name)

            def infer(self) -> None:
                self.left -= 1
                if self.left < 0:
                    raise RuntimeError("Exception from src/x.cpp:1:\nno memory left\n")
                self.request.infer()

        with tiny.load(96, 2) as engine:
            sequence = engine.open()
            engine.score([Job(sequence, [5] * 10)])
            cut = engine_module.forwards
            monkeypatch.setattr(
                engine_module, "forwards", lambda jobs, **how: cut(jobs, limit=40, **how)
            )
            assert engine._graphs is not None
            graph = engine._graphs.any_rows
            real = graph._request
            monkeypatch.setattr(graph, "_request", Failing(real))
            with pytest.raises(ModelError, match=r"failed in a forward: no memory left\. Use"):
                engine.score([Job(sequence, [6] * 70)])
            assert (sequence.length, engine.cache.blocks.used) == (10, 1)
            monkeypatch.setattr(graph, "_request", real)
            engine.score([Job(sequence, [6] * 70)])

    def test_a_rewind_keeps_the_block_of_the_last_token_that_stays(self) -> None:
        """Another sequence takes what is given back, so that a block too many would be seen."""
        tokens = list(range(5, 5 + BLOCK + 1))
        with tiny.load(96, 2) as engine:
            one, other = engine.open(), engine.open()
            engine.score([Job(one, [*tokens, 7, 8])])
            one.rewind(len(tokens))
            engine.score([Job(other, [9] * len(tokens))])
            row = np.array(engine.score([Job(one, [10])])[0])
            other.close()
            whole = engine.score([Job(engine.open(), [*tokens, 10])])[0]
            np.testing.assert_allclose(row, whole, atol=1e-4)

    def test_another_engines_sequence_is_refused(self) -> None:
        with tiny.load(64, 1) as engine, tiny.load(64, 1) as other:
            job = Job(other.open(), [5])
            with pytest.raises(ValueError, match="another engine's"):
                engine.score([job])

    def test_a_closed_engine_scores_nothing(self) -> None:
        engine = tiny.load(64, 2)
        sequence = engine.open()
        engine.close()
        engine.close()
        with pytest.raises(ValueError, match="closed"):
            engine.score([Job(sequence, [5])])
        with pytest.raises(ValueError, match="closed"):
            engine.open()


class TestMetadata:
    def test_they_say_in_what_numbers_it_computes(self) -> None:
        with tiny.load(64, 2) as engine:
            metadata = engine.metadata()
        assert metadata["dtype"] == "f32, weights of the GGUF file, cache f32, strict"
        assert metadata["dynamic_quantization_group"] == 0
        assert metadata["threads"] == 1
        assert metadata["device"] == "cpu"
        per_token = 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, of 8 floats
        assert metadata["cache_bytes"] == 2 * 64 * per_token
        assert metadata["weights"] == "of the GGUF file"
        with tiny.load(64, 1, precision="auto", cache_type="float16") as engine:
            assert "cache f16" in engine.metadata()["dtype"]
            assert "strict" not in engine.metadata()["dtype"]


class TestLoading:
    def test_they_say_what_an_irs_weights_are(self, exported: Path, tmp_path: Path) -> None:
        directory = model_directory(exported, tmp_path)
        with OpenVinoEngine.load(str(directory)) as engine:
            assert engine.metadata()["weights"] == "float16"
            assert "weights float16" in engine.metadata()["dtype"]
        model = openvino_model.core().read_model(directory / "openvino_model.xml")
        assert openvino_model.stored_weights(model) == "float16"
        codes = ops.constant(np.zeros((64, 64), np.uint8))
        small = ops.constant(np.zeros(3, np.uint8))
        scales = np.ones((64, 64), np.float16)
        nf4 = ops.constant(ov.Tensor(ov.Type.nf4, ov.Shape([64, 64])))
        mixed = ops.multiply(ops.convert(nf4, "f16"), ops.constant(scales))
        for found, wanted in ((codes, "int8"), (small, "as stored"), (mixed, "nf4")):
            tiny_model = ov.Model([ops.convert(found, "f32")], [])
            assert openvino_model.stored_weights(tiny_model) == wanted

    def test_an_ir_directory_is_known_by_its_file(self, exported: Path, tmp_path: Path) -> None:
        directory = model_directory(exported, tmp_path)
        assert engine_of(str(directory)) == "openvino"
        assert engine_of(str(directory / "openvino_model.xml")) == "openvino"
        with OpenVinoEngine.load(str(directory), threads=1) as engine:
            assert engine.capabilities.context_size == 48
            assert engine.tokenizer.decode(engine.tokenizer.encode("abba cab")) == "abba cab"
            engine.score([Job(engine.open(), [5, 6])])
        with OpenVinoEngine.load_tokenizer(str(directory)) as reader:
            assert reader.tokenizer.decode(reader.tokenizer.encode("abba cab")) == "abba cab"

    def test_a_tokenizer_alone_exports_nothing(
        self, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
        with OpenVinoEngine.load_tokenizer(tiny.model()) as reader:
            assert reader.name == "openvino"
            assert reader.vocabulary_size == reader.tokenizer.size == 264
        directory = model_directory(exported, tmp_path)
        (directory / "openvino_model.xml").unlink()
        (directory / "config.json").write_text('{"vocab_size": 320}')
        with OpenVinoEngine.load_tokenizer(str(directory)) as reader:
            assert reader.vocabulary_size == 320  # padding rows included
        assert not (tmp_path / "cache").exists()

    def test_what_can_be_refused_is_before_a_model_is_exported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
        for options in ({"device": "TPU"}, {"context_size": 257}, {"cache_type": "u8"}):
            with pytest.raises(SettingError):
                OpenVinoEngine.load(tiny.model(), **options)  # type: ignore[arg-type]
        assert not (tmp_path / "cache").exists()

    def test_models_export_prints_where_it_is(
        self, exported: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["models", "export", tiny.model()]) == 0
        assert capsys.readouterr().out == f"{exported}\n"
        assert main(["models", "export", tiny.model(), "--dtype", "int4"]) == 2
        assert "dtype is int4" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"threads": 0}, "threads is 0"),
            ({"max_sequences": 0}, "max_sequences is 0"),
            ({"context_size": 257}, "context_size is 257.*1 to 256"),
            ({"device": "TPU"}, "no device 'TPU'.*CPU"),
            ({"precision": "exact"}, "strict"),
            ({"cache_type": "int3"}, "cache type"),
            ({"cache_type": "u8"}, "cache type"),
            ({"dtype": "int8"}, "weights of .* have their type already"),
            ({"dtype": "int5"}, "type of weights"),
            ({"gpu": 1}, "option of the openvino engine"),
        ],
    )
    def test_settings_that_cant_be_honoured(
        self, cache: None, options: dict[str, object], message: str
    ) -> None:
        tiny.load(64, 1).close()
        with pytest.raises(SettingError, match=message):
            OpenVinoEngine.load(tiny.model(), **options)  # type: ignore[arg-type]

    def test_a_device_that_cant_write_into_our_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Core:
            available_devices = ("CPU", "GPU.0", "NPU")

        monkeypatch.setattr(openvino_model, "core", Core)
        openvino_model.check_device("CPU")
        for device in ("GPU", "GPU.0", "NPU"):
            with pytest.raises(SettingError, match=f"device {device} can't write.*CPU"):
                openvino_model.check_device(device)

    def test_what_isnt_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no file or directory"):
            OpenVinoEngine.load(str(tmp_path / "none"))
        with pytest.raises(ModelError, match=r"neither an openvino_model.xml nor a config.json"):
            OpenVinoEngine.load(str(tmp_path))

    def test_a_directory_without_a_tokenizer(self, exported: Path) -> None:
        with pytest.raises(ModelError, match=r"no tokenizer.json"):
            OpenVinoEngine.load(str(exported))

    def test_a_cut_off_ir(self, exported: Path, tmp_path: Path) -> None:
        directory = model_directory(exported, tmp_path)
        text = (directory / "openvino_model.xml").read_text()
        (directory / "openvino_model.xml").write_text(text[: len(text) // 2])
        with pytest.raises(ModelError, match="can't be loaded"):
            OpenVinoEngine.load(str(directory))

    def test_an_ir_without_a_state(self, exported: Path, tmp_path: Path) -> None:
        directory = model_directory(exported, tmp_path)
        given = ops.parameter([-1, 4], ov.Type.f32, name="input_ids")
        product = ops.matmul(given, ops.constant(np.ones((4, 8), np.float32)), False, False)
        (directory / "openvino_model.bin").unlink()
        ov.save_model(ov.Model([product], [given]), directory / "openvino_model.xml")
        with pytest.raises(ModelError, match=r"nothing of it can be paged.*with-past"):
            OpenVinoEngine.load(str(directory))

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [("input_ids", "inputs_embeds", "wants inputs_embeds"), (None, "pixels", "wants pixels")],
    )
    def test_an_ir_with_other_inputs(
        self, exported: Path, tmp_path: Path, old: str | None, new: str, message: str
    ) -> None:
        directory = model_directory(exported, tmp_path)
        model = openvino_model.core().read_model(directory / "openvino_model.xml")
        if old is not None:
            model.input(old).get_tensor().set_names({new})
        else:
            model.add_parameters([ops.parameter([-1], ov.Type.f32, name=new)])
            model.inputs[-1].get_tensor().set_names({new})
        changed = directory / "changed.xml"
        ov.save_model(model, changed, compress_to_fp16=False)
        with pytest.raises(ModelError, match=message):
            OpenVinoEngine.load(str(changed))

    def test_a_state_besides_keys_and_values(self, exported: Path, tmp_path: Path) -> None:
        directory = model_directory(exported, tmp_path)
        model = openvino_model.core().read_model(directory / "openvino_model.xml")
        info = ov.op.util.VariableInfo()
        info.data_shape, info.data_type = ov.PartialShape([1]), ov.Type.f32
        info.variable_id = "counter"
        counter = ov.op.util.Variable(info)
        read = ops.read_value(ops.constant(np.zeros(1, np.float32)), counter)
        model.add_variables([counter])
        model.add_sinks([ops.assign(ops.add(read, np.float32([1])), counter)])
        changed = directory / "changed.xml"
        ov.save_model(model, changed, compress_to_fp16=False)
        with pytest.raises(ModelError, match="keeps a state besides keys and values"):
            OpenVinoEngine.load(str(changed))

    def test_what_cant_be_read_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: Path) -> bool:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "is_dir", refuse)
        with pytest.raises(ModelError, match="far/model can't be read: Permission denied"):
            OpenVinoEngine.load("far/model")

    def test_a_cache_that_isnt_granted(self, cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(engine_module, "PagedCache", refuse)
        with pytest.raises(
            ModelError, match=r"1 x 256 tokens isn't granted. Ask for a smaller context"
        ):
            OpenVinoEngine.load(tiny.model())

    def test_too_little_memory_is_said_before_loading(
        self, exported: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        weights = int((exported / "openvino_model.bin").stat().st_size * 1.6)
        per_token = 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, of 8 floats
        monkeypatch.setattr(openvino_model, "free_bytes", lambda: weights + 150 * per_token)
        with pytest.raises(ModelError, match=r"1 x 256 tokens.*context of at most 128 tokens"):
            OpenVinoEngine.load(tiny.model())
        monkeypatch.setattr(openvino_model, "free_bytes", lambda: 1000)
        with pytest.raises(ModelError, match="smaller model"):
            OpenVinoEngine.load(tiny.model())


@pytest.mark.model
def test_a_real_models_rows_are_llamacpps(smollm2_path: Path) -> None:
    from paceline.engines.gguf.llamacpp import LlamaCppEngine

    text = "The river rises in the mountains and flows through three countries to the sea."
    distributions = []
    for kind in (LlamaCppEngine, OpenVinoEngine):
        with kind.load(str(smollm2_path), context_size=128) as engine:
            tokens = engine.tokenizer.encode(text)
            [rows] = engine.score([Job(engine.open(), tokens, len(tokens))])
            shifted = np.array(rows, np.float64)
            shifted -= shifted.max(-1, keepdims=True)
            distributions.append(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
    llamacpp, openvino = distributions
    # What llama.cpp's eight-bit activations make; rounded minima would make it 0.46.
    assert (np.exp(llamacpp) * (llamacpp - openvino)).sum(-1).mean() < 0.02
