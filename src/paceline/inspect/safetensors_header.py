"""Names, shapes and types of a safetensors file's tensors, from its first bytes.

A file is the header's length (uint64, little-endian), the header (JSON), then the tensors' bytes
without a gap (https://huggingface.co/docs/safetensors). The `safetensors` package reads the same,
but it comes with an extra that whoever only asks about a draft needn't have, and it says of a file
that was cut off that it is broken, not what is missing.
"""

from __future__ import annotations

import json
import math
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LONGEST = 100_000_000
"""Bytes of a header; the format's own limit."""

TYPES = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F4": ("float4_e2m1", 4),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "F8_E4M3": ("float8_e4m3", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0", 8),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
}
"""By the format's name: ours and PyTorch's, and bits of an entry."""


class HeaderError(ValueError):
    """What is wrong with a file, without its name: one clause."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor lies.

    dtype    as PyTorch names it, or a GGUF file's quantisation
    shape    outermost first
    begin    byte of the file where it begins
    bytes    its length
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    bytes: int

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    def values(self) -> np.ndarray:
        """Its entries, for types that NumPy has and bfloat16 (as float32). Raises HeaderError
        where the file ends before them."""
        raw = "uint16" if self.dtype == "bfloat16" else self.dtype
        with self.file.open("rb") as file:
            file.seek(self.begin)
            data = file.read(self.bytes)
        if len(data) < self.bytes:
            raise HeaderError(f"it ends within {self.name}")
        found = np.frombuffer(data, np.dtype(raw).newbyteorder("<")).reshape(self.shape)
        if self.dtype == "bfloat16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of a file promise.

    tensors     in the order of the file
    metadata    free text by name
    bytes       the file's length if all of it is there
    found       its length
    """

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]
    bytes: int
    found: int


def read_header(path: Path) -> Header:
    """Reads the header only. Raises HeaderError for what is no safetensors file or contradicts
    itself, OSError where it can't be read; that it is cut off is the reader's to judge, from
    `bytes` and `found`."""
    found = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if found < 8 or length > LONGEST:
            raise HeaderError("it does not begin as a safetensors file")
        text = file.read(length)
    if len(text) < length:
        raise HeaderError(f"it ends within its header, at {found:,} of {8 + length:,} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise HeaderError("its header is no JSON") from None
    if not isinstance(document, dict):
        raise HeaderError("its header is no JSON object")
    metadata = document.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise HeaderError("its __metadata__ is no JSON object")
    start = 8 + length
    tensors = sorted(
        (_tensor(path, start, name, entry) for name, entry in document.items()),
        key=lambda tensor: (tensor.begin, tensor.bytes),
    )
    end = start
    for tensor in tensors:
        if tensor.begin != end:
            raise HeaderError(f"{tensor.name} does not begin where the tensor before it ends")
        end += tensor.bytes
    texts = {name: text for name, text in metadata.items() if isinstance(text, str)}
    return Header(tuple(tensors), texts, end, found)


def _tensor(path: Path, start: int, name: str, entry: Any) -> Tensor:
    try:
        dtype, bits = TYPES[entry["dtype"]]
        shape = tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):  # the last of Infinity
        raise HeaderError(f"its header says {reprlib.repr(entry)} of {name}") from None
    if min(shape, default=0) < 0 or end - begin != (math.prod(shape) * bits + 7) // 8:
        raise HeaderError(f"{name} of {dtype} {list(shape)} has {end - begin:,} bytes")
    return Tensor(name, dtype, shape, path, start + begin, end - begin)
