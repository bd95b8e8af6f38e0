"""Drafts made from tiny targets: what they compute, load as, and leave behind when refused."""

# ruff: noqa: E402  (what is imported below needs torch)

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiny_transformers as tiny

from paceline import StopConditions, create_draft, generate
from paceline.cli.main import main
from paceline.drafts.vocabulary import MAP_FILE, read_map
from paceline.engines.transformers.engine import TransformersEngine
from paceline.errors import DataError, ModelError, SettingError
from paceline.train.derive import layers as layers_module
from paceline.train.derive import make, write
from paceline.train.derive.layers import chosen_layers, config_with
from paceline.train.derive.make import derive

LEAST = 258  # 256 bytes and two control tokens


def sparse() -> Any:
    """Experts in every second layer, of six, and in none of the third."""
    shape = tiny.SHAPE | {"num_hidden_layers": 6}
    return transformers.Qwen2MoeConfig(
        vocab_size=tiny.VOCABULARY, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
        **shape,
    )  # fmt: skip


def untied() -> Any:
    return transformers.LlamaConfig(
        vocab_size=tiny.VOCABULARY, tie_word_embeddings=False, attention_bias=True, **tiny.SHAPE
    )


def tied() -> Any:
    return transformers.LlamaConfig(
        vocab_size=tiny.VOCABULARY, tie_word_embeddings=True, **tiny.SHAPE
    )


TARGETS = {**tiny.CONFIGS, "sparse": sparse, "untied": untied, "tied": tied}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory):
    """The directory of one of TARGETS, made once."""
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = tiny.save(TARGETS[name](), tmp_path_factory.mktemp("target") / name)
        return made[name]

    return directory


