"""Drafts that fill a block of masked positions in one pass: DFlash, DFlash 2, DSpark and XPress.

Config keys as vLLM 0.32 (`qwen3_dflash.py`, `qwen3_dspark.py`, `eagle3_utils.py`), SGLang 0.5.23
(`dflash_utils.py`) and speculators 0.9 (`models/dflash/config.py`) have them.
"""

from __future__ import annotations

from paceline.inspect.draft import InspectedDraft, check_offsets


def check_block(draft: InspectedDraft) -> None:
    """The target's layers that it takes in, block size, mask, projection, head and map."""
    hidden = draft.number("hidden_size")
    vocabulary = draft.number("vocab_size")
    draft_vocabulary = draft.number("draft_vocab_size") or vocabulary
    target_hidden = draft.number("target_hidden_size") or hidden
    layers = draft.check_layers()
    aux = _aux(draft)
    count = len(aux) or layers or 0
    size = draft.number("block_size")
    if size is None:
        size = _integer(draft, "block_size")
    draft.found |= {
        "hidden_size": hidden,
        "target_hidden_size": target_hidden,
        "vocabulary_size": vocabulary,
        "draft_vocabulary_size": draft_vocabulary,
        "layers": layers,
        "aux_layers": aux,
        "aux_count": count,
        "proposal_tokens": _proposals(draft, size),
        "embedding": draft.owner("embed_tokens.weight"),
        "head": draft.owner("lm_head.weight"),
    }
    draft.check_names()
    _check_config(draft, aux, size)
    draft.need("fc.weight", "hidden_norm.weight", "norm.weight")
    if None not in (hidden, target_hidden) and count:
        draft.expect(
            "fc.weight",
            hidden,
            count * (target_hidden or 0),
            said=f"{count} of the target's states of {target_hidden} and hidden_size {hidden}",
        )
    if "mask_hidden" in draft.tensors:
        draft.wrong(
            "It has a mask_hidden, which only P-EAGLE has: vLLM stops at it.",
            "Remove it, or correct the architecture.",
            stops=("vllm",),
        )
    draft.check_head(vocabulary, draft_vocabulary, hidden)
    check_offsets(draft, vocabulary, draft_vocabulary)
    if draft.kind == "dspark":
        _check_markov(draft, vocabulary, draft_vocabulary)


def _integer(draft: InspectedDraft, name: str) -> int | None:
    value = draft.nested("dflash_config").get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _aux(draft: InspectedDraft) -> tuple[int, ...]:
    """The target's layers as the target counts its outputs: layer 1 is its first layer's."""
    listed = draft.numbers(draft.config.get("aux_hidden_state_layer_ids"))
    if listed:
        return listed
    nested = draft.nested("dflash_config").get("target_layer_ids")
    before = draft.numbers(nested) or draft.numbers(draft.config.get("target_layer_ids"))
    return tuple(number + 1 for number in before)


def _proposals(draft: InspectedDraft, size: int | None) -> int | None:
    """A block's first position holds the token that is known, unless it is drafted from too."""
    if size is None:
        return None
    default = draft.kind == "dspark" and draft.format == "transformers"
    anchored = draft.config.get("sample_from_anchor", default)
    return size if anchored else size - 1


def _check_config(draft: InspectedDraft, aux: tuple[int, ...], size: int | None) -> None:
    mask = draft.number("mask_token_id", "pard_token") or _integer(draft, "mask_token_id")
    if mask is None:
        draft.wrong(
            "config.json names no mask_token_id, which stands at the positions to fill.",
            "Add it as it was trained.",
        )
    if not aux:
        draft.wrong(
            "config.json doesn't say which of the target's layers it takes in (target_layer_ids).",
            "Add it as it was trained.",
            fatal=draft.format == "speculators",
        )
    proposed = _proposals(draft, size)
    if proposed is not None and proposed < 1:
        draft.wrong(
            f"config.json says block_size {size}, which leaves no position to fill.",
            "Correct it as it was trained.",
        )
    if size is None:
        draft.wrong(
            "config.json doesn't say block_size; SGLang takes 16 for granted.",
            "Add it as it was trained, or set the length where it is served.",
            fatal=False,
        )


def _check_markov(
    draft: InspectedDraft, vocabulary: int | None, draft_vocabulary: int | None
) -> None:
    """The low-rank bias from the token before: [vocabulary, rank] and [draft vocabulary, rank]."""
    rank = draft.number("markov_rank")
    if rank == 0:
        return
    draft.need("markov_head.markov_w1.weight", "markov_head.markov_w2.weight")
    said = f"markov_rank {rank}"
    draft.expect("markov_head.markov_w1.weight", vocabulary, rank, said=said)
    draft.expect("markov_head.markov_w2.weight", draft_vocabulary, rank, said=said)
