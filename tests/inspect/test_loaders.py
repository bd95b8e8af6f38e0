"""Which engine and version loads what: what their sources say, one row each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_drafts as tiny

from paceline.errors import SettingError
from paceline.inspect.checkpoint import KINDS, Checkpoint, Problem, VocabularyMap
from paceline.inspect.loaders import VERSIONS, loads
from paceline.inspect.read import read


def made(kind: str, architecture: str | None = None, **more: object) -> Checkpoint:
    whole = {"format": "transformers", "layers": 1, "aux_count": 3} | more
    return Checkpoint(path=Path("d"), kind=kind, architecture=architecture, **whole)


MAP = VocabularyMap("d2t", 2, "offset", 0, 1, distinct=True, rising=True)
EAGLE3 = made("eagle3", "LlamaForCausalLMEagle3")


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("vllm", "eagle3"),
        ("sglang", "EAGLE3"),
        ("tensorrt-llm", "Eagle3"),
        ("llama-server", "draft-eagle3"),
        ("transformers", None),
        ("paceline", None),
    ],
)
def test_the_common_form_of_eagle3(engine: str, method: str | None) -> None:
    for version in VERSIONS[engine] or (None,):
        found = loads(EAGLE3, engine, version)
        called = "Eagle" if version == "1.2.1" else method
        assert (found.yes, found.method) == (method is not None, called)


def test_tensorrt_llm_is_asked_by_version() -> None:
    for version, dflash in (("1.2.1", None), ("1.3.0rc29", "DFlash")):
        assert loads(made("dflash", "DFlashDraftModel"), "tensorrt-llm", version).method == dflash
        found = loads(made("dspark", "Qwen3DSparkModel"), "tensorrt-llm", version)
        assert not found.yes
        assert "documents no DSpark; later code has DeepSeek-V4's" in found.reason


@pytest.mark.parametrize(
    ("version", "yes"), [("0.31.0", True), ("0.32.0", True), ("0.33.0", False)]
)
def test_vllm_dropped_medusa(version: str, yes: bool) -> None:
    found = loads(made("medusa", "MedusaModel"), "vllm", version)
    assert found.yes is yes
    assert yes or found.reason == "vLLM 0.33.0 has no draft architecture MedusaModel any more."


def test_vllm_gained_xpress() -> None:
    draft = made("xpress", "Qwen3XPressModel")
    assert not loads(draft, "vllm", "0.32.0").yes
    assert loads(draft, "vllm", "0.33.0").method == "dflash"


def test_p_eagle_is_eagle3_drafted_in_parallel() -> None:
    found = loads(made("p-eagle", "PEagleDraftModel"), "vllm")
    assert not found.yes  # vLLM puts Eagle3 before the name, and knows no such one
    found = loads(made("p-eagle", "LlamaForCausalLMEagle3"), "vllm")
    assert (found.method, found.settings) == ("eagle3", {"parallel_drafting": True})


def test_sglang_renames_no_architecture() -> None:
    draft = made("eagle3", "LlamaForCausalLM")
    assert loads(draft, "vllm").yes
    found = loads(draft, "sglang")
    assert not found.yes
    assert "name LlamaForCausalLMEagle3 in config.json" in found.reason


def test_speculators_directories_are_vllms_and_some_llama_cpps() -> None:
    draft = made("eagle3", "Eagle3DraftModel", format="speculators", model_type="llama")
    yes = {engine for engine in VERSIONS if loads(draft, engine).yes}
    assert yes == {"vllm", "llama-server"}
    assert not loads(replace(draft, model_type="gpt_oss"), "vllm").yes
    block = made("dflash", "DFlashDraftModel", format="speculators", model_type="qwen3")
    assert loads(block, "vllm").yes
    assert not loads(block, "llama-server").yes
    for kind in ("mtp", "xpress", "eagle"):
        assert not loads(made(kind, "X", format="speculators"), "vllm").yes


def test_tensorrt_is_told_of_layers_that_are_not_the_usual_ones() -> None:
    usual = replace(EAGLE3, aux_layers=(2, 15, 27))
    assert loads(usual, "tensorrt-llm").settings == {}
    found = loads(replace(EAGLE3, aux_layers=(1, 17, 32)), "tensorrt-llm")
    assert found.settings == {"eagle3_layers_to_capture": [0, 16, 31]}


def test_llama_cpp_has_eagle3_of_one_layer_and_three_states_only() -> None:
    assert "one layer" in loads(replace(EAGLE3, layers=2), "llama-server").reason
    assert "3 of the target's states" in loads(replace(EAGLE3, aux_count=4), "llama-server").reason


def test_a_gguf_is_llama_cpps(tmp_path: Path) -> None:
    yes = {
        engine for engine in VERSIONS if loads(made("eagle3", "eagle3", format="gguf"), engine).yes
    }
    assert yes == {"llama-server"}
    plain = made("model", "llama", format="gguf")
    assert {engine for engine in VERSIONS if loads(plain, engine).yes} == {
        "llama-server",
        "paceline",
    }


def test_a_plain_model_drafts_everywhere_but_with_a_vocabulary_cut_hardly() -> None:
    plain = made("model", "LlamaForCausalLM")
    assert all(loads(plain, engine).yes for engine in VERSIONS)
    cut = replace(plain, map=MAP)
    assert {engine for engine in VERSIONS if loads(cut, engine).yes} == {"transformers", "paceline"}


def test_mtp_layers_are_loaded_where_the_target_is_known() -> None:
    draft = made("mtp", "DeepseekV3ForCausalLM", model_type="deepseek_v3")
    assert loads(draft, "vllm").method == "mtp"
    assert loads(draft, "sglang").method == "NEXTN"
    other = made("mtp", "OwlForCausalLM", model_type="owl")
    assert not loads(other, "vllm").yes
    assert not loads(other, "sglang").yes


def test_a_map_of_dflash_is_vllms_alone() -> None:
    draft = made("dflash", "DFlashDraftModel", map=MAP)
    assert loads(draft, "vllm").yes
    assert loads(draft, "sglang").reason == "SGLang reads no map (d2t) of DFlash."
    assert loads(replace(draft, map=None), "sglang").method == "DFLASH"


def test_what_is_wrong_stops_all_or_those_that_mind() -> None:
    broken = replace(EAGLE3, problems=(Problem("It is broken.", "Repair it.", fatal=True),))
    assert {loads(broken, engine).reason for engine in VERSIONS} == {"It is broken."}
    some = replace(EAGLE3, problems=(Problem("Tied.", "Untie it.", stops=("sglang",)),))
    assert loads(some, "sglang").reason == "Tied."
    assert loads(some, "vllm").yes


@pytest.mark.parametrize("engine", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format_", ["transformers", "speculators", "gguf"])
def test_every_question_has_an_answer(engine: str, kind: str, format_: str) -> None:
    for version in (None, *VERSIONS[engine]):
        found = loads(made(kind, "X", format=format_), engine, version)
        assert found.yes == (found.method is not None)
        assert found.yes or found.reason.endswith(".")


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(SettingError, match="Did you mean 'vllm'"):
        loads(EAGLE3, "vlm")
    with pytest.raises(SettingError, match=r"What vllm 0.12.0 loads is not known"):
        loads(EAGLE3, "vllm", "0.12.0")


def test_a_directory_as_read_is_answered_for(tmp_path: Path) -> None:
    draft = read(tiny.write(tmp_path, tiny.eagle3_config(), tiny.eagle3_tensors()))
    assert loads(draft, "vllm", "0.32.0").yes
    tensors = tiny.eagle3_tensors()
    del tensors["d2t"]
    draft = read(tiny.write(tmp_path, tiny.eagle3_config(), tensors))
    assert "no map (d2t)" in loads(draft, "vllm", "0.32.0").reason
