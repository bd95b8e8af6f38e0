"""A file that a plan can be made from, told by its kind: a bench, a run on live servers, or a
replay's document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from paceline.bench.local import file as run_file
from paceline.bench.local.file import read_result
from paceline.bench.local.result import BenchResult
from paceline.bench.server import result as server_result
from paceline.bench.server.file import read_server_result
from paceline.bench.server.result import ServerResult
from paceline.errors import DataError
from paceline.simulate import result as replay_result
from paceline.simulate.result import ReplayDocument, decode_replay
from paceline.storage import not_json

Measured = BenchResult | ServerResult | ReplayDocument

_HINT = (
    "Give a file of `paceline bench -o` or `bench-server -o`, or what `paceline replay "
    "--json` prints."
)
_HINTS: Mapping[Any, str] = {
    "paceline bench summary": "It lacks the rounds: give the file that `paceline bench -o` wrote.",
    "paceline rounds": "Give the bench that it was recorded with, or `paceline replay --json`.",
    "paceline costs": "Take `paceline break-even --costs FILE`.",
    "paceline break-even": "It is arithmetic already: measure with `paceline bench -o`.",
    "paceline plan": "It is a plan already.",
}


def read_measured(path: str) -> Measured:
    """Raises DataError for a file that can't be read, and for one of another kind, saying which."""
    first = _first_value(path)
    kind = first.get("kind") if isinstance(first, Mapping) else None
    if kind == run_file.KIND:
        return read_result(path, cut_off_ends=True)
    if kind == server_result.KIND and "requests" not in first:
        return read_server_result(path)
    if kind == replay_result.KIND:
        return decode_replay(first, path)
    what = f"a {kind} file" if isinstance(kind, str) else "no file of Paceline's"
    if kind == server_result.KIND:
        what += " as --json prints it"
    raise DataError(f"{path} is {what}, and no plan can be made of it.", _HINTS.get(kind, _HINT))


def _first_value(path: str) -> Any:
    """The first line's value; of a document on several lines, the document."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", _HINT) from None
    for text in (data.partition(b"\n")[0], data):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            fault = error
    raise DataError(f"{path} is not JSON: {not_json(fault)}.", _HINT)
