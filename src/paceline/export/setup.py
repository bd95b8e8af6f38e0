"""What an export is told, which engines and versions are known, and the settings that come of it.

A version's table is closed: what it lacks is refused here rather than by the server. Tables are
made from the engines' packages by `engine_checks/make_tables.py`, or say that they were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from typing import Any

import msgspec

from paceline.errors import SettingError, unknown_name

LOSSY = re.compile(
    r"synth|fly_|accept-threshold|acceptance_threshold|relaxed|posterior_threshold|greedy_sampling"
)
"""Keys that relax verification or fake it, which an export never has: what is emitted would not be
distributed as the target's."""

LOSSY_VALUES = {"rejection_sample_method": ("synthetic", "fly")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What is said beside the plan; all of it is optional.

    version                 of the engine; None: the newest known
    target, draft_model     where they lie for the engine; None: as the plan says
    max_draft_tokens        drafted tokens in a round, in place of the plan's
    ours                    vLLM: our proposer in place of the engine's own n-grams
    nearest                 where the engine can't express the draft, export what comes nearest
    tensor_parallel         of the target
    draft_tensor_parallel   of the draft; None: as the engine chooses
    max_running             sequences that SGLang decodes together
    """

    version: str | None = None
    target: str | None = None
    draft_model: str | None = None
    max_draft_tokens: int | None = None
    ours: bool = False
    nearest: bool = False
    tensor_parallel: int | None = None
    draft_tensor_parallel: int | None = None
    max_running: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """How one version of one engine is told of a plan, before that takes a form.

    engine      as `paceline export` names it
    version     as its package names it
    target      the model to serve, a path or a repository as the engine wants it
    draft       where the draft's model lies likewise; None if it needs none
    arguments   of the server, about drafts only: without program, target, port
    config      the same in the engine's structured form (vLLM's `speculative_config`,
                TensorRT-LLM's YAML); empty for engines that only have flags
    files       text of the files that the arguments name, by name
    tensor_parallel   GPUs that the target is split over
    metrics     arguments that turn the engine's counters on, for `paceline watch`
    notes       what was measured, what stands in for the plan's draft, how to roll back: sentences
                that every output carries as comments
    """

    engine: str
    version: str
    target: str
    draft: str | None = None
    arguments: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    tensor_parallel: int = 1
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoWorker:
    """How Dynamo runs an engine.

    module      of Dynamo's package, which is the worker
    runtime     in the image's name
    model       options that the target follows
    counters, parallel     None: the engine's own
    from_text   methods that draft from tokens alone: prefill workers have no state to hand over
    no_handover     a method whose state prefill workers can't hand over
    roles       further arguments of decode and prefill workers: how the halves reach each other.
                vLLM's decode role stands in the 1.6.1 profiler alone, not in its templates
    """

    module: str
    runtime: str
    model: tuple[str, ...]
    from_text: frozenset[str]
    counters: tuple[str, ...] | None = None
    parallel: str | None = None
    no_handover: str | None = None
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """An engine, whichever its version: a row of `tables/engines.json`.

    without_drafts  how drafting is turned off again
    versions        that are known, oldest first; the last is the default
    formats         that its settings are written in; the first is the default
    structured      it takes the drafts' settings as a mapping
    settings_file   that it reads its settings from, and what stands in it (`always`)
    program, model  what starts its server, and the option that the target follows
    counters        arguments that turn its counters on
    parallel        the option that splits a target over GPUs; llama-server takes all by itself
    method_key      what says how it drafts; by family of drafts the names (`methods`) of which a
                    version has one; several at once are joined by commas
    image           that its makers publish; started as it is, or by `program`
    port, metrics_path     of its server, and its Prometheus page
    health_seconds  that an answer of /health may take
    cache_variable  says where fetched models go
    shared_memory   of /dev/shm, which its processes talk through; None: it is one process
    """

    title: str
    without_drafts: str
    versions: tuple[str, ...]
    formats: tuple[str, ...]
    program: tuple[str, ...]
    method_key: str
    methods: Mapping[str, tuple[str, ...]]
    image: str
    port: int
    structured: bool = False
    settings_file: str | None = None
    always: Mapping[str, Any] = field(default_factory=dict)
    model: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    parallel: str | None = None
    own_entry_point: bool = False
    metrics_path: str = "/metrics"
    health_seconds: int = 10
    cache_variable: str = "HF_HOME"
    shared_memory: str | None = "8Gi"
    dynamo: DynamoWorker | None = None

    def split(self, gpus: int) -> tuple[str, ...]:
        """The arguments that split a target over that many GPUs, where any are needed."""
        return (self.parallel, str(gpus)) if self.parallel and gpus > 1 else ()


def is_path(model: str) -> bool:
    """Whether a model is named as a file or folder, not as a repository."""
    return (
        model.startswith(("/", ".", "~"))
        or model.lower().endswith(".gguf")
        or model.count("/") > 1
        or "\\" in model
    )


def _table_file(name: str) -> bytes:
    return (files("paceline.export") / "tables" / f"{name}.json").read_bytes()


ENGINES = msgspec.json.decode(_table_file("engines"), type=dict[str, EngineProfile])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTable:
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
    values: Mapping[str, frozenset[str]]
    read: Mapping[str, Any]
    by_method: Mapping[str, frozenset[str]] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()

    @property
    def profile(self) -> EngineProfile:
        """The engine, whichever its version."""
        return ENGINES[self.engine]

    @property
    def name(self) -> str:
        """Engine and version, for messages."""
        return f"{self.profile.title} {self.version}"

    def families(self) -> dict[str, str]:
        """The families of drafts that this version has, and what it calls each."""
        known = self.values[self.profile.method_key]
        return {
            family: name
            for family, names in self.profile.methods.items()
            for name in names
            if known.issuperset(name.split(","))
        }

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
        others = [version for version in self.profile.versions if version != self.version]
        return f"Other versions known here: {', '.join(others)}."


def engine_table(engine: str, version: str | None = None) -> EngineTable:
    """The closed table of a version, which is named as its package or build is; None: the newest.

    Raises SettingError for an unknown engine or version, and names the nearest.
    """
    if engine not in ENGINES:
        raise unknown_name("engine to export to", engine, ENGINES)
    known = ENGINES[engine].versions
    if version is None:
        return _read(engine, known[-1])
    wanted = version.strip().removeprefix("v")
    for one in known:
        if wanted in (one, *_read(engine, one).read.get("aliases", ())):
            return _read(engine, one)
    near = _nearest(wanted, known)
    raise SettingError(
        f"{ENGINES[engine].title} {version} is not known here.",
        f"The nearest known is {near} (all: {', '.join(known)}). Keys change between "
        f"versions: export for {near} and compare, or serve with that version.",
    )


@cache
def _read(engine: str, version: str) -> EngineTable:
    return msgspec.json.decode(_table_file(f"{engine}-{version}"), type=EngineTable)


def _nearest(wanted: str, known: Iterable[str]) -> str:
    """Of the versions just below and just above, the one that differs less."""
    number = _numbers(wanted)
    below = [version for version in known if _numbers(version) <= number][-1:]
    above = [version for version in known if _numbers(version) > number][:1]
    apart = {
        version: [abs(a - b) for a, b in zip_longest(_numbers(version), number, fillvalue=0)]
        for version in (*below, *above)
    }
    return min(apart, key=lambda version: apart[version])


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
