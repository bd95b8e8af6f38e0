"""The transformers engine: the model's own logits, its refusals, its tokenizers, its GGUF files."""

# ruff: noqa: E402  (what is imported below needs torch)

from __future__ import annotations

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiny_transformers as tiny

from paceline.engines.base import Job, TokenSegment, forwards
from paceline.engines.transformers import engine as engine_module
from paceline.engines.transformers import load as transformers_load
from paceline.engines.transformers.cache import CachePlan
from paceline.engines.transformers.engine import TransformersEngine, kept
from paceline.engines.transformers.tokenizer import TransformersTokenizer
from paceline.errors import ModelError, PacelineError

TEXTS = ["abba cab", "the cab\n\n  is naïve", "漢字 and 🙂👨‍👩‍👧 end", "café ½ x²", " leading"]


def random_text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, tiny.VOCABULARY, length).tolist()


def own_model(name: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        tiny.model_directory(name), dtype=torch.float32, attn_implementation="eager"
    ).eval()


def own_logits(name: str, tokens: list[int]) -> Any:
    with torch.no_grad():
        return own_model(name)(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


class TestLogits:
    @pytest.mark.parametrize("name", tiny.CONFIGS)
    def test_all_rows_are_the_models_own_over_several_windows(self, name: str) -> None:
        tokens = random_text(60)
        theirs = own_logits(name, tokens)
        assert theirs.std() > 0.1  # else any logits would be close
        with tiny.load(name, 64, 2) as engine:
            sequence, ours, begin = engine.open(), [], 0
            for width in (20, 1, 1, 3, 9, 26):
                part = tokens[begin : begin + width]
                ours += engine.score([Job(sequence, part, width)])
                begin += width
        torch.testing.assert_close(torch.cat(ours), theirs, rtol=0, atol=2e-4)

    @pytest.mark.parametrize("name", tiny.CONFIGS)
    def test_greedy_continuation_equals_generate(self, name: str) -> None:
        prompt = random_text(13, seed=3)
        theirs = own_model(name).generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None
        )[0, len(prompt) :]
        with tiny.load(name, 64, 1) as engine:
            sequence, tokens, ours = engine.open(), prompt, []
            for _ in range(40):
                [rows] = engine.score([Job(sequence, tokens)])
                tokens = [int(rows[0].argmax())]
                ours += tokens
        assert ours == theirs.tolist()

    def test_a_prompt_fed_in_parts_gives_the_same_rows(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens, other = random_text(40), random_text(9, seed=1)
        with tiny.load("gemma3", 64, 2) as engine:
            whole, beside = self.two(engine, tokens, other)
        monkeypatch.setattr(engine_module, "forwards", partial(forwards, limit=7))
        with tiny.load("gemma3", 64, 2) as engine:
            parts, next_to = self.two(engine, tokens, other)
        torch.testing.assert_close(parts, whole, rtol=0, atol=2e-4)
        torch.testing.assert_close(next_to, beside, rtol=0, atol=2e-4)

    def two(self, engine: TransformersEngine, tokens: list[int], other: list[int]) -> list[Any]:
        return engine.score([Job(engine.open(), tokens, 30), Job(engine.open(), other)])

    def test_wide_rows_go_another_way_to_the_same_logits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Past FOLDED_ROWS query heads aren't stacked; keys are shared instead of repeated."""
        tokens = random_text(50)
        monkeypatch.setattr("paceline.engines.transformers.cache.FOLDED_ROWS", 0)
        with tiny.load("mistral", 64, 1) as engine:
            [rows] = engine.score([Job(engine.open(), tokens, 50)])
        torch.testing.assert_close(rows, own_logits("mistral", tokens), rtol=0, atol=2e-4)

    def test_rows_can_be_changed_in_place_outside(self) -> None:
        with tiny.load("llama", 64, 1) as engine:
            [rows] = engine.score([Job(engine.open(), [1, 2])])
            rows += 1.0

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_small_dtypes_give_float32_rows_near_the_large_ones(self, dtype: str) -> None:
        tokens = random_text(30)
        theirs = own_logits("llama", tokens)[-3:]
        with TransformersEngine.load(
            str(tiny.model_directory("llama")), dtype=dtype, device="cpu"
        ) as engine:
            [rows] = engine.score([Job(engine.open(), tokens, 3)])
            assert engine.metadata()["dtype"] == dtype
        assert rows.dtype == torch.float32
        assert (rows - theirs).norm() / theirs.norm() < 0.1


class TestQuickened:
    @pytest.mark.parametrize("vendor", ["AuthenticAMD", "GenuineIntel"])
    @pytest.mark.parametrize("name", ["gemma2", "qwen2"])  # without and with biases
    def test_few_rows_are_right_whichever_way_they_go(
        self, name: str, vendor: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transformers_load, "cpu_field", lambda _: vendor)
        tokens = random_text(40)
        with tiny.load(name, 64, 1) as engine:
            quick = engine.metadata()["patched_linear_layers"]
            assert quick == (0 if vendor == "GenuineIntel" else 3 * 7 + 1)
            sequence = engine.open()
            first, few, one = (
                engine.score([Job(sequence, part, len(part))])[0]
                for part in (tokens[:33], tokens[33:39], tokens[39:])
            )
        ours = torch.cat((first, few, one))
        torch.testing.assert_close(ours, own_logits(name, tokens), rtol=0, atol=2e-4)

    def test_other_dtypes_are_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transformers_load, "cpu_field", lambda _: "AuthenticAMD")
        assert transformers_load.patch_linear(own_model("llama").bfloat16()) == 0


