"""Which versions of an engine are known, and the keys and values that each of them knows.

A table is closed: what it doesn't have is refused here rather than by the server. The tables are
made from the engines' packages by `engine_checks/make_tables.py`, or say that they were recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from paceline.errors import SettingError, unknown_name

TITLES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "llama-server": "llama-server",
}

KNOWN = {
    "vllm": ("0.31.0", "0.32.0", "0.33.0"),
    "sglang": ("0.5.21", "0.5.23"),
    "tensorrt-llm": ("1.2.1", "1.3.0rc29"),
    "llama-server": ("0c1e57098", "b11434", "b11549"),
}
"""Oldest first; the last is the default."""

LOSSY = re.compile(
    r"synth|fly_|accept-threshold|acceptance_threshold|relaxed|posterior_threshold|greedy_sampling"
)
"""Keys that relax verification or fake it: emitted tokens would not be distributed as the target's,
so an export never has them."""

LOSSY_VALUES = {"rejection_sample_method": ("synthetic", "fly")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What one version of one engine knows.

    source      what it was read from
    keys        flags, or keys of its structured form
    by_method   keys of a method's own section, where sections differ by method
    values      of keys that take only some: all that are known
    removed     flags of earlier versions that this one refuses
    read        facts found by reading its source, by name
    """

    engine: str
    version: str
    source: str
    keys: frozenset[str]
    by_method: Mapping[str, frozenset[str]] = field(default_factory=dict)
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    read: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{TITLES[self.engine]} {self.version}"

    def offers(self, key: str, value: str) -> bool:
        return value in self.values[key]

    def admit(self, settings: Mapping[str, Any], method: str | None = None) -> None:
        """Raises SettingError for a key or value that this version doesn't know or that is lossy.

        method    whose section the settings are
        """
        known = self.keys if method is None else self.by_method[method]
        for key, value in settings.items():
            if LOSSY.search(key) or value in LOSSY_VALUES.get(key, ()):
                raise SettingError(
                    f"{key} = {value!r} changes what is emitted.", "An export never relaxes a rule."
                )
            if key not in known:
                gone = " any more" if key in self.removed else ""
                raise SettingError(
                    f"{self.name} doesn't know {key!r}{gone}.", self._other_versions()
                )
            if key in self.values and value not in self.values[key]:
                raise SettingError(
                    f"{self.name} has no {key} {value!r}.",
                    f"It has {', '.join(sorted(self.values[key]))}. {self._other_versions()}",
                )

    def _other_versions(self) -> str:
        others = [version for version in KNOWN[self.engine] if version != self.version]
        return f"Other versions known here: {', '.join(others)}."


def engine_named(name: str) -> str:
    """Raises SettingError for an engine that nothing is exported to, and names the nearest."""
    if name not in KNOWN:
        raise unknown_name("engine to export to", name, KNOWN)
    return name


def table(engine: str, version: str | None = None) -> Table:
    """The closed table of a version, which is named as its package or build is; None: the newest.

    Raises SettingError for an unknown engine or version, and names the nearest.
    """
    known = KNOWN[engine_named(engine)]
    found = known[-1] if version is None else _version(engine, version)
    return _read(engine, found)


@cache
def _read(engine: str, version: str) -> Table:
    path = files("paceline.export") / "tables" / f"{engine}-{version}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    return Table(
        engine=engine,
        version=version,
        source=document["source"],
        keys=frozenset(document["keys"]),
        by_method=_sets(document.get("by_method", {})),
        values=_sets(document["values"]),
        removed=frozenset(document.get("removed", ())),
        read=document["read"],
    )


def _sets(lists: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(found) for name, found in lists.items()}


def _version(engine: str, version: str) -> str:
    wanted = version.strip().removeprefix("v")
    for known in KNOWN[engine]:
        if wanted in (known, *_read(engine, known).read.get("aliases", ())):
            return known
    near = _nearest(wanted, KNOWN[engine])
    raise SettingError(
        f"{TITLES[engine]} {version} is not known here.",
        f"The nearest known is {near} (all: {', '.join(KNOWN[engine])}). Keys change between "
        f"versions: export for {near} and compare, or serve with that version.",
    )


def _nearest(wanted: str, known: Iterable[str]) -> str:
    """Of the versions just below and just above, the one that differs less."""
    number = _numbers(wanted)
    below = [version for version in known if _numbers(version) <= number][-1:]
    above = [version for version in known if _numbers(version) > number][:1]

    def difference(version: str) -> list[int]:
        pairs = zip_longest(_numbers(version), number, fillvalue=0)
        return [abs(one - other) for one, other in pairs]

    return min([*below, *above], key=difference)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
