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
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import openvino as ov
from openvino import opset13 as ops
from tqdm import tqdm

from paceline.engines.openvino_model import last_line
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

MANIFEST = "paceline-export.json"
FORM = 3
"""Of the manifest and what it stands for. Raise it when an export would come out otherwise."""

_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def exported_gguf(path: Path) -> Path:
    """The directory with a GGUF file's IR; made on the first call. Raises ModelError for a file
    that OpenVINO GenAI's reader doesn't take."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(
                f"{path} is no GGUF file.", "Name an OpenVINO model's directory, or a GGUF file."
            )
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _cached(
        path,
        f"{path.stem}-{digest[:16]}",
        {"sha256": digest},
        ("openvino-genai",),
        lambda fresh: _convert_gguf(path, fresh),
        "pip install 'paceline[openvino]'",
    )


def exported_directory(directory: Path, weights: str) -> Path:
    """The directory with a model directory's IR and tokenizer; made on the first call. Raises
    ModelError without optimum-intel, or for a family that it doesn't know."""
    source = _fingerprint(directory)
    name = f"{directory.name}-{source[:16]}-{weights}"
    return _cached(
        directory,
        name,
        {"fingerprint": source, "weights": weights},
        ("optimum-intel", "nncf"),
        lambda fresh: _export_directory(directory, weights, fresh),
        "pip install 'paceline[openvino-export]', in an environment of its own where transformers "
        "is another",
    )


def _cached(
    source: Path,
    name: str,
    identity: Mapping[str, str],
    makers: tuple[str, ...],
    make: Callable[[Path], None],
    cure: str,
) -> Path:
    """A directory in the cache, made if it isn't there, damaged, or was made by other versions than
    would make it now. Where the makers aren't installed, any version's will do."""
    root = cache_dir() / "openvino"
    made = root / name
    versions = {maker: _version(maker) for maker in makers}
    present = None not in versions.values()
    wanted = {"form": FORM, **identity, **({"made_by": versions} if present else {})}
    if _sound(made, wanted):
        return made
    if not present:
        missing = ", ".join(maker for maker, found in versions.items() if found is None)
        raise ModelError(
            f"{source} isn't exported to OpenVINO's form yet, and {missing} is missing here.", cure
        )
    root.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{source.stem}-", dir=root))
    try:
        with _progress(source, made), _exportable(source):
            make(fresh)
            _write_manifest(fresh, wanted)
        shutil.rmtree(made, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was first
            os.rename(fresh, made)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return made


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _sound(made: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a cached export is whole and what is wanted."""
    try:
        manifest = json.loads((made / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        return all(manifest.get(key) == value for key, value in wanted.items()) and all(
            (made / name).stat().st_size == entry["bytes"] for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_manifest(directory: Path, wanted: Mapping[str, Any]) -> None:
    files = {}
    for path in sorted(directory.iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
    text = json.dumps({**wanted, "files": files}, indent=1) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def _convert_gguf(path: Path, fresh: Path) -> None:
    from paceline.engines.openvino_gguf import convert

    convert(path, fresh)


def _export_directory(directory: Path, weights: str, fresh: Path) -> None:
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    asked = WEIGHTS[weights]
    model = OVModelForCausalLM.from_pretrained(
        str(directory),
        export=True,
        compile=False,
        use_cache=True,
        stateful=True,
        **(
            {"quantization_config": OVWeightQuantizationConfig(**asked)}
            if asked
            else {"load_in_8bit": False}
        ),
    ).model
    if weights == "bfloat16":
        _store_as_bfloat16(model)
    xml = fresh / "openvino_model.xml"
    ov.save_model(model, xml, compress_to_fp16=weights == "float16")
    for name in _TEXT_FILES:
        if (directory / name).is_file():
            shutil.copyfile(directory / name, fresh / name)


def _store_as_bfloat16(model: Any) -> None:
    """Matrices in bfloat16, converted where they are used."""
    for node in model.get_ops():
        if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32:
            continue
        if len(node.get_output_shape(0)) < 2:
            continue
        short = ops.convert(ops.constant(node.data, ov.Type.bf16), "f32")
        for use in node.output(0).get_target_inputs():
            use.replace_source_output(short.output(0))


def _fingerprint(directory: Path) -> str:
    """Of a model directory: what its small files say, and the size and time of its large ones."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix in (".json", ".jinja", ".model"):
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix in (".safetensors", ".bin"):
            facts = path.stat()
            digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def _progress(source: Path, made: Path) -> Iterator[None]:
    print(f"Exporting {source} to {made}, once.", file=sys.stderr)
    with tqdm(desc="export", bar_format="{desc}: {elapsed}", disable=not sys.stderr.isatty()):
        yield


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
        raise ModelError(
            f"{source} can't be exported to OpenVINO's form: {last_line(error)}.",
            "Use a model of a family that the exporter knows, or another engine.",
        ) from error
