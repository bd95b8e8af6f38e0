"""Which engines draft with a checkpoint, in which version, and what they call that.

A table by engine version of what their sources say, not of trials; `engine_names` says which. What
`read` found wrong is judged there, once, and only asked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import SettingError, unknown_name
from paceline.inspect import engine_names
from paceline.inspect.checkpoint import KINDS, Checkpoint
from paceline.inspect.eagle import usual

VERSIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("0.31.0", "0.32.0", "0.33.0"),
    "sglang": ("0.5.21", "0.5.23"),
    "tensorrt-llm": ("1.2.1", "1.3.0rc29"),
    "llama-server": (),
    "transformers": ("5.23.0",),
    "paceline": (),
}
"""Versions that are told apart, newest last; none where one answer is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Whether an engine drafts with a checkpoint.

    reason     why not, or what to know: one sentence
    method     what the engine calls it: vLLM's `method`, SGLang's algorithm, TensorRT-LLM's
               `decoding_type`, llama-server's `--spec-type`, transformers' argument, Paceline's
               draft; None if it doesn't
    settings   that it needs besides, by the engine's own names
    """

    yes: bool
    reason: str
    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def loads(checkpoint: Checkpoint, engine: str, version: str | None = None) -> Loads:
    """Whether this version of an engine (None: the newest known) drafts with it.

    Raises SettingError for an engine or version that isn't known.
    """
    if engine not in VERSIONS:
        raise unknown_name("engine", engine, VERSIONS)
    known = VERSIONS[engine]
    if version is not None and known and version not in known:
        raise SettingError(
            f"What {engine} {version} loads is not known.", f"Known: {', '.join(known)}."
        )
    wrong = checkpoint.stops(engine)
    if wrong is not None:
        return Loads(yes=False, reason=wrong.fact)
    return _RULES[engine](checkpoint, version or (known[-1] if known else ""))


def _no(reason: str) -> Loads:
    return Loads(yes=False, reason=reason)


def _yes(method: str, reason: str = "", **settings: Any) -> Loads:
    return Loads(yes=True, reason=reason, method=method, settings=settings)


def _elsewhere(checkpoint: Checkpoint) -> Loads | None:
    """What only one engine reads, asked of another."""
    if checkpoint.kind == "exit-head":
        return _no("An early-exit head is Paceline's own.")
    if checkpoint.format == "gguf":
        return _no("It reads drafts from safetensors, not from GGUF.")
    return None


_CUT = (
    "Its vocabulary was cut, and {} asks a draft model for the target's: derive it with the whole "
    "vocabulary."
)


def _vllm(checkpoint: Checkpoint, version: str) -> Loads:
    other = _elsewhere(checkpoint)
    if other is not None:
        return other
    kind = checkpoint.kind
    if kind == "model":
        return _no(_CUT.format("vLLM")) if checkpoint.map else _yes("draft_model")
    if kind == "mtp":
        return _vllm_mtp(checkpoint)
    if checkpoint.format == "speculators":
        if kind not in engine_names.VLLM_SPECULATORS:
            return _no(f"vLLM {version} reads no speculators draft of type {kind}.")
        if kind in ("eagle3", "p-eagle") and checkpoint.model_type not in ("llama", "qwen3", None):
            return _no(
                f"vLLM {version} reads speculators' {KINDS[kind]} with layers of llama or qwen3, "
                f"and these are {checkpoint.model_type}."
            )
    else:
        name = vllm_architecture(checkpoint)
        if name not in engine_names.VLLM[version]:
            gone = " any more" if name in engine_names.VLLM_0_32 else ""
            return _no(f"vLLM {version} has no draft architecture {name}{gone}.")
    if kind == "p-eagle":
        return _yes("eagle3", parallel_drafting=True)
    return _yes({"dflash2": "dflash", "xpress": "dflash"}.get(kind, kind))


def vllm_architecture(checkpoint: Checkpoint) -> str:
    """The name that vLLM looks up: it puts Eagle, Eagle3 or DFlash before a target's
    (`transformers_utils/configs/eagle.py`)."""
    name = checkpoint.architecture or "MedusaModel"
    if checkpoint.kind == "medusa":
        return name if "Medusa" in name else "MedusaModel"
    if checkpoint.kind == "eagle":
        return name if name.startswith("Eagle") else f"Eagle{name}"
    if checkpoint.kind in ("eagle3", "p-eagle"):
        whole = name.startswith("Eagle3") or name.endswith("Eagle3")
        return name if whole else f"Eagle3{name}"
    if checkpoint.kind in ("dflash", "dflash2", "xpress"):
        whole = name.startswith("DFlash") or name.endswith("DFlash") or name == "LiLiCorrDraftModel"
        return name if whole else f"DFlash{name}"
    return name


def _vllm_mtp(checkpoint: Checkpoint) -> Loads:
    if checkpoint.format == "speculators":
        return _no("vLLM reads MTP layers from the target's own format: stitch them back into it.")
    known = (
        checkpoint.model_type in engine_names.VLLM_MTP_TYPES
        or checkpoint.architecture in engine_names.VLLM_MTP_ARCHITECTURES
        or str(checkpoint.model_type).endswith("_mtp")
    )
    if known:
        return _yes("mtp")
    return _no(f"vLLM knows no MTP layers of {checkpoint.model_type or checkpoint.architecture}.")


def _sglang(checkpoint: Checkpoint, version: str) -> Loads:
    other = _elsewhere(checkpoint)
    if other is not None:
        return other
    kind, name = checkpoint.kind, checkpoint.architecture
    if checkpoint.format == "speculators":
        return _no("SGLang reads no speculators config: convert it to its own format first.")
    if kind == "model":
        return _no(_CUT.format("SGLang")) if checkpoint.map else _yes("STANDALONE")
    if kind == "medusa":
        return _no("SGLang has no Medusa.")
    if kind in ("p-eagle", "xpress"):
        return _no(f"SGLang has no {KINDS[kind]}.")
    if kind == "mtp":
        known = name in engine_names.SGLANG_MTP_ARCHITECTURES
        return _yes("NEXTN") if known else _no(f"SGLang knows no MTP layers of {name}.")
    if name not in engine_names.SGLANG[version]:
        wanted = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}.get(kind)
        hint = f": name {wanted} in config.json if its layers are Llama's" if wanted else ""
        return _no(f"SGLang {version} has no draft architecture {name}{hint}.")
    if kind in ("dflash", "dflash2", "dspark") and checkpoint.map is not None:
        return _no(f"SGLang reads no map (d2t) of {KINDS[kind]}.")
    return _yes({"dflash2": "DFLASH"}.get(kind, kind.upper()))


def _tensorrt_llm(checkpoint: Checkpoint, version: str) -> Loads:
    other = _elsewhere(checkpoint)
    if other is not None:
        return other
    kind = checkpoint.kind
    if checkpoint.format == "speculators":
        return _no("TensorRT-LLM documents no speculators config.")
    if kind == "model":
        return _no(_CUT.format("TensorRT-LLM")) if checkpoint.map else _yes("Draft_Target")
    if kind == "eagle":
        return _no("TensorRT-LLM's PyTorch backend loads EAGLE-3 only, no EAGLE of version 1 or 2.")
    if kind == "medusa":
        return _no("TensorRT-LLM's PyTorch backend has no Medusa.")
    if kind == "dspark":  # github.com/NVIDIA/TensorRT-LLM/pull/15808
        return _no(
            f"TensorRT-LLM {version} documents no {KINDS[kind]}; later code has DeepSeek-V4's."
        )
    if kind in ("p-eagle", "xpress", "dflash2") or (kind == "dflash" and version == "1.2.1"):
        return _no(f"TensorRT-LLM {version} documents no {KINDS[kind]}.")
    if kind == "eagle3":
        return _tensorrt_eagle3(checkpoint, "Eagle" if version == "1.2.1" else "Eagle3")
    if kind == "mtp":
        return _yes("MTP", "Its documentation names DeepSeek's; others were not looked up.")
    return _yes("DFlash")


def _tensorrt_eagle3(checkpoint: Checkpoint, method: str) -> Loads:
    """It numbers layers from 0 and doesn't look for them in the draft's config."""
    if not checkpoint.aux_layers or usual(checkpoint.aux_layers):
        return _yes(method)
    captured = [number - 1 for number in checkpoint.aux_layers]
    return _yes(method, eagle3_layers_to_capture=captured)


def _llama_server(checkpoint: Checkpoint, version: str) -> Loads:
    del version  # builds are not told apart: older ones lack types, and their --help says which
    kind, name = checkpoint.kind, checkpoint.architecture
    if kind == "exit-head":
        return _no("An early-exit head is Paceline's own.")
    types = {
        "model": "draft-simple",
        "eagle3": "draft-eagle3",
        "dflash": "draft-dflash",
        "dflash2": "draft-dflash",
        "dspark": "draft-dspark",
        "mtp": "draft-mtp",
    }
    if kind not in types:
        return _no(f"llama.cpp has no {KINDS[kind]}.")
    if checkpoint.format == "gguf":
        return _yes(types[kind])
    convert = "Convert it first: convert_hf_to_gguf.py"
    if kind == "model":
        if checkpoint.map:
            return _no(_CUT.format("llama.cpp"))
        return _yes(types[kind], f"{convert} DIR.")
    if kind == "mtp":
        return _yes(types[kind], f"{convert} --mtp, for architectures that it knows.")
    if checkpoint.format == "speculators" and kind not in ("eagle3", "dspark"):
        return _no(f"llama.cpp's converter reads no speculators config of {KINDS[kind]}.")
    if name not in engine_names.LLAMA_CPP:
        return _no(f"llama.cpp's converter knows no draft architecture {name}.")
    if kind == "eagle3":
        wrong = _llama_eagle3(checkpoint)
        if wrong:
            return _no(wrong)
    return _yes(types[kind], f"{convert} DIR --target-model-dir TARGET.")


def _llama_eagle3(checkpoint: Checkpoint) -> str:
    if checkpoint.layers != 1:
        return f"llama.cpp's EAGLE-3 has one layer, and this has {checkpoint.layers}."
    if checkpoint.aux_count != 3:
        return f"llama.cpp's EAGLE-3 takes 3 of the target's states, this {checkpoint.aux_count}."
    return ""


def _transformers(checkpoint: Checkpoint, version: str) -> Loads:
    other = _elsewhere(checkpoint)
    if other is not None:
        return other
    kind = checkpoint.kind
    if checkpoint.format == "speculators":
        return _no("transformers reads no speculators config.")
    if kind == "model":
        return _yes("assistant_model", _transformers_tokenizers(checkpoint))
    if kind == "mtp":
        return _yes("use_mtp", "For architectures whose MTP layers transformers has.")
    if kind == "dflash" and checkpoint.architecture == "MuseGlimmerAssistantModel":
        return _yes("assistant_model", speculation_type="dflash")
    return _no(f"transformers {version} has no {KINDS[kind]} model.")


def _transformers_tokenizers(checkpoint: Checkpoint) -> str:
    """It pairs tokens where config.json's sizes differ, and refuses to where they don't
    (`generation/utils.py`)."""
    own, its = checkpoint.draft_vocabulary_size, checkpoint.compared_vocabulary_size
    if checkpoint.map:
        return "Its vocabulary was cut: give tokenizer and assistant_tokenizer too."
    if None not in (own, its) and own != its:
        return "Its vocabulary is not the target's: give tokenizer and assistant_tokenizer too."
    return ""


def _paceline(checkpoint: Checkpoint, version: str) -> Loads:
    del version
    if checkpoint.kind == "exit-head":
        return _yes("early-exit", "With the target that it was fitted to.")
    if checkpoint.kind == "model":
        return _yes("model")
    return _no(
        f"Paceline decodes with draft models, not with {KINDS[checkpoint.kind]}: it describes them "
        "for the engines that do."
    )


_RULES: Mapping[str, Callable[[Checkpoint, str], Loads]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
    "llama-server": _llama_server,
    "transformers": _transformers,
    "paceline": _paceline,
}
