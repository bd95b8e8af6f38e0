"""Exports in the cache: made once, made again when they must be."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

import openvino as ov
from openvino import opset13 as ops

from paceline.engines.openvino import export as export
from paceline.engines.openvino.model import core
from paceline.errors import ModelError


class Maker:
    """Stands in for an exporter; counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.made = 0
        self.versions: dict[str, str | None] = {"maker": "1.0"}
        monkeypatch.setenv("PACELINE_CACHE", str(cache))
        monkeypatch.setattr(export, "_version", lambda name: self.versions[name])

    def __call__(self, fresh: Path) -> None:
        self.made += 1
        (fresh / "openvino_model.bin").write_bytes(b"weights" * self.made)

    def get(self, identity: str = "a", *, verify: bool = False) -> Path:
        return export._cached(
            Path("model.gguf"),
            "m-a",
            {"sha256": identity},
            ("maker",),
            self,
            "pip install it",
            verify=verify,
        )


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Maker:
    return Maker(monkeypatch, tmp_path)


def test_it_is_made_once(maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = maker.get()
    assert made == tmp_path / "openvino" / "m-a"
    assert "Exporting model.gguf" in capsys.readouterr().err
    assert maker.get() == made
    assert maker.made == 1
    assert capsys.readouterr().err == ""
    assert [path.name for path in made.parent.iterdir()] == ["m-a"]


def test_the_manifest_has_checksums(maker: Maker) -> None:
    manifest = json.loads((maker.get() / export.MANIFEST).read_text())
    assert manifest["made_by"] == {"maker": "1.0"}
    assert manifest["files"]["openvino_model.bin"]["bytes"] == 7
    assert len(manifest["files"]["openvino_model.bin"]["sha256"]) == 64


def test_another_version_makes_it_again(maker: Maker) -> None:
    maker.get()
    maker.versions["maker"] = "1.1"
    maker.get()
    assert maker.made == 2


def test_another_source_or_form_makes_it_again(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.get()
    maker.get("b")
    monkeypatch.setattr(export, "MANIFEST_VERSION", export.MANIFEST_VERSION + 1)
    maker.get("b")
    assert maker.made == 3


@pytest.mark.parametrize("harm", ["cut", "gone", "manifest"])
def test_a_damaged_one_is_made_again(maker: Maker, harm: str) -> None:
    made = maker.get()
    if harm == "cut":
        (made / "openvino_model.bin").write_bytes(b"wei")
    elif harm == "gone":
        (made / "openvino_model.bin").unlink()
    else:
        (made / export.MANIFEST).write_text("[]")
    maker.get()
    assert maker.made == 2


def test_damage_of_the_same_size_is_found_by_verifying(maker: Maker) -> None:
    made = maker.get()
    (made / "openvino_model.bin").write_bytes(b"Weights")
    maker.get()
    assert maker.made == 1
    maker.get(verify=True)
    assert maker.made == 2


def test_a_second_process_waits_for_the_first_and_takes_its_export(
    maker: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(fresh: Path) -> None:
        begun.set()
        assert go_on.wait(20)
        (fresh / "openvino_model.bin").write_bytes(b"first")

    def first() -> Path:
        return export._cached(Path("m"), "m-a", {"sha256": "a"}, ("maker",), slow, "")

    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(first)
        assert begun.wait(20)
        ours = pool.submit(maker.get)
        time.sleep(0.1)
        assert not ours.done()
        go_on.set()
        assert ours.result(20) == theirs.result(20)
    assert maker.made == 0
    assert (ours.result() / "openvino_model.bin").read_bytes() == b"first"
    assert "Another process exports model.gguf" in capsys.readouterr().err


def test_others_may_read_what_was_made(maker: Maker) -> None:
    made = maker.get()
    plain = made.parent / "plain"
    plain.mkdir()
    assert made.stat().st_mode == plain.stat().st_mode


def test_a_cache_that_cant_be_written_is_named(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"can't be written into .*file.*PACELINE_CACHE"):
        maker.get()


def test_without_the_exporter_any_versions_export_will_do(maker: Maker) -> None:
    made = maker.get()
    maker.versions["maker"] = None
    assert maker.get() == made
    assert maker.made == 1


def test_without_the_exporter_and_an_export_one_line_names_what_is_missing(maker: Maker) -> None:
    maker.versions["maker"] = None
    with pytest.raises(ModelError, match=r"missing here: maker\. pip install it"):
        maker.get()


def test_a_failed_export_leaves_nothing(maker: Maker, tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise RuntimeError("Exception from src/x.cpp:1:\nKeyError: no such family\n")

    with pytest.raises(ModelError, match="can't be exported.*no such family"):
        export._cached(Path("m"), "m-a", {}, ("maker",), fail, "")
    assert list((tmp_path / "openvino").iterdir()) == []


def test_a_source_that_cant_be_read_is_named_and_not_the_cache(
    maker: Maker, tmp_path: Path
) -> None:
    def fail(_: Path) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "m" / "x.safetensors"))

    with pytest.raises(ModelError, match=r"m/x\.safetensors can't be read: Permission denied"):
        export._cached(tmp_path / "m", "m-a", {}, ("maker",), fail, "")


@pytest.mark.parametrize("name", ["copied", 7, None])
def test_a_full_disk_is_the_caches_affair(maker: Maker, tmp_path: Path, name: Any) -> None:
    def fail(fresh: Path) -> None:
        if name == "copied":
            source = str(tmp_path / "m" / "tokenizer.json")
            raise OSError(
                28, "No space left on device", source, None, str(fresh / "tokenizer.json")
            )
        raise OSError(28, "No space left on device", name)

    with pytest.raises(ModelError, match="can't be written into .*: No space left on device"):
        export._cached(tmp_path / "m", "m-a", {}, ("maker",), fail, "")


MATRICES = ((300, 32), (32, 300), (4, 32, 48))


def rotating_model() -> ov.Model:
    """A table, frequencies that turn what is looked up, a product, a mask, and experts."""
    given = ops.parameter([-1], ov.Type.i64, name="input_ids")
    table, axis = constant((300, 32)), ops.constant(0, ov.Type.i32)
    looked_up = ops.gather(table, given, axis)
    turned = ops.matmul(constant((1, 32, 1)), ops.unsqueeze(looked_up, axis), False, False)
    angles = ops.multiply(looked_up, ops.reduce_mean(turned, axis, True))
    product = ops.matmul(looked_up, constant((32, 300)), False, False)
    order = ops.constant([0, 2, 1], ov.Type.i32)
    experts = ops.transpose(constant((4, 32, 48)), order)
    chosen = ops.matmul(looked_up, experts, False, True)
    masked = ops.add(product, constant((20, 300)))
    return ov.Model([masked, chosen, ops.cos(ops.multiply(angles, constant((1, 32))))], [given])


def constant(shape: tuple[int, ...]) -> ov.Node:
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    values.flat[:3] = 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8  # halfway between two numbers
    return ops.constant(values)


@pytest.mark.parametrize("weights", export.SHORT_TYPES)
def test_only_matrices_are_stored_shorter_and_each_number_is_the_nearest(
    weights: str, tmp_path: Path
) -> None:
    model, kind = rotating_model(), export.SHORT_TYPES[weights]
    before = constants(model)
    export.store_matrices(model, kind)
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    after = constants(core().read_model(tmp_path / "m.xml"))
    for shape, (old_kind, old) in before.items():
        new_kind, new = after[shape]
        if shape in MATRICES:
            assert (old_kind, new_kind) == (ov.Type.f32, kind)
            np.testing.assert_array_equal(new, nearest(old, weights))
        else:
            assert new_kind == ov.Type.f32
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("weights", export.SHORT_TYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), 3.4028235e38])
def test_a_weight_that_a_short_type_doesnt_hold_is_named(weights: str, bad: float) -> None:
    array = np.array([[1.0, bad]], np.float32)
    with pytest.raises(ModelError, match=r"A weight is .*--dtype float32"):
        export.rounded(array, export.SHORT_TYPES[weights])


