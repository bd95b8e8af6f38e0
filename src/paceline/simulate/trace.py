"""A recording: what every draft would have offered at each moment of finished answers, and how much
of it was right. docs/rounds-file.md explains the fields.

A previewable draft is known at every moment. Any other is known only where it was asked;
`impute.imputed` draws the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TextIO

from msgspec import Meta, json

from paceline.errors import DataError, unknown_name
from paceline.storage import decode_struct
from paceline.types import Round

KIND, VERSION = "paceline rounds", 3
_HINT = "`paceline bench … --record FILE` writes such a file."

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=1)]
Known = tuple[Count | None, ...]


@dataclass(frozen=True, slots=True)
class SourceTrace:
    """One draft over one answer. Entry t of each list is the moment when t output tokens are
    committed; None where nothing is known.

    match_length    `Preview.match_length`; 0 without a match, or of a draft that tells none
    right           how many of the first offered tokens are the ones then emitted
    offered         tokens on offer, at most `acceptance.MOST`, as far as a policy looks
    unwatched       tokens it offers a policy that doesn't preview it (a fixed limit)
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
    prompt_tokens: Number
    output_tokens: Number
    most_tokens: Number
    sources: Mapping[str, SourceTrace]
    rounds: tuple[Round, ...] = ()
    configuration: str = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """What holds for the whole recording.

    target            the engine's metadata
    sources           by name, whether the draft is previewable
    has_confidence    names of those whose match length or confidences count
    """

    kind: str = KIND  # first, because a file is told by its beginning
    version: int = VERSION
    target: Any
    temperature: float
    sources: Mapping[str, bool]
    has_confidence: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A header, and at least one request in the order they were decoded."""

    header: RecordingHeader
    traces: tuple[Trace, ...] = ()

    @property
    def configurations(self) -> list[str]:
        """Names, in order."""
        return list(dict.fromkeys(trace.configuration for trace in self.traces))

    @property
    def categories(self) -> list[str]:
        """Names, in order."""
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
    stream.write(json.encode(what).decode() + "\n")
    stream.flush()


def read_recording(path: str) -> Recording:
    """Raises DataError for a file that can't be read, is not a recording, is of another version, or
    holds no request."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}.", "Give a file of rounds.") from None
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty.", _HINT)
    header = decode_struct(lines[0][1], RecordingHeader, path, _HINT, kind=KIND, version=VERSION)
    traces = tuple(_trace(line, header, f"Line {n} of {path}") for n, line in lines[1:])
    if not traces:
        raise DataError(f"{path} holds a header and no request.", _HINT)
    return Recording(header, traces)


def _trace(line: str, header: RecordingHeader, where: str) -> Trace:
    trace = decode_struct(line, Trace, where, _HINT)
    reason = next(_faults(trace, header), None)
    if reason is not None:
        raise DataError(f"{where} can't be read: {reason}.", "Record it again.")
    return trace


def _faults(trace: Trace, header: RecordingHeader) -> Iterator[str]:
    """What doesn't fit together."""
    output = trace.output_tokens
    if trace.most_tokens < output:
        yield f"most_tokens is {trace.most_tokens}, not {output} or more"
    for name, known in trace.sources.items():
        if name not in header.sources:
            yield f"the header names no draft {name!r}"
        for field in fields(known):
            if (count := len(getattr(known, field.name))) != output:
                yield f"{field.name} of {name!r} has {count} entries for {output} tokens"
        for t, (right, offered) in enumerate(zip(known.right, known.offered, strict=True)):
            if right is not None and (offered is None or right > min(offered, output - t)):
                yield f"entry {t} of {name!r} has {right} right of {offered} offered"
    for round in trace.rounds:
        for name, value in asdict(round).items():
            if isinstance(value, int | float) and value < 0:
                yield f"{name} of a round is {value}"
