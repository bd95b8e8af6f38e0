"""A tiny random model for testing the OpenVINO engine: a GGUF file that its reader exports."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from unittest import mock

import tiny_gguf

from paceline.engines.openvino.engine import OpenVinoEngine


def load(context_size: int, max_sequences: int, **options: str) -> OpenVinoEngine:
    given = {"precision": "strict", **options}
    with mock.patch.dict(os.environ, PACELINE_CACHE=folder()):
        return OpenVinoEngine.load(
            model(), context_size=context_size, max_sequences=max_sequences, threads=1, **given
        )


def load_auto(context_size: int, max_sequences: int) -> OpenVinoEngine:
    return load(context_size, max_sequences, precision="auto", cache_type="float16")


@functools.cache
def model() -> str:
    """The path of the GGUF file, written once a test run."""
    return str(tiny_gguf.write(Path(folder()) / "llama.gguf", "llama", matrices=tiny_gguf.HALF))


@functools.cache
def folder() -> str:
    made = tempfile.TemporaryDirectory(prefix="tiny-openvino-")
    _FOLDERS.append(made)  # removed when the run ends
    return made.name


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
