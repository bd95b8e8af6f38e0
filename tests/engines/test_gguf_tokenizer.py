"""The GGUF engine's tokenizer on each library: text to tokens and back, names, chat templates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gguf")

import tiny_gguf

from paceline.engines.gguf.engine import GgufEngine
from paceline.errors import ModelError, PromptError

Kind = type[GgufEngine]


@pytest.fixture(params=tiny_gguf.ENGINES.values(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def engine(kind: Kind) -> Iterator[GgufEngine]:
    with tiny_gguf.load("llama", 64, 1, kind) as engine:
        yield engine


WRITTEN = ["abba cab", "naïve 漢字 🙂👩‍👩‍👧", " a  b ", "", "\n\tx\x00y", "ab" * 500]


@pytest.mark.parametrize("sentencepiece", [False, True])
@pytest.mark.parametrize("written", WRITTEN)
def test_text_to_tokens_to_text(written: str, sentencepiece: bool, kind: Kind) -> None:
    path = tiny_gguf.model("llama", sentencepiece=sentencepiece)
    with kind.load(path, context_size=64) as engine:
        tokens = engine.tokenizer.encode(written)
        assert engine.tokenizer.text_bytes(tokens).decode() == written


def test_a_continuation_keeps_its_space(kind: Kind) -> None:
    with kind.load(tiny_gguf.model("llama", sentencepiece=True)) as engine:
        tokens = engine.tokenizer.encode("a ab")
        cut = next(i for i, token in enumerate(tokens) if engine.tokenizer.piece(token) == "▁ab")
        assert engine.tokenizer.text_bytes(tokens[:cut]) == b"a"
        assert engine.tokenizer.text_bytes(tokens[cut:]) == b" ab"


def test_tokens_have_names_and_bytes(engine: GgufEngine) -> None:
    tokenizer = engine.tokenizer
    assert tokenizer.end_tokens == {1}
    assert [tokenizer.piece(token) for token in (0, 1, 2 + ord("a"), 263, 264, -1)] == [
        "<s>",
        "</s>",
        "a",
        "",
        "",
        "",
    ]
    assert [tokenizer.token_bytes(token) for token in (0, 1, 2 + 0xF0, 2 + 32, 263, 999)] == [
        b"",
        b"",
        b"\xf0",
        b" ",
        b"",
        b"",
    ]


def test_special_tokens_in_a_prompt_are_recognised(engine: GgufEngine) -> None:
    assert engine.tokenizer.encode("a</s>") == [0, 2 + ord("a"), 1]


def test_half_a_surrogate_pair_is_refused(engine: GgufEngine) -> None:
    with pytest.raises(PromptError, match="a character that is not text"):
        engine.tokenizer.encode("ab\ud83d")


def test_a_chat_goes_through_the_models_template(engine: GgufEngine) -> None:
    tokens = engine.tokenizer.encode_chat([{"role": "user", "content": "cab"}])
    assert tokens[0] == 0
    assert 0 not in tokens[1:]
    assert engine.tokenizer.decode(tokens) == "user: cab\nassistant:"


def load_with(template: str | None, folder: Path, kind: Kind) -> GgufEngine:
    path = tiny_gguf.write(folder / "m.gguf", "llama", template=template)
    return kind.load(str(path), context_size=64)


def test_no_chat_template_is_an_error(tmp_path: Path, kind: Kind) -> None:
    with (
        load_with(None, tmp_path, kind) as engine,
        pytest.raises(ModelError, match=r"m\.gguf has no chat template"),
    ):
        engine.tokenizer.encode_chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_template_that_fails_is_an_error(
    template: str, message: str, tmp_path: Path, kind: Kind
) -> None:
    with load_with(template, tmp_path, kind) as engine, pytest.raises(PromptError, match=message):
        engine.tokenizer.encode_chat([{"role": "user", "content": "a"}])


def test_templates_have_what_they_are_written_for(tmp_path: Path, kind: Kind) -> None:
    template = (
        "{% generation %}{{ strftime_now('%Y')|length }}{% endgeneration %}"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m|tojson }}"
        "{% endfor %}"
    )
    with load_with(template, tmp_path, kind) as engine:
        tokens = engine.tokenizer.encode_chat([{"role": "user", "content": "ä"}] * 2)
        assert engine.tokenizer.decode(tokens) == '4{"role": "user", "content": "ä"}'
