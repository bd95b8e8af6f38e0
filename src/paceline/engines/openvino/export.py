"""Models exported to OpenVINO's form, once, into the cache.

A GGUF file keeps its own quantised weights (see `gguf`). A model directory goes through
optimum-intel, which needs torch and quantises anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.engines.cpu import free_bytes
from paceline.engines.load import is_gguf
from paceline.engines.openvino.library import last_line, ops, ov, own_tensor, unreported
from paceline.engines.openvino.model import IR
from paceline.errors import ModelError, PacelineError
from paceline.models.catalog import cache_dir
from paceline.storage import held, whole_directory

WEIGHTS: dict[str, dict[str, Any]] = {
    "int8": {"bits": 8, "sym": False},
    "int4": {
        "bits": 4,
        "sym": True,
        "group_size": 128,
        "group_size_fallback": "adjust",
        "ratio": 1.0,
    },
    "bfloat16": {},
    "float16": {},
    "float32": {},
}
"""Types of an exported directory's weights, with what nncf is asked for."""

_USES = {"MatMul", "Gather", "Transpose"}
_NARROWEST = 16
"""Smaller tables are frequencies and the like."""

_EXPONENT = 0x7F80
"""The bits of a bfloat16 that are all set where it is infinite or no number."""

SHORT_TYPES = {"bfloat16": ov.Type.bf16, "float16": ov.Type.f16}
"""Those that only round each number."""

MANIFEST = "paceline-export.json"
MANIFEST_VERSION = 6
"""Raise it when the manifest or an export would come out otherwise."""

GGUF_MEMORY = 3.5
"""Times a GGUF file's size: what its export takes at most (3.4 was measured)."""

_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def exported_gguf(path: Path, *, verify: bool = False) -> Path:
    """The directory with a GGUF file's IR; made on the first call. Raises ModelError for a file
    that can't be read, or that OpenVINO GenAI's reader doesn't take.

    verify    compare the checksums of one that is there
    """
    with _system_errors(f"{path} can't be read", "Check its path and rights."):
        source, size = _begin_and_size(path), path.stat().st_size
    return _cached(
        path,
        f"{path.stem}-{source[:16]}",
        {"fingerprint": source},
        ("openvino-genai", "gguf"),
        lambda fresh: _convert_gguf(path, size, fresh),
        "pip install 'paceline[openvino]'.",
        verify=verify,
    )


def exported_directory(directory: Path, weights: str, *, verify: bool = False) -> Path:
    """The directory with a model directory's IR and tokenizer; made on the first call. Raises
    ModelError without optimum-intel, or for a family that it doesn't know.

    verify    compare the checksums of one that is there
    """
    with _system_errors(f"{directory} can't be read", "Check its path and rights."):
        source = _fingerprint(directory)
    return _cached(
        directory,
        f"{directory.resolve().name}-{source[:16]}-{weights}",
        {"fingerprint": source, "weights": weights},
        ("optimum-intel", "nncf"),
        lambda fresh: _export_directory(directory, weights, fresh),
        "pip install 'paceline[openvino-export]', in an environment of its own where transformers "
        "is another.",
        verify=verify,
    )


class ExportedFile(msgspec.Struct):
    """A file of an export."""

    bytes: int
    sha256: str


class ExportManifest(msgspec.Struct):
    """What an export was made from, by which versions of which distributions, and its files."""

    version: int
    source: dict[str, str]
    made_by: dict[str, str]
    files: dict[str, ExportedFile]


def _cached(
    source: Path,
    name: str,
    identity: dict[str, str],
    makers: tuple[str, ...],
    make: Callable[[Path], None],
    hint: str,
    *,
    verify: bool = False,
) -> Path:
    """A directory in the cache, made if it isn't there, damaged, or was made by other versions than
    would make it now. Where the makers aren't installed, any version's will do."""
    root = cache_dir() / "openvino"
    made = root / name
    versions = {maker: _version(maker) for maker in makers}
    made_by = {maker: found for maker, found in versions.items() if found is not None}
    missing = [maker for maker in makers if maker not in made_by]
    if _is_sound(made, identity, None if missing else made_by, verify=verify):
        return made
    if missing:
        raise ModelError(
            f"There is no whole export of {source} in OpenVINO's form yet, and what makes one is "
            f"missing here: {', '.join(missing)}.",
            hint,
        )
    with _system_errors(
        f"An export can't be written into {root}",
        "Make room or change its rights, or name another cache with PACELINE_CACHE.",
    ):
        root.mkdir(parents=True, exist_ok=True)
        waiting = f"Another process exports {source}; waiting for it."
        with held(root.with_suffix(".lock"), lambda: print(waiting, file=sys.stderr)):
            if not _is_sound(made, identity, made_by, verify=verify):
                print(f"Exporting {source} to {made}, once.", file=sys.stderr)
                _export(made, make, source, identity, made_by)
    return made


