"""Drafts as GGUF files: what llama.cpp's converter made of them.

Keys and tensor names as llama.cpp has them (`gguf-py/gguf/constants.py`, `src/models/eagle3.cpp`,
`src/models/dflash.cpp`). Other than in safetensors, its d2t holds target ids, not offsets.
"""

from __future__ import annotations

from pathlib import Path

from paceline.errors import DataError
from paceline.inspect.checkpoint import Checkpoint
from paceline.inspect.draft import Draft, measures
from paceline.inspect.files import Files
from paceline.inspect.gguf_header import GgufHeader, read_gguf
from paceline.inspect.maps import check_ids
from paceline.inspect.safetensors_header import HeaderError

EAGLE3_LAYERS = 3
"""States of the target that llama.cpp's EAGLE-3 takes, no more and no fewer."""


def read_draft(path: Path) -> Checkpoint:
    """Raises DataError for a file that is no GGUF."""
    try:
        header = read_gguf(path)
    except HeaderError as error:
        raise DataError(f"{path} can't be read: {error}.", "Fetch it again.") from None
    files = Files(path, {}, header.tensors, bytes=header.found)
    if header.found < header.bytes:
        files.wrong(
            f"{path.name} is cut off: {header.found:,} of {header.bytes:,} bytes are there.",
            "Fetch it again.",
        )
    name = str(header.metadata.get("general.architecture") or "")
    if not name:
        raise DataError(f"{path} names no architecture.", "Convert it again.")
    draft = Draft(files, _kind(name, header), "gguf", header.metadata, header.tensors)
    _describe(draft, header, name)
    if draft.kind == "eagle3":
        _check_eagle3(draft, name)
    _check_map(draft)
    problems = tuple(sorted(files.problems, key=lambda problem: not problem.fatal))
    return Checkpoint(
        path=path,
        kind=draft.kind,
        format="gguf",
        architecture=name,
        **measures(files),
        **draft.found,
        problems=problems,
    )


def _kind(name: str, header: GgufHeader) -> str:
    if name == "eagle3":
        return "eagle3"
    if name == "dflash":
        if "markov_w1.weight" in header.tensors:
            return "dspark"
        return "dflash2" if "selector_predecessor.weight" in header.tensors else "dflash"
    return "mtp" if _number(header, f"{name}.nextn_predict_layers") else "model"


def _number(header: GgufHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _tokens(header: GgufHeader) -> int | None:
    """Its vocabulary: short ones are kept whole, others counted."""
    found = header.metadata.get("tokenizer.ggml.tokens")
    return len(found) if isinstance(found, list) else _number(header, "tokenizer.ggml.tokens")


def _describe(draft: Draft, header: GgufHeader, name: str) -> None:
    vocabulary = _tokens(header) or _number(header, f"{name}.vocab_size")
    head = header.tensors.get("output.weight")
    hidden = _number(header, f"{name}.embedding_length")
    aux = draft.numbers(header.metadata.get(f"{name}.target_layers"))
    target_hidden = _number(header, f"{name}.target_hidden_size")
    predicted = _number(header, f"{name}.nextn_predict_layers")
    trained = draft.kind != "model"
    draft.found |= {
        "model_type": name,
        "hidden_size": hidden,
        "target_hidden_size": (target_hidden or hidden) if trained else None,
        "vocabulary_size": vocabulary,
        "draft_vocabulary_size": head.shape[0] if head is not None else vocabulary,
        "layers": predicted or _number(header, f"{name}.block_count"),
        "aux_layers": aux,
        "aux_count": len(aux) or None,
        "proposal_tokens": predicted or _proposals(header, name),
        "embedding": "own" if "token_embd.weight" in header.tensors else "target",
        "head": "own" if head is not None else "target" if trained else "tied",
    }


def _proposals(header: GgufHeader, name: str) -> int | None:
    size = _number(header, f"{name}.block_size")
    if size is None:
        return None
    return size if header.metadata.get(f"{name}.sample_from_anchor") is True else size - 1


def _check_eagle3(draft: Draft, name: str) -> None:
    aux = draft.found["aux_layers"]
    if len(aux) != EAGLE3_LAYERS:
        draft.wrong(
            f"It takes in {len(aux)} of the target's layers, and llama.cpp reads EAGLE-3 of "
            f"{EAGLE3_LAYERS} only.",
            "Serve it with vLLM or SGLang, from safetensors.",
        )
    if f"{name}.target_hidden_size" not in draft.config:
        draft.wrong("It doesn't say target_hidden_size.", "Convert it again with llama.cpp.")
    draft.need("fc.weight", "output_norm.weight")
    vocabulary, own = draft.found["vocabulary_size"], draft.found["draft_vocabulary_size"]
    if None not in (vocabulary, own) and own < vocabulary and "d2t" not in draft.tensors:
        draft.wrong(
            f"It has {own:,} tokens of the target's {vocabulary:,} and no map (d2t).",
            "Convert it again with llama.cpp, from a checkpoint with d2t.",
        )


def _check_map(draft: Draft) -> None:
    if "d2t" in draft.tensors:
        check_ids(
            draft,
            "d2t",
            draft.found["vocabulary_size"],
            draft.found["draft_vocabulary_size"],
            said="its head has {size:,} rows",
        )
