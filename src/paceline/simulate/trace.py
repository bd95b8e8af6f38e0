"""A recording: what every draft would have offered at each moment of finished answers, and how much
of it was right. docs/rounds-file.md explains the fields.

A previewable draft is known at every moment. Any other is known only where it was asked;
`impute.imputed` draws the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

from paceline.errors import DataError, unknown_name
from paceline.types import Round

KIND, VERSION = "paceline rounds", 2
_LISTS = ("match_length", "right", "offered", "unwatched")
_ROUND_FIELDS = {field.name for field in fields(Round)}
_NEEDED = {field.name for field in fields(Round) if field.default is MISSING}
_HINT = "`paceline bench … --record FILE` writes such a file."

Known = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SourceTrace:
    """One draft over one answer. Entry t of each list is the moment when t output tokens are
    committed; None where nothing is known.

    match_length     `Preview.match_length`; 0 without a match, or if the draft weighs nothing
    right        how many of the offered tokens are the ones then emitted; never more than were
    offered      tokens on offer, at most `acceptance.MOST`, as far as a policy looks; 0 is none
    unwatched    tokens it offers a policy that doesn't preview it (a fixed limit)
    """

    match_length: Known
    right: Known
    offered: Known
    unwatched: Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One request, decoded to its end.

    output_tokens    what it emitted, the token of the prompt's round included
    most_tokens      what it might have emitted: max_tokens, or what the context had room for
    rounds           as they were measured, the prompt's first
    configuration    how it was decoded: the name in the bench
    """

    id: str
    category: str
    prompt_tokens: int
    output_tokens: int
    most_tokens: int
    sources: Mapping[str, SourceTrace]
    rounds: tuple[Round, ...] = ()
    configuration: str = "baseline"

    def as_document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """What holds for the whole recording.

    target     the engine's facts
    sources    by name, whether the draft is previewable
    has_confidence     names of those whose evidence counts
    """

    target: Any
    temperature: float
    sources: Mapping[str, bool]
    has_confidence: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def as_document(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "version": VERSION,
            "target": self.target,
            "temperature": self.temperature,
            "sources": {
                name: {"previewable": known, "has_confidence": name in self.has_confidence}
                for name, known in self.sources.items()
            },
            "command": list(self.command),
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """A header, and at least one request in the order they were decoded."""

    header: RecordingHeader
    traces: tuple[Trace, ...] = field(default=())

    @property
    def configurations(self) -> list[str]:
        return list(dict.fromkeys(trace.configuration for trace in self.traces))

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(trace.category for trace in self.traces))

    @property
    def known_sources(self) -> dict[str, bool]:
        """The header's drafts without those of which a moment is unknown; after `imputed`, these
        are the ones that were never asked."""
        return {
            name: previewable
            for name, previewable in self.header.sources.items()
            if all(name in t.sources and None not in t.sources[name].right for t in self.traces)
        }

    def of(self, *, configuration: str | None = None, category: str | None = None) -> Recording:
        """Only the requests of one configuration or category. Raises SettingError if none are."""
        if configuration is not None and configuration not in self.configurations:
            raise unknown_name("configuration", configuration, self.configurations)
        if category is not None and category not in self.categories:
            raise unknown_name("category", category, self.categories)
        kept = (
            trace
            for trace in self.traces
            if configuration in (None, trace.configuration) and category in (None, trace.category)
        )
        return replace(self, traces=tuple(kept))


def write(what: RecordingHeader | Trace, stream: TextIO) -> None:
    """One line, at once: what was written stays if the run is interrupted."""
    document = what.as_document()
    stream.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
    stream.flush()


# Reading.


def read_recording(path: str) -> Recording:
    """Raises DataError for a file that can't be read, is no recording, or holds no request."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", "Give a file of rounds.") from None
    rows = _rows(path, lines)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} is empty.", _HINT)
    header = _header(first[1], path)
    traces = tuple(_trace(row, header, f"Line {number} of {path}") for number, row in rows)
    if not traces:
        raise DataError(f"{path} holds a header and no request.", _HINT)
    return Recording(header, traces)


def _rows(path: str, lines: list[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            reason = str(error).split(": line")[0]
            raise DataError(f"Line {number} of {path} is not JSON: {reason}.", _HINT) from None


def _header(row: Any, path: str) -> RecordingHeader:
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind != KIND:
        raise DataError(f"{path} holds no rounds: its kind is {kind!r}, not {KIND!r}.", _HINT)
    if row.get("version") != VERSION:
        raise DataError(
            f"{path} has version {row.get('version', 1)} of the format, not {VERSION}.",
            "Record it again with this Paceline.",
        )
    try:
        return RecordingHeader(
            target=row["target"],
            temperature=float(row["temperature"]),
            sources={name: bool(about["previewable"]) for name, about in row["sources"].items()},
            has_confidence=tuple(
                n for n, about in row["sources"].items() if about.get("has_confidence", True)
            ),
            command=tuple(row.get("command", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"The header of {path} can't be read: {_said(error)}.", _HINT) from None


def _trace(row: Any, header: RecordingHeader, where: str) -> Trace:
    try:
        output = _whole(row["output_tokens"], "output_tokens", least=1)
        sources = {name: _source(about, name, output) for name, about in row["sources"].items()}
        for name in sources:
            if name not in header.sources:
                raise ValueError(f"the header names no draft {name!r}")
        return Trace(
            id=str(row["id"]),
            category=str(row["category"]),
            prompt_tokens=_whole(row["prompt_tokens"], "prompt_tokens", least=1),
            output_tokens=output,
            most_tokens=_whole(row.get("most_tokens", output), "most_tokens", least=output),
            sources=sources,
            rounds=tuple(_round(about) for about in row.get("rounds", ())),
            configuration=str(row["configuration"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where} can't be read: {_said(error)}.", "Record it again.") from None


def _said(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _whole(value: Any, name: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}, not {least} or more")
    return value


def _source(row: Any, name: str, output: int) -> SourceTrace:
    lists = {key: row[key] for key in _LISTS if key in row}
    lists.setdefault("unwatched", row["offered"])
    for key, entries in lists.items():
        if len(entries) != output:
            raise ValueError(f"{key} of {name!r} has {len(entries)} entries for {output} tokens")
        for entry in entries:
            if entry is not None:
                _whole(entry, f"{key} of {name!r}")
    for t, (right, offered) in enumerate(zip(lists["right"], lists["offered"], strict=True)):
        if right is not None and (offered is None or right > min(offered, output - t)):
            raise ValueError(f"entry {t} of {name!r} has {right} right of {offered} offered")
    return SourceTrace(**{key: tuple(entries) for key, entries in lists.items()})


def _round(row: Any) -> Round:
    if not isinstance(row, dict) or not _NEEDED <= row.keys() <= _ROUND_FIELDS:
        raise ValueError("a round lacks fields, or has others")
    for name, value in row.items():
        if name.endswith("_s") and not isinstance(value, int | float):
            raise ValueError(f"{name} of a round is {value!r}")
        if name in (
            "proposed",
            "accepted",
            "emitted",
            "max_draft_tokens",
            "width",
            "batch",
            "context",
        ):
            _whole(value, name)
    path = row.get("path")
    if path is not None:
        for index in path:
            _whole(index, "path")
        row = row | {"path": tuple(path)}
    return Round(**row)
