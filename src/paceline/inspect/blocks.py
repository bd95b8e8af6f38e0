"""Drafts that fill a block of masked positions in one pass: DFlash, DFlash 2, DSpark and XPress.

Config keys as vLLM 0.32 (`qwen3_dflash.py`, `qwen3_dspark.py`, `eagle3_utils.py`), SGLang 0.5.23
(`dflash_utils.py`) and speculators 0.9 (`models/dflash/config.py`) have them.
"""

from __future__ import annotations

from paceline.inspect.draft import InspectedDraft, check_offsets, numbers


def check_block(draft: InspectedDraft) -> None:
    """The target's layers that it reads, block size, mask, projection, head and map."""
    sizes = draft.sizes
    layers, aux = draft.check_layers(), _aux(draft)
    sizes |= {
        "draft_vocab_size": draft.number("draft_vocab_size") or sizes["vocab_size"],
        "target_hidden_size": draft.number("target_hidden_size") or sizes["hidden_size"],
        "aux_count": len(aux) or layers or None,
        "markov_rank": draft.number("markov_rank"),
    }
    size = _number(draft, "block_size")
    proposed = None if size is None else _proposals(draft, size)
    draft.found |= {"layers": layers, "aux_layers": aux, "proposal_tokens": proposed}
    draft.check_names()
    if _number(draft, "mask_token_id") is None and draft.number("pard_token") is None:
        draft.note("block.mask_token")
    if not aux:
        draft.note("block.target_layers", fatal=draft.format == "speculators")
    if size is None:
        draft.note("block.no_size")
    elif proposed is not None and proposed < 1:
        draft.note("block.too_short", size=size)
    # DSpark adds a low-rank bias from the token before, unless its rank is 0.
    biased = draft.kind == "dspark" and sizes["markov_rank"] != 0
    draft.check_weights("block", *(("dspark",) if biased else ()))
    draft.check_head()
    check_offsets(draft)


def _number(draft: InspectedDraft, name: str) -> int | None:
    """A count of the config, or of its dflash_config."""
    value = draft.nested("dflash_config").get(name)
    found = draft.number(name)
    return value if found is None and type(value) is int else found


def _aux(draft: InspectedDraft) -> tuple[int, ...]:
    """The target's layers as the target counts its outputs: layer 1 is its first layer's."""
    listed = numbers(draft.config.get("aux_hidden_state_layer_ids"))
    if listed:
        return listed
    nested = draft.nested("dflash_config").get("target_layer_ids")
    before = numbers(nested) or numbers(draft.config.get("target_layer_ids"))
    return tuple(number + 1 for number in before)


def _proposals(draft: InspectedDraft, size: int) -> int:
    """A block's first position holds the token that is known, unless it is drafted from too."""
    default = draft.kind == "dspark" and draft.format == "transformers"
    return size if draft.config.get("sample_from_anchor", default) else size - 1