def _export(
    made: Path,
    make: Callable[[Path], None],
    source: Path,
    identity: dict[str, str],
    made_by: dict[str, str],
) -> None:
    with whole_directory(made) as fresh:
        with _exportable(source):
            make(fresh)
        files = {
            path.name: ExportedFile(path.stat().st_size, _sha256(path))
            for path in sorted(fresh.iterdir())
        }
        manifest = ExportManifest(MANIFEST_VERSION, identity, made_by, files)
        (fresh / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _is_sound(
    made: Path, identity: dict[str, str], made_by: dict[str, str] | None, *, verify: bool
) -> bool:
    """Whether a cached export is whole and what is wanted; by its files' sizes, or by their
    checksums, for which all of it is read.

    made_by    None: by any version
    """
    try:
        manifest = msgspec.json.decode((made / MANIFEST).read_bytes(), type=ExportManifest)
        if (manifest.version, manifest.source) != (MANIFEST_VERSION, identity):
            return False
        return made_by in (None, manifest.made_by) and all(
            (made / name).stat().st_size == file.bytes
            and (not verify or _sha256(made / name) == file.sha256)
            for name, file in manifest.files.items()
        )
    except (OSError, msgspec.DecodeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _convert_gguf(path: Path, size: int, fresh: Path) -> None:
    free, needed = free_bytes(), GGUF_MEMORY * size
    if free is not None and free < needed:
        raise ModelError(
            f"Exporting {path.name} takes about {needed / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} GiB are free.",
            "Close other programs, or use the llamacpp engine.",
        )
    from paceline.engines.openvino.gguf import convert

    convert(path, fresh)


def _export_directory(directory: Path, weights: str, fresh: Path) -> None:
    with unreported():
        _convert_directory(directory, weights, fresh)
    for name in _TEXT_FILES:
        if (directory / name).is_file():
            shutil.copyfile(directory / name, fresh / name)


def _convert_directory(directory: Path, weights: str, fresh: Path) -> None:
    import torch
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    asked = WEIGHTS[weights]
    how: dict[str, Any] = {"load_in_8bit": False, "torch_dtype": torch.float32}
    if asked:
        how = {"quantization_config": OVWeightQuantizationConfig(**asked)}
    model = OVModelForCausalLM.from_pretrained(
        str(directory), export=True, compile=False, use_cache=True, stateful=True, **how
    ).model
    if weights in SHORT_TYPES:
        store_matrices(model, SHORT_TYPES[weights])
    ov.save_model(model, fresh / IR, compress_to_fp16=False)


def store_matrices(model: Any, kind: Any) -> None:
    """Store a model's matrices in a shorter type, converted where they are used. What else is
    computed with, such as masks, or rotary frequencies, which turn a whole circle wrong when they
    are rounded, stays as it is. Raises ModelError for numbers that the type doesn't hold.

    kind    ov.Type.bf16 or ov.Type.f16
    """
    for node in model.get_ops():
        if not _is_matrix(node):
            continue
        short = ops.convert(ops.constant(rounded(np.asarray(node.data), kind)), "f32")
        for use in node.output(0).get_target_inputs():
            use.replace_source_output(short.output(0))


def _is_matrix(node: Any) -> bool:
    """Whether a node is float32 weights, a matrix or one for each expert, that are multiplied or
    looked up."""
    if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32:
        return False
    uses = {use.get_node().get_type_name() for use in node.output(0).get_target_inputs()}
    shape = node.get_output_shape(0)
    return len(shape) in (2, 3) and min(shape[-2:]) >= _NARROWEST and uses <= _USES


def rounded(array: Any, kind: Any) -> ov.Tensor:
    """Float32 numbers in a shorter type, each the nearest one, in memory of OpenVINO's own. Raises
    ModelError where one is too large, infinite, or none."""
    if kind == ov.Type.bf16:  # the upper half; OpenVINO's own conversion cuts off where it is even
        whole = np.ascontiguousarray(array).view(np.uint32)
        short = ((whole + 0x7FFF + (whole >> 16 & 1)) >> 16).astype(np.uint16)
        held = np.isfinite(array) & (short & _EXPONENT != _EXPONENT)
    else:
        with np.errstate(over="ignore"):  # it shows below
            short = array.astype(np.float16)
        held = np.isfinite(short)
    if not held.all():
        raise ModelError(
            f"A weight is {array[~held].flat[0]}, which {kind.get_type_name()} doesn't hold.",
            "Export it with --dtype float32.",
        )
    return own_tensor(short, kind, ov.Shape(array.shape))


def _begin_and_size(path: Path) -> str:
    """Of a GGUF file, which may have gigabytes: its first megabyte, its size and time."""
    if not is_gguf(path):
        raise ModelError(
            f"{path} is not a GGUF file.", "Name an OpenVINO model's directory, or a GGUF file."
        )
    metadata = path.stat()
    with path.open("rb") as file:
        begin = file.read(1 << 20)
    return hashlib.sha256(begin + f"{metadata.st_size} {metadata.st_mtime_ns}".encode()).hexdigest()


def _fingerprint(directory: Path) -> str:
    """Of a model directory: what its small files say, and the size and time of its large ones."""
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.iterdir() if path.is_file()):
        if path.suffix in (".json", ".jinja", ".model"):
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix in (".safetensors", ".bin"):
            metadata = path.stat()
            digest.update(f"{path.name} {metadata.st_size} {metadata.st_mtime_ns}".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def _system_errors(fact: str, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{fact}: {error.strerror}.", hint) from None


@contextlib.contextmanager
def _exportable(source: Path) -> Iterator[None]:
    try:
        # What the libraries say on the way is for their authors, and no part of an answer.
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    except PacelineError:
        raise
    except Exception as error:  # three libraries' errors
        if isinstance(error, OSError) and error.errno is not None:
            # A failed copy names both files, and isn't the source's fault.
            if error.filename2 is None and _lies_in(error.filename, source):
                raise ModelError(
                    f"{error.filename} can't be read: {error.strerror}.",
                    "Check its path and rights.",
                ) from None
            raise  # the system's own, which is about the cache's files
        raise ModelError(
            f"{source} can't be exported to OpenVINO's form: {last_line(error)}.",
            "Use a model of a family that the exporter knows, or another engine.",
        ) from error


def _lies_in(name: Any, source: Path) -> bool:
    """Whether an error's file is the source, or in it. Some name a number, or nothing."""
    if not isinstance(name, str | bytes | os.PathLike):
        return False
    return Path(os.fsdecode(name)).resolve().is_relative_to(source.resolve())
