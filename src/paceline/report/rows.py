"""A report as rows: one for each configuration and category, and one for all prompts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.bench.local.run import Described
from paceline.decode.stats import Stats
from paceline.report.summary import Summary

KIND = "paceline report rows"
CSV_MARK = "run,complete,target,workload,configuration,baseline"

_STATS = (
    "tokens",
    "rounds",
    "drafted_rounds",
    "proposed",
    "accepted",
    "acceptance_rate",
    "tokens_per_round",
    "ms_per_token",
    "other_ms_per_round",
    "decode_s",
    "draft_s",
    "verify_s",
    "other_s",
    "prefill_s",
    "acceptance",
    "offered",
)


def rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """`category` is None in the row of all prompts; docs/report.md explains the fields."""
    return [
        _row(summary, one, category)
        for summary in summaries
        for one in summary.result.configurations
        for category in [*summary.categories, None]
    ]


def _row(summary: Summary, one: Described, category: str | None) -> dict[str, Any]:
    runs = summary.runs(one.name, category)
    compared = [run for run in runs if run.equal_to_baseline is not None]
    stats = summary.stats(one.name, category)
    return {
        "run": summary.source,
        "complete": not summary.missing,
        "target": one.target.get("model"),
        "workload": summary.result.header.workload.get("name"),
        "configuration": one.name,
        "baseline": one.baseline,
        "temperature": one.sampling.temperature,
        "lossy": one.lossy,
        "category": category,
        "prompts": len({run.id for run in runs}),
        "runs": len(runs),
        **_speedup(summary, one, category),
        **{name: _value(stats, name) for name in _STATS},
        "compared": len(compared),
        "equal_to_baseline": sum(bool(run.equal_to_baseline) for run in compared)
        if compared
        else None,
        "faults": _faults(summary, one, category) if compared else None,
        **(_whole(summary, one) if category is None else dict.fromkeys(_WHOLE)),
    }


def _faults(summary: Summary, one: Described, category: str | None) -> int:
    return sum(category in (None, run.category) for run in summary.faults(one.name))


def _value(stats: Stats, name: str) -> Any:
    value = getattr(stats, name)
    return list(value) if isinstance(value, tuple) else value


def _speedup(summary: Summary, one: Described, category: str | None) -> dict[str, Any]:
    ratio = None if one.is_baseline else summary.ratio(one.name, category)
    return {
        "speedup": ratio and ratio.value,
        "speedup_low": ratio and ratio.low,
        "speedup_high": ratio and ratio.high,
    }


_WHOLE = (
    "kl_nats_per_token",
    "kl_nats_per_token_low",
    "kl_nats_per_token_high",
    "variation_per_token",
    "variation_per_token_low",
    "variation_per_token_high",
    "cpu_s",
    "peak_memory_bytes",
    "bytes_per_s",
)


def _whole(summary: Summary, one: Described) -> dict[str, Any]:
    """What is only told of all prompts together."""
    result = summary.result
    values: dict[str, Any] = {}
    far = result.divergence(one.name) if one.lossy else None
    for name in ("kl_nats_per_token", "variation_per_token"):
        mean = far and getattr(far, name)
        values |= {
            name: mean and mean.value,
            f"{name}_low": mean and mean.low,
            f"{name}_high": mean and mean.high,
        }
    return values | {
        "cpu_s": result.cpu_s(one.name),
        "peak_memory_bytes": result.peak_memory_bytes(one.name),
        "bytes_per_s": result.bytes_per_s(one.name),
    }


def as_json(summaries: Sequence[Summary]) -> str:
    return json_text({"rows": rows(summaries)})


def json_text(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    document = {"kind": KIND, **found}
    return json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def as_csv(summaries: Sequence[Summary]) -> str:
    """The same with a list's values separated by spaces; what was not measured is empty."""
    return csv_text(rows(summaries))


def csv_text(found: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(found[0]), lineterminator="\n")
    writer.writeheader()
    for row in found:
        writer.writerow({name: _field(value) for name, value in row.items()})
    return stream.getvalue()


def _field(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
