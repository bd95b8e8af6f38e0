"""The growing file of a bench or of a run on live servers: a header and then a line for each thing
that was measured, written as it comes, so that whatever ends a run loses nothing, and a second
start goes on. docs/bench-file.md and docs/endpoints.md explain the fields."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from paceline.errors import DataError
from paceline.storage import GrowingFile, Line, decode_struct, whole_lines


class _Result(Protocol):
    header: Any


H = TypeVar("H")
R = TypeVar("R", bound=_Result)


class ResultFile(ABC, Generic[H, R]):
    """A file of results, open for more lines. `result` has what it held, and grows with it.

    kind, version    of the format, which stand in the header
    hint             which command writes such a file
    header           the header's dataclass
    line             the struct of every other line
    may_differ       header fields that a second start may have otherwise: it measures the same
    """

    kind: ClassVar[str]
    version: ClassVar[int]
    hint: ClassVar[str]
    header: ClassVar[type[Any]]
    line: ClassVar[type[msgspec.Struct]]
    may_differ: ClassVar[tuple[str, ...]]

    def __init__(self, file: GrowingFile, result: R) -> None:
        self._file, self.result = file, result

    @classmethod
    def open(cls, path: Path, header: H) -> Self:
        """A new file, or one that this very run began; a last line that was cut off is removed.

        Raises DataError for a file of another run, which is left as it is, and for one that can't
        be written, or that another run is writing.
        """
        file = GrowingFile.open(path)
        try:
            return cls(file, cls._begun(file, header))
        except BaseException:
            file.close()
            raise

    @classmethod
    def document(cls, header: H) -> dict[str, Any]:
        """The header's line."""
        values = msgspec.to_builtins(header, str_keys=True)
        return {"kind": cls.kind, "version": cls.version, **values}

    @classmethod
    def read(cls, path: str, *, cut_off_ends: bool = True) -> R:
        """What a file holds.

        cut_off_ends    leave out a last line that was cut off; otherwise it is refused

        Raises DataError for a file that can't be read, or is of another kind or version.
        """
        lines = whole_lines(Path(path))
        if not cut_off_ends and not Path(path).read_bytes().endswith(b"\n"):
            if not lines and Path(path).stat().st_size:
                raise DataError(f"{path} is not a {cls.kind} file.", cls.hint)
            if lines:
                raise DataError(
                    f"Line {lines[-1].number + 1} of {path} was cut off.",
                    "If the run was killed there, start its command again: it goes on.",
                )
        return cls._result(lines, path)

    @classmethod
    @abstractmethod
    def empty(cls, header: H) -> R:
        """A result of nothing yet."""

    @classmethod
    @abstractmethod
    def take(cls, result: R, line: Any, where: str) -> None:
        """Add a line's content. Raises DataError for one that doesn't add up.

        line    one of `line`, where exactly one field is given
        """

    @classmethod
    def kept(cls, result: R, lines: Sequence[Line]) -> int:  # noqa: ARG003
        """How many bytes of a file to go on from; what stands behind them leaves `result`."""
        return lines[-1].start + len(lines[-1].text.encode()) + 1

    @classmethod
    def compared(cls, document: dict[str, Any]) -> dict[str, Any]:
        """What of a header has to be the same for a second start."""
        return {key: value for key, value in document.items() if key not in cls.may_differ}

    def write(self, **line: Any) -> None:
        """One more line: its one field's name and value."""
        self._file.write(msgspec.to_builtins(line, str_keys=True))

    def close(self) -> None:
        """Closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def _begun(cls, file: GrowingFile, header: H) -> R:
        """What a file holds, if it is of this very run."""
        lines = file.lines()
        if not lines:  # new, or a header that was cut off
            beginning = f'{{"kind":"{cls.kind}"'.encode()
            if not beginning.startswith(file.path.read_bytes()[: len(beginning)]):
                raise DataError(f"{file.path} is not a {cls.kind} file.", cls.hint)
            file.keep(0)
            file.write(cls.document(header))
            return cls.empty(header)
        result = cls._result(lines, str(file.path))
        cls._refuse_another(file.path, result.header, header)
        file.keep(cls.kept(result, lines))
        return result

    @classmethod
    def _refuse_another(cls, path: Path, theirs: H, ours: H) -> None:
        old, new = (
            cls.compared(json.loads(json.dumps(cls.document(one)))) for one in (theirs, ours)
        )
        for key in new:
            if old.get(key) != new[key]:
                raise DataError(
                    f"{path} holds another run: its {_difference(key, old, new)}.",
                    "Choose another file with -o.",
                )

    @classmethod
    def _result(cls, lines: Sequence[Line], path: str) -> R:
        if not lines:
            cut_off = Path(path).stat().st_size > 0
            what = "was cut off in its first line" if cut_off else "is empty"
            raise DataError(f"{path} {what}.", cls.hint)
        result = cls.empty(cls._header(lines[0].text, path))
        for line in lines[1:]:
            where = f"Line {line.number} of {path}"
            found = decode_struct(line.text, cls.line, where, cls.hint)
            if sum(getattr(found, name) is not None for name in found.__struct_fields__) != 1:
                known = ", ".join(found.__struct_fields__)
                raise DataError(f"{where} is none of: {known}.", cls.hint)
            cls.take(result, found, where)
        return result

    @classmethod
    def _header(cls, text: str, path: str) -> H:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise DataError(f"{path} is not a {cls.kind} file.", cls.hint) from None
        header: H = decode_struct(
            given, cls.header, path, cls.hint, kind=cls.kind, version=cls.version
        )
        for field in fields(cls.header):  # their defaults are for a new header
            if field.name not in given:
                raise DataError(f"The header of {path} has no {field.name!r}.", cls.hint)
        return header


def _difference(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if key == "configurations":
        names = [[one["name"] for one in document[key]] for document in (old, new)]
        if names[0] != names[1]:
            return f"configurations are {', '.join(names[0])}, and these {', '.join(names[1])}"
    if isinstance(new[key], int | str):
        return f"{key} is {old[key]}, and this {new[key]}"
    return f"{key} {'are' if key.endswith('s') else 'is'} not the same"