class TestForwards:
    def test_rows_are_told_as_transformers_wants_them(self) -> None:
        assert kept(
            [
                TokenSegment(None, 0, [0] * 3, 1),
                TokenSegment(None, 0, [0] * 1, 1),
                TokenSegment(None, 0, [0] * 5, 5),
            ]
        ) == [2, 3, 4, 5, 6, 7, 8]

    def test_a_part_without_rows_asks_for_none(self) -> None:
        assert kept([TokenSegment(None, 0, [0] * 4, 0)]) == []
        assert kept([TokenSegment(None, 0, [0] * 4, 4)]) == 4
        assert kept([TokenSegment(None, 0, [0] * 2, 2), TokenSegment(None, 0, [0] * 3, 3)]) == 0


MAMBA = transformers.MambaConfig(
    hidden_size=16, num_hidden_layers=1, vocab_size=tiny.VOCABULARY, state_size=4
)
REFUSED = {
    "mamba": (MAMBA, "is a mamba model.*recurrent state"),
    "recurrent_gemma": (
        transformers.RecurrentGemmaConfig(
            hidden_size=16, num_hidden_layers=3, num_attention_heads=2, lru_width=16,
            intermediate_size=32, vocab_size=tiny.VOCABULARY,
        ),
        "is a recurrent_gemma model.*can't be rewound",
    ),
    "jamba": (transformers.JambaConfig(vocab_size=99), "is a jamba model.*can't be rewound"),
    "qwen3_next": (
        transformers.Qwen3NextConfig(vocab_size=99),
        "is a qwen3_next model, which keeps a recurrent state",
    ),
    "lfm2": (
        transformers.Lfm2Config(layer_types=["conv"], num_hidden_layers=1),
        "is a lfm2 model with conv layers",
    ),
    "llama4": (
        transformers.Llama4TextConfig(vocab_size=99),
        "is a llama4_text model with chunked_attention layers",
    ),
    "t5": (transformers.T5Config(vocab_size=99), "is a t5 model: an encoder-decoder"),
    "vit": (transformers.ViTConfig(), "is a vit model, which transformers doesn't list"),
    "falcon": (transformers.FalconConfig(), "is a falcon model, whose attention"),
    "embedding_gemma": (
        transformers.Gemma3TextConfig(use_bidirectional_attention=True),
        "is a gemma3_text model that looks ahead",
    ),
}  # fmt: skip


