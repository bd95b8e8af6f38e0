"""Models that could decode by themselves: draft models, and targets with MTP layers."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from paceline.errors import DataError
from paceline.inspect.draft import InspectedDraft, described
from paceline.storage import decode_struct

MAP_FILE, MAP_KIND, MAP_VERSION = "vocabulary_map.json", "paceline vocabulary map", 1
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
    named = bool(draft.layer_numbers())
    draft.sizes |= {
        "hidden_size": draft.number("hidden_size", "n_embd", "d_model"),
        "target_hidden_size": None,
        "aux_count": None,
    }
    layers = draft.check_layers() if named else draft.number("num_hidden_layers", "n_layer")
    # transformers ties unless a config says otherwise.
    tied = draft.config.get("tie_word_embeddings", True) is not False or not named
    head = "own" if "lm_head.weight" in draft.tensors else "tied" if tied else "none"
    draft.found |= {"layers": layers, "embedding": "own", "head": head}
    if not draft.quantised:
        draft.check_weights("model")
        if named:
            draft.need("embed_tokens.weight")
        if head == "none":
            draft.note("model.no_head")
    _read_map(draft)


def check_mtp(draft: InspectedDraft) -> None:
    """Layers that predict further tokens, within a target's checkpoint or by themselves."""
    count = draft.number(*PREDICTED)
    draft.found |= {"layers": count, "proposal_tokens": count}
    if not count:
        draft.note("mtp.no_count", names=", ".join(PREDICTED[:2]))
    if draft.readable and not any(map(is_mtp, draft.tensors)):
        draft.note("mtp.no_weights")


def is_mtp(name: str) -> bool:
    """A tensor of an MTP layer, by the names that checkpoints use: `mtp.…`, and DeepSeek's."""
    parts = (".mtp", "eh_proj", "input_proj.weight", ".enorm.", ".hnorm.")
    return name.startswith("mtp") or any(part in name for part in parts)


class _MapFile(msgspec.Struct):
    ids: list[Annotated[int, msgspec.Meta(ge=-1)]]
    target_tokens: int | None = None


def _read_map(draft: InspectedDraft) -> None:
    """The map of a draft whose vocabulary was cut; -1 stands for a token that the target lacks."""
    path = draft.files.path / MAP_FILE
    if not path.is_file():
        return
    try:
        data = path.read_bytes()
        read = decode_struct(data, _MapFile, MAP_FILE, "", kind=MAP_KIND, version=MAP_VERSION)
    except DataError as error:
        draft.note("vocabulary.unread", error=error.fact)
        return
    ids = np.array([one for one in read.ids if one >= 0])
    if not len(ids):
        draft.note("vocabulary.empty", name=MAP_FILE)
        return
    found = draft.found["map"] = described(MAP_FILE, "ids", ids)
    rows, size = draft.sizes["vocab_size"], read.target_tokens
    if rows is not None and len(read.ids) != rows:
        draft.note("vocabulary.length", name=MAP_FILE, found=len(read.ids), size=rows)
    if not found.distinct:
        draft.note("vocabulary.twice", name=MAP_FILE)
    if size is not None:
        draft.sizes["vocab_size"] = size
        if found.highest >= size:
            draft.note("vocabulary.range", name=MAP_FILE, highest=found.highest, size=size)
