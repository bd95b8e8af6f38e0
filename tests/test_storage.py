"""A file that grows: whole lines, one writer, and nothing lost where there is no room."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import msgspec
import pytest

from paceline.errors import DataError
from paceline.storage import GrowingFile, decode_struct, whole_lines


def test_each_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with GrowingFile.open(path) as file:
        file.write({"a": "é\u2028\n"})
        assert json.loads(path.read_text(encoding="utf-8")) == {"a": "é\u2028\n"}
        file.write({"b": 2})
    lines = whole_lines(path)
    assert [json.loads(line.text) for line in lines] == [{"a": "é\u2028\n"}, {"b": 2}]
    assert path.read_bytes()[lines[1].start :] == b'{"b":2}\n'


def test_a_line_without_its_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"b":2}\n{"c":"\xc3')
    lines = whole_lines(path)
    assert [(line.number, line.start, line.text) for line in lines] == [
        (1, 0, '{"a":1}'),
        (3, 9, '{"b":2}'),
    ]
    with GrowingFile.open(path) as file:
        file.keep(lines[1].start)
        file.write({"d": 4})
    assert path.read_bytes() == b'{"a":1}\n\n{"d":4}\n'


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with (
        GrowingFile.open(path),
        pytest.raises(DataError, match="is being written by another run"),
    ):
        GrowingFile.open(path)
    GrowingFile.open(path).close()


def test_no_room_leaves_whole_lines(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.jsonl"
    real = os.write

    def full(descriptor: int, data) -> int:
        if len(data) > 3:
            return real(descriptor, data[:3])  # as much as goes in
        raise OSError(errno.ENOSPC, "No space left on device")

    with GrowingFile.open(path) as file:
        file.write({"a": 1})
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(DataError, match="No space left on device"):
            file.write({"b": "a long line"})
        monkeypatch.undo()
        assert path.read_bytes() == b'{"a":1}\n'
        file.write({"c": 3})
    assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only some systems have such a device")
def test_a_full_disk_is_one_sentence() -> None:
    with (
        GrowingFile.open(Path("/dev/full")) as file,
        pytest.raises(DataError, match="can't be written"),
    ):
        file.write({"a": 1})


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "no" / "x.jsonl"):
        with pytest.raises(DataError, match="can't be written: .*Choose another file with -o"):
            GrowingFile.open(place)


class Part(msgspec.Struct):
    width: int


class Whole(msgspec.Struct):
    parts: list[Part]
    bias: dict[int, float] = {}
    kind: str = "paceline thing"
    version: int = 2


def read(document: object) -> Whole:
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    return decode_struct(text, Whole, "x.json", "Make one.", kind="paceline thing", version=2)


def test_a_document_as_a_struct() -> None:
    found = Whole([Part(3)], {7: -1.5})
    assert read(msgspec.json.encode(found)) == found
    assert decode_struct({"width": 3}, Part, "x", "y") == Part(3)
    assert decode_struct(b'{"width": 3}', Part, "x", "y") == Part(3)


HEAD = {"kind": "paceline thing", "version": 2}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "x.json is not JSON: "),
        (b"\xff", "x.json is not JSON: "),
        ("[" * 100_000, "x.json is not JSON: "),
        ('{"kind": NaN}', "x.json is not JSON: "),
        ([1], "x.json is not a paceline thing file: it has no kind."),
        ({"kind": "other"}, "x.json is not a paceline thing file: its kind is 'other'."),
        (
            HEAD | {"version": 1},
            "x.json has version 1 of the format, and this Paceline reads version 2. "
            "Make it again with this Paceline. Make one.",
        ),
        (HEAD, "x.json can't be read: Object missing required field `parts`. Make one."),
        (
            HEAD | {"parts": [{"width": 1}, {"width": "2"}]},
            "x.json can't be read: parts[1].width is '2': expected `int`, got `str`. Make one.",
        ),
    ],
)
def test_a_document_that_is_none(document: object, said: str) -> None:
    with pytest.raises(DataError) as error:
        read(document)
    assert str(error.value).startswith(said)
