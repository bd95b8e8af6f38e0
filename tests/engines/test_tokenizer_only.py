"""A tokenizer without its model is the model's own, and nothing can be scored with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.engines.base import Engine, Job, Sequence
from paceline.engines.load import load, load_tokenizer
from paceline.errors import ModelError, SettingError

TEXT = "abba cab  ba"


def same(alone: Engine, whole: Engine) -> None:
    assert (alone.name, alone.model, alone.place) == (whole.name, whole.model, whole.place)
    assert alone.vocabulary_size == whole.vocabulary_size
    ours, theirs = alone.tokenizer, whole.tokenizer
    assert (ours.size, ours.end_tokens, ours.end_token) == (
        theirs.size,
        theirs.end_tokens,
        theirs.end_token,
    )
    tokens = ours.encode(TEXT)
    assert tokens == theirs.encode(TEXT)
    assert ours.text_bytes(tokens) == theirs.text_bytes(tokens)
    assert [ours.piece(t) for t in range(ours.size)] == [theirs.piece(t) for t in range(ours.size)]


def test_of_a_gguf_file() -> None:
    pytest.importorskip("llama_cpp")
    tiny_gguf = pytest.importorskip("tiny_gguf")
    path = tiny_gguf.model("llama")
    with load_tokenizer(path) as alone, load(path) as whole:
        same(alone, whole)
        assert alone.metadata()["tokenizer_only"]
    with pytest.raises(ValueError, match="the engine is closed"):
        alone.tokenizer.encode("a")
    alone.close()
    with pytest.raises(ModelError, match="is recurrent"):
        load_tokenizer(tiny_gguf.model("mamba"))


def test_a_gguf_files_weights_are_left_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("llama_cpp")
    tiny_gguf = pytest.importorskip("tiny_gguf")
    read, asked = library.llama_model_load_from_file, []

    def spy(path, parameters):
        asked.append(bool(parameters.vocab_only))
        return read(path, parameters)

    monkeypatch.setattr(library, "llama_model_load_from_file", spy)
    model, engine = tiny_gguf.model("llama"), "llamacpp"
    with load_tokenizer(model, engine=engine), load(model, engine=engine):
        assert asked == [True, False]


def test_of_a_directory(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tiny_transformers = pytest.importorskip("tiny_transformers")
    path = str(tiny_transformers.model_directory("llama"))
    with load_tokenizer(path) as alone, load(path) as whole:
        same(alone, whole)
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="can't read the tokenizer alone. Use the llamacpp engine"):
        load_tokenizer(str(tmp_path / "some.gguf"), engine="transformers")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="can't be loaded"):
        load_tokenizer(str(tmp_path))


def test_nothing_can_be_scored() -> None:
    alone = load_tokenizer("toy:2")
    same(alone, load("toy:2"))
    with pytest.raises(ValueError, match="only the tokenizer is loaded"):
        alone.open()
    with pytest.raises(ValueError, match="only the tokenizer is loaded"):
        alone._score([])


def test_an_engine_without_such_a_thing_says_so() -> None:
    class Bare(Engine):
        name, needs = "bare", ""

        @classmethod
        def load(cls, target, **options):
            raise NotImplementedError

        def open(self) -> Sequence:
            raise NotImplementedError

        def _score(self, jobs: list[Job]):
            raise NotImplementedError

        def metadata(self):
            return {}

        def close(self) -> None:
            pass

    with pytest.raises(SettingError, match="The engine bare can't load the tokenizer of x alone"):
        Bare.load_tokenizer("x")
