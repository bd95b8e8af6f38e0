"""Tiny random models of few tokens, whose greedy text soon repeats itself, for `generate`."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

TOKENS = 12
END = 1
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "bos_token_id": 0,
    "eos_token_id": END,
    "pad_token_id": None,
}


def llama(tokens: int = TOKENS) -> Any:
    return LlamaForCausalLM(LlamaConfig(vocab_size=tokens, **SHAPE))


def mistral() -> Any:
    """Every layer sees 8 tokens."""
    return MistralForCausalLM(MistralConfig(vocab_size=TOKENS, sliding_window=8, **SHAPE))


def gemma3() -> Any:
    """A layer with a window of 8 and one without."""
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(vocab_size=TOKENS, sliding_window=8, layer_types=kinds, **SHAPE)
    return Gemma3ForCausalLM(config)


def t5() -> Any:
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=TOKENS, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=END,
        )
    )  # fmt: skip


def bart() -> Any:
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=TOKENS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=32,
            decoder_ffn_dim=32, encoder_attention_heads=4, decoder_attention_heads=4,
            max_position_embeddings=256, forced_eos_token_id=None, init_std=0.4,
            decoder_start_token_id=2, bos_token_id=0, pad_token_id=3, eos_token_id=END,
        )
    )  # fmt: skip


def mamba() -> Any:
    return MambaForCausalLM(MambaConfig(vocab_size=TOKENS, hidden_size=16, num_hidden_layers=1))


MODELS = {"llama": llama, "mistral": mistral, "gemma3": gemma3, "t5": t5, "bart": bart}


def model(name: str, dtype: torch.dtype = torch.float64, seed: int = 3) -> Any:
    torch.set_num_threads(1)  # two threads that wait for each other are slow on a busy machine
    torch.manual_seed(seed)
    return (MODELS | {"mamba": mamba})[name]().to(dtype).eval()
