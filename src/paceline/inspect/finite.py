"""Numbers that are none, in the weights that are small enough to read on the way."""

from __future__ import annotations

import numpy as np

from paceline.inspect.files import Files, some
from paceline.inspect.safetensors_header import HeaderError

FLOATS = ("float16", "bfloat16", "float32")
MOST = 1 << 18
"""Bytes of a weight that is read: norms, biases, a mask's state."""
ALL = 1 << 24
"""Bytes of all that are read."""


def check_finite(files: Files) -> None:
    left, broken = ALL, []
    for name, tensor in sorted(files.tensors.items()):
        if tensor.dtype not in FLOATS or tensor.bytes > min(MOST, left):
            continue
        left -= tensor.bytes
        try:
            if not np.isfinite(tensor.values()).all():
                broken.append(name)
        except (HeaderError, OSError):
            return  # the file is cut off, which has been said
    if broken:
        files.wrong(
            f"Not a number, or infinite: {some(broken)}.",
            "Take an earlier checkpoint of the training.",
        )
