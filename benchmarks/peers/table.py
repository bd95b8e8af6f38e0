"""The Markdown table of one or more peer runs: python benchmarks/peers/table.py RESULT.json…

A cell is milliseconds per token and, in brackets, times the peer's own baseline; ▼ marks what was
slower than the baseline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def markdown(documents: Sequence[Mapping[str, Any]]) -> str:
    groups = [group for document in documents for group in document["groups"]]
    categories = [
        *dict.fromkeys(
            category
            for group in groups
            for side in group["sides"]
            if side["answered"]
            for category in side["by_category"]
        )
    ]
    heads = ["peer", "mode", *categories, "drafted, accepted", "texts as baseline", "all [95 %]"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for group in groups:
        name = {peer: _peer(peer, group, groups) for peer in _peers(group)}
        lines += [
            _line([name[side["peer"]], side["mode"], *_cells(side, categories)])
            for side in group["sides"]
        ]
    return "\n".join([*lines, "", *(note for group in groups for note in _notes(group))])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _peers(group: Mapping[str, Any]) -> list[str]:
    return [*dict.fromkeys(side["peer"] for side in group["sides"])]


def _peer(peer: str, group: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> str:
    """A peer's name, with its group where it was measured in several."""
    several = sum(peer in _peers(other) for other in groups) > 1
    return f"{peer} ({group['group']})" if several else peer


def _cells(side: Mapping[str, Any], categories: Sequence[str]) -> list[str]:
    if not side["answered"]:
        return ["-"] * (len(categories) + 2) + ["no answer"]
    found = side["by_category"]
    baseline = side["mode"] == "baseline"
    return [
        *(_cell(found[category]) if category in found else "-" for category in categories),
        "-" if side["drafted"] is None else _accepted(side["drafted"], side["accepted"]),
        "-" if baseline else f"{_count(side['texts_as_baseline'])} of {side['texts']}",
        _cell(side["all"], interval=True),
    ]


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _accepted(drafted: int, accepted: int) -> str:
    return f"{drafted}, {accepted / drafted:.0%}" if drafted else "0"


def _cell(stats: Mapping[str, Any], *, interval: bool = False) -> str:
    if stats["ms_per_token"] is None:
        return "-"
    text, times = f"{stats['ms_per_token']:.0f}", stats["speedup"]
    if times is None:
        return text
    shown = f"{times['value']:.2f}"
    if times["value"] < 1:
        shown += " ▼"
    if interval and times["low"] is not None:
        shown += f" [{times['low']:.2f}, {times['high']:.2f}]"
    return f"{text} ({shown})"


def _notes(group: Mapping[str, Any]) -> list[str]:
    """What a reader must know of a group before believing it."""
    notes = []
    if group["dropped"]:
        notes.append(f"left out for all: {', '.join(group['dropped'])}, which a side failed on")
    silent = [f"{s['peer']}, {s['mode']}" for s in group["sides"] if not s["answered"]]
    if silent:
        notes.append(f"never answered: {'; '.join(silent)}")
    if group["prompts_read_differently"]:
        named = ", ".join(group["prompts_read_differently"])
        notes.append(f"not the same prompt tokens for all: {named}")
    if group["same_text_other_count"]:
        named = ", ".join(group["same_text_other_count"])
        notes.append(f"same text, another number of tokens: {named}")
    idle = group["idle_cpu_share"]
    if idle is not None and idle > 0.02:
        notes.append(f"waiting workers used {idle:.0%} of a core")
    return [f"- {group['group']}: {note}." for note in notes]


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("Name one or more results of benchmarks/peers/run.py.")
    print(markdown([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]))


if __name__ == "__main__":
    main()
