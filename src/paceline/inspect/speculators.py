"""The speculators library's directories: one config around the draft's layers, with its target's
name and how many tokens to propose.

As speculators 0.9 (`config.py`) writes it and vLLM (`configs/speculators/base.py`) reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.inspect.files import Files

KINDS = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "p-eagle",
    "dflash": "dflash",
    "dflash2": "dflash2",
    "dspark": "dspark",
    "mtp": "mtp",
    "xpress": "xpress",
}
"""By `speculators_model_type`."""

_OF_LAYERS = (
    "architectures",
    "eagle_config",
    "model_type",
    "num_aux_hidden_states",
    "tie_word_embeddings",
    "transformer_layer_config",
)
"""What engines read in the layers' config only."""


def layer_config(files: Files) -> dict[str, Any]:
    """The draft's own config, as if it were not nested."""
    layers = files.config.get("transformer_layer_config")
    if not isinstance(layers, Mapping):
        files.wrong(
            "config.json has no transformer_layer_config, which describes the draft's layers.",
            "Export it again with speculators.",
        )
        layers = {}
    around = {name: value for name, value in files.config.items() if name not in _OF_LAYERS}
    return {**layers, **around}


def check_speculators(files: Files) -> dict[str, Any]:
    """What the config says about its use: `proposal_tokens` and `verifier`."""
    use = files.config.get("speculators_config")
    use = use if isinstance(use, Mapping) else {}
    verifier = use.get("verifier")
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    methods = use.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    tokens = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    if not isinstance(tokens, int):
        files.wrong(
            "config.json says no speculative_tokens (speculators_config.proposal_methods).",
            "Set the length where it is served.",
            fatal=False,
        )
    if not isinstance(name, str):
        files.wrong(
            "config.json names no target (speculators_config.verifier.name_or_path).",
            "Name the target where it is served, and the draft beside it.",
            fatal=False,
        )
    return {
        "proposal_tokens": tokens if isinstance(tokens, int) else None,
        "verifier": name if isinstance(name, str) else None,
    }
