"""Models exported to OpenVINO's form, once, into the cache.

A GGUF file keeps its own quantised weights (see `openvino_gguf`). A model directory goes through
optimum-intel, which needs torch and quantises anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from paceline.engines.cpu import free_bytes
from paceline.engines.openvino.library import last_line, ops, ov, unreported
from paceline.engines.openvino.model import IR
from paceline.errors import ModelError, PacelineError
from paceline.models.catalog import cache_dir

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
FORM = 5
"""Of the manifest and what it stands for. Raise it when an export would come out otherwise."""

GGUF_MEMORY = 3.5
"""Times a GGUF file's size: what its export takes at most (3.4 was measured)."""

_TICK_S = 1.0
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
    with _legible(path):
        source = _begin_and_size(path)
        size = path.stat().st_size
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
    with _legible(directory):
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


def _cached(
    source: Path,
    name: str,
    identity: Mapping[str, str],
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
    present = None not in versions.values()
    wanted = {"form": FORM, **identity, **({"made_by": versions} if present else {})}
    if _sound(made, wanted, verify=verify):
        return made
    if not present:
        missing = ", ".join(maker for maker, found in versions.items() if found is None)
        raise ModelError(
            f"There is no whole export of {source} in OpenVINO's form yet, and what makes one is "
            f"missing here: {missing}.",
            hint,
        )
    with _writable(root):
        root.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{made.name}-", dir=root))
        try:
            with _progress(source, made):
                with _exportable(source):
                    make(fresh)
                _write_manifest(fresh, wanted)
            if not _sound(made, wanted):  # another process may have been first
                _put_in_place(fresh, made)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return made


def _put_in_place(fresh: Path, made: Path) -> None:
    """Let a new export stand where an old one may be. Whoever reads the old one goes on."""
    mask = os.umask(0)
    os.umask(mask)
    fresh.chmod(0o777 & ~mask)  # a temporary directory is its owner's alone
    old = fresh.with_name(f"{fresh.name}.old")
    if made.exists():
        made.rename(old)
    fresh.rename(made)
    shutil.rmtree(old, ignore_errors=True)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _sound(made: Path, wanted: Mapping[str, Any], *, verify: bool = False) -> bool:
    """Whether a cached export is whole and what is wanted; by its files' sizes, or by their
    checksums, for which all of it is read."""
    try:
        manifest = json.loads((made / MANIFEST).read_text(encoding="utf-8"))
        return all(manifest.get(key) == value for key, value in wanted.items()) and all(
            (made / name).stat().st_size == entry["bytes"]
            and (not verify or _sha256(made / name) == entry["sha256"])
            for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_manifest(directory: Path, wanted: Mapping[str, Any]) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(directory.iterdir())
    }
    text = json.dumps({**wanted, "files": files}, indent=1) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


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
    shape = ov.Shape(array.shape)
    own = ov.Tensor(kind, shape)
    ov.Tensor(short, shape, kind).copy_to(own)
    return own


def _begin_and_size(path: Path) -> str:
    """Of a GGUF file, which may have gigabytes: its first megabyte, its size and time."""
    metadata = path.stat()
    with path.open("rb") as file:
        begin = file.read(1 << 20)
    if not begin.startswith(b"GGUF"):
        raise ModelError(
            f"{path} is no GGUF file.", "Name an OpenVINO model's directory, or a GGUF file."
        )
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
def _progress(source: Path, made: Path) -> Iterator[None]:
    print(f"Exporting {source} to {made}, once.", file=sys.stderr)
    over = threading.Event()
    # The libraries don't say how far they are, so the clock goes on by itself, as far as they let
    # another thread run.
    with tqdm(
        desc="export", bar_format="{desc}: {elapsed}", disable=not sys.stderr.isatty()
    ) as bar:
        clock = threading.Thread(target=_tick, args=(bar, over), daemon=True)
        clock.start()
        try:
            yield
        finally:
            over.set()
            clock.join()


def _tick(bar: Any, over: threading.Event) -> None:
    while not over.wait(_TICK_S):
        bar.refresh()


@contextlib.contextmanager
def _legible(source: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fact = f"{source} can't be read: {error.strerror}."
        raise ModelError(fact, "Check its path and rights.") from None


@contextlib.contextmanager
def _writable(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"An export can't be written into {root}: {error.strerror}.",
            "Make room or change its rights, or name another cache with PACELINE_CACHE.",
        ) from None


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
