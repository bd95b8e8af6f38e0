"""Exports in the cache: made once, made again when they must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("openvino")

from paceline.engines import openvino_export as export
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
    monkeypatch.setattr(export, "FORM", export.FORM + 1)
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


def test_another_process_that_was_first_is_left_alone(maker: Maker) -> None:
    def slow(fresh: Path) -> None:
        theirs.append(maker.get())
        (fresh / "openvino_model.bin").write_bytes(b"later")

    theirs: list[Path] = []
    made = export._cached(Path("m"), "m-a", {"sha256": "a"}, ("maker",), slow, "")
    assert theirs == [made]
    assert (made / "openvino_model.bin").read_bytes() == b"weights"
    assert [path.name for path in made.parent.iterdir()] == ["m-a"]


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


def test_an_export_that_doesnt_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "free_bytes", lambda: 2**30)
    with pytest.raises(ModelError, match=r"takes about 3\.5 GiB of memory, and 1\.0 GiB are free"):
        export._convert_gguf(Path("m.gguf"), 2**30, tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGMLxxxx")
    with pytest.raises(ModelError, match="is no GGUF file"):
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
