"""The lines of a run while it grows: a header, then one line an answer; a second start goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config import Side
from summary import side_of

from paceline.errors import DataError

Row = dict[str, Any]


class Record:
    """A JSONL file of a run. A turn is one prompt in one group; a turn that was cut short is
    measured again as a whole, because pairs must come from the same minutes."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Open a new file, or one that the same run left. Raises DataError for another run's."""
        self.path = path
        self.rows: list[Row] = []
        self.started: list[Row] = []
        if path.exists():
            self._resume(header)
        else:
            self._append({"header": dict(header)})

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._append(row)

    def started_workers(self, group: str, metadata: Mapping[str, Any]) -> None:
        """When, by which command, and what the workers of a group said of themselves."""
        line = {"group": group, **metadata}
        self.started.append(line)
        self._append(line)

    def done(self, group: str, prompt: str, sides: Sequence[Side]) -> bool:
        """Whether every side has answered, or failed on it with its worker alive: what was lost
        with a worker is asked again."""
        mine = [r for r in self.rows if r["group"] == group and r["id"] == prompt]
        return {side_of(r) for r in mine if not r.get("lost")} >= set(sides)

    def begin_turn(self, group: str, prompt: str) -> None:
        """Forget what a cut turn left; readers do likewise, by its line."""
        if any(r["group"] == group and r["id"] == prompt for r in self.rows):
            self.rows = without_turn(self.rows, group, prompt)
            self._append({"again": {"group": group, "id": prompt}})

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _resume(self, header: Mapping[str, Any]) -> None:
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # the last line was being written
            self.path.write_text(whole, encoding="utf-8")
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            found = lines[0]["header"]
        except (ValueError, LookupError, TypeError):
            raise DataError(
                f"{self.path} is not the record of a peer run.", "Choose another file with --out."
            ) from None
        differing = [key for key in header if header[key] != found.get(key)]
        if differing:
            raise DataError(
                f"{self.path} holds another run: its {', '.join(differing)} differ.",
                "Choose another file with --out, or run it as it was begun.",
            )
        for line in lines[1:]:
            if "again" in line:
                again = line["again"]
                self.rows = without_turn(self.rows, again["group"], again["id"])
            elif "workers" in line:
                self.started.append(line)
            else:
                self.rows.append(line)


def without_turn(rows: Sequence[Row], group: str, prompt: str) -> list[Row]:
    return [row for row in rows if (row["group"], row["id"]) != (group, prompt)]
