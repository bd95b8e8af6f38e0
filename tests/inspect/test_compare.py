"""A draft beside its target: what must fit, and what is only said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import tiny_drafts as tiny

from paceline.errors import DataError
from paceline.inspect.checkpoint import Checkpoint
from paceline.inspect.compare import compare
from paceline.inspect.loaders import loads
from paceline.inspect.read import read


@pytest.fixture
def draft(tmp_path: Path) -> Checkpoint:
    config = tiny.eagle3_config(**tiny.taking(1, 2, 4))
    return read(tiny.write(tmp_path / "draft", config, tiny.eagle3_tensors()))


def target(place: Path, **more: Any) -> Path:
    hidden = more.get("hidden_size", tiny.HIDDEN)
    return tiny.write(place, tiny.model_config(**more), tiny.model_tensors(hidden=hidden))


def test_a_draft_that_fits(draft: Checkpoint, tmp_path: Path) -> None:
    found = compare(draft, target(tmp_path / "target"))
    assert found.checkpoint.problems == ()
    assert (found.layers, found.same_tokens) == (4, None)
    assert found.target.parameters is not None
    assert draft.parameters is not None
    assert found.share_parameters == draft.parameters / found.target.parameters
    assert found.share_bytes == draft.bytes / found.target.bytes


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ({"hidden_size": 16}, "states of 32 entries, and the target's have 16"),
        ({"vocab_size": 48}, "a vocabulary of 40, and the target's has 48"),
        ({"num_hidden_layers": 3}, "layers 1, 2, 4, and the target has 3"),
    ],
)
def test_another_target_is_named(
    draft: Checkpoint, more: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    found = compare(draft, target(tmp_path / "target", **more))
    fatal = found.checkpoint.fatal
    assert fatal is not None
    assert fact in fatal.fact
    assert not loads(found.checkpoint, "vllm").yes


def test_sizes_of_a_target_that_sees_stand_in_its_text_config(
    draft: Checkpoint, tmp_path: Path
) -> None:
    config = {
        "architectures": ["OwlForConditionalGeneration"],
        "model_type": "owl",
        "text_config": tiny.model_config(),
    }
    place = tiny.write(tmp_path / "target", config, tiny.model_tensors())
    found = compare(draft, place)
    assert found.checkpoint.problems == ()
    assert (found.layers, found.target.vocabulary_size) == (4, tiny.VOCABULARY)


def test_a_target_with_mtp_layers_counts_its_own(draft: Checkpoint, tmp_path: Path) -> None:
    place = tiny.write(tmp_path / "target", tiny.mtp_config(), tiny.mtp_tensors())
    assert compare(draft, place).layers == 4


def test_a_draft_model_of_another_vocabulary_is_some_engines(tmp_path: Path) -> None:
    small = tiny.model_config(vocab_size=tiny.VOCABULARY)
    draft = read(tiny.write(tmp_path / "draft", small, tiny.model_tensors()))
    found = compare(draft, target(tmp_path / "target", vocab_size=48)).checkpoint
    assert found.fatal is None
    assert not loads(found, "vllm").yes
    assert loads(found, "paceline").yes


@pytest.mark.parametrize(("more", "yes"), [(0, True), (128, True), (129, False)])
def test_llama_cpp_lets_vocabularies_differ_by_128(more: int, yes: bool, tmp_path: Path) -> None:
    draft = read(tiny.write(tmp_path / "draft", tiny.model_config(), tiny.model_tensors()))
    place = target(tmp_path / "target", vocab_size=tiny.VOCABULARY + more)
    found = compare(draft, place).checkpoint
    assert found.fatal is None
    assert loads(found, "llama-server").yes is yes
    answer = loads(found, "transformers")
    assert answer.method == "assistant_model"
    assert ("assistant_tokenizer" in answer.reason) is (more > 0)


def test_transformers_takes_vocabularies_of_one_size_for_the_same(tmp_path: Path) -> None:
    draft = read(tiny.write(tmp_path / "draft", tiny.model_config(), tiny.model_tensors()))
    same, other = target(tmp_path / "same"), target(tmp_path / "other", vocab_size=48)
    tokenizer(draft.path, ["a", "b"])
    for place in (same, other):
        tokenizer(place, ["b", "a"])
    assert not loads(compare(draft, same).checkpoint, "transformers").yes
    assert loads(compare(draft, other).checkpoint, "transformers").yes


def test_a_gguf_target_with_mtp_layers_does_not_lend_their_count(
    draft: Checkpoint, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "glm4moe")
    writer.add_block_count(5)
    writer.add_uint32("glm4moe.nextn_predict_layers", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = compare(draft, tmp_path / "a.gguf")
    assert found.target.kind == "mtp"
    assert (found.layers, found.checkpoint.problems) == (None, ())


def tokenizer(place: Path, tokens: list[str], **more: Any) -> None:
    document = {
        "model": {"vocab": {token: number for number, token in enumerate(tokens)}},
        "added_tokens": [{"content": "<end>", "id": len(tokens)}],
        **more,
    }
    (place / "tokenizer.json").write_text(json.dumps(document))


def test_tokens_are_compared_not_files(draft: Checkpoint, tmp_path: Path) -> None:
    place = target(tmp_path / "target")
    tokenizer(place, ["a", "b"])
    assert compare(draft, place).same_tokens is None
    tokenizer(draft.path, ["a", "b"], truncation=None)
    assert compare(draft, place).same_tokens is True
    tokenizer(draft.path, ["b", "a"])
    found = compare(draft, place)
    assert found.same_tokens is False
    assert found.checkpoint.fatal is not None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 200_000,
        '{"model": {"vocab": 5}}',
        '{"model": {"vocab": "abc"}}',
        '{"model": {"vocab": {"a": [1]}}}',
        '{"model": {"vocab": {"a": 1}}, "added_tokens": 5}',
    ],
    ids=lambda text: text[:48],
)
def test_a_broken_tokenizer_is_named(text: str, draft: Checkpoint, tmp_path: Path) -> None:
    place = target(tmp_path / "target")
    tokenizer(draft.path, ["a", "b"])
    (place / "tokenizer.json").write_text(text)
    with pytest.raises(DataError, match=r"tokenizer.json (can't be read|is not JSON): "):
        compare(draft, place)


def test_a_draft_is_no_target(draft: Checkpoint) -> None:
    with pytest.raises(DataError, match="is not a target but a draft"):
        compare(draft, draft.path)