def constants(model: ov.Model) -> dict[tuple[int, ...], tuple[ov.Type, np.ndarray]]:
    """Of a model's floats, by shape: types and values."""
    return {
        tuple(node.get_output_shape(0)): (node.get_element_type(), as_floats(node))
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_element_type().is_real()
    }


def as_floats(node: ov.Node) -> np.ndarray:
    if node.get_element_type() != ov.Type.bf16:
        return np.array(node.data, np.float32)
    upper = np.asarray(node.data).view(np.uint16).astype(np.uint32)
    return (upper << 16).view(np.float32)


def nearest(array: np.ndarray, weights: str) -> np.ndarray:
    torch = pytest.importorskip("torch")
    rounded: np.ndarray = torch.tensor(array).to(getattr(torch, weights)).float().numpy()
    return rounded


def test_an_export_that_doesnt_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "free_bytes", lambda: 2**30)
    with pytest.raises(ModelError, match=r"takes about 3\.5 GiB of memory, and 1\.0 GiB are free"):
        export._convert_gguf(Path("m.gguf"), 2**30, tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGMLxxxx")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        export.exported_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="can't be read: No such file"):
        export.exported_gguf(tmp_path / "none.gguf")


def test_a_directory_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    first = export._fingerprint(tmp_path)
    assert export._fingerprint(tmp_path) == first
    (tmp_path / "notes.txt").write_text("said")
    (tmp_path / "odd.json").mkdir()
    assert export._fingerprint(tmp_path) == first
    (tmp_path / "config.json").write_text('{"a": 1}')
    second = export._fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert len({first, second, export._fingerprint(tmp_path)}) == 3
