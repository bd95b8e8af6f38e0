"""Fewer layers: which ones, and a config that says what is left.

A model without some of its layers is the oldest draft there is (Zhang et al. 2023, Draft & Verify,
arXiv:2309.08168, skips them in place); here they are left out for good.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from paceline.errors import ModelError, SettingError

COUNTED_FROM_THE_START = ("max_window_layers", "first_k_dense_replace")
"""Config fields that say how many of the first layers are of one kind."""
INDEX_LISTS = ("mlp_only_layers", "moe_layers")
"""Config fields that list layers of one kind by index."""
PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval")
"""Config fields that repeat what a list says of each layer; a gap breaks the period."""


def chosen_layers(count: int, layers: str | None = None, keep: int | None = None) -> list[int]:
    """The layers that stay, ascending.

    count     layers of the target
    layers    numbers and ranges, from 0, ends included: "0-7,27"
    keep      so many of the first ones
    Without either: the first half, rounded up.

    Raises SettingError for layers that the target hasn't, none, or the same one twice.
    """
    if layers is not None and keep is not None:
        raise SettingError("Both layers and a number to keep are given.", "Leave one of them out.")
    if layers is None:
        keep = math.ceil(count / 2) if keep is None else keep
        if not 1 <= keep <= count:
            raise SettingError(f"{keep} layers are to be kept of {count}.", f"Keep 1 to {count}.")
        return list(range(keep))
    numbers = [number for part in layers.split(",") for number in _range(layers, part.strip())]
    for number in numbers:
        if number >= count:
            raise SettingError(
                f"Layer {number} is named, and the target has {count}.",
                f"Its layers are 0 to {count - 1}.",
            )
        if numbers.count(number) > 1:
            raise SettingError(f"Layer {number} is named twice.", "Name it once.")
    return sorted(numbers)


def _range(layers: str, part: str) -> list[int]:
    found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
    numbers = list(range(int(found[1]), int(found[2] or found[1]) + 1)) if found else []
    if not numbers:
        raise SettingError(
            f"The layers are {layers!r}.", "Write numbers and ranges from 0 on, as in 0-7,27."
        )
    return numbers


def layer_count(target: str, config: Any) -> int:
    """How many layers a model has, by its config. Raises ModelError where it isn't said."""
    if config.get_text_config(decoder=True) is not config:
        raise ModelError(
            f"{target} is a {config.model_type} model, which is made of more than text layers.",
            "Use a model of text only.",
        )
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(count, int) or count < 1:
        raise _unlisted(target, config)
    return count


def layers_of(target: str, model: Any) -> Any:
    """The list of a model's layers. Raises ModelError where there isn't just one of the length
    that the config gives."""
    found = [
        part
        for part in model.get_decoder().children()
        if isinstance(part, torch.nn.ModuleList) and len(part) == model.config.num_hidden_layers
    ]
    if len(found) != 1:
        raise _unlisted(target, model.config)
    return found[0]


def _unlisted(target: str, config: Any) -> ModelError:
    return ModelError(
        f"The layers of {target}, a {config.model_type} model, can't be listed.",
        "Use a model that keeps its layers in one list.",
    )


def config_with(config: Any, kept: Sequence[int]) -> Any:
    """A model's config for some of its layers: the fields that go by layer follow them."""
    count = config.num_hidden_layers
    given = config.to_dict()
    fields = copy.deepcopy(given)
    fields["num_hidden_layers"] = len(kept)
    for name in COUNTED_FROM_THE_START:
        if isinstance(given.get(name), int):
            fields[name] = sum(layer < given[name] for layer in kept)
    for name in INDEX_LISTS:
        if isinstance(given.get(name), list):
            fields[name] = [at for at, layer in enumerate(kept) if layer in given[name]]
    step = given.get("decoder_sparse_step")
    if isinstance(step, int) and step > 1:
        dense = set(given.get("mlp_only_layers") or ())
        dense |= {layer for layer in kept if (layer + 1) % step}
        fields["mlp_only_layers"] = [at for at, layer in enumerate(kept) if layer in dense]
        fields["decoder_sparse_step"] = 1
    for name, value in given.items():
        apart = name in INDEX_LISTS or "token_id" in name or name == "architectures"
        if isinstance(value, list) and len(value) == count and not apart:
            fields[name] = [value[layer] for layer in kept]
    if list(kept) != list(range(len(kept))):
        for name in PATTERNS:
            fields.pop(name, None)
    return type(config).from_dict(fields)


def cut(target: str, model: Any, kept: Sequence[int]) -> None:
    """Leave only some layers in a model, and tell its config."""
    layers = layers_of(target, model)
    config = config_with(model.config, kept)
    for at in reversed(range(len(layers))):
        if at not in kept:
            del layers[at]
    model.config = config


def check_config(target: str, model: Any, kept: Sequence[int]) -> None:
    """Raise ModelError unless a model made from the new config has layers of the same kinds and
    weights of the same shapes: else the directory would load and compute something else."""
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(model.config).eval()
    pairs = zip(kept, layers_of(target, model), layers_of(target, made), strict=True)
    for at, (layer, one, other) in enumerate(pairs):
        for name, ours, theirs in _differences(dict(_features(one)), dict(_features(other))):
            raise ModelError(
                f"Layer {layer} of {target} would be another one as layer {at}: {name} is "
                f"{theirs} there, not {ours}.",
                "Choose layers that keep its pattern, --keep for one.",
            )
    for name, ours, theirs in _differences(dict(_shapes(model)), dict(_shapes(made))):
        raise ModelError(
            f"{target} can't be made smaller: {name} would be {theirs} instead of {ours}.",
            "Keep the vocabulary whole, or choose other layers.",
        )


def _differences(
    ours: dict[str, object], theirs: dict[str, object]
) -> Iterator[tuple[str, object, object]]:
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            yield name, ours.get(name), theirs.get(name)


def _shapes(part: Any) -> Iterator[tuple[str, object]]:
    for name, weight in part.state_dict().items():
        yield f"the shape of {name}", tuple(weight.shape)


def _features(layer: Any) -> Iterator[tuple[str, object]]:
    """What tells a layer's kind: shapes of its weights, and every simple setting of its parts."""
    yield from _shapes(layer)
    for name, part in layer.named_modules():
        yield f"{name or 'the layer'}'s type", type(part).__name__
        for setting, value in vars(part).items():
            simple = value is None or isinstance(value, bool | int | float | str)
            if simple and not setting.startswith("_") and setting not in ("layer_idx", "training"):
                yield f"{name}.{setting}".lstrip("."), value
