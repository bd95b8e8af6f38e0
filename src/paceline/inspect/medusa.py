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
    vocabulary = _rows(draft, draft.number("vocab_size"))
    truncated = draft.number("truncated_vocab_size")
    layers = draft.number("num_hidden_layers", "medusa_num_layers") or 1
    heads = _check_count(draft)
    hidden = _width(draft, draft.number("hidden_size"))
    _check_layers(draft, heads or 0, layers)
    _check_heads(draft, heads or 0, vocabulary if truncated is None else None, hidden)
    _check_bias(draft)
    _check_map(draft, vocabulary, truncated)
    draft.found |= {
        "hidden_size": hidden,
        "target_hidden_size": hidden,
        "vocabulary_size": vocabulary,
        "draft_vocabulary_size": truncated or vocabulary,
        "layers": heads,
        "aux_count": 1,
        "proposal_tokens": heads,
        "head": "own",
    }


def _check_count(draft: InspectedDraft) -> int | None:
    """Heads that it has. vLLM makes as many as it is asked for tokens, whatever a config says."""
    said = draft.number("num_heads", "medusa_num_heads")
    present = {int(match[1]) for name in draft.tensors if (match := _BLOCK.fullmatch(name))}
    if not draft.readable:
        return said
    found = max(present, default=-1) + 1
    if found != said:
        says = "doesn't say how many heads there are" if said is None else f"says {said} heads"
        draft.wrong(
            f"config.json {says}, and the weights have {found}.",
            f"Correct num_heads, and ask for {found} tokens a round at most.",
            fatal=not found,
        )
    return found


def _check_layers(draft: InspectedDraft, heads: int, layers: int) -> None:
    draft.need(
        *(
            f"blocks.{head}.layers.{layer}.weight"
            for head in range(heads)
            for layer in range(min(layers, len(draft.tensors) + 1))
        )
    )
    numbers = [int(match[2]) for name in draft.tensors if (match := _BLOCK.fullmatch(name))]
    most = max(numbers, default=-1) + 1
    if most > layers:
        draft.wrong(
            f"config.json says {layers} {'layer' if layers == 1 else 'layers'} a head, and the "
            f"weights have {most}.",
            "Correct num_hidden_layers.",
        )


def _check_heads(draft: InspectedDraft, heads: int, rows: int | None, hidden: int | None) -> None:
    numbers = {int(m[1]) for name in draft.tensors if (m := _HEAD.fullmatch(name))}
    if not draft.readable:
        return
    if draft.config.get("original_lm_head") is True:
        if not {"lm_head.weight", "lm_heads.0.weight"} & draft.tensors.keys():
            draft.need("lm_head.weight", why=", and config.json says original_lm_head")
        return
    missing = sorted(set(range(heads)) - numbers)
    if missing:
        draft.wrong(
            f"{len(missing)} of {heads} heads bring no lm_heads.N.weight, and config.json doesn't "
            "say original_lm_head.",
            "Export it again, whole.",
        )
    for number in sorted(numbers):
        draft.expect(
            f"lm_heads.{number}.weight",
            rows,
            hidden,
            said=f"a vocabulary of {rows} and hidden_size {hidden}",
        )


def _width(draft: InspectedDraft, hidden: int | None) -> int | None:
    tensor = draft.tensors.get("blocks.0.layers.0.weight")
    if tensor is None or len(tensor.shape) != 2:
        return hidden
    if hidden is None:
        draft.wrong(
            f"config.json doesn't say hidden_size; the weights have {tensor.shape[0]:,}, and vLLM "
            "takes 4,096 for granted.",
            f'Add "hidden_size": {tensor.shape[0]} to config.json.',
            fatal=tensor.shape[0] != 4096,
        )
        return tensor.shape[0]
    draft.expect("blocks.0.layers.0.weight", hidden, hidden, said=f"hidden_size {hidden}")
    return hidden


def _check_bias(draft: InspectedDraft) -> None:
    biased = any(name.endswith(".bias") for name in draft.tensors)
    if biased and draft.config.get("medusa_fc_bias") is not True:
        draft.wrong(
            "Its layers have biases, and config.json doesn't say medusa_fc_bias: vLLM leaves them "
            "out without a word.",
            'Add "medusa_fc_bias": true to config.json.',
        )


def _rows(draft: InspectedDraft, vocabulary: int | None) -> int | None:
    tensor = draft.tensors.get("lm_heads.0.weight")
    if tensor is None or vocabulary is not None or len(tensor.shape) != 2:
        return vocabulary
    return tensor.shape[0]


def _check_map(draft: InspectedDraft, vocabulary: int | None, truncated: int | None) -> None:
    if "token_map" in draft.tensors:
        check_ids(
            draft,
            "token_map",
            vocabulary,
            truncated,
            said="config.json says truncated_vocab_size {size:,}",
        )
    elif draft.readable and None not in (vocabulary, truncated) and truncated != vocabulary:
        draft.wrong(
            f"config.json says truncated_vocab_size {truncated:,} of {vocabulary:,}, and there is "
            "no token_map.",
            "Export it again with token_map, or remove truncated_vocab_size.",
        )
