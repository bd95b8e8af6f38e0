"""Drafts as GGUF files: what llama.cpp's converter made of them.

The layout is that of ggml's `docs/gguf.md`: magic, version, counts, entries of metadata, then name,
shape, type and offset of each tensor. The `gguf` package reads it too, but takes seconds for the
arrays of a vocabulary, which nothing here asks for, and comes with an extra.

Keys and tensor names as llama.cpp has them (`gguf-py/gguf/constants.py`, `src/models/eagle3.cpp`,
`src/models/dflash.cpp`). Other than in safetensors, its d2t holds target ids, not offsets.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from paceline.errors import DataError
from paceline.inspect.checkpoint import Checkpoint
from paceline.inspect.draft import InspectedDraft, check_ids, measures
from paceline.inspect.files import Files, HeaderError, Tensor, read_table

MAGIC = b"GGUF"
LARGEST = 1 << 20
"""Metadata entries, tensors, or bytes of a name; more says that the file is broken."""

_SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_KEPT_ARRAY = 256
"""Entries of an array that is kept; longer ones (a vocabulary) are only counted."""
_DEEPEST = 8
"""Arrays within arrays that are read; no converter writes any."""

TYPES = msgspec.json.decode(read_table("gguf_types"), type=dict[int, tuple[str, int, int]])
"""By the format's number: name, entries of a block, its bytes."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a file says before its weights.

    metadata    by key; of arrays longer than `_KEPT_ARRAY`, their length
    bytes       the file's length if all of it is there
    found       its length
    """

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    bytes: int
    found: int


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF. Raises OSError where it can't be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> GgufHeader:
    """Raises HeaderError for what is not a GGUF file of version 2 or 3 or ends within its header,
    OSError where it can't be read."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise HeaderError("it does not begin as a GGUF file")
        (version,) = _unpack(file, "I")
        if version not in (2, 3):
            raise HeaderError(f"it is GGUF version {version}, and versions 2 and 3 are read")
        count, entries = _unpack(file, "QQ")
        if max(count, entries) > LARGEST:
            raise HeaderError(f"it counts {count:,} tensors and {entries:,} entries of metadata")
        metadata = {}
        for _ in range(entries):
            key = _string(file)
            metadata[key] = _value(file, _unpack(file, "I")[0])
        infos = [_info(file) for _ in range(count)]
        start = _aligned(file.tell(), metadata.get("general.alignment", 32))
    tensors = {}
    for name, shape, number, offset in infos:
        if number not in TYPES:
            raise HeaderError(f"{name} is of type {number}, which is not known")
        dtype, block, size = TYPES[number]
        length = math.prod(shape) // block * size
        tensors[name] = Tensor(name, dtype, shape, path, start + offset, length)
    end = max((tensor.begin + tensor.bytes for tensor in tensors.values()), default=start)
    return GgufHeader(metadata, tensors, end, path.stat().st_size)


def _aligned(place: int, alignment: Any) -> int:
    step = alignment if isinstance(alignment, int) and alignment > 0 else 32
    return -(-place // step) * step


def _info(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    name = _string(file)
    (dimensions,) = _unpack(file, "I")
    if dimensions > 8:
        raise HeaderError(f"{name} has {dimensions} dimensions")
    shape = _unpack(file, f"{dimensions}Q")
    number, offset = _unpack(file, "IQ")
    return name, tuple(reversed(shape)), number, offset


def _value(file: BinaryIO, number: int, depth: int = 0) -> Any:
    if number == _STRING:
        return _string(file)
    if number == _ARRAY:
        return _array(file, depth + 1)
    if number not in _SCALARS:
        raise HeaderError(f"its metadata has a value of type {number}, which is not known")
    return _unpack(file, _SCALARS[number])[0]


def _array(file: BinaryIO, depth: int) -> Any:
    if depth > _DEEPEST:
        raise HeaderError(f"its metadata has arrays nested more than {_DEEPEST} deep")
    number, count = _unpack(file, "IQ")
    if count <= _KEPT_ARRAY:
        return [_value(file, number, depth) for _ in range(count)]
    if number in _SCALARS:
        _skip(file, count * struct.calcsize(_SCALARS[number]))
    elif number == _STRING:
        for _ in range(count):
            _skip(file, _unpack(file, "Q")[0])
    else:
        raise HeaderError(f"its metadata has an array of type {number}, which is not known")
    return count


def _skip(file: BinaryIO, length: int) -> None:
    """Past the end, the next read finds nothing and says so."""
    if length > 1 << 60:
        raise HeaderError(f"its metadata has an entry of {length:,} bytes")
    file.seek(length, 1)


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    if length > LARGEST:
        raise HeaderError(f"its metadata has a text of {length:,} bytes")
    return _read(file, length).decode("utf-8", errors="replace")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", _read(file, struct.calcsize(f"<{form}")))


def _read(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise HeaderError("it ends within its header")
    return data


EAGLE3_LAYERS = 3
"""States of the target that llama.cpp's EAGLE-3 takes, no more and no fewer."""


def read_draft(path: Path) -> Checkpoint:
    """Raises DataError for a file that is not a GGUF."""
    try:
        header = read_gguf(path)
    except HeaderError as error:
        raise DataError(f"{path} can't be read: {error}.", "Fetch it again.") from None
    files = Files(path, {}, header.tensors, bytes=header.found)
    files.check_length(path.name, header.found, header.bytes)
    name = str(header.metadata.get("general.architecture") or "")
    if not name:
        raise DataError(f"{path} names no architecture.", "Convert it again.")
    draft = InspectedDraft(files, _kind(name, header), "gguf", header.metadata, header.tensors)
    _describe(draft, header, name)
    if draft.kind == "eagle3":
        _check_eagle3(draft, name)
    _check_map(draft)
    return Checkpoint(
        path=path,
        kind=draft.kind,
        format="gguf",
        architecture=name,
        **measures(files),
        **draft.found,
        problems=files.sorted_problems(),
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


def _describe(draft: InspectedDraft, header: GgufHeader, name: str) -> None:
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


def _check_eagle3(draft: InspectedDraft, name: str) -> None:
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


def _check_map(draft: InspectedDraft) -> None:
    if "d2t" in draft.tensors:
        check_ids(
            draft,
            "d2t",
            draft.found["vocabulary_size"],
            draft.found["draft_vocabulary_size"],
            said="its head has {size:,} rows",
        )
