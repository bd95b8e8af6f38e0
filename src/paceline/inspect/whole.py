"""Models that could decode by themselves: draft models, and targets with MTP layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.inspect.draft import InspectedDraft, described

MAP_FILE, MAP_KIND = "vocabulary_map.json", "paceline vocabulary map"
"""What `paceline derive` writes beside a draft whose vocabulary it cut."""

PREDICTED = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "num_mtp_modules",
)


def check_model(draft: InspectedDraft) -> None:
    """A language model of its own. Names of other families than Llama's differ, so that what isn't
    found under a known name isn't called missing."""
    hidden = draft.number("hidden_size", "n_embd", "d_model")
    vocabulary = draft.number("vocab_size")
    draft.found |= {
        "hidden_size": hidden,
        "vocabulary_size": vocabulary,
        "draft_vocabulary_size": vocabulary,
        "layers": _layers(draft),
        "embedding": "own",
        "head": _head(draft),
    }
    _read_map(draft)
    if draft.quantised:
        return
    for name in ("embed_tokens.weight", "lm_head.weight"):
        draft.expect(
            name, vocabulary, hidden, said=f"vocab_size {vocabulary} and hidden_size {hidden}"
        )
    if draft.layer_numbers() and "embed_tokens.weight" not in draft.tensors:
        draft.need("embed_tokens.weight")
    if draft.found["head"] == "none":
        draft.wrong(
            "It brings no head (lm_head), and config.json says that the embedding isn't one.",
            'Set "tie_word_embeddings": true if it was trained so, or export it again.',
        )


def check_mtp(draft: InspectedDraft) -> None:
    """Layers that predict further tokens, within a target's checkpoint or by themselves."""
    count = draft.number(*PREDICTED)
    draft.found |= {
        "hidden_size": draft.number("hidden_size"),
        "target_hidden_size": draft.number("hidden_size"),
        "vocabulary_size": draft.number("vocab_size"),
        "draft_vocabulary_size": draft.number("vocab_size"),
        "layers": count,
        "aux_count": 1,
        "proposal_tokens": count,
        "embedding": draft.owner("embed_tokens.weight"),
        "head": draft.owner("lm_head.weight"),
    }
    if not count:
        draft.wrong(
            f"config.json counts no MTP layers ({', '.join(PREDICTED[:2])}).",
            "Correct config.json; without it engines load none.",
        )
    if draft.readable and not any(map(is_mtp, draft.tensors)):
        draft.wrong(
            "config.json counts MTP layers, and the weights hold none.",
            "Fetch the checkpoint that has them; many copies leave them out.",
        )


def is_mtp(name: str) -> bool:
    """A tensor of an MTP layer, by the names that checkpoints use: `mtp.…`, and DeepSeek's."""
    return (
        name.startswith("mtp")
        or ".mtp" in name
        or any(part in name for part in ("eh_proj", "input_proj.weight", ".enorm.", ".hnorm."))
    )


def _layers(draft: InspectedDraft) -> int | None:
    if draft.layer_numbers():
        return draft.check_layers()
    return draft.number("num_hidden_layers", "n_layer")


def _head(draft: InspectedDraft) -> str:
    if "lm_head.weight" in draft.tensors:
        return "own"
    # transformers ties unless a config says otherwise.
    if draft.config.get("tie_word_embeddings", True) is not False or not draft.layer_numbers():
        return "tied"
    return "none"


def _read_map(draft: InspectedDraft) -> None:
    path = draft.files.path / MAP_FILE
    if not path.is_file():
        return
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        draft.wrong(f"{MAP_FILE} can't be read: {error}.", "Derive the draft again.")
        return
    ids: Any = document.get("ids") if isinstance(document, Mapping) else None
    whole = isinstance(ids, list) and all(type(one) is int for one in ids)
    if not whole or max(ids, default=-1) < 0 or document.get("kind") != MAP_KIND:
        draft.wrong(f"{MAP_FILE} is not a vocabulary map.", "Derive the draft again.")
        return
    found = described(MAP_FILE, "ids", np.array([one for one in ids if one >= 0]))
    vocabulary = draft.number("vocab_size")
    if vocabulary is not None and len(ids) != vocabulary:
        draft.wrong(
            f"{MAP_FILE} has {len(ids):,} entries, and config.json says vocab_size {vocabulary:,}.",
            "Derive the draft again.",
        )
    size = document.get("target_tokens")
    if isinstance(size, int) and found.highest >= size:
        draft.wrong(
            f"{MAP_FILE} leads to id {found.highest:,}, and the target has {size:,} tokens.",
            "Derive the draft again.",
        )
    if not found.distinct:
        draft.wrong(f"{MAP_FILE} leads two draft tokens to one of the target.", "Derive it again.")
    draft.found["map"] = found
    if isinstance(size, int):
        draft.found["vocabulary_size"] = size
