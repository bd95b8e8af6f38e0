"""A draft while it is looked at: its config, its tensors by their bare names, its vocabulary map,
and what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.inspect.checkpoint import VocabularyMap
from paceline.inspect.files import SHOWN, Files, HeaderError, Tensor, some

MAPS = ("d2t", "t2d", "token_map")
"""Tensors that are no weights."""


@dataclass(slots=True)
class InspectedDraft:
    """Files of which it is known what they are.

    config    of its layers: a speculators config has theirs nested, with the rest around it
    tensors   by bare names: without `model.`, the layer that EAGLE calls `midlayer` as `layers.0`
    found     what a family's module adds: fields of `Checkpoint`
    """

    files: Files
    kind: str
    format: str
    config: Mapping[str, Any]
    tensors: dict[str, Tensor]
    found: dict[str, Any] = field(default_factory=dict)

    def wrong(
        self, fact: str, hint: str, *, fatal: bool = True, stops: tuple[str, ...] = ()
    ) -> None:
        """Note a problem, as `Files.wrong` does."""
        self.files.wrong(fact, hint, fatal=fatal, stops=stops)

    def numbers(self, value: object) -> tuple[int, ...]:
        """An entry that lists whole numbers; nothing if it lists anything else."""
        if isinstance(value, list) and all(type(one) is int for one in value):
            return tuple(value)
        return ()

    @property
    def readable(self) -> bool:
        """Its tensors are known, so that one that isn't among them is missing."""
        return bool(self.tensors)

    @property
    def quantised(self) -> bool:
        """Weights are packed, so that their shapes say nothing about the model's."""
        return "quantization_config" in self.config or "compression_config" in self.config

    def number(self, *names: str) -> int | None:
        """The first of these entries of its config that is a count."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
        return None

    def nested(self, name: str) -> Mapping[str, Any]:
        """A mapping within its config; empty where there is none."""
        found = self.config.get(name)
        return found if isinstance(found, Mapping) else {}

    def need(self, *names: str, why: str = "") -> None:
        """Weights that it can't do without."""
        missing = [name for name in names if name not in self.tensors]
        if self.readable and missing:
            self.wrong(
                f"{'A weight is' if len(missing) == 1 else f'{len(missing)} weights are'} missing: "
                f"{some(missing)}{why}.",
                "Export the draft again, whole.",
            )

    def check_names(self) -> None:
        """vLLM puts `model.` before the names of these drafts, even before its own."""
        prefixed = [name for name in self.files.tensors if name.startswith("model.")]
        if prefixed:
            self.wrong(
                f"Its weights' names begin with model. ({prefixed[0]}), and vLLM looks for them "
                "without.",
                "Rename them, or export the draft again.",
                stops=("vllm",),
            )

    def expect(self, name: str, *shape: int | None, said: str) -> None:
        """A weight of this shape (None: any size there), if it is there; `said` is what in the
        config says so."""
        tensor = self.tensors.get(name)
        if tensor is None or self.quantised:
            return
        fits = len(tensor.shape) == len(shape) and all(
            wanted in (None, size) for size, wanted in zip(tensor.shape, shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            self.wrong(
                f"{tensor.name} has the shape {list(tensor.shape)}, and by {said} it should have "
                f"[{wanted}].",
                "Correct config.json, or export the draft again.",
            )

    def owner(self, name: str) -> str:
        """Whose weight of that name it drafts with."""
        return "own" if name in self.tensors else "target"

    def check_head(self, vocabulary: int | None, own: int | None, hidden: int | None) -> None:
        """The head [own, hidden], or none beside a target's that has as many rows."""
        if "lm_head.weight" in self.tensors:
            said = f"a draft vocabulary of {own} and hidden_size {hidden}"
            self.expect("lm_head.weight", own, hidden, said=said)
        elif self.readable and own is not None and vocabulary is not None and own != vocabulary:
            self.wrong(
                f"It brings no head (lm_head), and the target's has {vocabulary:,} rows, not its "
                f"own {own:,}.",
                "Export it again with lm_head.",
            )

    def layer_numbers(self) -> set[int]:
        """Of the transformer layers that it has weights of."""
        return {
            int(match[1])
            for name in self.tensors
            if (match := re.match(r"layers\.(\d{1,9})\.", name))
        }

    def check_layers(self) -> int | None:
        """Layers as its config counts them, held against its tensors."""
        said = self.number("num_hidden_layers")
        numbers = self.layer_numbers()
        if said is None:
            return len(numbers) or None
        if self.readable and (len(numbers), max(numbers, default=-1) + 1) != (said, said):
            self.wrong(
                f"config.json says num_hidden_layers {said}, and the weights have "
                f"{_layers(numbers)}.",
                "Correct config.json, or export the draft again.",
            )
        return said


def _layers(numbers: set[int]) -> str:
    if not numbers:
        return "no layers"
    if numbers == set(range(len(numbers))):
        return f"{len(numbers)}"
    return f"layers {', '.join(map(str, sorted(numbers)[:SHOWN]))}"


def bare(name: str) -> str:
    """A tensor's name without `model.`, the layer that EAGLE calls `midlayer` as `layers.0`."""
    name = name.removeprefix("model.")
    return name.replace("midlayer.", "layers.0.", 1) if name.startswith("midlayer.") else name


def measures(files: Files) -> dict[str, Any]:
    """Parameters, bytes and type of a draft's weights."""
    weights = [tensor for name, tensor in files.tensors.items() if bare(name) not in MAPS]
    types: Counter[str] = Counter()
    for tensor in weights:
        types[tensor.dtype] += tensor.bytes
    return {
        "bytes": files.bytes,
        "parameters": sum(tensor.entries for tensor in weights) if weights else None,
        "dtype": types.most_common(1)[0][0] if types else None,
    }


MOST_ENTRIES = 4_000_000
"""Entries of a map that is read; no vocabulary has as many."""


def check_offsets(
    draft: InspectedDraft, vocabulary: int | None, draft_vocabulary: int | None
) -> None:
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
    found = described("d2t", "offset", ids, marked)
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


def check_ids(
    draft: InspectedDraft, name: str, vocabulary: int | None, size: int | None, said: str
) -> None:
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
    found = described(name, "ids", ids)
    draft.found["map"] = found
    _check_ids(draft, found, vocabulary)


def _without_map(
    draft: InspectedDraft, vocabulary: int | None, draft_vocabulary: int | None
) -> None:
    if not draft.readable or vocabulary is None or draft_vocabulary is None:
        return
    if draft_vocabulary < vocabulary:
        draft.wrong(
            f"It has {draft_vocabulary:,} tokens of the target's {vocabulary:,} and no map (d2t): "
            "its ids would be taken for the target's, and next to nothing accepted.",
            "Export it again with d2t.",
        )


def _integers(draft: InspectedDraft, tensor: Tensor) -> np.ndarray | None:
    if not tensor.dtype.startswith(("int", "uint")) or len(tensor.shape) != 1:
        draft.wrong(
            f"The map {tensor.name} is {tensor.dtype} {list(tensor.shape)}, not a row of integers.",
            "Export it again as int64.",
        )
        return None
    if not 0 < tensor.entries <= MOST_ENTRIES:
        draft.wrong(f"The map {tensor.name} has {tensor.entries:,} entries.", "Export it again.")
        return None
    try:
        return tensor.values().astype(np.int64)
    except (HeaderError, OSError) as error:
        draft.wrong(f"The map {tensor.name} can't be read: {error}.", "Fetch the file again.")
        return None


def _marked(draft: InspectedDraft, vocabulary: int | None) -> np.ndarray | None:
    """t2d as true and false; no engine reads it, so one that can't be read is only mentioned."""
    tensor = draft.tensors.get("t2d")
    if tensor is None or len(tensor.shape) != 1 or tensor.entries > MOST_ENTRIES:
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


def described(
    name: str, form: str, ids: np.ndarray, marked: np.ndarray | None = None
) -> VocabularyMap:
    """What a map is: `ids` [draft tokens], the target's ids; `marked` [target tokens], t2d."""
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


def _check_ids(draft: InspectedDraft, found: VocabularyMap, vocabulary: int | None) -> None:
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
