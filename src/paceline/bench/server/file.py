"""The file of a run on live servers (docs/endpoints.md)."""

from __future__ import annotations

import msgspec

from paceline.bench.file import ResultFile
from paceline.bench.server.result import (
    KIND,
    VERSION,
    Asked,
    Segment,
    ServerBenchHeader,
    ServerResult,
)


class _Again(msgspec.Struct):
    block: int


class _LeftOut(msgspec.Struct):
    concurrency: int
    id: str
    reason: str


class _ServerLine(msgspec.Struct):
    request: Asked | None = None
    segment: Segment | None = None
    begin_again: _Again | None = None
    left_out: _LeftOut | None = None


class ServerFile(ResultFile[ServerBenchHeader, ServerResult]):
    """A run's file, open for more lines."""

    kind, version = KIND, VERSION
    hint = "`paceline bench-server URL -o FILE` writes such a file."
    header, line = ServerBenchHeader, _ServerLine
    may_differ = ("command", "started", "client", "patience")

    def add(self, asked: Asked) -> None:
        """Keep a request that has ended."""
        self._both(_ServerLine(request=asked))

    def add_segment(self, segment: Segment) -> None:
        """Keep a segment that has ended."""
        self._both(_ServerLine(segment=segment))

    def begin_again(self, block: int) -> None:
        """What the file holds of a block counts no more."""
        self._both(_ServerLine(begin_again=_Again(block)))

    def leave_out(self, concurrency: int, id: str, reason: str) -> None:
        """A prompt that can't be asked."""
        self._both(_ServerLine(left_out=_LeftOut(concurrency, id, reason)))

    def _both(self, line: _ServerLine) -> None:
        self.take(self.result, line, "")
        self.write(**{name: x for name, x in msgspec.structs.asdict(line).items() if x is not None})

    @classmethod
    def empty(cls, header: ServerBenchHeader) -> ServerResult:
        """A run without requests."""
        return ServerResult(header)

    @classmethod
    def take(cls, result: ServerResult, line: _ServerLine, where: str) -> None:  # noqa: ARG003
        """Add a request or segment; forget a block; leave out a prompt."""
        if line.request is not None:
            result.asked.append(line.request)
        if line.segment is not None:
            result.segments.append(line.segment)
        if line.begin_again is not None:
            result.begin_again(line.begin_again.block)
        if (left := line.left_out) is not None:
            result.left_out[left.concurrency, left.id] = left.reason


def read_server_result(path: str) -> ServerResult:
    """A run on live servers from its file. A last line that was cut off is left out.

    Raises DataError for a file that can't be read or is of another kind.
    """
    return ServerFile.read(path)
