"""A draft while it is looked at: its config, its tensors by their bare names, its vocabulary map,
and what is wrong."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from paceline.inspect.checkpoint import VocabularyMap, read_table
from paceline.inspect.files import SHOWN, Files, HeaderError, Tensor, some

MAPS = ("d2t", "t2d", "token_map")
"""Tensors that are no weights."""


class WeightRule(msgspec.Struct, frozen=True):
    """A weight that drafts of a family have.

    shape      outermost first: products of numbers and of names in `InspectedDraft.sizes`; empty
               where any size is right
    said       what a message adds to the sizes, with room for them
    needed     it must be there, with the reason in a message; None where it needn't
    refused    the problem that it is where it is there
    """

    shape: tuple[str, ...] = ()
    said: str = ""
    needed: str | None = None
    refused: str | None = None


WEIGHTS = read_table("weights", dict[str, dict[str, WeightRule]])
"""By family and bare name."""


@dataclass(slots=True)
class InspectedDraft:
    """Files of which it is known what they are.

    config    of its layers: a speculators config has theirs nested, with the rest around it
    tensors   by bare names: without `model.`, the layer that EAGLE calls `midlayer` as `layers.0`
    sizes     by the names that configs use; `aux_count` is how many of the target's states it reads
    found     what a family's module adds: fields of `Checkpoint`
    """

    files: Files
    kind: str
    format: str
    config: Mapping[str, Any]
    tensors: dict[str, Tensor]
    sizes: dict[str, int | None] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)

    def note(self, problem: str, *, fatal: bool | None = None, **values: object) -> None:
        """Note a problem, as `Files.note` does."""
        self.files.note(problem, fatal=fatal, **values)

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
            if type(value) is int and value >= 0:
                return value
        return None

    def nested(self, name: str) -> Mapping[str, Any]:
        """A mapping within its config; empty where there is none."""
        found = self.config.get(name)
        return found if isinstance(found, Mapping) else {}

    def need(self, *names: str, why: str = "") -> None:
        """Note which of these weights are missing."""
        missing = [name for name in names if name not in self.tensors]
        if self.readable and missing:
            count = "A weight is" if len(missing) == 1 else f"{len(missing)} weights are"
            self.note("weights.missing", count=count, names=some(missing), why=why)

    def check_names(self) -> None:
        """vLLM puts `model.` before the names of these drafts, even before its own."""
        prefixed = [name for name in self.files.tensors if name.startswith("model.")]
        if prefixed:
            self.note("weights.prefix", name=prefixed[0])

    def check_weights(self, *families: str) -> None:
        """Hold the weights against the tables of these families."""
        rules = {name: rule for family in families for name, rule in WEIGHTS[family].items()}
        for why in dict.fromkeys(rule.needed for rule in rules.values()):
            if why is not None:
                self.need(*(name for name, rule in rules.items() if rule.needed == why), why=why)
        for name, rule in rules.items():
            if rule.refused is not None and name in self.tensors:
                self.note(rule.refused)
            if rule.shape:
                self.expect(name, *rule.shape, said=rule.said)

    def expect(self, name: str, *shape: str, said: str = "") -> None:
        """Hold a weight against a shape, both as `WeightRule` has them, where it is there."""
        tensor = self.tensors.get(name)
        if tensor is None or self.quantised:
            return
        wanted = [self._product(term) for term in shape]
        fits = len(tensor.shape) == len(shape) and all(
            size in (None, found) for size, found in zip(wanted, tensor.shape, strict=True)
        )
        if not fits:
            terms = dict.fromkeys(" ".join(shape).split())
            named = [f"{term} {self.sizes[term]}" for term in terms if term in self.sizes]
            named = [one for one in named if not one.startswith("aux_count")]
            self.note(
                "weights.shape",
                name=tensor.name,
                shape=list(tensor.shape),
                said=" and ".join(named) + said.format(**self.sizes),
                wanted=", ".join("any" if size is None else str(size) for size in wanted),
            )

    def _product(self, term: str) -> int | None:
        factors = [int(one) if one.isdigit() else self.sizes.get(one) for one in term.split()]
        return math.prod(one or 0 for one in factors) if factors and None not in factors else None

    def owner(self, name: str) -> str:
        """Whose weight of that name it drafts with."""
        return "own" if name in self.tensors else "target"

    def check_head(self) -> None:
        """Without a head of its own it uses the target's, which must have as many rows."""
        own, vocabulary = self.sizes["draft_vocab_size"], self.sizes["vocab_size"]
        lacking = self.readable and "lm_head.weight" not in self.tensors
        if lacking and None not in (own, vocabulary) and own != vocabulary:
            self.note("weights.no_head", vocabulary=vocabulary, own=own)

    def layer_numbers(self) -> set[int]:
        """Of the transformer layers that it has weights of."""
        found = (re.match(r"layers\.(\d{1,9})\.", name) for name in self.tensors)
        return {int(match[1]) for match in found if match}

    def check_layers(self) -> int | None:
        """Layers as its config counts them, held against its tensors."""
        said = self.number("num_hidden_layers")
        numbers = self.layer_numbers()
        if said is None:
            return len(numbers) or None
        if self.readable and (len(numbers), max(numbers, default=-1) + 1) != (said, said):
            found = f"layers {', '.join(map(str, sorted(numbers)[:SHOWN]))}"
            if numbers == set(range(len(numbers))):
                found = str(len(numbers) or "no layers")
            self.note("weights.layers", said=said, found=found)
        return said


