"""Tiny random GGUF models, written with the `gguf` package, for testing the llama.cpp engine."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType

from paceline import plugins
from paceline.engines.gguf.engine import GgufEngine
from paceline.engines.load import GGUF_ENGINES


class Shape(NamedTuple):
    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head: int


class Matrices(NamedTuple):
    """How matrices are stored, and the file type that says so, as OpenVINO's reader wants it."""

    file_type: gguf.LlamaFileType
    pack: Callable[[str, np.ndarray], tuple[np.ndarray, GGMLQuantizationType]]


ENGINES: dict[str, type[GgufEngine]] = {
    name: plugins.find("engine", name)
    for name, package in GGUF_ENGINES.items()
    if find_spec(package)
}
"""The GGUF engines that are installed."""

TINY = Shape(layers=3, width=48, inner=64, heads=6, key_heads=2, head=8)
HALF = Matrices(
    gguf.LlamaFileType.MOSTLY_F16,
    lambda name, array: (array.astype(np.float16), GGMLQuantizationType.F16),
)
WINDOW = 8
CONTEXT = 256
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CORPUS_PAIRS = ["a b", "ab b", "c a", "Ġ a", "Ġ c"]

Tensors = Iterator[tuple[str, np.ndarray]]


def byte_alphabet() -> list[str]:
    """The letter for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]


def add_byte_level(writer: gguf.GGUFWriter) -> int:
    """Two control tokens, all 256 bytes, five merges and one padding row."""
    merged = [pair.replace(" ", "") for pair in CORPUS_PAIRS]
    tokens = ["<s>", "</s>", *byte_alphabet(), *merged, "[PAD263]"]
    types = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (256 + len(merged))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([*types, TokenType.UNUSED])
    writer.add_token_merges(CORPUS_PAIRS)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    return len(tokens)


def add_sentencepiece(writer: gguf.GGUFWriter) -> int:
    """SentencePiece with byte fallback, which puts a space before a text."""
    words = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "▁c", "ca"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    kinds += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(words)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [float(-n) for n in range(len(words))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(True)
    return len(tokens)


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Random weights, large enough that a wrong key would show in the logits."""
    scale = 1.5 / np.sqrt(shape[-1])
    return (scale * random.standard_normal(shape)).astype(np.float32)


def attention_tensors(vocabulary: int, shape: Shape, *, post_norms: bool) -> Tensors:
    width, queries, keys = shape.width, shape.heads * shape.head, shape.key_heads * shape.head
    random, one = np.random.default_rng(7), np.ones(width, np.float32)
    yield "token_embd.weight", normal(random, vocabulary, width)
    yield "output_norm.weight", one
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", one
        yield block + "attn_q.weight", normal(random, queries, width)
        yield block + "attn_k.weight", normal(random, keys, width)
        yield block + "attn_v.weight", normal(random, keys, width)
        yield block + "attn_output.weight", normal(random, width, queries)
        yield block + "ffn_norm.weight", one
        yield block + "ffn_gate.weight", normal(random, shape.inner, width)
        yield block + "ffn_up.weight", normal(random, shape.inner, width)
        yield block + "ffn_down.weight", normal(random, width, shape.inner)
        if post_norms:
            yield block + "post_attention_norm.weight", one
            yield block + "post_ffw_norm.weight", one


def mamba_tensors(vocabulary: int) -> Tensors:
    width, inner, state, rank = TINY.width, 2 * TINY.width, 16, 4
    random = np.random.default_rng(7)
    yield "token_embd.weight", normal(random, vocabulary, width)
    yield "output_norm.weight", np.ones(width, np.float32)
    for layer in range(TINY.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", np.ones(width, np.float32)
        yield block + "ssm_in.weight", normal(random, 2 * inner, width)
        yield block + "ssm_conv1d.weight", normal(random, inner, 4)
        yield block + "ssm_conv1d.bias", normal(random, inner)
        yield block + "ssm_x.weight", normal(random, rank + 2 * state, inner)
        yield block + "ssm_dt.weight", normal(random, inner, rank)
        yield block + "ssm_dt.bias", normal(random, inner)
        yield block + "ssm_a", -np.abs(normal(random, inner, state))
        yield block + "ssm_d", normal(random, inner)
        yield block + "ssm_out.weight", normal(random, width, inner)


def add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head)


def add_state_space(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(TINY.width)
    writer.add_block_count(TINY.layers)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(2 * TINY.width)
    writer.add_ssm_state_size(16)
    writer.add_ssm_time_step_rank(4)


def write(
    path: Path,
    architecture: str,
    *,
    template: str | None = TEMPLATE,
    sentencepiece: bool = False,
    shape: Shape = TINY,
    matrices: Matrices | None = None,
) -> Path:
    """Write a tiny model: llama, gemma2 (a window of 8 in every other layer) or mamba. Matrices are
    float32 unless said otherwise; a mamba has its own shape."""
    writer = gguf.GGUFWriter(path, architecture)
    vocabulary = add_sentencepiece(writer) if sentencepiece else add_byte_level(writer)
    writer.add_vocab_size(vocabulary)
    if template is not None:
        writer.add_chat_template(template)
    if architecture == "mamba":
        add_state_space(writer)
        tensors = mamba_tensors(vocabulary)
    else:
        add_shape(writer, shape)
        tensors = attention_tensors(vocabulary, shape, post_norms=architecture == "gemma2")
    if architecture == "gemma2":
        writer.add_sliding_window(WINDOW)
    if matrices:
        writer.add_file_type(matrices.file_type)
        writer.add_rope_freq_base(10000.0)
        writer.add_pad_token_id(1)
    for name, array in tensors:
        if matrices and array.ndim > 1:
            data, kind = matrices.pack(name, array)
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


MODELS = ("llama", "gemma2")
"""Architectures that the engine takes; gemma2 forgets all but 8 tokens in every other layer."""


def load(
    architecture: str, context_size: int, max_sequences: int, engine: type[GgufEngine] | None = None
) -> GgufEngine:
    engine = engine or next(iter(ENGINES.values()))
    return engine.load(
        model_for(engine, architecture),
        context_size=context_size,
        max_sequences=max_sequences,
        threads=1,
    )


def model_for(engine: type[GgufEngine], architecture: str) -> str:
    """The path of a tiny model that the engine takes: ik knows a gemma2 by its number of layers."""
    layers = 26 if (engine.name, architecture) == ("ik", "gemma2") else TINY.layers
    return model(architecture, layers=layers)


@functools.cache
def model(architecture: str, *, sentencepiece: bool = False, layers: int = TINY.layers) -> str:
    """The path of a tiny model, written once a test run."""
    folder = tempfile.TemporaryDirectory(prefix="tiny-gguf-")
    _FOLDERS.append(folder)  # removed when the run ends
    path = Path(folder.name) / f"{architecture}.gguf"
    shape = TINY._replace(layers=layers)
    return str(write(path, architecture, sentencepiece=sentencepiece, shape=shape))


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
