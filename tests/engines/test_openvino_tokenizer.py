"""Tokenizer files read without transformers, held against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

import tiny_transformers as tiny
from transformers import AutoTokenizer

from paceline.engines.openvino.source import read_tokenizer
from paceline.engines.transformers.tokenizer import TransformersTokenizer
from paceline.errors import ModelError, PromptError

MADE = {"byte-level": tiny.byte_level_tokenizer, "sentencepiece": tiny.sentence_piece_tokenizer}
CHAT = [{"role": "user", "content": "abba cab"}]


def directory(path: Path, tokenizer: Any) -> Path:
    tokenizer.save_pretrained(path)
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    return path


@pytest.mark.parametrize("kind", MADE)
def test_it_is_what_transformers_reads(tmp_path: Path, kind: str) -> None:
    tokenizer = MADE[kind]()
    ours = read_tokenizer(directory(tmp_path, tokenizer))
    theirs = TransformersTokenizer(tokenizer, [1, 5])
    assert ours.size == theirs.size
    assert ours.end_tokens == theirs.end_tokens == {1, 5}
    assert ours.end_token == theirs.end_token
    for text in (*tiny.CORPUS, "</s>ab", " leading"):
        assert ours.encode(text) == theirs.encode(text)
    for token in range(ours.size + 2):
        assert ours.token_bytes(token) == theirs.token_bytes(token)
        assert ours.piece(token) == theirs.piece(token)
    if tokenizer.chat_template:
        assert ours.encode_chat(CHAT) == theirs.encode_chat(CHAT)


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("kind", MADE)
def test_the_tokenizers_file_decides_whether_a_text_is_begun(
    tmp_path: Path, kind: str, begins: bool
) -> None:
    path = directory(tmp_path, MADE[kind]())
    settings = json.loads((path / "tokenizer_config.json").read_text())
    text = json.dumps(settings | {"add_bos_token": begins, "add_eos_token": True})
    (path / "tokenizer_config.json").write_text(text)
    theirs = TransformersTokenizer(AutoTokenizer.from_pretrained(path), [1, 5])
    ours = read_tokenizer(path)
    assert ours.encode("abba") == theirs.encode("abba")


ASKING = (
    "{% if tools is not none %}TOOLS{% endif %}{% if documents is not none %}PAPERS{% endif %}"
    "{{ messages | tojson(separators=(',', ':'), sort_keys=True) }}"
    "{{ messages | tojson(false, 1) }}"
    "{{ messages | tojson(false, 2, (',', ':')) }}"
)


def test_templates_find_what_transformers_gives_them(tmp_path: Path) -> None:
    path = directory(tmp_path, tiny.byte_level_tokenizer())
    (path / "chat_template.jinja").write_text(ASKING)
    theirs = TransformersTokenizer(AutoTokenizer.from_pretrained(path), [1, 5])
    ours = read_tokenizer(path)
    assert ours.decode(ours.encode_chat(CHAT)).startswith('[{"content":')
    assert ours.encode_chat(CHAT) == theirs.encode_chat(CHAT)


def test_a_template_may_lie_in_a_file_or_among_others(tmp_path: Path) -> None:
    path = directory(tmp_path, tiny.byte_level_tokenizer())
    wanted = read_tokenizer(path).encode_chat(CHAT)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    (path / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "tool", "template": "x"}, {"name": "default", "template": tiny.TEMPLATE}]
    for template in (tiny.TEMPLATE, named):
        text = json.dumps(settings | {"chat_template": template})
        (path / "tokenizer_config.json").write_text(text)
        assert read_tokenizer(path).encode_chat(CHAT) == wanted
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": None}))
    with pytest.raises(ModelError, match="no chat template"):
        read_tokenizer(path).encode_chat(CHAT)
    (path / "chat_template.jinja").write_text("{{ raise_exception('only cats') }}")
    with pytest.raises(PromptError, match=r"^The model's chat template.*only cats\. Change"):
        read_tokenizer(path).encode_chat(CHAT)


def test_roles_may_be_in_the_map_alone_and_ends_in_the_text_configuration(tmp_path: Path) -> None:
    directory(tmp_path, tiny.byte_level_tokenizer())
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 7}}')
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    found = read_tokenizer(tmp_path)
    assert found.end_token == 1
    assert found.end_tokens == {1, 7}


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer.json can't be read"):
        read_tokenizer(tmp_path)
    directory(tmp_path, tiny.byte_level_tokenizer())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="chat_template.jinja can't be read"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelError, match="holds no JSON object"):
        read_tokenizer(tmp_path)
