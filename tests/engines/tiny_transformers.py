"""Tiny random models and tokenizers on disk, for testing the transformers engine."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2MoeConfig,
)
from transformers.utils import logging

if TYPE_CHECKING:
    from paceline.engines.transformers.engine import TransformersEngine

logging.disable_progress_bar()  # models are made inside tests that look at stderr

CORPUS = ["the abba cab is a cab of abba", "naïve 漢字 and 🙂", "one two three " * 3]
CONTROL = ["<s>", "</s>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "initializer_range": 0.4,  # large enough that a wrong key would show in the logits
}
VOCABULARY = 320  # more rows than the tokenizer has tokens


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, like GPT-2, Llama 3 or Qwen."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return fast(backend, chat_template=TEMPLATE)


def sentence_piece_tokenizer(vocabulary_size: int = 300) -> PreTrainedTokenizerFast:
    """BPE over ▁ with byte fallback and a space before the text, like Llama 2."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted({*"".join(CORPUS).replace(" ", "▁"), "▁"} - set("漢字🙂ï"))
    vocabulary = {piece: at for at, piece in enumerate([*CONTROL, "<unk>", *pieces, *letters])}
    merges = [("▁", "c"), ("▁c", "a"), ("▁", "a"), ("b", "b")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    assert len(vocabulary) <= vocabulary_size
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    backend.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return fast(backend)


def word_piece_tokenizer() -> PreTrainedTokenizerFast:
    """Words and ##endings, like BERT."""
    words = [*CONTROL, "[UNK]", "the", "cab", "##s", "##bage", "is", "here"]
    backend = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    return fast(backend)


def fast(backend: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", **options
    )


def llama() -> Any:
    """Grouped queries, every layer sees everything."""
    return LlamaConfig(vocab_size=VOCABULARY, **SHAPE)


def mistral() -> Any:
    """Every layer sees 8 tokens."""
    return MistralConfig(vocab_size=VOCABULARY, sliding_window=8, **SHAPE)


def gemma3() -> Any:
    """Layers with a window of 8 and one without."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3TextConfig(vocab_size=VOCABULARY, sliding_window=8, layer_types=kinds, **SHAPE)


def gemma2() -> Any:
    """Squeezed scores and logits, a scale of its own, and windows."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma2Config(
        vocab_size=VOCABULARY, sliding_window=8, layer_types=kinds, query_pre_attn_scalar=5,
        attn_logit_softcapping=2.0, final_logit_softcapping=10.0, **SHAPE,
    )  # fmt: skip


def qwen2() -> Any:
    """Biases in attention, one key head to a query head."""
    return Qwen2Config(vocab_size=VOCABULARY, **(SHAPE | {"num_key_value_heads": 6}))


def qwen2_moe() -> Any:
    """Experts, and windows that only its masks tell of."""
    return Qwen2MoeConfig(
        vocab_size=VOCABULARY, use_sliding_window=True, sliding_window=8, max_window_layers=1,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, **SHAPE,
    )  # fmt: skip


CONFIGS = {
    "llama": llama,
    "mistral": mistral,
    "gemma3": gemma3,
    "gemma2": gemma2,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
}


def save(config: Any, directory: Path, tokenizer: Any = None) -> Path:
    """A random model of a config, the same each time, with its tokenizer."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for vector in (weights for weights in model.parameters() if weights.ndim == 1):
            vector += 0.3 * torch.randn_like(vector)  # biases that are zero would hide
    model.save_pretrained(directory)
    (tokenizer or byte_level_tokenizer()).save_pretrained(directory)
    return directory


@functools.cache
def model_directory(name: str) -> Path:
    """The directory of one of CONFIGS, made once a run."""
    return save(CONFIGS[name](), Path(root().name) / name)


@functools.cache
def root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="paceline-tiny-")


def load(name: str, context_size: int, max_sequences: int) -> TransformersEngine:
    # Configs and tokenizers also serve environments whose transformers is too old for the engine.
    from paceline.engines.transformers.engine import TransformersEngine

    return TransformersEngine.load(
        str(model_directory(name)),
        context_size=context_size,
        max_sequences=max_sequences,
        dtype="float32",
        device="cpu",
        threads=1,  # two threads that wait for each other are slow on a busy machine
    )


def write_gguf(path: Path, seed: int = 7, split: str = "gpt-2") -> Path:
    """A tiny random Llama with a byte-level vocabulary, as a GGUF file of float32 tensors."""
    import gguf
    import numpy as np

    random = np.random.default_rng(seed)
    pieces = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    padding = [f"[PAD{number}]" for number in range(VOCABULARY - len(pieces))]
    writer.add_token_list(pieces + padding)
    writer.add_token_types([3, 3] + [1] * (len(pieces) - 2) + [5] * len(padding))
    writer.add_token_merges(["1 2", "a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    shapes = {
        "token_embd": (VOCABULARY, 32), "output": (VOCABULARY, 32), "output_norm": (32,),
        "blk.0.attn_norm": (32,), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (32, 32), "blk.0.ffn_up": (32, 32), "blk.0.ffn_down": (32, 32),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = (0.3 * random.standard_normal(shape)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", values + ("norm" in name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
