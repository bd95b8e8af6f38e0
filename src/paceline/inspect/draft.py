"""A draft while it is looked at: its config, its tensors by their bare names, and what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.inspect.files import SHOWN, Files, some
from paceline.inspect.safetensors_header import Tensor

MAPS = ("d2t", "t2d", "token_map")
"""Tensors that are no weights."""


@dataclass(slots=True)
class Draft:
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

    def layer_numbers(self) -> set[int]:
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
