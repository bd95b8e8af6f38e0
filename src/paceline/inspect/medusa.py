"""Medusa (Cai et al. 2024): heads behind the target's last state, one for each position.

Two layouts: `blocks.I.layers.J.weight` with `lm_heads.I.weight`, and the authors' own `I.J.linear`
with `I.N.weight`; vLLM reads both (`model_executor/models/medusa.py`).
"""

from __future__ import annotations

import re

from paceline.inspect.draft import InspectedDraft, check_ids

_BLOCK = re.compile(r"blocks\.(\d{1,4})\.layers\.(\d{1,4})\.(weight|bias)")
_HEAD = re.compile(r"lm_heads?\.(\d{1,4})\.weight")


def renamed(name: str) -> str:
    """A tensor's name in the first layout."""
    name = name.removeprefix("medusa_heads.")
    found = re.fullmatch(r"(\d+)\.(\d+)\.(?:linear\.(weight|bias)|(weight))", name)
    if not found:
        return name
    if found[3]:
        return f"blocks.{found[1]}.layers.{found[2]}.{found[3]}"
    return f"lm_heads.{found[1]}.weight"


def check_medusa(draft: InspectedDraft) -> None:
    """Heads, their layers and biases, and the map of a truncated vocabulary."""
    draft.tensors = {renamed(name): tensor for name, tensor in draft.tensors.items()}
    blocks = [match for name in draft.tensors if (match := _BLOCK.fullmatch(name))]
    head, sizes = draft.tensors.get("lm_heads.0.weight"), draft.sizes
    if sizes["vocab_size"] is None and head is not None and len(head.shape) == 2:
        sizes["vocab_size"] = head.shape[0]
    truncated = draft.number("truncated_vocab_size")
    heads = _count(draft, {int(match[1]) for match in blocks})
    _check_width(draft)
    _check_layers(draft, heads or 0, [int(match[2]) for match in blocks])
    _check_lm_heads(draft, heads or 0, "vocab_size" if truncated is None else "")
    biased = any(name.endswith(".bias") for name in draft.tensors)
    if biased and draft.config.get("medusa_fc_bias") is not True:
        draft.note("medusa.bias")
    _check_map(draft, sizes["vocab_size"], truncated)
    sizes |= {
        "target_hidden_size": sizes["hidden_size"],
        "draft_vocab_size": truncated or sizes["vocab_size"],
    }
    draft.found |= {"layers": heads, "proposal_tokens": heads, "embedding": "none", "head": "own"}


def _count(draft: InspectedDraft, present: set[int]) -> int | None:
    """Heads that it has. vLLM makes as many as it is asked for tokens, whatever a config says."""
    said = draft.number("num_heads", "medusa_num_heads")
    if not draft.readable:
        return said
    found = max(present, default=-1) + 1
    if found != said:
        says = "doesn't say how many heads there are" if said is None else f"says {said} heads"
        draft.note("medusa.heads", says=says, found=found, fatal=not found)
    return found


def _check_layers(draft: InspectedDraft, heads: int, present: list[int]) -> None:
    layers = draft.number("num_hidden_layers", "medusa_num_layers") or 1
    wanted = range(min(layers, len(draft.tensors) + 1))
    draft.need(*(f"blocks.{head}.layers.{one}.weight" for head in range(heads) for one in wanted))
    found = max(present, default=-1) + 1
    if found > layers:
        noun = "layer" if layers == 1 else "layers"
        draft.note("medusa.layers", layers=layers, noun=noun, found=found)


def _check_lm_heads(draft: InspectedDraft, heads: int, rows: str) -> None:
    present = {int(m[1]) for name in draft.tensors if (m := _HEAD.fullmatch(name))}
    if not draft.readable:
        return
    if draft.config.get("original_lm_head") is True:
        if not {"lm_head.weight", "lm_heads.0.weight"} & draft.tensors.keys():
            draft.need("lm_head.weight", why=", and config.json says original_lm_head")
        return
    missing = len(set(range(heads)) - present)
    if missing:
        draft.note("medusa.no_lm_heads", missing=missing, heads=heads)
    for number in sorted(present):
        draft.expect(f"lm_heads.{number}.weight", rows, "hidden_size")


def _check_width(draft: InspectedDraft) -> None:
    tensor = draft.tensors.get("blocks.0.layers.0.weight")
    if draft.sizes["hidden_size"] is None and tensor is not None and len(tensor.shape) == 2:
        width = draft.sizes["hidden_size"] = tensor.shape[0]
        draft.note("medusa.no_width", width=width, fatal=width != 4096)
    draft.check_weights("medusa")


def _check_map(draft: InspectedDraft, vocabulary: int | None, truncated: int | None) -> None:
    if "token_map" in draft.tensors:
        said = "config.json says truncated_vocab_size {size:,}"
        check_ids(draft, "token_map", vocabulary, truncated, said)
    elif draft.readable and None not in (vocabulary, truncated) and truncated != vocabulary:
        draft.note("medusa.no_map", truncated=truncated, vocabulary=vocabulary)
