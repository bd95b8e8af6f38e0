"""A draft from its files: what it is, and what is wrong with it. No weight is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import DataError
from paceline.inspect import gguf
from paceline.inspect.blocks import check_block
from paceline.inspect.checkpoint import KIND_TABLE, Checkpoint
from paceline.inspect.draft import InspectedDraft, bare, measures
from paceline.inspect.eagle import check_eagle, check_eagle3
from paceline.inspect.files import Files, check_finite, read_files, read_header, reading, some
from paceline.inspect.medusa import check_medusa, renamed
from paceline.inspect.whole import PREDICTED, check_model, check_mtp

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
        files.note("speculators.layers")
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


def speculators_use(files: Files) -> dict[str, Any]:
    """What the config says about its use: `proposal_tokens` and `verifier`, if it does."""
    config = files.config
    name = _dig(config, "speculators_config", "verifier", "name_or_path")
    tokens = _dig(config, "speculators_config", "proposal_methods", 0, "speculative_tokens")
    use: dict[str, Any] = {}
    if isinstance(tokens, int):
        use["proposal_tokens"] = tokens
    else:
        files.note("speculators.tokens")
    if isinstance(name, str):
        use["verifier"] = name
    else:
        files.note("speculators.verifier")
    return use


_LANGUAGE_MODEL = re.compile(r"\w+(ForCausalLM|LMHeadModel|ForConditionalGeneration)")


def recognise(files: Files) -> tuple[str, str]:
    """Its kind and format, as `Checkpoint` has them. Raises DataError where it is none, with what
    was found."""
    config = files.config
    named = config.get("speculators_model_type")
    if named is not None:
        known = KIND_TABLE.speculators
        if not isinstance(named, str) or named not in known:
            raise DataError(
                f"{files.path} is a speculators draft of type {named!r}, which is not known.",
                f"Known: {', '.join(known)}.",
            )
        return known[named], "speculators"
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
    name = (architecture(config) or "").lower()
    if isinstance(config.get("dflash_config"), Mapping) and "dspark" not in name:
        return "dflash2" if "dflash2" in name else "dflash"
    for part, kind in KIND_TABLE.architectures.items():
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


class _HeadTarget(msgspec.Struct):
    width: int | None = None
    vocabulary: int | None = None


def read_exit_head(path: Path) -> Checkpoint:
    """An early-exit head from its file. Raises DataError for another file, HeaderError for one that
    is not safetensors."""
    header = read_header(path)
    if header.metadata.get("kind") != EXIT_HEAD:
        raise DataError(
            f"{path} is one file of weights, and not an exit head.",
            f"Name the directory that holds it: {path.parent}.",
        )
    files = Files(path, {}, header.tensors, bytes=header.found)
    files.check_length(path.name, header, "exit_head.cut")
    missing = [name for name in ("gain", "down", "up") if name not in files.tensors]
    if missing:
        files.note("exit_head.missing", names=", ".join(missing))
    try:
        target = msgspec.json.decode(header.metadata.get("target", "{}"), type=_HeadTarget)
    except (msgspec.MsgspecError, RecursionError):
        target = _HeadTarget()
    width = files.tensors["gain"].entries if "gain" in files.tensors else None
    if None not in (width, target.width) and width != target.width:
        files.note("exit_head.width", width=width, target=target.width)
    layers = header.metadata.get("layers", "")
    return Checkpoint(
        path=path,
        kind="exit-head",
        format="paceline",
        hidden_size=width,
        target_hidden_size=width,
        aux_layers=(int(layers),) if re.fullmatch("[0-9]{1,9}", layers) else (),
        aux_count=1,
        vocabulary_size=target.vocabulary,
        draft_vocabulary_size=target.vocabulary,
        head="target",
        **measures(files),
        problems=files.sorted_problems(),
    )


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
    with reading(place):
        if not place.is_file():
            return _read_directory(read_files(place))
        if gguf.is_gguf(place):
            return gguf.read_draft(place)
        if place.suffix == ".safetensors":
            return read_exit_head(place)
    raise DataError(
        f"{place} is not a GGUF file.",
        "Name a draft's directory, a GGUF file, or an exit head's file.",
    )


_SIZES = {
    "hidden_size": "hidden_size",
    "target_hidden_size": "target_hidden_size",
    "vocabulary_size": "vocab_size",
    "draft_vocabulary_size": "draft_vocab_size",
    "aux_count": "aux_count",
}
"""Fields of `Checkpoint`, and their names among a draft's sizes."""


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
    tensors = {bare(name): tensor for name, tensor in files.tensors.items()}
    draft = InspectedDraft(files, kind, format_, config, tensors)
    hidden, vocabulary = draft.number("hidden_size"), draft.number("vocab_size")
    # Most families draft with one state of the target's width, and its vocabulary.
    draft.sizes = {
        "hidden_size": hidden,
        "target_hidden_size": hidden,
        "vocab_size": vocabulary,
        "draft_vocab_size": vocabulary,
        "aux_count": 1,
    }
    draft.found = {
        "embedding": draft.owner("embed_tokens.weight"),
        "head": draft.owner("lm_head.weight"),
    }
    CHECKS[kind](draft)
    check_finite(files)
    if speculators:
        draft.found |= speculators_use(files)
    sizes = {field: draft.sizes[name] for field, name in _SIZES.items()}
    return Checkpoint(
        path=files.path,
        kind=kind,
        format=format_,
        architecture=architecture(files.config if speculators else config),
        model_type=model_type if isinstance(model_type, str) else None,
        **measures(files),
        **(sizes | draft.found),
        problems=files.sorted_problems(),
    )
