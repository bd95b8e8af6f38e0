"""Which peers run, with which Python and which model: a JSON file (README.md shows one)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import DataError, SettingError, unknown_name

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Kind:
    """A worker script, the modes it has, and whether one process answers in all of them."""

    script: str
    modes: tuple[str, ...]
    shared: bool


KINDS = {
    "paceline": Kind("paceline_worker.py", ("baseline", "auto-lookup", "auto-lookup-draft"), True),
    "transformers": Kind("transformers_worker.py", ("baseline", "lookup", "draft"), True),
    "llamacpp": Kind(
        "llamacpp_worker.py",
        ("baseline", "ngram-simple", "ngram-mod", "ngram-cache", "draft"),
        False,
    ),
    "vllm": Kind("vllm_worker.py", ("baseline", "ngram", "draft", "paceline"), False),
}


@dataclass(frozen=True, slots=True)
class Side:
    """A peer in one mode: what a pair has two of. `baseline` of the same group and peer is its
    baseline."""

    group: str
    peer: str
    mode: str


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A process to start, and the sides that it answers for."""

    sides: tuple[Side, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        modes = ",".join(side.mode for side in self.sides)
        return f"{self.sides[0].peer} ({modes})"


@dataclass(frozen=True, slots=True)
class Plan:
    """The processes of each group; groups are loaded, run and closed one after another."""

    groups: Mapping[str, tuple[Process, ...]]
    threads: int
    context: int

    def chosen(self, names: Sequence[str] | None) -> dict[str, tuple[Process, ...]]:
        for name in names or ():
            if name not in self.groups:
                raise unknown_name("group", name, self.groups)
        return {name: self.groups[name] for name in names or self.groups}


def read_plan(path: str) -> tuple[Plan, dict[str, Any]]:
    """The plan and the document it came from. Raises DataError or SettingError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return plan_of(document), document
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", "Give a JSON file.") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is of another form ({type(error).__name__}: {error}).",
            "Write it as benchmarks/peers/README.md shows.",
        ) from error


def plan_of(document: Mapping[str, Any]) -> Plan:
    threads, context = int(document["threads"]), int(document["context"])
    shared = {str(key): str(value) for key, value in document.get("env", {}).items()}
    groups = {
        group: tuple(
            process
            for entry in entries
            for process in _processes(group, entry, threads, context, shared)
        )
        for group, entries in document["groups"].items()
    }
    for group, processes in groups.items():
        sides = [side for process in processes for side in process.sides]
        if len(set(sides)) < len(sides):
            raise SettingError(f"The group {group!r} has a peer and mode twice.", "Keep one.")
    return Plan(groups, threads, context)


def _processes(
    group: str, entry: Mapping[str, Any], threads: int, context: int, env: Mapping[str, str]
) -> list[Process]:
    known = {"peer", "worker", "python", "model", "draft", "dtype", "eager", "modes", "env"}
    for key in entry:
        if key not in known:
            raise unknown_name("key of a peer", key, known)
    if entry["worker"] not in KINDS:
        raise unknown_name("worker", entry["worker"], KINDS)
    kind = KINDS[entry["worker"]]
    modes = entry.get("modes", kind.modes)
    for mode in modes:
        if mode not in kind.modes:
            raise unknown_name(f"mode of {entry['worker']}", mode, kind.modes)
    if entry.get("eager") and entry["worker"] != "vllm":
        raise SettingError(f"eager is set for {entry['peer']}.", "It is for vLLM: leave it out.")
    if "baseline" not in modes:
        raise SettingError(
            f"{entry['peer']} has no baseline mode in the group {group!r}.",
            "Add it: the other modes are set beside it.",
        )
    if any("draft" in mode for mode in modes) and "draft" not in entry:
        raise SettingError(
            f"{entry['peer']} has a mode with a draft model, and no draft.", "Name its draft."
        )
    environment = {**env, **{key: str(value) for key, value in entry.get("env", {}).items()}}
    parts = [tuple(modes)] if kind.shared else [(mode,) for mode in modes]
    return [
        Process(
            sides=tuple(Side(group, entry["peer"], mode) for mode in part),
            command=_command(entry, kind.script, part, threads, context),
            environment=environment,
        )
        for part in parts
    ]


def _command(
    entry: Mapping[str, Any], script: str, modes: Sequence[str], threads: int, context: int
) -> tuple[str, ...]:
    command = [_place(entry["python"]), str(HERE / script), "--model", _place(entry["model"])]
    command += ["--modes", ",".join(modes), "--threads", str(threads), "--context", str(context)]
    if "draft" in entry:
        command += ["--draft", _place(entry["draft"])]
    if "dtype" in entry:
        command += ["--dtype", entry["dtype"]]
    if entry.get("eager"):
        command.append("--eager")
    return tuple(command)


def _place(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path
