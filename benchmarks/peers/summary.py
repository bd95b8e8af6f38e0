"""Rows of a run to what the table shows: milliseconds per token, and speedup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from config import Side

from paceline.bench.stats import Pair, speed_ratio

Row = Mapping[str, Any]


def side_of(row: Row) -> Side:
    return Side(row["group"], row["peer"], row["mode"])


def summarise(rows: Sequence[Row], sides: Sequence[Side]) -> list[dict[str, Any]]:
    """One entry a group that has rows; groups and sides in the order of `sides`."""
    measured = set(map(side_of, rows))
    kept = [side for side in sides if side in measured]
    return [
        _group(
            group,
            [row for row in rows if row["group"] == group],
            [side for side in kept if side.group == group],
        )
        for group in dict.fromkeys(side.group for side in kept)
    ]


def _group(group: str, rows: Sequence[Row], sides: Sequence[Side]) -> dict[str, Any]:
    answered = {side: _answers(rows, side) for side in sides}
    prompts = dict.fromkeys(row["id"] for row in rows)
    # A side that failed on most is named, and takes no prompt from the others.
    alive = {side: found for side, found in answered.items() if 2 * len(found) > len(prompts)}
    kept = [name for name in prompts if all(name in found for found in alive.values())]
    usable = {side: {name: found[name] for name in kept} for side, found in alive.items()}
    return {
        "group": group,
        "prompts": len(prompts),
        "dropped": [name for name in prompts if name not in kept],
        "errors": [
            {"peer": row["peer"], "mode": row["mode"], "id": row["id"], "error": row["error"]}
            for row in rows
            if "error" in row
        ],
        "prompts_read_differently": _read_differently(usable),
        "same_text_other_count": _counted_otherwise(usable),
        "idle_cpu_share": _idle_share(rows),
        "sides": [
            _side(side, usable.get(side), usable.get(Side(side.group, side.peer, "baseline")))
            for side in sides
        ],
    }


def _answers(rows: Iterable[Row], side: Side) -> dict[str, Row]:
    return {row["id"]: row for row in rows if side_of(row) == side and "error" not in row}


def _side(
    side: Side, found: Mapping[str, Row] | None, baseline: Mapping[str, Row] | None
) -> dict[str, Any]:
    if not found:
        return {"peer": side.peer, "mode": side.mode, "answered": False}
    categories = dict.fromkeys(row["category"] for row in found.values())
    drafted = [row["drafted"] for row in found.values()]
    counted = None not in drafted
    return {
        "peer": side.peer,
        "mode": side.mode,
        "answered": True,
        "by_category": {
            category: _figures(
                [name for name, row in found.items() if row["category"] == category],
                found,
                baseline,
            )
            for category in categories
        },
        "all": _figures([*found], found, baseline),
        "texts": len(found),
        "texts_as_baseline": baseline
        and sum(row["text"] == baseline[name]["text"] for name, row in found.items()),
        "retokenised": sum(row["retokenised"] for row in found.values()),
        "drafted": sum(drafted) if counted else None,
        "accepted": sum(row["accepted"] for row in found.values()) if counted else None,
        "prefill_s": sum(row["prefill_s"] for row in found.values()),
    }


def _figures(
    names: Sequence[str], found: Mapping[str, Row], baseline: Mapping[str, Row] | None
) -> dict[str, Any]:
    tokens = sum(found[name]["tokens"] for name in names)
    seconds = sum(found[name]["decode_s"] for name in names)
    ratio = None
    if baseline is not None and baseline is not found:
        ratio = speed_ratio([_pair(baseline[name], found[name]) for name in names])
    return {
        "tokens": tokens,
        "decode_s": seconds,
        "ms_per_token": 1e3 * seconds / tokens if tokens else None,
        "speedup": ratio and {"value": ratio.value, "low": ratio.low, "high": ratio.high},
    }


def _pair(baseline: Row, drafted: Row) -> Pair:
    return Pair(baseline["decode_s"], baseline["tokens"], drafted["decode_s"], drafted["tokens"])


def _read_differently(usable: Mapping[Side, Mapping[str, Row]]) -> list[str]:
    """Prompts that were not the same tokens for all sides, as when chat templates differ."""
    digests: dict[str, set[str]] = {}
    for found in usable.values():
        for name, row in found.items():
            digests.setdefault(name, set()).add(row["prompt_digest"])
    return [name for name, seen in digests.items() if len(seen) > 1]


def _counted_otherwise(usable: Mapping[Side, Mapping[str, Row]]) -> list[str]:
    """Prompts whose answers have the same text and end, and another number of tokens: one peer
    counts what another doesn't."""
    counts: dict[tuple[str, str, bool], set[int]] = {}
    for found in usable.values():
        for name, row in found.items():
            key = name, row["text"], row["ended"]
            counts.setdefault(key, set()).add(row["output_tokens"])
    return [*dict.fromkeys(name for (name, _, _), seen in counts.items() if len(seen) > 1)]


def _idle_share(rows: Iterable[Row]) -> float | None:
    """CPU seconds that waiting workers used, over the seconds that another one worked."""
    measured = [row for row in rows if "error" not in row]
    worked = sum(row["wall_s"] for row in measured)
    return sum(row["idle_cpu_s"] for row in measured) / worked if worked else None
