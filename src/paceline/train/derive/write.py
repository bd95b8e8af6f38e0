"""A derived model's directory, written whole or not at all, with its model card."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from transformers import AutoTokenizer

import paceline
from paceline.engines.transformers.load import quiet, readable
from paceline.errors import DataError, ModelError
from paceline.models.catalog import CATALOG
from paceline.storage import whole_directory

if TYPE_CHECKING:
    from paceline.train.derive.make import DerivedModel

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
    try:
        above = next(folder for folder in place.absolute().parents if folder.exists())
        free = shutil.disk_usage(above).free
        if free < size + SLACK:
            raise DataError(
                f"{place} needs {(size + SLACK) / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free.",
                "Make room, or choose another directory.",
            )
        with quiet(), whole_directory(place) as fresh:
            yield fresh
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{place} can't be written: {str(error).rstrip('.')}.", "Choose another directory."
        ) from error


def json_file(path: Path, document: Any) -> None:
    """Write a document as the library's own files are written."""
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


def model_card(fresh: Path, made: DerivedModel, source: Path) -> None:
    """Write a model card with the front matter that model hubs read, and copy the target's licence
    files beside it."""
    licence, files = _licence(made.target, source, fresh)
    name = re.split(r"[\\/]", made.target.rstrip("\\/"))[-1]
    matter = [f"license: {licence}"] if re.fullmatch(r"[\w.+-]+", licence or "") else []
    if re.fullmatch(r"[\w.-]+/[\w.-]+", made.target) and not Path(made.target).exists():
        matter.append(f"base_model: {made.target}")
    use = "Its vocabulary is the target's, so any engine that drafts with a model can use it."
    if made.covered is not None:
        use = CUT.format(covered=made.covered)
    terms = f"{name} is under {licence}" if licence else f"The terms are those of {name}"
    text = (package_files("paceline.train.derive") / "model_card.md").read_text(encoding="utf-8")
    card = text.format(
        front="\n".join([*matter, "library_name: transformers"]),
        name=name,
        version=paceline.__version__,
        layers=", ".join(map(str, made.layers)),
        made=made,
        millions=made.parameters / 1e6,
        millions_of=made.parameters_of / 1e6,
        use=use,
        terms=f"{terms}, see {', '.join(files)}" if files else terms,
    )
    (fresh / "README.md").write_text(card, encoding="utf-8")


CUT = """\
Its tokens have ids of their own: `vocabulary_map.json` gives the target's id of each. Paceline
reads it; another engine must be able to draft with a model of another vocabulary. Of the corpus it
was made with, {covered:.1%} of the tokens are kept."""


def _licence(target: str, source: Path, fresh: Path) -> tuple[str | None, list[str]]:
    """What the terms of the target are called by the catalogue or its model card, and the names of
    its licence files, which are copied."""
    if target in CATALOG:
        return CATALOG[target].licence, []
    if not source.is_dir():
        return None, []
    files = [path for path in sorted(source.iterdir()) if LICENCE_FILE.fullmatch(path.name)]
    files = [path for path in files if path.is_file()]
    for path in files:
        shutil.copyfile(path, fresh / path.name)
    named, card = None, source / "README.md"
    if card.is_file():
        text = card.read_text(encoding="utf-8", errors="replace")
        matter = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
        line = r"^license:[ \t]*([\w.+-]+)[ \t]*$"
        named = re.search(line, matter[1], re.MULTILINE) if matter else None
    return named[1] if named else None, [path.name for path in files]
