"""Write a draft of random weights with a target's tokenizer: cheap, and almost never right.

python benchmarks/random_draft.py qwen2.5-coder-1.5b random-draft.gguf
paceline bench qwen2.5-coder-1.5b -d random-draft.gguf --prompts benchmarks/data/suite.jsonl …
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import gguf
import numpy as np

from paceline.engines.load import resolve

WIDTH, INNER, HEADS, HEAD = 64, 128, 4, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("out")
    args = parser.parse_args()
    reader = gguf.GGUFReader(resolve(args.target))
    writer = gguf.GGUFWriter(args.out, "llama")
    vocabulary = copy_tokenizer(reader, writer)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    for name, array in tensors(vocabulary):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"wrote {args.out}: {vocabulary} tokens, 1 layer of width {WIDTH}, random weights")


def copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, inner)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_vocab_size(vocabulary)
    return vocabulary


def tensors(vocabulary: int) -> Iterator[tuple[str, np.ndarray]]:
    random, one = np.random.default_rng(7), np.ones(WIDTH, np.float32)

    def normal(*shape: int) -> np.ndarray:
        scale = 1.5 / np.sqrt(shape[-1])
        return (scale * random.standard_normal(shape)).astype(np.float32)

    yield "token_embd.weight", normal(vocabulary, WIDTH)
    yield "output_norm.weight", one
    for norm in ("attn_norm", "ffn_norm"):
        yield f"blk.0.{norm}.weight", one
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        yield f"blk.0.{name}.weight", normal(HEADS * HEAD, WIDTH)
    yield "blk.0.ffn_gate.weight", normal(INNER, WIDTH)
    yield "blk.0.ffn_up.weight", normal(INNER, WIDTH)
    yield "blk.0.ffn_down.weight", normal(WIDTH, INNER)


if __name__ == "__main__":
    main()
