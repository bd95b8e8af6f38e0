"""Windows in a file: what a server without drafts took, for later comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.monitor.window import Window, window_from_json

KIND, VERSION = "paceline watch windows", 1
_MAKE = "Make one with `paceline watch URL --record FILE` while drafts are off."


@dataclass(frozen=True, slots=True)
class Recorded:
    """Whose windows a file holds.

    models    by the names on its pages; empty where the server tells none (llama.cpp)
    labels    that its series were chosen by
    """

    pages: tuple[str, ...]
    server: str | None
    models: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """The file's first line."""
        return {"kind": KIND, "version": VERSION, **asdict(self)}

    @classmethod
    def of_header(cls, line: str, path: Path) -> Recorded:
        """Raises DataError for what is no header, or one of another version."""
        document = _parsed(line)
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise DataError(f"{path} is not a file of recorded windows.", _MAKE)
        version = document.get("version")
        if version != VERSION:
            raise DataError(
                f"{path} is of version {version!r:.40}, and this Paceline reads version {VERSION}.",
                _MAKE,
            )
        lists = [document.get(name) for name in ("pages", "models")]
        server, labels = document.get("server"), document.get("labels")
        if (
            not all(isinstance(one, list) and all(isinstance(s, str) for s in one) for one in lists)
            or not isinstance(server, str | None)
            or not isinstance(labels, dict)
        ):
            raise DataError(f"{path} line 1 doesn't say whose windows these are.", _MAKE)
        pages, models = (tuple(one or ()) for one in lists)
        return cls(pages, server, models, labels)

    def differs(self, other: Recorded) -> str | None:
        """What is not the same of another, in words; None if all is."""
        for name in ("server", "models", "labels", "pages"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return f"its {name} {_words(mine)}, and here {_words(its)}"
        return None


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        value = [f"{name}={each}" for name, each in value.items()]
    told = ", ".join(value) if isinstance(value, list | tuple) else value
    return f"{'is' if isinstance(value, str) else 'are'} {told or 'none'}"


def _parsed(line: str) -> object:
    """None for what is no JSON."""
    try:
        document: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document


def read_windows(path: Path) -> tuple[Recorded, tuple[Window, ...]]:
    """Raises DataError for a file that holds no windows, or those of another version."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", _MAKE) from None
    whose = Recorded.of_header(lines[0] if lines else "", path)
    windows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            windows.append(window_from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} line {number} is no window: {error}.", _MAKE) from None
    if not windows:
        raise DataError(f"{path} holds no window yet.", _MAKE)
    return whose, tuple(windows)
