"""Drafts that lie here: an export looks at their files, and believes those."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from plans import plan

from paceline.errors import PairError, SettingError
from paceline.export.make import make_setup
from paceline.export.setup import ExportOptions


@pytest.fixture(scope="module")
def tiny() -> ModuleType:
    path = Path(__file__).parents[1] / "inspect/tiny_drafts.py"
    spec = importlib.util.spec_from_file_location("tiny_drafts_of_checkpoints", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_directory_of_another_method_is_refused(tiny: ModuleType, tmp_path: Path) -> None:
    place = tiny.write(tmp_path / "draft", tiny.model_config(), tiny.model_tensors())
    options = ExportOptions(draft_model=str(place))
    fits = plan("model", target_vocabulary_size=tiny.VOCABULARY)
    assert make_setup("vllm", fits, options).draft == str(place)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        with pytest.raises(PairError, match="method"):
            make_setup(engine, plan("eagle3"), options)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_the_files_say_how_large_a_vocabulary_is(
    tiny: ModuleType, tmp_path: Path, engine: str
) -> None:
    place = tiny.write(tmp_path / "draft", tiny.model_config(), tiny.model_tensors())
    with pytest.raises(PairError, match="40 tokens and the target 49,152"):
        make_setup(engine, plan("model"), ExportOptions(draft_model=str(place)))


def test_a_target_that_lies_here_says_its_own(tiny: ModuleType, tmp_path: Path) -> None:
    place = str(tiny.write(tmp_path / "target", tiny.model_config(), tiny.model_tensors()))
    with pytest.raises(PairError, match="49,152 tokens and the target 40"):
        make_setup("vllm", plan("model"), ExportOptions(target=place))
    both = make_setup("vllm", plan("model"), ExportOptions(target=place, draft_model=place))
    assert "sizes that fit" in " ".join(both.notes)
    (tmp_path / "empty").mkdir()
    unread = make_setup("vllm", plan("model"), ExportOptions(target=str(tmp_path / "empty")))
    assert "nothing is known of the target" in " ".join(unread.notes)


def test_a_directory_that_the_engine_doesnt_load_is_refused(
    tiny: ModuleType, tmp_path: Path
) -> None:
    place = tiny.write(tmp_path / "draft", *tiny.speculators("eagle3"))
    with pytest.raises(PairError, match="speculators"):
        make_setup("sglang", plan("eagle3"), ExportOptions(draft_model=str(place)))


def test_a_speculators_directory_says_its_method(tiny: ModuleType, tmp_path: Path) -> None:
    place = tiny.write(tmp_path / "draft", *tiny.speculators("eagle3"))
    made = plan("speculators", draft_model=str(place))
    assert make_setup("vllm", made, ExportOptions()).config["method"] == "eagle3"
    with pytest.raises(SettingError, match="can't be seen from here"):
        make_setup("vllm", plan("speculators"), ExportOptions())


def test_a_version_that_no_longer_loads_it_is_refused(tiny: ModuleType, tmp_path: Path) -> None:
    place = tiny.write(tmp_path / "draft", tiny.medusa_config(), tiny.medusa_tensors())
    made = plan("medusa", draft_model=str(place))
    assert make_setup("vllm", made, ExportOptions(version="0.32.0")).config["method"] == "medusa"
    with pytest.raises(SettingError, match="can't express"):
        make_setup("vllm", made, ExportOptions(version="0.33.0"))


def test_a_settings_that_the_files_need_is_written(tiny: ModuleType, tmp_path: Path) -> None:
    place = tiny.write(tmp_path / "draft", *tiny.speculators("peagle"))
    made = plan("speculators", draft_model=str(place))
    config = make_setup("vllm", made, ExportOptions()).config
    assert (config["method"], config["parallel_drafting"]) == ("eagle3", True)
