"""A derived model's directory, written whole or not at all, with its model card."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ModelLicence:
    """The terms of a model as far as they are known.

    name     as its card or the catalogue gives it
    files    copied beside the draft
    """

    name: str | None
    files: tuple[str, ...] = ()


def copy_licence(target: str, source: Path, fresh: Path) -> ModelLicence:
    """The target's licence: its files are copied, its name is read from its model card."""
    if target in CATALOG:
        return ModelLicence(CATALOG[target].licence)
    if not source.is_dir():
        return ModelLicence(None)
    files = [
        path
        for path in sorted(source.iterdir())
        if path.is_file() and LICENCE_FILE.fullmatch(path.name)
    ]
    for path in files:
        shutil.copyfile(path, fresh / path.name)
    return ModelLicence(_licence_named(source / "README.md"), tuple(path.name for path in files))


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


def model_card(made: DerivedModel, licence: ModelLicence) -> str:
    """Markdown, with the front matter that model hubs read."""
    name = re.split(r"[\\/]", made.target.rstrip("\\/"))[-1]
    matter = [f"license: {licence.name}"] if re.fullmatch(r"[\w.+-]+", licence.name or "") else []
    if re.fullmatch(r"[\w.-]+/[\w.-]+", made.target) and not Path(made.target).exists():
        matter.append(f"base_model: {made.target}")
    front = "\n".join(["---", *matter, "library_name: transformers", "---"])
    use = (
        "Its vocabulary is the target's, so any engine that drafts with a model can use it as one."
    )
    if made.covered is not None:
        use = (
            "Its tokens have numbers of their own: `vocabulary_map.json` gives the target's number "
            "of each. Paceline\nreads it; another engine must be able to draft with a model of "
            f"another vocabulary.\nOf the corpus it was made with, {made.covered:.1%} of the "
            "tokens are kept."
        )
    terms = f"{name} is under {licence.name}" if licence.name else f"The terms are those of {name}"
    files = f", see {', '.join(licence.files)}" if licence.files else ""
    return f"""\
{front}

# A draft for {name}

Made from {name} by Paceline {paceline.__version__}, to draft for it in speculative decoding.

- Layers {", ".join(map(str, made.layers))} (from 0) of {made.layers_of}.
- {made.tokens:,} tokens of {made.tokens_of:,}.
- {made.parameters / 1e6:.1f} million parameters of {made.parameters_of / 1e6:.1f} \
million, in {made.dtype}.

It was not trained after that: what it writes by itself is worth little.

## Use

```
paceline generate {name} -d {made.directory.name}
```

{use}

## Licence

{terms}{files}. The weights are {name}'s, so its terms hold for them.
"""
