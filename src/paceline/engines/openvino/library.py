"""The one place where openvino is imported, because something must be said before it is.

On import, on every conversion and in nncf it reports its use to its makers, and waits for the
network to do it. It leaves that out in continuous integration, so that is what it is told.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from paceline.types import Array

_LOCK = threading.RLock()


@contextlib.contextmanager
def unreported() -> Iterator[None]:
    """What openvino does in here, it reports to nobody. One thread at a time."""
    with _LOCK:
        before = os.environ.get("CI")
        os.environ["CI"] = "true"
        try:
            yield
        finally:
            os.environ.pop("CI", None)
            if before is not None:
                os.environ["CI"] = before


with unreported():
    import openvino as ov
    from openvino import opset13 as ops
    from openvino._offline_transformations import paged_attention_transformation

__all__ = ["last_line", "ops", "ov", "own_tensor", "paged_attention_transformation", "unreported"]


def own_tensor(array: Array, kind: ov.Type, shape: ov.Shape) -> ov.Tensor:
    """Numbers of any shape as a tensor in memory of OpenVINO's: one made of an array only points
    to it."""
    own = ov.Tensor(kind, shape)
    ov.Tensor(array, shape, kind).copy_to(own)
    return own


def last_line(error: Exception) -> str:
    """What is the matter, of a message that begins with places in a source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return (told or lines or [type(error).__name__])[-1][:300].rstrip(". :")
