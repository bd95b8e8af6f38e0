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
from pathlib import Path
from typing import Any, BinaryIO

from paceline.errors import DataError
from paceline.inspect.checkpoint import Checkpoint, read_table
from paceline.inspect.draft import InspectedDraft, check_ids, measures, numbers
from paceline.inspect.files import Files, HeaderError, Tensor, WeightsHeader

MAGIC = b"GGUF"
LARGEST = 1 << 20
"""Metadata entries, tensors, or bytes of a name; more says that the file is broken."""

_SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_KEPT_ARRAY = 256
"""Entries of an array that is kept; longer ones (a vocabulary) are only counted."""
_DEEPEST = 8
"""Arrays within arrays that are read; no converter writes any."""

TYPES = read_table("gguf_types", dict[int, tuple[str, int, int]])
"""By the format's number: name, entries of a block, its bytes."""


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF. Raises OSError where it can't be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> WeightsHeader:
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
        step = metadata.get("general.alignment")
        step = step if isinstance(step, int) and step > 0 else 32
        start = -(-file.tell() // step) * step
    tensors = {}
    for name, shape, number, offset in infos:
        if number not in TYPES:
            raise HeaderError(f"{name} is of type {number}, which is not known")
        dtype, block, size = TYPES[number]
        length = math.prod(shape) // block * size
        tensors[name] = Tensor(name, dtype, shape, path, start + offset, length)
    end = max((tensor.begin + tensor.bytes for tensor in tensors.values()), default=start)
    return WeightsHeader(tensors, metadata, end, path.stat().st_size)


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
"""States of the target that llama.cpp's EAGLE-3 reads, no more and no fewer."""


def read_draft(path: Path) -> Checkpoint:
    """A draft from its GGUF file. Raises DataError for a file without an architecture, HeaderError
    for one that is not a GGUF."""
    header = read_gguf(path)
    files = Files(path, {}, header.tensors, bytes=header.found)
    files.check_length(path.name, header)
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise DataError(f"{path} names no architecture.", "Convert it again.")
    # Without the architecture before them, its keys read like a config's.
    config = {key.removeprefix(f"{name}."): value for key, value in header.metadata.items()}
    draft = InspectedDraft(files, "model", "gguf", config, header.tensors)
    draft.kind = _kind(draft, name)
    _describe(draft)
    if draft.kind == "eagle3":
        _check_eagle3(draft)
    if "d2t" in draft.tensors:
        vocabulary, own = draft.found["vocabulary_size"], draft.found["draft_vocabulary_size"]
        check_ids(draft, "d2t", vocabulary, own, "its head has {size:,} rows")
    return Checkpoint(
        path=path,
        kind=draft.kind,
        format="gguf",
        architecture=name,
        model_type=name,
        **measures(files),
        **draft.found,
        problems=files.sorted_problems(),
    )


def _kind(draft: InspectedDraft, name: str) -> str:
    if name == "dflash":
        if "markov_w1.weight" in draft.tensors:
            return "dspark"
        return "dflash2" if "selector_predecessor.weight" in draft.tensors else "dflash"
    if name == "eagle3":
        return name
    return "mtp" if draft.number("nextn_predict_layers") else "model"


def _describe(draft: InspectedDraft) -> None:
    tokens = draft.config.get("tokenizer.ggml.tokens")  # kept whole if short, else counted
    counted = len(tokens) if isinstance(tokens, list) else draft.number("tokenizer.ggml.tokens")
    vocabulary = counted or draft.number("vocab_size")
    head, trained = draft.tensors.get("output.weight"), draft.kind != "model"
    hidden, aux = draft.number("embedding_length"), numbers(draft.config.get("target_layers"))
    predicted, size = draft.number("nextn_predict_layers"), draft.number("block_size")
    if size is not None and draft.config.get("sample_from_anchor") is not True:
        size -= 1
    draft.found |= {
        "hidden_size": hidden,
        "target_hidden_size": (draft.number("target_hidden_size") or hidden) if trained else None,
        "vocabulary_size": vocabulary,
        "draft_vocabulary_size": head.shape[0] if head is not None else vocabulary,
        "layers": predicted or draft.number("block_count"),
        "aux_layers": aux,
        "aux_count": len(aux) or None,
        "proposal_tokens": predicted or size,
        "embedding": draft.owner("token_embd.weight"),
        "head": "own" if head is not None else "target" if trained else "tied",
    }


def _check_eagle3(draft: InspectedDraft) -> None:
    count = len(draft.found["aux_layers"])
    if count != EAGLE3_LAYERS:
        draft.note("gguf.layers", count=count)
    if "target_hidden_size" not in draft.config:
        draft.note("gguf.width")
    draft.need("fc.weight", "output_norm.weight")
    vocabulary, own = draft.found["vocabulary_size"], draft.found["draft_vocabulary_size"]
    if None not in (vocabulary, own) and own < vocabulary and "d2t" not in draft.tensors:
        draft.note("gguf.no_map", own=own, vocabulary=vocabulary)