def numbers(value: object) -> tuple[int, ...]:
    """An entry of a config that lists whole numbers; nothing if it lists anything else."""
    if isinstance(value, list) and all(type(one) is int for one in value):
        return tuple(value)
    return ()


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


def check_offsets(draft: InspectedDraft) -> None:
    """d2t with target_id = draft_id + d2t[draft_id], and t2d, which marks the same tokens; puts
    `map` into what was found."""
    vocabulary, own = draft.sizes["vocab_size"], draft.sizes["draft_vocab_size"]
    if "d2t" not in draft.tensors:
        if draft.readable and None not in (vocabulary, own) and (own or 0) < (vocabulary or 0):
            draft.note("map.none", own=own, vocabulary=vocabulary)
        return
    offsets = _integers(draft, "d2t", own, "config.json says draft_vocab_size {size:,}")
    if offsets is None:
        return
    ids = np.arange(len(offsets)) + offsets
    marked = _marked(draft, vocabulary)
    found = draft.found["map"] = described("d2t", "offset", ids, marked)
    if _are_ids(offsets, ids, vocabulary, marked):
        draft.note("map.ids")
        return
    _check_ids(draft, found, vocabulary)
    if found.agrees is False:
        draft.note("map.marks", marked=0 if marked is None else int(marked.sum()), size=found.size)


def check_ids(
    draft: InspectedDraft, name: str, vocabulary: int | None, size: int | None, said: str
) -> None:
    """A map of ids themselves (Medusa's token_map, d2t of GGUF); puts `map` into what was found.

    size, said    draft tokens, and what says so, with `{size}`
    """
    ids = _integers(draft, name, size, said)
    if ids is not None:
        draft.found["map"] = described(name, "ids", ids)
        _check_ids(draft, draft.found["map"], vocabulary)


def _integers(draft: InspectedDraft, name: str, size: int | None, said: str) -> np.ndarray | None:
    """The entries of a map, which should be `size`."""
    tensor = draft.tensors[name]
    if not tensor.dtype.startswith(("int", "uint")) or len(tensor.shape) != 1:
        draft.note("map.type", name=tensor.name, dtype=tensor.dtype, shape=list(tensor.shape))
        return None
    if not 0 < tensor.entries <= MOST_ENTRIES:
        draft.note("map.entries", name=tensor.name, entries=tensor.entries)
        return None
    try:
        found = tensor.values().astype(np.int64)
    except (HeaderError, OSError) as error:
        draft.note("map.unread", name=tensor.name, error=error)
        return None
    if size is not None and len(found) != size:
        draft.note("map.length", name=name, found=len(found), said=said.format(size=size))
    return found


def _marked(draft: InspectedDraft, vocabulary: int | None) -> np.ndarray | None:
    """t2d as true and false; no engine reads it, so one that can't be read is only mentioned."""
    tensor = draft.tensors.get("t2d")
    if tensor is None or len(tensor.shape) != 1 or tensor.entries > MOST_ENTRIES:
        return None
    if vocabulary is not None and tensor.entries != vocabulary:
        draft.note("map.t2d", entries=tensor.entries, vocabulary=vocabulary)
    try:
        return np.asarray(tensor.values() != 0)
    except (HeaderError, OSError, TypeError):
        return None


def described(
    name: str, form: str, ids: np.ndarray, marked: np.ndarray | None = None
) -> VocabularyMap:
    """What a map is: `ids`, shape (draft tokens,), the target's ids; `marked`, shape
    (target tokens,), t2d."""
    distinct = len(np.unique(ids))
    agrees = None
    if marked is not None:
        inside = ids[(ids >= 0) & (ids < len(marked))]
        agrees = bool(len(inside) == len(ids) == marked.sum() == distinct and marked[inside].all())
    return VocabularyMap(
        name,
        len(ids),
        form,
        int(ids.min()),
        int(ids.max()),
        distinct=distinct == len(ids),
        rising=bool((np.diff(ids) > 0).all()),
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
    name, lowest, highest = found.name, found.lowest, found.highest
    if lowest < 0 or (vocabulary is not None and highest >= vocabulary):
        ids = "ids from 0" if vocabulary is None else f"0 to {vocabulary - 1:,}"
        draft.note("map.range", name=name, lowest=lowest, highest=highest, ids=ids)
    if not found.distinct:
        draft.note("map.twice", name=name)