class TestRefusals:
    @pytest.mark.parametrize("name", REFUSED)
    def test_by_config_before_any_weights_are_read(self, name: str, tmp_path: Path) -> None:
        config, message = REFUSED[name]
        config.save_pretrained(tmp_path)
        with pytest.raises(ModelError, match=message):
            TransformersEngine.load(str(tmp_path), device="cpu")

    def test_attention_sinks(self, tmp_path: Path) -> None:
        config = transformers.GptOssConfig(
            vocab_size=tiny.VOCABULARY, num_local_experts=2, num_experts_per_tok=1, **tiny.SHAPE
        )
        with pytest.raises(ModelError, match=r"GptOssForCausalLM\) wants s_aux of its attention"):
            TransformersEngine.load(str(tiny.save(config, tmp_path)), device="cpu", threads=1)

    @pytest.mark.parametrize("fault", ["sees the future", "forgets its slot", "wrong position"])
    def test_a_model_that_we_run_wrongly(self, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last safety net: whatever the reason, other logits than its own are refused."""
        if fault == "sees the future":
            monkeypatch.setattr(CachePlan, "mask", lambda *_: None)
        elif fault == "forgets its slot":
            monkeypatch.setattr(CachePlan, "store", lambda *_: None)
        else:
            right = CachePlan.tensors
            monkeypatch.setattr(
                CachePlan,
                "tensors",
                lambda *given: (lambda ids, at: (ids, at // 2))(*right(*given)),
            )
        with pytest.raises(ModelError, match="other logits when rewound and batched"):
            tiny.load("llama", 64, 1)

    def test_a_model_that_drops_the_arguments(self, tmp_path: Path) -> None:
        config = transformers.NemotronConfig(vocab_size=tiny.VOCABULARY, **tiny.SHAPE)
        with pytest.raises(ModelError, match=r"NemotronForCausalLM\) can't be run.*don't pass"):
            TransformersEngine.load(str(tiny.save(config, tmp_path)), device="cpu", threads=1)


class TestBadInput:
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(tiny.model_directory("llama"), tmp_path / "model"))

    def refused(self, target: object, message: str, **options: Any) -> None:
        with pytest.raises(PacelineError, match=message) as caught:
            TransformersEngine.load(str(target), **options)
        assert "\n" not in str(caught.value)

    def test_truncated_weights(self, directory: Path) -> None:
        weights = directory / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        self.refused(directory, "can't be loaded: .*[Ii]ncomplete|can't be loaded: .*header")

    def test_weights_that_are_no_weights(self, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"\xff" * 4096)
        self.refused(directory, "can't be loaded")

    def test_weights_that_are_missing(self, directory: Path) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(directory / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        self.refused(directory, "lacks 1 of its model's weights, model.layers.1.mlp.up_proj")

    def test_no_weights_at_all(self, directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        self.refused(directory, "can't be loaded: .*no file named")

    def test_directory_without_config(self, tmp_path: Path) -> None:
        self.refused(tmp_path, "has no config.json")

    def test_config_that_is_no_json(self, directory: Path) -> None:
        (directory / "config.json").write_text("{")
        self.refused(directory, "can't be loaded: .*config")

    def test_unknown_model_type(self, directory: Path) -> None:
        (directory / "config.json").write_text(json.dumps({"model_type": "nosuchmodel"}))
        self.refused(directory, "can't be loaded: .*nosuchmodel")

    def test_no_tokenizer(self, directory: Path) -> None:
        (directory / "tokenizer.json").unlink()
        (directory / "tokenizer_config.json").unlink()
        self.refused(directory, "can't be loaded|not a fast tokenizer")

    def test_a_file_that_is_no_gguf(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04")
        self.refused(tmp_path / "model.gguf", "is not a GGUF file")

    def test_nothing_there(self, tmp_path: Path) -> None:
        self.refused(tmp_path / "nothing", "There is no file or directory")
        self.refused("./nothing", "There is no file or directory")
        self.refused("nothing.gguf", "There is no file or directory")

    def test_a_hub_name_that_cant_be_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        self.refused("paceline/no-such-model", "paceline/no-such-model can't be loaded")

    def test_settings(self, directory: Path) -> None:
        self.refused(directory, "no dtype named 'floot32'. Did you mean 'float32'", dtype="floot32")
        self.refused(directory, "option of the transformers engine named 'thread'", thread=2)
        self.refused(directory, "no device 'tpu'", device="tpu")
        self.refused(directory, "threads is 0", threads=0)
        self.refused(directory, "max_sequences is 0", max_sequences=0)
        self.refused(directory, "context_size is 129.*1 to 128", context_size=129)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
    def test_cuda_asked_for_but_absent(self, directory: Path) -> None:
        self.refused(directory, "device cuda was asked for.*0 CUDA devices", device="cuda")


class TestChoices:
    def test_dtype_follows_the_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cpu = torch.device("cpu")
        for flags, dtype in (("avx2 avx512f", "float32"), ("avx2 amx_bf16", "bfloat16")):
            monkeypatch.setattr(transformers_load, "cpu_field", lambda _, flags=flags: flags)
            assert transformers_load.choose_dtype("auto", cpu)[0] == dtype
        assert transformers_load.choose_dtype("float16", cpu) == ("float16", "asked for")
        assert transformers_load.choose_dtype(None, torch.device("cuda"))[0] is None

    def test_metadata_say_what_the_cache_and_its_windows_cost(self) -> None:
        with tiny.load("gemma3", 100, 3) as engine:
            metadata = engine.metadata()
            sequence = engine.open()
            engine.score([Job(sequence, [1, 2])])
            per_layer = 2 * 2 * 8 * 4  # keys and values, 2 heads, of 8 floats
            assert metadata["cache_bytes"] == 3 * 100 * 3 * per_layer
            assert metadata["sliding_window_tokens"] == 8
            assert metadata["sliding_window_layers"] == 2
            assert metadata["sliding_window_extra_bytes"] == 2 * 3 * (100 - 8) * per_layer
            assert sum(engine.cache.bytes_per_token().values()) == 3 * per_layer
            assert metadata["weights_bytes"] == 4 * sum(
                parameter.numel() for parameter in own_model("gemma3").parameters()
            )
            json.dumps(metadata)
        with tiny.load("llama", 64, 1) as engine:
            assert "sliding_window_tokens" not in engine.metadata()


TOKENIZERS = {
    "byte level": tiny.byte_level_tokenizer,
    "sentence piece": tiny.sentence_piece_tokenizer,
}


class TestTokenizers:
    @pytest.fixture(params=TOKENIZERS)
    def tokenizer(self, request: pytest.FixtureRequest) -> TransformersTokenizer:
        return TransformersTokenizer(TOKENIZERS[request.param](), [1])

    @pytest.mark.parametrize("text", TEXTS)
    def test_text_comes_back_whole(self, tokenizer: TransformersTokenizer, text: str) -> None:
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.text_bytes(tokens).decode() in (text, " " + text)

    def test_bytes_are_those_the_library_decodes(self, tokenizer: TransformersTokenizer) -> None:
        library = tokenizer._tokenizer
        for text in TEXTS:
            tokens = tokenizer.encode(text)
            assert tokenizer.decode(tokens) == library.decode(tokens, skip_special_tokens=True)

    def test_control_tokens_are_recognised_and_have_no_text(
        self, tokenizer: TransformersTokenizer
    ) -> None:
        tokens = tokenizer.encode("cab</s>")
        assert tokens[-1] == 1
        assert tokenizer.token_bytes(1) == b""
        assert tokenizer.piece(1) == "</s>"
        assert tokenizer.end_tokens == {1}

    def test_padding_rows_have_no_text(self, tokenizer: TransformersTokenizer) -> None:
        assert tokenizer.piece(tokenizer.size) == ""
        assert tokenizer.token_bytes(tokenizer.size) == b""

    def test_a_prompt_begins_as_the_model_wants_and_is_not_ended(self) -> None:
        tokenizer = TransformersTokenizer(tiny.sentence_piece_tokenizer())
        tokens = tokenizer.encode("cab")
        assert tokens[0] == 0
        assert tokens[-1] != 1
        assert tokenizer.decode(tokens) == "cab"
        assert tokenizer.decode(tokens[1:]) == " cab"  # what goes on keeps its space

    def test_end_tokens_come_from_model_and_tokenizer(self) -> None:
        assert TransformersTokenizer(tiny.byte_level_tokenizer(), [7, 9]).end_tokens == {1, 7, 9}

    def test_chat_goes_through_the_template(self) -> None:
        tokenizer = TransformersTokenizer(tiny.byte_level_tokenizer())
        tokens = tokenizer.encode_chat([{"role": "user", "content": "abba"}])
        assert tokens[0] == 0
        assert tokenizer.decode(tokens) == "user: abba\nassistant:"

    def test_no_chat_template(self) -> None:
        with pytest.raises(ModelError, match="no chat template"):
            TransformersTokenizer(tiny.sentence_piece_tokenizer()).encode_chat([])

    def test_a_template_that_refuses(self) -> None:
        tokenizer = tiny.byte_level_tokenizer()
        tokenizer.chat_template = "{{ raise_exception('no system role') }}"
        with pytest.raises(ModelError, match="refuses these messages: no system role\\. Change"):
            TransformersTokenizer(tokenizer).encode_chat([{"role": "system", "content": "a"}])

    def test_word_pieces_join(self) -> None:
        tokenizer = TransformersTokenizer(tiny.word_piece_tokenizer())
        assert tokenizer.decode(tokenizer.encode("the cabs is here")).strip() == "the cabs is here"

    def test_added_tokens_are_read_as_written(self) -> None:
        tokenizer = tiny.byte_level_tokenizer()
        tokenizer.add_tokens(["<é →>"])
        ours = TransformersTokenizer(tokenizer)
        tokens = ours.encode("cab<é →>cab")
        assert len(tokens) < 12
        assert ours.decode(tokens) == "cab<é →>cab"

    def test_a_decoder_that_cant_be_read_by_token(self) -> None:
        tokenizer = tiny.byte_level_tokenizer()
        tokenizer.backend_tokenizer.decoder = tiny.decoders.CTC()
        with pytest.raises(ModelError, match="decoder \\(CTC\\)"):
            TransformersTokenizer(tokenizer)


class TestGguf:
    @pytest.fixture
    def gguf(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        pytest.importorskip("gguf")
        pytest.importorskip("accelerate")
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
        return tiny.write_gguf(tmp_path / "tiny.gguf")

    def load(self, path: Path) -> TransformersEngine:
        return TransformersEngine.load(str(path), dtype="float32", device="cpu", threads=1)

    def test_it_is_converted_once_and_kept(
        self, gguf: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = random_text(20)
        with self.load(gguf) as engine:
            [first] = engine.score([Job(engine.open(), tokens)])
            assert engine.model == str(gguf)
            kept_in = Path(engine.metadata()["converted_to"])
            assert engine.tokenizer.decode(engine.tokenizer.encode("abba 漢")) == "abba 漢"
        assert [path.name for path in kept_in.parent.iterdir()] == [kept_in.name]
        monkeypatch.setattr(transformers_load, "_convert_into", None)
        with self.load(gguf) as engine:
            [again] = engine.score([Job(engine.open(), tokens)])
        assert torch.equal(first, again)

    def test_another_file_of_the_same_name_is_another_model(self, gguf: Path) -> None:
        tokens = random_text(20)
        with self.load(gguf) as engine:
            [first] = engine.score([Job(engine.open(), tokens)])
        tiny.write_gguf(gguf, seed=2)
        with self.load(gguf) as engine:
            [other] = engine.score([Job(engine.open(), tokens)])
        assert not torch.allclose(first, other, atol=0.1)

    def test_a_truncated_file(self, gguf: Path) -> None:
        whole = gguf.read_bytes()
        for share in (0.3, 0.9):
            gguf.write_bytes(whole[: int(share * len(whole))])
            with pytest.raises(ModelError, match=r"tiny\.gguf can't be loaded"):
                self.load(gguf)
        assert not list((gguf.parent / "cache" / "transformers").iterdir())

    def test_a_way_of_cutting_text_that_is_unknown(self, gguf: Path) -> None:
        tiny.write_gguf(gguf, split="nosuchway")
        with pytest.raises(ModelError, match="cuts text the 'nosuchway' way"):
            self.load(gguf)

    def test_digits_are_cut_as_the_file_says(self, gguf: Path) -> None:
        for split, count in (("gpt-2", 1), ("smollm", 2)):
            tiny.write_gguf(gguf, split=split)
            with self.load(gguf) as engine:
                assert len(engine.tokenizer.encode("12")) == count


@pytest.mark.model
def test_smollm2_says_what_generate_says(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
    with TransformersEngine.load(str(smollm2_path), dtype="float32", device="cpu") as engine:
        chat = [{"role": "user", "content": "Name three colours of the rainbow, 123."}]
        prompt = engine.tokenizer.encode_chat(chat)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            engine.metadata()["converted_to"], dtype=torch.float32
        )
        theirs = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)
        sequence, tokens, ours = engine.open(), prompt, []
        for _ in range(len(theirs[0]) - len(prompt)):
            [rows] = engine.score([Job(sequence, tokens)])
            tokens = [int(rows[0].argmax())]
            ours += tokens
        assert ours == theirs[0, len(prompt) :].tolist()
        assert math.isfinite(engine.metadata()["self_test_error"])
        assert "red" in engine.tokenizer.decode(ours).lower()
