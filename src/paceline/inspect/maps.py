"""The map from a draft's vocabulary to its target's: is it one?"""

from __future__ import annotations

import numpy as np

from paceline.inspect.checkpoint import VocabularyMap
from paceline.inspect.draft import Draft
from paceline.inspect.safetensors_header import HeaderError, Tensor

MOST = 4_000_000
"""Entries of a map that is read; no vocabulary has as many."""


def check_offsets(draft: Draft, vocabulary: int | None, draft_vocabulary: int | None) -> None:
    """d2t with target_id = draft_id + d2t[draft_id], and t2d, which marks the same tokens; puts
    `map` into what was found.

    vocabulary          target tokens, as the config says
    draft_vocabulary    draft tokens, likewise
    """
    tensor = draft.tensors.get("d2t")
    if tensor is None:
        _without_map(draft, vocabulary, draft_vocabulary)
        return
    offsets = _integers(draft, tensor)
    if offsets is None:
        return
    if draft_vocabulary is not None and len(offsets) != draft_vocabulary:
        draft.wrong(
            f"The map d2t has {len(offsets):,} entries, and config.json says draft_vocab_size "
            f"{draft_vocabulary:,}.",
            "Correct config.json, or export the draft again.",
        )
    ids = np.arange(len(offsets)) + offsets
    marked = _marked(draft, vocabulary)
    found = _described("d2t", "offset", ids, marked)
    draft.found["map"] = found
    if _are_ids(offsets, ids, vocabulary, marked):
        draft.wrong(
            "The map d2t holds target ids, and every engine adds it to the draft's own ids: "
            "target_id = draft_id + d2t[draft_id].",
            "Store ids - arange(draft_vocab_size) instead.",
        )
        return
    _check_ids(draft, found, vocabulary)
    if found.agrees is False:
        draft.wrong(
            f"The map t2d marks {int(marked.sum()) if marked is not None else 0:,} target tokens, "
            f"and they aren't the {found.size:,} that d2t leads to.",
            "Export both maps again, from one vocabulary.",
        )


def check_ids(draft: Draft, name: str, vocabulary: int | None, size: int | None, said: str) -> None:
    """A map of ids themselves (Medusa's token_map, d2t of GGUF); puts `map` into what was found.

    size, said    draft tokens, and what says so, with `{size}`
    """
    ids = _integers(draft, draft.tensors[name])
    if ids is None:
        return
    if size is not None and len(ids) != size:
        draft.wrong(
            f"The map {name} has {len(ids):,} entries, and {said.format(size=size)}.",
            "Export the draft again, map and head from one vocabulary.",
        )
    found = _described(name, "ids", ids, None)
    draft.found["map"] = found
    _check_ids(draft, found, vocabulary)


def _without_map(draft: Draft, vocabulary: int | None, draft_vocabulary: int | None) -> None:
    if not draft.readable or vocabulary is None or draft_vocabulary is None:
        return
    if draft_vocabulary < vocabulary:
        draft.wrong(
            f"It has {draft_vocabulary:,} tokens of the target's {vocabulary:,} and no map (d2t): "
            "its ids would be taken for the target's, and next to nothing accepted.",
            "Export it again with d2t.",
        )


def _integers(draft: Draft, tensor: Tensor) -> np.ndarray | None:
    if not tensor.dtype.startswith(("int", "uint")) or len(tensor.shape) != 1:
        draft.wrong(
            f"The map {tensor.name} is {tensor.dtype} {list(tensor.shape)}, not a row of integers.",
            "Export it again as int64.",
        )
        return None
    if not 0 < tensor.entries <= MOST:
        draft.wrong(f"The map {tensor.name} has {tensor.entries:,} entries.", "Export it again.")
        return None
    try:
        return tensor.values().astype(np.int64)
    except (HeaderError, OSError) as error:
        draft.wrong(f"The map {tensor.name} can't be read: {error}.", "Fetch the file again.")
        return None


def _marked(draft: Draft, vocabulary: int | None) -> np.ndarray | None:
    """t2d as true and false; no engine reads it, so one that can't be read is only mentioned."""
    tensor = draft.tensors.get("t2d")
    if tensor is None or len(tensor.shape) != 1 or tensor.entries > MOST:
        return None
    if vocabulary is not None and tensor.entries != vocabulary:
        draft.wrong(
            f"The map t2d has {tensor.entries:,} entries, and config.json says vocab_size "
            f"{vocabulary:,}.",
            "Check what the draft was trained for; engines don't read t2d.",
            fatal=False,
        )
    try:
        return np.asarray(tensor.values() != 0)
    except (HeaderError, OSError, TypeError):
        return None


def _described(name: str, form: str, ids: np.ndarray, marked: np.ndarray | None) -> VocabularyMap:
    agrees = None
    if marked is not None:
        inside = ids[(ids >= 0) & (ids < len(marked))]
        agrees = bool(
            len(inside) == len(ids) == marked.sum() == len(np.unique(ids)) and marked[inside].all()
        )
    steps = np.diff(ids)
    return VocabularyMap(
        name,
        len(ids),
        form,
        int(ids.min()),
        int(ids.max()),
        distinct=len(np.unique(ids)) == len(ids),
        rising=bool((steps > 0).all()),
        agrees=agrees,
    )


def _are_ids(
    offsets: np.ndarray, ids: np.ndarray, vocabulary: int | None, marked: np.ndarray | None
) -> bool:
    """The entries are ids that were stored as they are: alone they are a map, added they aren't."""
    if not (np.diff(offsets) > 0).all() or offsets[0] < 0 or len(offsets) < 2:
        return False
    if marked is not None and offsets[-1] < len(marked):
        return bool(marked[offsets].all()) and not (
            ids[-1] < len(marked) and bool(marked[ids].all())
        )
    return vocabulary is not None and bool(offsets[-1] < vocabulary <= ids[-1])


def _check_ids(draft: Draft, found: VocabularyMap, vocabulary: int | None) -> None:
    if found.lowest < 0 or (vocabulary is not None and found.highest >= vocabulary):
        draft.wrong(
            f"The map {found.name} leads to ids {found.lowest:,} to {found.highest:,}, and the "
            f"target has {'ids from 0' if vocabulary is None else f'0 to {vocabulary - 1:,}'}.",
            "Export it again for this target's vocabulary.",
        )
    if not found.distinct:
        draft.wrong(
            f"The map {found.name} leads two draft tokens to one target token.",
            "Export it again: one draft token for each target token.",
        )
