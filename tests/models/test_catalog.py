from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_index import make_model

from paceline.errors import SettingError
from paceline.models import catalog
from paceline.models.catalog import (
    CATALOG,
    ModelState,
    cache_dir,
    find,
    is_present,
    listing,
    path_of,
)


@pytest.mark.parametrize(
    ("name", "size", "parts"),
    [
        ("smollm2-135m", 98_362_432, 1),
        ("qwen2.5-coder-0.5b", 491_400_064, 6),
        ("qwen2.5-coder-1.5b", 1_117_320_768, 22),
        ("gemma-3-270m", 253_113_024, 4),
    ],
)
def test_the_parts_of_each_model_make_its_file(name: str, size: int, parts: int) -> None:
    model = find(name)
    assert (model.name, model.size, len(model.parts)) == (name, size, parts)
    assert len({part.member for part in model.parts}) == parts


def test_every_entry_is_complete() -> None:
    assert len({model.file for model in CATALOG.values()}) == len(CATALOG) == 4
    for model in CATALOG.values():
        assert re.fullmatch("[0-9a-f]{64}", model.sha256)
        assert model.file.endswith(".gguf")
        assert model.title
        assert model.licence
        for part in model.parts:
            room = part.member.split("/")[0]
            assert part.distribution.replace("-", "_") == room
    numbered = [part.member for part in find("gemma-3-270m").parts]
    assert numbered[0].endswith("part1/data/gemma-3-270m-q4_k_m.gguf.part00")
    assert numbered[3].endswith("part4/data/gemma-3-270m-q4_k_m.gguf.part03")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"'smollm-135m'\. Did you mean 'smollm2-135m'\?"):
        find("smollm-135m")
    with pytest.raises(SettingError, match=r"Known: gemma-3-270m, qwen2.5-coder-0.5b"):
        find("zzz")


def test_the_cache_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "~/there")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    assert cache_dir() == Path("/home/me/there").absolute()


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "/home/me/.cache/paceline"),
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/paceline"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/paceline"),
        ("darwin", {"XDG_CACHE_HOME": "/fast"}, "/home/me/Library/Caches/paceline"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/paceline"),
        ("win32", {}, "/home/me/AppData/Local/paceline"),
    ],
)
def test_the_usual_cache_directory(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PACELINE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setattr(catalog.sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path(expected)


def test_without_a_home_the_cache_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("PACELINE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(SettingError, match="Set PACELINE_CACHE"):
        cache_dir()


def test_the_listing_says_what_is_on_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, content, _ = make_model()
    monkeypatch.setattr(catalog, "CATALOG", {model.name: model})

    def entry() -> tuple[ModelState, int]:
        [line] = listing()
        assert line.path == path_of(model) == cache / "tiny.gguf"
        return line.state, line.on_disk

    assert entry() == (ModelState.ABSENT, 0)
    cache.mkdir()
    catalog.part_file(model).write_bytes(content[:200_000])
    assert entry() == (ModelState.PARTLY, 200_000)
    assert not is_present(model)
    path_of(model).write_bytes(content)
    assert is_present(model)
    assert entry() == (ModelState.PRESENT, len(content) + 200_000)


def test_a_file_of_another_size_is_not_the_model(cache: Path) -> None:
    model, content, _ = make_model()
    cache.mkdir()
    path_of(model).write_bytes(content[:-1])
    assert not is_present(model)


def test_a_cache_that_is_a_file_holds_nothing(cache: Path) -> None:
    cache.write_bytes(b"")
    assert {line.state for line in listing()} == {ModelState.ABSENT}
