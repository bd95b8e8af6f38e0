"""Which kind of draft a directory holds: by its config, and by its tensors where that is silent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paceline.errors import DataError
from paceline.inspect import speculators
from paceline.inspect.draft import bare
from paceline.inspect.files import Files, some
from paceline.inspect.medusa import renamed
from paceline.inspect.whole import PREDICTED

BY_ARCHITECTURE = (
    ("peagle", "p-eagle"),
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("medusa", "medusa"),
    ("dflash2", "dflash2"),
    ("dflash", "dflash"),
    ("lilicorr", "dflash"),
    ("museglimmerassistant", "dflash"),
    ("dspark", "dspark"),
    ("mtp", "mtp"),
    ("nextn", "mtp"),
)
"""Parts of an architecture's name, the telling ones first."""

_LANGUAGE_MODEL = re.compile(r"\w+(ForCausalLM|LMHeadModel|ForConditionalGeneration)")


def recognise(files: Files) -> tuple[str, str]:
    """Its kind and format, as `Checkpoint` has them. Raises DataError where it is none, with what
    was found."""
    config = files.config
    named = config.get("speculators_model_type")
    if named is not None:
        if not isinstance(named, str) or named not in speculators.KINDS:
            raise DataError(
                f"{files.path} is a speculators draft of type {named!r}, which is not known.",
                f"Known: {', '.join(speculators.KINDS)}.",
            )
        return speculators.KINDS[named], "speculators"
    kind = _by_config(config) or _by_tensors(files, config)
    if kind is None:
        raise DataError(f"{files.path} is no draft that is known: {_described(files)}.", _NEEDED)
    if kind == "eagle3" and ("mask_hidden" in files.tensors or config.get("parallel_drafting")):
        kind = "p-eagle"
    return kind, "transformers"


_NEEDED = (
    "A draft is a language model, or has the weights of EAGLE (fc), Medusa (blocks, lm_heads), "
    "DFlash or MTP layers."
)


def architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None


def _by_config(config: Mapping[str, Any]) -> str | None:
    if config.get("model_type") == "medusa" or "medusa_num_heads" in config:
        return "medusa"
    if isinstance(config.get("dflash_config"), Mapping):
        named = (architecture(config) or "").lower()
        if "dspark" not in named:
            return "dflash2" if "dflash2" in named else "dflash"
    name = (architecture(config) or "").lower()
    for part, kind in BY_ARCHITECTURE:
        if part in name:
            return kind
    model_type = str(config.get("model_type", "")).lower()
    return "mtp" if model_type.endswith("_mtp") else None


def _by_tensors(files: Files, config: Mapping[str, Any]) -> str | None:
    names = {bare(name) for name in files.tensors}
    if any(name.startswith("markov_head.") for name in names):
        return "dspark"
    if "fc.weight" in names and not any(name.startswith("mtp") for name in names):
        told = ("d2t", "layers.0.hidden_norm.weight", "mask_hidden")
        return "eagle3" if names & {*told} or "draft_vocab_size" in config else "eagle"
    if not names and "draft_vocab_size" in config:
        return "eagle3"
    if any(re.match(r"blocks\.\d+\.layers\.\d+\.", renamed(name)) for name in files.tensors):
        return "medusa"
    if any(isinstance(config.get(name), int) and config[name] > 0 for name in PREDICTED):
        return "mtp"
    if any(name.startswith("mtp") or ".eh_proj." in name for name in names):
        return "mtp"
    whole = _LANGUAGE_MODEL.fullmatch(architecture(config) or "")
    return "model" if whole else None


def _described(files: Files) -> str:
    named = architecture(files.config) or files.config.get("model_type")
    said = f"its config.json says {named}" if named else "its config.json names no architecture"
    tensors = sorted(files.tensors)
    if not tensors:
        return f"{said}, and there are no weights to look at"
    return f"{said}, and its weights are {some(tensors)}"
