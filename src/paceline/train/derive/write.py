"""A model directory, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError
from transformers import AutoTokenizer

from paceline.engines.transformers.load import readable
from paceline.errors import DataError, ModelError
from paceline.models.catalog import CATALOG

SLACK = 64 << 20
"""Bytes for the tokenizer and everything small."""
LICENCE_FILE = re.compile(r"(licen[cs]e|notice|use_policy)[\w.-]*", re.IGNORECASE)
OTHER_VOCABULARIES = ("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")
"""Files that say again, or differently, what tokenizer.json says."""


def free_place(path: Path) -> Path:
    """A path where a directory may be made; parents are made with it. Raises DataError for one
    that is taken or can't be written."""
    path = path.expanduser()
    if path.name in ("", ".."):  # the directory one is in, or above it
        path = Path(os.path.abspath(path))
    try:
        if path.exists() and not path.is_dir():
            raise DataError(f"{path} is a file.", "Choose another directory.")
        if path.is_dir() and any(path.iterdir()):
            raise DataError(
                f"The directory {path} isn't empty.", "Choose another one, or empty it."
            )
        above = path.absolute().parent
        while not above.exists():
            above = above.parent
    except OSError as error:
        raise DataError(
            f"{path} can't be looked at: {error.strerror}.", "Choose another directory."
        ) from None
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise DataError(f"{path} can't be made in {above}.", "Choose another directory.")
    return path


@contextlib.contextmanager
def directory(place: Path, size: int) -> Iterator[Path]:
    """A new directory to fill, which takes its place at the end and vanishes on any error.

    size    bytes of the weights that will be written

    Raises DataError if there is too little room, or writing fails.
    """
    fresh = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place.parent).free
        if free < size + SLACK:
            raise DataError(
                f"{place} needs {(size + SLACK) / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free.",
                "Make room, or choose another directory.",
            )
        fresh.mkdir()
        with _quiet():
            yield fresh
        for path in fresh.iterdir():
            if path.is_file():  # weights come readable for their owner only
                path.chmod(0o666 & fresh.stat().st_mode)
        if place.is_dir():
            place.rmdir()  # it is empty; not every system renames onto it
        fresh.rename(place)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{place} can't be written: {str(error).rstrip('.')}.", "Choose another directory."
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No bars of the library in a log."""
    logging = transformers.utils.logging
    bars = logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


def json_file(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def tokenizer(fresh: Path, whole: Any, description: dict[str, Any] | None) -> None:
    """A model's tokenizer with its chat template; with another tokenizer.json if one is given.

    Raises ModelError if it then doesn't read as it was written.
    """
    whole.save_pretrained(fresh)
    place = fresh / "tokenizer_config.json"
    settings = json.loads(place.read_text(encoding="utf-8"))
    if description is not None or settings.get("tokenizer_class") == "TokenizersBackend":
        # The class that takes tokenizer.json as it is, by the name that older versions know too.
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if description is not None:
        settings.pop("added_tokens_decoder", None)
        for name in OTHER_VOCABULARIES:
            (fresh / name).unlink(missing_ok=True)
        json_file(fresh / "tokenizer.json", description)
    json_file(place, settings)
    with readable(str(fresh)):
        again = AutoTokenizer.from_pretrained(str(fresh))
    wanted = whole.get_vocab() if description is None else _vocabulary(description)
    if again.get_vocab() != wanted:
        raise ModelError(
            "The draft's tokenizer reads otherwise than it was written.",
            "Keep the vocabulary whole." if description else "Use another model.",
        )


def _vocabulary(description: dict[str, Any]) -> dict[str, int]:
    added = {entry["content"]: entry["id"] for entry in description["added_tokens"]}
    return {**description["model"]["vocab"], **added}


@dataclass(frozen=True, slots=True)
class Licence:
    """The terms of a model as far as they are known.

    name     as its card or the catalogue gives it
    files    copied beside the draft
    """

    name: str | None
    files: tuple[str, ...] = ()


def copy_licence(target: str, source: Path, fresh: Path) -> Licence:
    """The target's licence: its files are copied, its name is read from its model card."""
    if target in CATALOG:
        return Licence(CATALOG[target].licence)
    if not source.is_dir():
        return Licence(None)
    files = [
        path
        for path in sorted(source.iterdir())
        if path.is_file() and LICENCE_FILE.fullmatch(path.name)
    ]
    for path in files:
        shutil.copyfile(path, fresh / path.name)
    return Licence(_licence_named(source / "README.md"), tuple(path.name for path in files))


def _licence_named(model_card: Path) -> str | None:
    """What a model card's front matter says under `license`."""
    if not model_card.is_file():
        return None
    text = model_card.read_text(encoding="utf-8", errors="replace")
    matter = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = (
        re.search(r"^license:[ \t]*([\w.+-]+)[ \t]*$", matter[1], re.MULTILINE) if matter else None
    )
    return found[1] if found else None
