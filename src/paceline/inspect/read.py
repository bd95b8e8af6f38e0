"""A draft from its files: what it is, and what is wrong with it. No weight is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.inspect import gguf
from paceline.inspect.blocks import check_block
from paceline.inspect.checkpoint import Checkpoint
from paceline.inspect.draft import InspectedDraft, bare, measures
from paceline.inspect.eagle import check_eagle, check_eagle3
from paceline.inspect.files import Files, HeaderError, check_finite, read_files, read_header, some
from paceline.inspect.gguf import is_gguf
from paceline.inspect.medusa import check_medusa, renamed
from paceline.inspect.whole import PREDICTED, check_model, check_mtp

SPECULATORS = {
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


def _dig(value: Any, *keys: str | int) -> Any:
    """What lies below these keys and places; None where it has none."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def check_speculators(files: Files) -> dict[str, Any]:
    """What the config says about its use: `proposal_tokens` and `verifier`."""
    config = files.config
    name = _dig(config, "speculators_config", "verifier", "name_or_path")
    tokens = _dig(config, "speculators_config", "proposal_methods", 0, "speculative_tokens")
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
        if not isinstance(named, str) or named not in SPECULATORS:
            raise DataError(
                f"{files.path} is a speculators draft of type {named!r}, which is not known.",
                f"Known: {', '.join(SPECULATORS)}.",
            )
        return SPECULATORS[named], "speculators"
    kind = _by_config(config) or _by_tensors(files, config)
    if kind is None:
        raise DataError(f"{files.path} is not a draft that is known: {_described(files)}.", _NEEDED)
    if kind == "eagle3" and ("mask_hidden" in files.tensors or config.get("parallel_drafting")):
        kind = "p-eagle"
    return kind, "transformers"


_NEEDED = (
    "A draft is a language model, or has the weights of EAGLE (fc), Medusa (blocks, lm_heads), "
    "DFlash or MTP layers."
)


def architecture(config: Mapping[str, Any]) -> str | None:
    """The first architecture that a config names."""
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


EXIT_HEAD = "paceline exit head"


def read_exit_head(path: Path) -> Checkpoint:
    """Raises DataError for another file."""
    try:
        header = read_header(path)
    except HeaderError as error:
        raise DataError(f"{path} can't be read: {error}.", "Fetch it again.") from None
    if header.metadata.get("kind") != EXIT_HEAD:
        raise DataError(
            f"{path} is one file of weights, and not an exit head.",
            f"Name the directory that it lies in: {path.parent}.",
        )
    files = Files(path, {}, {tensor.name: tensor for tensor in header.tensors}, bytes=header.found)
    files.check_length(path.name, header.found, header.bytes, "Fit it again.")
    missing = [name for name in ("gain", "down", "up") if name not in files.tensors]
    if missing:
        files.wrong(f"It has no {', '.join(missing)}.", "Fit it again.")
    target = _target(header.metadata)
    gain = files.tensors.get("gain")
    width = gain.entries if gain is not None else None
    if width is not None and isinstance(target.get("width"), int) and width != target["width"]:
        files.wrong(
            f"It moves states of {width:,} entries, and says that its target's have "
            f"{target['width']:,}.",
            "Fit it again.",
        )
    layers = header.metadata.get("layers", "")
    return Checkpoint(
        path=path,
        kind="exit-head",
        format="paceline",
        hidden_size=width,
        target_hidden_size=width,
        aux_layers=(int(layers),) if re.fullmatch("[0-9]{1,9}", layers) else (),
        aux_count=1,
        vocabulary_size=_whole(target.get("vocabulary")),
        draft_vocabulary_size=_whole(target.get("vocabulary")),
        embedding="none",
        head="target",
        **measures(files),
        problems=files.sorted_problems(),
    )


def _target(metadata: dict[str, str]) -> dict[str, object]:
    try:
        found = json.loads(metadata.get("target", ""))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


CHECKS: dict[str, Callable[[InspectedDraft], None]] = {
    "eagle": check_eagle,
    "eagle3": check_eagle3,
    "p-eagle": check_eagle3,
    "medusa": check_medusa,
    "dflash": check_block,
    "dflash2": check_block,
    "dspark": check_block,
    "xpress": check_block,
    "mtp": check_mtp,
    "model": check_model,
}


def read(path: str | Path) -> Checkpoint:
    """A draft's directory, GGUF file, or early-exit head.

    Only configs, headers, maps and small weights are read, so that drafts of tens of gigabytes take
    no longer, and nothing in the files is run. Raises DataError where there is no such thing, or
    none that is known.
    """
    place = Path(path).expanduser()
    try:
        if place.is_file():
            return _read_file(place)
    except OSError as error:
        raise DataError(f"{place} can't be read: {error.strerror}.", "Check it.") from None
    return _read_directory(read_files(place))


def _read_file(path: Path) -> Checkpoint:
    if is_gguf(path):
        return gguf.read_draft(path)
    if path.suffix == ".safetensors":
        return read_exit_head(path)
    raise DataError(
        f"{path} is not a GGUF file.",
        "Name a draft's directory, a GGUF file, or an exit head's file.",
    )


def _read_directory(files: Files) -> Checkpoint:
    kind, format_ = recognise(files)
    speculators = format_ == "speculators"
    config = layer_config(files) if speculators else files.config
    inner = config.get("model")
    if config.get("model_type") == "eagle" and isinstance(inner, dict):  # vLLM's own form
        config = {**config, **inner}
    model_type = config.get("model_type")
    text = config.get("text_config")
    if isinstance(text, dict):  # a target that sees too keeps its sizes there
        config = {**config, **text}
    draft = InspectedDraft(
        files, kind, format_, config, {bare(name): t for name, t in files.tensors.items()}
    )
    CHECKS[kind](draft)
    check_finite(files)
    found = draft.found
    if speculators:
        used = check_speculators(files)
        found = found | {name: value for name, value in used.items() if value is not None}
    return Checkpoint(
        path=files.path,
        kind=kind,
        format=format_,
        architecture=architecture(files.config if speculators else config),
        model_type=model_type if isinstance(model_type, str) else None,
        **measures(files),
        **found,
        problems=files.sorted_problems(),
    )
