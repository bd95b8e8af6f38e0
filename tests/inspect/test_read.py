"""Every family is recognised whole, and every fault of each is named."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_drafts as tiny
from faults import FAMILIES, FATAL, SOME, SPECULATORS, Edit
from safetensors.numpy import save_file

from paceline.errors import DataError
from paceline.inspect import checkpoint
from paceline.inspect.loaders import VERSIONS, loads
from paceline.inspect.read import read


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_valid_draft_is_recognised_and_nothing_is_wrong(kind: str, tmp_path: Path) -> None:
    found = read(tiny.write(tmp_path, *FAMILIES[kind]()))
    assert (found.kind, found.format, found.problems) == (kind, "transformers", ())
    assert found.vocabulary_size == tiny.VOCABULARY
    assert found.hidden_size == tiny.HIDDEN
    assert found.dtype == "float32"
    assert found.bytes == (tmp_path / "model.safetensors").stat().st_size


@pytest.mark.parametrize(("named", "kind"), SPECULATORS.items())
def test_a_speculators_draft_is_recognised(named: str, kind: str, tmp_path: Path) -> None:
    found = read(tiny.write(tmp_path, *tiny.speculators(named)))
    assert (found.kind, found.format, found.problems) == (kind, "speculators", ())
    assert (found.verifier, found.proposal_tokens) == ("owner/target", 5)
    assert "DraftModel" in str(found.architecture)
    assert found.hidden_size == tiny.HIDDEN


def test_what_an_eagle3_draft_says_of_itself(tmp_path: Path) -> None:
    config = tiny.eagle3_config(**tiny.taking(1, 2, 3))
    found = read(tiny.write(tmp_path, config, tiny.eagle3_tensors()))
    assert found.architecture == "LlamaForCausalLMEagle3"
    assert (found.layers, found.aux_layers, found.aux_count) == (1, (1, 2, 3), 3)
    assert (found.target_hidden_size, found.draft_vocabulary_size) == (tiny.HIDDEN, tiny.OWN)
    assert (found.embedding, found.head) == ("target", "own")
    weights = sum(v.size for k, v in tiny.eagle3_tensors().items() if k not in ("d2t", "t2d"))
    assert found.parameters == weights
    assert found.map is not None
    assert (found.map.form, found.map.size) == ("offset", tiny.OWN)
    assert (found.map.lowest, found.map.highest) == (1, 31)
    assert (found.map.distinct, found.map.rising, found.map.agrees) == (True, True, True)


@pytest.mark.parametrize("name", ["midlayer", "layers.0", "model.layers.0"])
def test_the_layer_of_eagle3_has_more_than_one_name(name: str, tmp_path: Path) -> None:
    found = read(tiny.write(tmp_path, tiny.eagle3_config(), tiny.eagle3_tensors(name)))
    assert found.layers == 1
    assert found.fatal is None
    assert [problem.stops for problem in found.problems] == (
        [("vllm",)] if name.startswith("model.") else []
    )


def test_eagle3_is_told_by_its_tensors_where_the_config_calls_it_llama(tmp_path: Path) -> None:
    config = tiny.eagle3_config(architectures=["LlamaForCausalLM"])
    assert read(tiny.write(tmp_path, config, tiny.eagle3_tensors())).kind == "eagle3"


def test_medusas_own_names_are_read_too(tmp_path: Path) -> None:
    tensors: tiny.Tensors = {}
    for head in range(3):
        tensors[f"{head}.0.linear.weight"] = tiny.weights(tiny.HIDDEN, tiny.HIDDEN)
        tensors[f"{head}.1.weight"] = tiny.weights(tiny.VOCABULARY, tiny.HIDDEN)
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1, "hidden_size": tiny.HIDDEN}
    found = read(tiny.write(tmp_path, config, tensors))
    assert (found.kind, found.layers, found.problems) == ("medusa", 3, ())
    assert found.vocabulary_size == tiny.VOCABULARY


def test_blocks_say_how_far_they_draft(tmp_path: Path) -> None:
    found = read(tiny.write(tmp_path, *FAMILIES["dflash"]()))
    assert (found.proposal_tokens, found.aux_layers) == (7, (1, 3, 4))
    found = read(tiny.write(tmp_path / "d", *FAMILIES["dspark"]()))
    assert (found.proposal_tokens, found.aux_layers) == (8, (1, 3, 4))


@pytest.mark.parametrize(
    ("kind", "edit", "fact"), FATAL, ids=[f"{kind}: {fact}" for kind, _, fact in FATAL]
)
def test_a_fault_that_stops_every_engine_is_named(
    kind: str, edit: Edit, fact: str, tmp_path: Path
) -> None:
    config, tensors = FAMILIES[kind]()
    edit(config, tensors)
    found = read(tiny.write(tmp_path, config, tensors))
    assert any(fact in problem.fact for problem in found.problems if problem.fatal), found.problems
    assert found.problems[0].fatal
    assert all(problem.hint.endswith(".") for problem in found.problems)


@pytest.mark.parametrize(("kind", "edit", "fact", "stops"), SOME, ids=[one[2] for one in SOME])
def test_a_fault_that_some_engines_mind_says_which(
    kind: str, edit: Edit, fact: str, stops: tuple[str, ...], tmp_path: Path
) -> None:
    config, tensors = FAMILIES[kind]()
    edit(config, tensors)
    found = read(tiny.write(tmp_path, config, tensors))
    (problem,) = [problem for problem in found.problems if fact in problem.fact]
    assert (problem.fatal, problem.stops) == (False, stops)


def test_p_eagle_without_its_state_is_no_p_eagle(tmp_path: Path) -> None:
    config, tensors = tiny.speculators("peagle")
    del tensors["mask_hidden"]
    found = read(tiny.write(tmp_path, config, tensors))
    assert found.fatal is not None
    assert "mask_hidden" in found.fatal.fact


def test_states_are_counted_where_vllm_counts_them(tmp_path: Path) -> None:
    """A speculators draft of four states says so around its layers; vLLM looks within."""
    config, tensors = tiny.speculators("eagle3")
    tensors["fc.weight"] = tiny.weights(tiny.HIDDEN, 4 * tiny.HIDDEN)
    config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3, 4]
    config["num_aux_hidden_states"] = 4
    found = read(tiny.write(tmp_path, config, tensors))
    assert found.fatal is not None
    assert "transformer_layer_config" in found.fatal.hint
    config["transformer_layer_config"]["num_aux_hidden_states"] = 4
    assert read(tiny.write(tmp_path, config, tensors)).problems == ()


def test_a_speculators_config_that_leaves_out_its_use(tmp_path: Path) -> None:
    config, tensors = tiny.speculators("eagle3")
    config["speculators_config"] = {}
    found = read(tiny.write(tmp_path, config, tensors))
    assert [problem.fatal for problem in found.problems] == [False, False]
    assert (found.verifier, found.proposal_tokens) == (None, None)


JUNK: tuple[Any, ...] = (None, "x", -1, 10**30, [None], {"a": 1})


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "dspark", "mtp", "speculators dspark"])
def test_no_entry_of_a_config_brings_it_down(kind: str, tmp_path: Path) -> None:
    config, tensors = tiny.speculators("dspark") if " " in kind else FAMILIES[kind]()
    place = tiny.write(tmp_path, config, tensors)
    layers = config.get("transformer_layer_config", config)
    names = [*config, "eagle_config", "dflash_config", "text_config", "target_layer_ids"]
    for held, name in [(config, name) for name in names] + [(layers, name) for name in layers]:
        kept = held.get(name, JUNK)
        for junk in JUNK:
            held[name] = junk
            (place / "config.json").write_text(json.dumps(config))
            with contextlib.suppress(DataError):
                found = read(place)
                assert all(loads(found, engine).reason is not None for engine in VERSIONS)
        held[name] = kept
        if kept is JUNK:
            del held[name]


def test_numbers_in_names_are_not_counted_up_to(tmp_path: Path) -> None:
    for number in ("9" * 12, "9" * 5000):
        name = f"blocks.{number}.layers.0.weight"
        tensors = tiny.medusa_tensors() | {name: tiny.weights(tiny.HIDDEN, tiny.HIDDEN)}
        place = tiny.write(tmp_path / number[:20], tiny.medusa_config(), tensors)
        assert read(place).layers == 3
        tensors = tiny.model_tensors() | {f"model.layers.{number}.norm.weight": tiny.weights(8)}
        place = tiny.write(tmp_path / f"{number[:20]}m", tiny.model_config(), tensors)
        assert read(place).layers == 4


@pytest.mark.parametrize("packed", [False, True])
def test_a_map_is_read_of_packed_weights_too(packed: bool, tmp_path: Path) -> None:
    more = {"quantization_config": {"bits": 4}} if packed else {}
    place = tiny.write(tmp_path, tiny.model_config(**more), tiny.model_tensors())
    document = {
        "kind": "paceline vocabulary map",
        "version": 1,
        "target_tokens": 100,
        "ids": [*range(40)],
    }
    (place / "vocabulary_map.json").write_text(json.dumps(document))
    assert read(place).vocabulary_size == 100
    (place / "vocabulary_map.json").write_text("[" * 200_000)
    fatal = read(place).fatal
    assert fatal is not None
    assert "is not JSON" in fatal.fact


def test_one_head_for_all_of_medusas_is_one_at_least(tmp_path: Path) -> None:
    blocks = {n: t for n, t in tiny.medusa_tensors().items() if n.startswith("blocks.")}
    config = tiny.medusa_config(original_lm_head=True)
    fatal = read(tiny.write(tmp_path / "none", config, blocks)).fatal
    assert fatal is not None
    assert "lm_head.weight" in fatal.fact
    for name in ("lm_head.weight", "lm_heads.0.weight"):
        whole = blocks | {name: tiny.weights(tiny.VOCABULARY, tiny.HIDDEN)}
        assert read(tiny.write(tmp_path / name, config, whole)).problems == ()


@pytest.mark.parametrize(("size", "yes"), [(0, False), (1, False), (2, True)])
def test_a_block_has_a_position_to_fill(size: int, yes: bool, tmp_path: Path) -> None:
    config = tiny.dflash_config(block_size=size)
    found = read(tiny.write(tmp_path, config, tiny.dflash_tensors()))
    assert (found.fatal is None) is yes


def test_packed_weights_are_not_held_against_the_config(tmp_path: Path) -> None:
    config, tensors = FAMILIES["eagle3"]()
    tensors["fc.weight"] = np.zeros((tiny.HIDDEN, 3), np.int32)
    config["quantization_config"] = {"quant_method": "gptq"}
    assert read(tiny.write(tmp_path, config, tensors)).problems == ()


def test_a_map_of_a_derived_draft(tmp_path: Path) -> None:
    place = tiny.write(tmp_path, *FAMILIES["model"]())
    document = {
        "kind": "paceline vocabulary map",
        "version": 1,
        "target_tokens": 100,
        "ids": [*range(39), -1],
    }
    (place / "vocabulary_map.json").write_text(json.dumps(document))
    found = read(place)
    assert found.problems == ()
    assert found.map is not None
    assert (found.map.size, found.map.highest, found.vocabulary_size) == (39, 38, 100)
    for wrong, fact in (
        ({"ids": [0, 1]}, "has 2 entries"),
        ({"ids": [*range(39), 100]}, "leads to id 100"),
        ({"ids": [0, *range(39)]}, "two draft tokens"),
        ({"kind": "x"}, "is not a paceline vocabulary map file"),
        ({"version": 0}, "has version 0 of the format"),
    ):
        (place / "vocabulary_map.json").write_text(json.dumps(document | wrong))
        fatal = read(place).fatal
        assert fatal is not None
        assert fact in fatal.fact


class TestFiles:
    def test_shards_that_are_missing_are_named(self, tmp_path: Path) -> None:
        config, tensors = FAMILIES["model"]()
        half = dict(list(tensors.items())[:5])
        tiny.write(tmp_path, config, half, "model-00001-of-00002.safetensors")
        index = {
            name: f"model-0000{1 if name in half else 2}-of-00002.safetensors" for name in tensors
        }
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        found = read(tmp_path)
        metadata = [problem.fact for problem in found.problems if problem.fatal]
        assert any("1 of 2 files of weights are missing: model-00002" in fact for fact in metadata)
        rest = {name: value for name, value in tensors.items() if name not in half}
        tiny.write(tmp_path, None, rest, "model-00002-of-00002.safetensors")
        assert read(tmp_path).problems == ()
        rest.pop("lm_head.weight", None)
        rest.popitem()
        tiny.write(tmp_path, None, rest, "model-00002-of-00002.safetensors")
        assert "not where" in " ".join(problem.fact for problem in read(tmp_path).problems)

    @pytest.mark.parametrize("left", [0.3, 0.9])
    def test_a_file_that_is_cut_off(self, left: float, tmp_path: Path) -> None:
        place = tiny.write(tmp_path, *FAMILIES["eagle3"]())
        path = place / "model.safetensors"
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * left)])
        fatal = read(place).fatal
        assert fatal is not None
        assert "cut off" in fatal.fact or "ends within its header" in fatal.fact
        assert f"{len(whole):,}" in fatal.fact or left == 0.3

    def test_a_pickle_is_said_and_never_run(self, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        place = tiny.write(tmp_path / "d", tiny.eagle3_config(), {})
        (place / "pytorch_model.bin").write_bytes(f"cposix\nsystem\n(S'touch {ran}'\ntR.".encode())
        found = read(place)
        assert not ran.exists()
        assert (found.kind, found.parameters, found.fatal) == ("eagle3", None, None)
        assert "pytorch_model.bin, a pickle" in found.problems[0].fact
        assert found.bytes == (place / "pytorch_model.bin").stat().st_size

    def test_no_weights_at_all(self, tmp_path: Path) -> None:
        fatal = read(tiny.write(tmp_path, tiny.eagle3_config(), {})).fatal
        assert fatal is not None
        assert fatal.fact == "It holds no weights."


class TestNoDraft:
    def test_no_such_directory(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="There is no directory"):
            read(tmp_path / "nowhere")
        with pytest.raises(DataError, match="hf download owner/name"):
            read("owner/name")

    def test_no_config(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x")
        with pytest.raises(DataError, match="holds no config.json but notes.txt"):
            read(tmp_path)
        (tmp_path / "adapter_config.json").write_text("{}")
        with pytest.raises(DataError, match="LoRA adapter"):
            read(tmp_path)
        (tmp_path / "a.gguf").write_bytes(b"GGUF")
        with pytest.raises(DataError, match="Name the GGUF file"):
            read(tmp_path)

    def test_a_config_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(DataError, match="is not JSON"):
            read(tmp_path)
        (tmp_path / "config.json").write_text("[]")
        with pytest.raises(DataError, match="is not a JSON object"):
            read(tmp_path)

    def test_something_else_says_what_was_found(self, tmp_path: Path) -> None:
        place = tiny.write(
            tmp_path, {"architectures": ["CLIPModel"]}, {"vision.weight": tiny.weights(2)}
        )
        with pytest.raises(DataError, match=r"says CLIPModel, and its weights are vision.weight"):
            read(place)

    def test_an_unknown_type_of_speculators(self, tmp_path: Path) -> None:
        place = tiny.write(tmp_path, {"speculators_model_type": "owl"}, {})
        with pytest.raises(DataError, match="of type 'owl'"):
            read(place)

    def test_a_file_of_something_else(self, tmp_path: Path) -> None:
        path = tmp_path / "weights.safetensors"
        save_file({"a": np.zeros(2)}, path)
        with pytest.raises(DataError, match="not an exit head"):
            read(path)
        (tmp_path / "notes.txt").write_text("x")
        with pytest.raises(DataError, match="is not a GGUF file"):
            read(tmp_path / "notes.txt")


def test_an_exit_head(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    width = tiny.HIDDEN
    tensors = {
        "gain": np.zeros(width, "f4"),
        "down": np.zeros((2, width), "f4"),
        "up": np.zeros((width, 2), "f4"),
    }
    target = json.dumps({"width": width, "vocabulary": tiny.VOCABULARY, "layers": 4})
    metadata = {"kind": "paceline exit head", "layers": "3", "target": target}
    save_file(tensors, path, metadata)
    found = read(path)
    assert (found.kind, found.hidden_size, found.aux_layers) == ("exit-head", width, (3,))
    assert (found.vocabulary_size, found.problems) == (tiny.VOCABULARY, ())
    save_file({"gain": tensors["gain"]}, path, metadata | {"target": json.dumps({"width": 9})})
    assert len(read(path).problems) == 2


def test_every_problem_of_the_table_is_noted_somewhere() -> None:
    source = "".join(path.read_text() for path in Path(checkpoint.__file__).parent.glob("*.py"))
    tables = (Path(checkpoint.__file__).parent / "tables/weights.json").read_text()
    named = set(re.findall(r'"((?:[a-z0-9_]+|p-eagle)\.[a-z0-9_]+)"', source + tables))
    named |= {f"eagle3.{name}" for name in ("two_lists", "top_only", "nested_only")}
    assert {*checkpoint.PROBLEMS} <= named
    assert all(rule.hint.endswith(".") for rule in checkpoint.PROBLEMS.values())
