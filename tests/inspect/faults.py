"""Every family of drafts, and what can be wrong with each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tiny_drafts as tiny

Edit = Callable[[dict[str, Any], tiny.Tensors], None]

FAMILIES: dict[str, Callable[[], tuple[dict[str, Any], tiny.Tensors]]] = {
    "eagle": lambda: (tiny.eagle_config(), tiny.eagle_tensors()),
    "eagle3": lambda: (tiny.eagle3_config(), tiny.eagle3_tensors()),
    "p-eagle": lambda: (
        tiny.eagle3_config(pard_token=39),
        tiny.eagle3_tensors() | {"mask_hidden": tiny.weights(3 * tiny.HIDDEN)},
    ),
    "medusa": lambda: (tiny.medusa_config(), tiny.medusa_tensors()),
    "dflash": lambda: (tiny.dflash_config(), tiny.dflash_tensors()),
    "dspark": lambda: (tiny.dspark_config(), tiny.dspark_tensors()),
    "mtp": lambda: (tiny.mtp_config(), tiny.mtp_tensors()),
    "model": lambda: (tiny.model_config(), tiny.model_tensors()),
}
SPECULATORS = {
    "eagle3": "eagle3",
    "peagle": "p-eagle",
    "dflash": "dflash",
    "dflash2": "dflash2",
    "dspark": "dspark",
    "mtp": "mtp",
    "xpress": "xpress",
}


def drop(*names: str) -> Edit:
    def edit(config: dict[str, Any], tensors: tiny.Tensors) -> None:
        for name in names:
            del tensors[name]

    return edit


def put(**values: Any) -> Edit:
    return lambda config, tensors: config.update(values)


def tensor(name: str, value: np.ndarray) -> Edit:
    return lambda config, tensors: tensors.update({name: value})


def both(*edits: Edit) -> Edit:
    def edit(config: dict[str, Any], tensors: tiny.Tensors) -> None:
        for one in edits:
            one(config, tensors)

    return edit


H, V, OWN = tiny.HIDDEN, tiny.VOCABULARY, tiny.OWN
OFFSETS = tiny.maps()["d2t"]
NAN = np.array([np.nan] + [1.0] * (H - 1), np.float32)

FATAL: list[tuple[str, Edit, str]] = [
    ("eagle3", drop("d2t", "t2d"), "no map (d2t)"),
    ("eagle3", tensor("d2t", OFFSETS[:-1]), "has 15 entries"),
    ("eagle3", tensor("d2t", OFFSETS + 20), "leads to ids 21 to 51"),
    ("eagle3", tensor("d2t", OFFSETS - 5), "leads to ids -4 to 26"),
    ("eagle3", both(drop("t2d"), tensor("d2t", -np.arange(OWN))), "two draft tokens"),
    ("eagle3", tensor("d2t", tiny.TARGET_IDS), "holds target ids"),
    ("eagle3", both(drop("t2d"), tensor("d2t", tiny.TARGET_IDS)), "holds target ids"),
    ("eagle3", tensor("d2t", OFFSETS.astype(np.float32)), "not a row of integers"),
    ("eagle3", tensor("t2d", np.arange(V) < OWN), "marks 16 target tokens"),
    ("eagle3", drop("fc.weight"), "fc.weight, which joins the target's states"),
    ("eagle3", tensor("fc.weight", tiny.weights(H, 3 * 12)), "without target_hidden_size"),
    ("eagle3", tensor("fc.weight", tiny.weights(4, 3 * H)), "fc.weight gives out 4 entries"),
    (
        "eagle3",
        both(put(target_hidden_size=12), tensor("fc.weight", tiny.weights(H, 3 * 16))),
        "takes in 48 entries, and config.json says 3 states of 12",
    ),
    (
        "eagle3",
        both(
            put(eagle_aux_hidden_state_layer_ids=[1, 2, 3, 4]),
            tensor("fc.weight", tiny.weights(H, 4 * H)),
        ),
        "takes 4 of the target's states",
    ),
    (
        "eagle3",
        both(put(**tiny.taking(1, 2, 3)), put(eagle_aux_hidden_state_layer_ids=[1, 2, 4])),
        "twice: [1, 2, 4], and [1, 2, 3] in eagle_config",
    ),
    ("eagle3", put(target_hidden_size=None), "target_hidden_size null"),
    ("eagle3", drop("lm_head.weight"), "has no head (lm_head)"),
    ("eagle3", tensor("lm_head.weight", tiny.weights(V, H)), "lm_head.weight has the shape"),
    ("eagle3", drop("midlayer.hidden_norm.weight"), "layers.0.hidden_norm.weight"),
    ("eagle3", drop("norm.weight"), "norm.weight"),
    (
        "eagle3",
        tensor("midlayer.self_attn.q_proj.weight", tiny.weights(H, H)),
        "embedding and state side by side",
    ),
    ("eagle3", put(num_hidden_layers=2), "num_hidden_layers 2, and the weights have 1"),
    (
        "eagle3",
        both(put(target_hidden_size=12), tensor("fc.weight", tiny.weights(H, 3 * 12))),
        "has no embedding",
    ),
    ("eagle3", put(norm_before_fc=True), "input_norm.weight, which norm_before_fc asks for"),
    ("eagle3", put(fc_norm=True), "fc_norm.0.weight"),
    ("eagle3", put(fc_norm=True, norm_before_fc=True), "both norm_before_fc and fc_norm"),
    ("eagle3", tensor("input_norm.weight", tiny.weights(3 * H)), "doesn't say norm_before_fc"),
    ("eagle3", tensor("midlayer.hidden_norm.weight", NAN), "Not a number"),
    ("p-eagle", lambda c, t: c.pop("pard_token"), "names no mask token"),
    ("p-eagle", tensor("mask_hidden", tiny.weights(H)), "mask_hidden has 32 entries"),
    ("eagle", tensor("fc.weight", tiny.weights(H, 3 * H)), "fc.weight has the shape"),
    ("eagle", tensor("embed_tokens.weight", tiny.weights(V, 4)), "embed_tokens.weight has"),
    ("medusa", lambda c, t: t.clear() or t.update(x=tiny.weights(1)), "the weights have 0"),
    ("medusa", drop("lm_heads.1.weight"), "1 of 3 heads have no lm_heads"),
    ("medusa", drop("blocks.0.layers.0.weight"), "blocks.0.layers.0.weight"),
    ("medusa", put(hidden_size=16), "blocks.0.layers.0.weight has the shape [32, 32]"),
    ("medusa", lambda c, t: c.pop("hidden_size"), "doesn't say hidden_size"),
    ("medusa", put(truncated_vocab_size=OWN), "no token_map"),
    (
        "medusa",
        both(put(truncated_vocab_size=OWN), tensor("token_map", np.arange(OWN) + 30)),
        "leads to ids 30 to 45",
    ),
    (
        "medusa",
        both(put(truncated_vocab_size=OWN), tensor("token_map", np.arange(OWN - 2))),
        "has 14 entries",
    ),
    ("medusa", tensor("blocks.0.layers.0.bias", tiny.weights(H)), "medusa_fc_bias"),
    ("medusa", tensor("blocks.0.layers.1.weight", tiny.weights(H, H)), "1 layer a head"),
    ("dflash", put(dflash_config={"target_layer_ids": [0, 2, 3]}), "names no mask_token_id"),
    ("dflash", drop("fc.weight"), "fc.weight"),
    ("dflash", drop("hidden_norm.weight"), "hidden_norm.weight"),
    ("dflash", tensor("fc.weight", tiny.weights(H, 2 * H)), "3 of the target's states"),
    ("dflash", put(draft_vocab_size=OWN), "has no head"),
    ("dspark", drop("markov_head.markov_w2.weight"), "markov_head.markov_w2.weight"),
    ("dspark", put(markov_rank=8), "markov_rank 8"),
    ("mtp", put(num_nextn_predict_layers=0), "counts no MTP layers"),
    ("model", put(hidden_size=16), "model.embed_tokens.weight has the shape"),
    ("model", put(vocab_size=48), "vocab_size 48"),
    ("model", put(num_hidden_layers=5), "num_hidden_layers 5, and the weights have 4"),
    ("model", drop("lm_head.weight"), "the embedding isn't one"),
]


SOME: list[tuple[str, Edit, str, tuple[str, ...]]] = [
    ("eagle3", put(tie_word_embeddings=True), "tie_word_embeddings", ("sglang",)),
    ("eagle3", put(eagle_aux_hidden_state_layer_ids=[1, 2, 3]), "SGLang looks", ("sglang",)),
    (
        "eagle3",
        put(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}),
        "second model runner don't look",
        ("llama-server",),
    ),
    (
        "eagle3",
        both(
            put(draft_vocab_size=V),
            drop("d2t", "t2d", "lm_head.weight"),
        ),
        "SGLang takes the target's only",
        ("sglang",),
    ),
    (
        "eagle",
        tensor("layers.0.input_layernorm.weight", tiny.weights(H)),
        "a norm before attention",
        ("vllm",),
    ),
    ("eagle", tensor("fc.bias", tiny.weights(H)), "has a bias", ("vllm",)),
    ("dflash", tensor("mask_hidden", tiny.weights(H)), "only P-EAGLE has", ("vllm",)),
    ("eagle3", tensor("t2d", np.arange(V + 4) % 2 == 1), "t2d has 44 entries", ()),
    ("medusa", put(num_heads=2), "says 2 heads, and the weights have 3", ()),
    ("medusa", put(num_heads=4), "says 4 heads, and the weights have 3", ()),
    ("medusa", lambda c, t: c.pop("num_heads"), "doesn't say how many heads", ()),
    ("dflash", lambda c, t: c.pop("block_size"), "block_size", ()),
]