def loaded(directory: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits(model: Any, tokens: list[int]) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def without(model: Any, kept: list[int]) -> Any:
    """The target with all other layers passing on what they get."""
    for at, layer in enumerate(model.model.layers):
        if at not in kept:
            layer.forward = lambda hidden_states, **_: hidden_states
    return model


class TestWhatItComputes:
    @pytest.mark.parametrize(("chosen", "vocabulary"), [("0,2", None), ("1-2", 266)])
    @pytest.mark.parametrize("name", TARGETS)
    def test_its_logits_are_the_target_s_without_those_layers(
        self, target, tmp_path: Path, name: str, chosen: str, vocabulary: int | None
    ) -> None:
        corpus = None if vocabulary is None else tiny.CORPUS
        made = derive(
            str(target(name)), tmp_path / "d", layers=chosen, vocabulary=vocabulary, corpus=corpus
        )
        ids = list(range(tiny.VOCABULARY))
        if vocabulary is not None:
            ids = json.loads((tmp_path / "d" / MAP_FILE).read_text())["ids"]
            assert sum(token != at for at, token in enumerate(ids)) >= 3
        theirs = loaded(target(name))
        tokens = list(range(len(ids)))[-40:]
        whole = logits(theirs, [ids[token] for token in tokens])
        expected = logits(without(theirs, list(made.layers)), [ids[token] for token in tokens])
        ours = logits(loaded(tmp_path / "d"), tokens)
        assert (expected - whole).std() > 0.05  # else leaving layers out would not show
        torch.testing.assert_close(ours, expected[:, ids], rtol=0, atol=1e-4)
        assert ours.shape[-1] == made.tokens == (vocabulary or tiny.VOCABULARY)

    def test_all_layers_and_tokens_are_the_target(self, target, tmp_path: Path) -> None:
        made = derive(str(target("untied")), tmp_path / "d", layers="0-2")
        assert made.parameters == made.parameters_of
        torch.testing.assert_close(
            logits(loaded(tmp_path / "d"), [3, 4, 5]), logits(loaded(target("untied")), [3, 4, 5])
        )

    def test_it_says_what_was_made(self, target, tmp_path: Path) -> None:
        made = derive(
            str(target("tied")), tmp_path / "d", keep=1, vocabulary=270, corpus=["abba " * 9],
            dtype="bfloat16",
        )  # fmt: skip
        assert (made.layers, made.layers_of, made.tokens, made.tokens_of) == ((0,), 3, 270, 320)
        again = loaded(tmp_path / "d")
        counted = {id(weights): weights.numel() for weights in again.parameters()}
        assert made.parameters == sum(counted.values())
        assert made.size_bytes == 2 * made.parameters
        assert made.dtype == "bfloat16"
        size = (tmp_path / "d" / "model.safetensors").stat().st_size
        assert made.size_bytes <= size <= made.size_bytes + 20_000
        assert made.covered == 1


class TestAsADraft:
    @pytest.fixture
    def engine(self, target) -> Iterator[TransformersEngine]:
        with TransformersEngine.load(
            str(target("llama")), context_size=96, dtype="float32", device="cpu", threads=1
        ) as engine:
            yield engine

    @pytest.mark.parametrize(("vocabulary", "kind"), [(None, "model"), (275, "shared")])
    def test_greedy_text_is_baseline_s(
        self, target, engine, tmp_path: Path, vocabulary: int | None, kind: str
    ) -> None:
        corpus = None if vocabulary is None else tiny.CORPUS
        derive(str(target("llama")), tmp_path / "d", keep=2, vocabulary=vocabulary, corpus=corpus)
        draft = create_draft(
            str(tmp_path / "d"), engine, dtype="float32", device="cpu", context_size=96
        )
        assert draft.name == kind
        stop = StopConditions(max_tokens=40, ignore_end=True)
        baseline = generate(engine, "abba cab", stop=stop)
        drafted = generate(engine, "abba cab", stop=stop, draft=draft, max_draft_tokens=3)
        assert drafted.tokens == baseline.tokens
        assert drafted.stats.proposed > 20
        assert drafted.stats.accepted > 0
        draft.release()

    def test_it_fits_its_target_by_its_map_only(self, target, engine, tmp_path: Path) -> None:
        """Whose tokens it has one for one, special ones too."""
        derive(
            str(target("llama")), tmp_path / "d", keep=1, vocabulary=LEAST + 9, corpus=tiny.CORPUS
        )
        found = read_map(tmp_path / "d" / MAP_FILE)
        assert found.target_tokens == engine.tokenizer.size
        assert len(found.ids) == LEAST + 9
        with TransformersEngine.load(str(tmp_path / "d"), dtype="float32", device="cpu") as draft:
            for token, theirs in enumerate(found.ids):
                assert draft.tokenizer.piece(token) == engine.tokenizer.piece(theirs)
            assert {found.ids[t] for t in draft.tokenizer.end_tokens} == {1}


class TestTheDirectory:
    def test_transformers_loads_and_generates_by_itself(self, target, tmp_path: Path) -> None:
        derive(str(target("llama")), tmp_path / "d", vocabulary=280, corpus=tiny.CORPUS)
        model = loaded(tmp_path / "d")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "d")
        assert (model.config.bos_token_id, model.config.eos_token_id) == (0, 1)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": "abba 🙂"}], add_generation_prompt=True, tokenize=False
        )
        assert chat == "<s>user: abba 🙂\nassistant:"
        given = tokenizer(chat, return_tensors="pt")
        assert given.input_ids[0, 0] == 0
        assert tokenizer.decode(given.input_ids[0]) == chat
        made = model.generate(**given, max_new_tokens=5, do_sample=False)
        assert made.shape[1] > given.input_ids.shape[1]
        assert made.max() < 280

    def test_generation_settings_and_special_tokens_in_the_middle_are_renumbered(
        self, target, tmp_path: Path
    ) -> None:
        source = shutil.copytree(target("llama"), tmp_path / "t")
        settings = {"eos_token_id": [1, 290], "pad_token_id": 295, "suppress_tokens": [298, 5]}
        # A temperature without sampling is what transformers refuses to save.
        write.json_file(source / "generation_config.json", settings | {"temperature": 0.5})
        derive(str(source), tmp_path / "d", vocabulary=LEAST + 2, corpus=["a"])
        found = json.loads((tmp_path / "d" / "generation_config.json").read_text())
        ids = read_map(tmp_path / "d" / MAP_FILE).ids
        assert [ids[token] for token in found["eos_token_id"]] == [1, 290]
        assert ids[found["pad_token_id"]] == 295
        assert found["suppress_tokens"] == [ids.index(5)]
        assert found["temperature"] == 0.5
        assert ids != list(range(len(ids)))

    def test_its_card_says_where_it_is_from_and_carries_the_licence(
        self, target, tmp_path: Path
    ) -> None:
        source = shutil.copytree(target("llama"), tmp_path / "t")
        (source / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# T\n")
        (source / "LICENSE.txt").write_text("the terms")
        derive(str(source), tmp_path / "d", vocabulary=270, corpus=["a"])
        card = (tmp_path / "d" / "README.md").read_text()
        assert card.startswith("---\nlicense: apache-2.0\n")
        for said in ("Layers 0, 1 (from 0) of 3", "270 tokens of 320", "t -d d", "LICENSE.txt"):
            assert said in card
        assert str(tmp_path) not in card
        assert "base_model" not in card, "a directory is no name on a hub"
        assert (tmp_path / "d" / "LICENSE.txt").read_text() == "the terms"
        readable = {path.stat().st_mode & 0o777 for path in (tmp_path / "d").iterdir()}
        assert len(readable) == 1, "none is kept from those who may read the others"

    def test_a_gguf_file_is_a_target_too(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
        pytest.importorskip("gguf")
        file = tiny.write_gguf(tmp_path / "tiny.gguf")
        made = derive(str(file), tmp_path / "d", vocabulary=260, corpus=["12 ab 12"])
        assert made.dtype == "bfloat16"
        assert read_map(tmp_path / "d" / MAP_FILE).ids == list(range(260))
        assert {"12", "ab"} <= set(
            transformers.AutoTokenizer.from_pretrained(tmp_path / "d").get_vocab()
        )


class TestConfig:
    def test_fields_that_go_by_layer_follow_the_layers(self) -> None:
        config = sparse()
        made = config_with(config, [1, 3, 4, 5])
        assert made.num_hidden_layers == 4
        assert (made.decoder_sparse_step, made.mlp_only_layers) == (1, [1, 2])
        gemma = tiny.gemma3()
        assert config_with(gemma, [0, 2]).layer_types == ["sliding_attention"] * 2
        assert config_with(gemma, [1, 2]).layer_types == gemma.layer_types[1:]
        windows = transformers.Qwen2Config(
            use_sliding_window=True, max_window_layers=2, num_hidden_layers=4
        )
        made = config_with(windows, [0, 2, 3])
        assert made.max_window_layers == 1
        assert made.layer_types == ["full_attention", *["sliding_attention"] * 2]
        assert windows.num_hidden_layers == 4

    def test_a_layer_that_would_become_another_is_refused(
        self, target, tmp_path: Path, monkeypatch
    ) -> None:
        def forgetful(config: Any, kept: list[int]) -> Any:
            return type(config).from_dict(
                config_with(config, kept).to_dict() | {"mlp_only_layers": []}
            )

        monkeypatch.setattr(layers_module, "config_with", forgetful)
        with pytest.raises(ModelError, match="Layer 0 of .* would be another one as layer 0: "):
            derive(str(target("sparse")), tmp_path / "d", layers="0-2")
        assert list(tmp_path.iterdir()) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "fact"),
        [
            ({"layers": "0,3"}, "Layer 3 is named, and the target has 3"),
            ({"layers": "0-1,1"}, "Layer 1 is named twice"),
            ({"layers": ""}, "The layers are ''"),
            ({"layers": "2-1"}, "Write numbers and ranges"),
            ({"layers": "1;2"}, "Write numbers and ranges"),
            ({"keep": 4}, "4 layers are to be kept of 3"),
            ({"keep": 0}, "0 layers are to be kept of 3"),
            ({"layers": "0", "keep": 1}, "Both layers and a number"),
            ({"vocabulary": 321, "corpus": ["a"]}, "has 298.*Write 258 to 298"),
            ({"vocabulary": 257, "corpus": ["a"]}, "Write 258 to 298"),
            ({"vocabulary": 270}, "Give both or neither"),
            ({"corpus": ["a"]}, "Give both or neither"),
            ({"dtype": "int4"}, "no dtype named 'int4'"),
        ],
    )
    def test_settings(self, target, tmp_path: Path, given: dict[str, Any], fact: str) -> None:
        with pytest.raises(SettingError, match=fact):
            derive(str(target("llama")), tmp_path / "d", **given)
        assert list(tmp_path.iterdir()) == []

    def test_the_default_is_the_first_half(self) -> None:
        assert chosen_layers(3) == [0, 1]
        assert chosen_layers(30) == list(range(15))
        assert chosen_layers(9, "7-8, 0") == [0, 7, 8]

    def test_an_empty_corpus_and_other_tokenizers(self, target, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="holds no tokens"):
            derive(str(target("llama")), tmp_path / "d", vocabulary=270, corpus=[""])
        other = tiny.save(tiny.llama(), tmp_path / "sp", tiny.sentence_piece_tokenizer())
        with pytest.raises(ModelError, match="BPE with byte fallback"):
            derive(str(other), tmp_path / "d", vocabulary=270, corpus=["a"])
        derive(str(other), tmp_path / "d", keep=1)
        assert not (tmp_path / "d" / MAP_FILE).exists()

    def test_models_of_more_than_text_and_no_models(self, tmp_path: Path, target) -> None:
        with pytest.raises(ModelError, match=r"no config\.json"):
            derive(str(tmp_path), tmp_path / "d")
        vision = transformers.Gemma3Config(text_config=tiny.gemma3().to_dict())
        with pytest.raises(ModelError, match="more than text layers"):
            layers_module.layer_count("it", vision)
        model = loaded(target("llama"))
        model.model.more = torch.nn.ModuleList(model.model.layers)
        with pytest.raises(ModelError, match="The layers of it, a llama model, can't be listed"):
            layers_module.layers_of("it", model)

    def test_places_that_are_taken(self, target, tmp_path: Path, monkeypatch) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("x")
        (tmp_path / "file").write_text("x")
        for name, fact in (("full", "isn't empty"), ("file", "is a file"), ("file/d", "in .*file")):
            with pytest.raises(DataError, match=fact):
                derive(str(target("llama")), tmp_path / name)
        monkeypatch.setattr(write.os, "access", lambda *_: False)
        with pytest.raises(DataError, match="can't be made in"):
            derive(str(target("llama")), tmp_path / "d")

    def test_an_empty_directory_is_taken_and_parents_are_made(self, target, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for name in ("empty", "a/b/d"):
            derive(str(target("llama")), tmp_path / name, keep=1)
            assert (tmp_path / name / "model.safetensors").is_file()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty"]

    def test_the_directory_one_is_in(self, target, tmp_path: Path, monkeypatch) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        derive(str(target("llama")), ".", keep=1)
        assert (tmp_path / "here" / "config.json").is_file()
        assert "-d here\n" in (tmp_path / "here" / "README.md").read_text()

    def test_a_full_disk(self, target, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(write.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 0))
        with pytest.raises(DataError, match=r"needs 0\.07 GB, and 0\.00 GB are free"):
            derive(str(target("llama")), tmp_path / "d")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("error", [OSError("no space left."), KeyboardInterrupt()])
    def test_nothing_is_left_of_what_fails_on_the_way(
        self, target, tmp_path: Path, monkeypatch, error: BaseException
    ) -> None:
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(make.write, "tokenizer", fail)
        with pytest.raises((DataError, KeyboardInterrupt)):
            derive(str(target("llama")), tmp_path / "d")
        assert list(tmp_path.iterdir()) == []

    def test_a_tokenizer_that_reads_otherwise(self, target, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(write, "_vocabulary", lambda _: {"a": 0})
        with pytest.raises(ModelError, match="reads otherwise than it was written"):
            derive(str(target("llama")), tmp_path / "d", vocabulary=270, corpus=["a"])
        assert list(tmp_path.iterdir()) == []


class TestCommandLine:
    def test_it_says_what_was_made_and_how_to_use_it(
        self, target, tmp_path: Path, capsys, monkeypatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("text.txt").write_text("abba cab the " * 5, encoding="utf-8")
        lines = [{"prompt": "one two"}, {"messages": [{"role": "user", "content": "three"}]}]
        Path("p.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        corpus = ("--corpus", "text.txt", "--corpus", "p.jsonl", "--vocabulary", "290")
        code = main(["derive", str(target("llama")), "-o", "d", "--layers", "0,2", *corpus])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        assert "d: 2 of 3 layers, 290 of 320 tokens" in out
        assert "the kept tokens are 100.0% of the corpus" in out
        assert out.splitlines()[-1].endswith("-d d")
        code = main(["derive", str(target("llama")), "-o", "e", "--keep", "1", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (code, found["layers"], found["directory"]) == (0, [0], "e")

    @pytest.mark.parametrize(
        ("given", "fact"),
        [
            (("--vocabulary", "270"), "--vocabulary is given without --corpus"),
            (("--corpus", "none"), "--corpus is given without --vocabulary"),
            (("--vocabulary", "270", "--corpus", "none"), "none can't be read"),
            (("--layers", "9"), "Layer 9 is named"),
        ],
    )
    def test_faults_are_one_line(
        self, target, tmp_path: Path, capsys, given: tuple[str, ...], fact: str
    ) -> None:
        assert main(["derive", str(target("llama")), "-o", str(tmp_path / "d"), *given]) == 2
        err = capsys.readouterr().err
        assert fact in err
        assert len(err.splitlines()) == 1
