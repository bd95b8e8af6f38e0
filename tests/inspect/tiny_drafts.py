"""Drafts of every family with tiny tensors, written by the `safetensors` package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, VOCABULARY, OWN, HEADS = 32, 40, 16, 1
TARGET_IDS = np.arange(OWN) * 2 + 1
"""The target's tokens that a draft of a smaller vocabulary has."""

Tensors = dict[str, np.ndarray]


def weights(*shape: int) -> np.ndarray:
    return np.full(shape, 0.5, np.float32)


def write(
    place: Path, config: Mapping[str, Any] | None, tensors: Tensors, name: str = "model.safetensors"
) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if tensors:
        save_file(
            {key: np.ascontiguousarray(value) for key, value in tensors.items()}, place / name
        )
    return place


def layer(name: str, hidden: int = HIDDEN, inputs: int = HIDDEN) -> Tensors:
    attention = {f"{name}.self_attn.{part}_proj.weight": weights(hidden, inputs) for part in "qkv"}
    return {
        **attention,
        f"{name}.self_attn.o_proj.weight": weights(hidden, hidden),
        f"{name}.mlp.gate_proj.weight": weights(16, hidden),
        f"{name}.mlp.up_proj.weight": weights(16, hidden),
        f"{name}.mlp.down_proj.weight": weights(hidden, 16),
        f"{name}.input_layernorm.weight": weights(hidden),
        f"{name}.post_attention_layernorm.weight": weights(hidden),
    }


LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 16,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def maps() -> Tensors:
    marked = np.zeros(VOCABULARY, bool)
    marked[TARGET_IDS] = True
    return {"d2t": TARGET_IDS - np.arange(OWN), "t2d": marked}


def eagle3_config(**more: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": OWN} | more


def taking(*layers: int) -> dict[str, Any]:
    """A config's entries for the target's layers that a draft takes in, where engines look."""
    name = "eagle_aux_hidden_state_layer_ids"
    return {name: [*layers], "eagle_config": {name: [*layers]}}


def eagle3_tensors(name: str = "midlayer") -> Tensors:
    return {
        **layer(name, inputs=2 * HIDDEN),
        f"{name}.hidden_norm.weight": weights(HIDDEN),
        "fc.weight": weights(HIDDEN, 3 * HIDDEN),
        "norm.weight": weights(HIDDEN),
        "lm_head.weight": weights(OWN, HIDDEN),
        **maps(),
    }


def eagle_config(**more: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": ["LlamaForCausalLMEagle"]} | more


def eagle_tensors() -> Tensors:
    plain = layer("layers.0")
    del plain["layers.0.input_layernorm.weight"]  # its first layer has none
    return {
        **plain,
        "fc.weight": weights(HIDDEN, 2 * HIDDEN),
        "embed_tokens.weight": weights(VOCABULARY, HIDDEN),
    }


def medusa_config(**more: Any) -> dict[str, Any]:
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "num_heads": 3,
        "num_hidden_layers": 1,
    } | more


def medusa_tensors(heads: int = 3) -> Tensors:
    found: Tensors = {}
    for head in range(heads):
        found[f"blocks.{head}.layers.0.weight"] = weights(HIDDEN, HIDDEN)
        found[f"lm_heads.{head}.weight"] = weights(VOCABULARY, HIDDEN)
    return found


def dflash_config(**more: Any) -> dict[str, Any]:
    return (
        LLAMA
        | {
            "model_type": "qwen3",
            "architectures": ["DFlashDraftModel"],
            "num_hidden_layers": 2,
            "block_size": 8,
            "dflash_config": {"mask_token_id": 39, "target_layer_ids": [0, 2, 3]},
        }
        | more
    )


def dflash_tensors() -> Tensors:
    return {
        **layer("layers.0"),
        **layer("layers.1"),
        "fc.weight": weights(HIDDEN, 3 * HIDDEN),
        "hidden_norm.weight": weights(HIDDEN),
        "norm.weight": weights(HIDDEN),
    }


def dspark_config(**more: Any) -> dict[str, Any]:
    config = dflash_config(architectures=["Qwen3DSparkModel"], markov_rank=4)
    nested = config.pop("dflash_config")
    return config | nested | more


def dspark_tensors() -> Tensors:
    return {
        **dflash_tensors(),
        "markov_head.markov_w1.weight": weights(VOCABULARY, 4),
        "markov_head.markov_w2.weight": weights(VOCABULARY, 4),
    }


def model_config(**more: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4} | more


def model_tensors(layers: int = 4, hidden: int = HIDDEN) -> Tensors:
    found: Tensors = {
        "model.embed_tokens.weight": weights(VOCABULARY, hidden),
        "model.norm.weight": weights(hidden),
        "lm_head.weight": weights(VOCABULARY, hidden),
    }
    for number in range(layers):
        found |= layer(f"model.layers.{number}", hidden, hidden)
    return found


def mtp_config(**more: Any) -> dict[str, Any]:
    return (
        model_config(
            model_type="deepseek_v3",
            architectures=["DeepseekV3ForCausalLM"],
            num_nextn_predict_layers=1,
        )
        | more
    )


def mtp_tensors() -> Tensors:
    return {
        **model_tensors(),
        **layer("model.layers.4"),
        "model.layers.4.eh_proj.weight": weights(HIDDEN, 2 * HIDDEN),
        "model.layers.4.enorm.weight": weights(HIDDEN),
        "model.layers.4.hnorm.weight": weights(HIDDEN),
    }


def speculators_config(kind: str, layers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """As speculators 0.9 writes it: the layers' config nested, the rest around it."""
    names = {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash", "dspark": "DSpark"}
    return {
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "architectures": [f"{names.get(kind, kind.upper())}DraftModel"],
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "owner/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": dict(layers),
        **more,
    }


BLOCK = {
    "aux_hidden_state_layer_ids": [1, 3, 4],
    "mask_token_id": 39,
    "block_size": 8,
    "draft_vocab_size": VOCABULARY,
}


def speculators(kind: str) -> tuple[dict[str, Any], Tensors]:
    """A valid draft of each of the library's types."""
    if kind in ("eagle3", "peagle"):
        more: dict[str, Any] = {"draft_vocab_size": OWN, "target_hidden_size": None}
        tensors = eagle3_tensors("layers.0")
        if kind == "peagle":
            more["mask_token_id"] = 39
            tensors["mask_hidden"] = weights(1, 1, 3 * HIDDEN)
        return speculators_config(kind, LLAMA, **more), tensors
    if kind == "mtp":
        tensors = layer("mtp_layers.0")
        return speculators_config(kind, LLAMA, num_nextn_predict_layers=1), tensors
    layers = dflash_config()
    del layers["dflash_config"], layers["block_size"], layers["architectures"]
    tensors = dspark_tensors() if kind == "dspark" else dflash_tensors()
    more = BLOCK | ({"markov_rank": 4} if kind == "dspark" else {})
    return speculators_config(kind, layers, **more), tensors
