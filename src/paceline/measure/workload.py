"""Prompts to measure on: a JSONL file of the user's, or the built-in ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from paceline.engines.base import Engine
from paceline.engines.tokenizer import Message
from paceline.errors import DataError, unknown_name


@dataclass(frozen=True, slots=True)
class WorkloadPrompt:
    """One prompt: a raw text if `raw`, else a chat of one or more messages."""

    id: str
    category: str
    messages: tuple[Message, ...]
    raw: bool = False

    def tokens(self, engine: Engine) -> tuple[int, ...]:
        """The prompt in the target's tokens, through its chat template unless raw."""
        if self.raw:
            return tuple(engine.tokenizer.encode(self.messages[0]["content"]))
        return tuple(engine.tokenizer.encode_chat(self.messages))


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in order, and what was left out: one sentence a broken line."""

    name: str
    prompts: tuple[WorkloadPrompt, ...]
    skipped: tuple[str, ...] = ()

    def of_categories(self, wanted: Sequence[str]) -> Workload:
        """Only the prompts of some categories. Raises SettingError for one that has none."""
        known = {prompt.category for prompt in self.prompts}
        for category in wanted:
            if category not in known:
                raise unknown_name("category", category, known)
        kept = tuple(prompt for prompt in self.prompts if prompt.category in wanted)
        return Workload(self.name, kept, self.skipped)


def built_in() -> Workload:
    """Six prompts written for this project: code edit, JSON, quoting, code, chat, maths."""
    text = files("paceline.measure").joinpath("prompts/demo.jsonl").read_text(encoding="utf-8")
    return _parse("built-in", text.splitlines(), raw=False)


def read_workload(path: str, *, raw: bool = False) -> Workload:
    """Read a JSONL file: a `prompt` text or chat `messages` a line, with `id` and `category` if
    there are any. A broken line is named in `skipped`, the others are kept.

    raw    prompts are continued as they stand, without the chat template

    Raises DataError if the file can't be read or holds no prompt at all.
    """
    try:
        # Not splitlines: a text may hold other line separators, and may begin with a BOM.
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", "Give a JSONL file.") from error
    workload = _parse(Path(path).name, lines, raw)
    if not workload.prompts:
        first = f" {workload.skipped[0]}" if workload.skipped else ""
        raise DataError(f"{path} holds no prompt.{first}", 'Write one {"prompt": "…"} a line.')
    return workload


def _parse(name: str, lines: list[str], raw: bool) -> Workload:
    prompts: list[WorkloadPrompt] = []
    skipped: list[str] = []
    ids: set[str] = set()
    for number, line in _numbered(lines):
        try:
            prompts.append(_prompt(json.loads(line), number, raw, ids))
        except ValueError as error:
            what = "is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            skipped.append(f"Line {number} {what}.")
    return Workload(name, tuple(prompts), tuple(skipped))


def _numbered(lines: list[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _prompt(row: Any, number: int, raw: bool, ids: set[str]) -> WorkloadPrompt:
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")
    messages = _messages(row, raw)
    if not any(message["content"].strip() for message in messages):
        raise ValueError("has an empty prompt")
    name = str(row.get("id", f"line-{number}"))
    name = f"{name} (line {number})" if name in ids else name
    ids.add(name)
    return WorkloadPrompt(name, str(row.get("category", "all")), messages, raw)


def _messages(row: dict[str, Any], raw: bool) -> tuple[Message, ...]:
    prompt, messages = row.get("prompt"), row.get("messages")
    if prompt is not None and messages is not None:
        raise ValueError("has both a prompt and messages")
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    if raw and messages is not None:
        raise ValueError("has messages, which need the chat template, and raw was asked for")
    if not isinstance(messages, list) or not messages:
        raise ValueError("has neither a prompt text nor messages")
    for message in messages:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ValueError("has a message without role and content texts")
    return tuple(messages)
