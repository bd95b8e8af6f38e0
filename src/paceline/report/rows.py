"""A report as rows: of a bench one for each configuration and category, of live servers one for
each number of clients, server and category; and one for all prompts, whose `category` is None.
docs/report.md explains the fields."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from paceline.bench.local.run import Described
from paceline.bench.server.result import FIRST, Spread
from paceline.bench.stats import Mean, Ratio
from paceline.errors import SettingError
from paceline.report.summary import BenchSummary, ServerSummary, Summary, compared

KIND = "paceline report rows"
CSV_MARKS = (
    "run,complete,target,workload,configuration,baseline",
    "run,complete,server,url,server_kind",
)
"""How a .csv of either kind begins."""


def as_json(summaries: Sequence[Summary]) -> str:
    """Rows of benches under `rows`, those of live servers under `server_rows`."""
    bench, servers = _rows(summaries)
    found = {"kind": KIND} | ({"rows": bench} if bench else {})
    found |= {"server_rows": servers} if servers else {}
    return json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def as_csv(summaries: Sequence[Summary]) -> str:
    """The same with a list's values separated by spaces; what was not measured is empty. Raises
    SettingError for files of both kinds."""
    bench, servers = _rows(summaries)
    if bench and servers:
        raise SettingError(
            "Rows of benches and of live servers have other columns.",
            "Write them into two .csv files, or into one .json.",
        )
    stream, found = io.StringIO(), bench or servers
    writer = csv.DictWriter(stream, list(found[0]), lineterminator="\n")
    writer.writeheader()
    for row in found:
        writer.writerow({name: _field(value) for name, value in row.items()})
    return stream.getvalue()


def _field(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _rows(summaries: Sequence[Summary]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    bench = [
        _bench_row(summary, one, category)
        for summary in summaries
        if isinstance(summary, BenchSummary)
        for one in summary.result.configurations
        for category in [*summary.categories, None]
    ]
    servers = [
        _server_row(summary, n, server, category)
        for summary in summaries
        if isinstance(summary, ServerSummary)
        for n, server in summary.loads
        for category in [*summary.categories, None]
    ]
    return bench, servers


def _bench_row(summary: BenchSummary, one: Described, category: str | None) -> dict[str, Any]:
    result, runs = summary.result, summary.runs(one.name, category)
    equal = [run.equal_to_baseline for run in runs if run.equal_to_baseline is not None]
    faults = [run for run in summary.faults(one) if category in (None, run.category)]
    whole = category is None
    far = result.divergence(one.name) if one.lossy and whole else None
    return {
        "run": summary.source,
        "complete": summary.complete,
        "target": one.target.get("model"),
        "workload": summary.header.workload.get("name"),
        "configuration": one.name,
        "baseline": one.baseline,
        "temperature": one.sampling.temperature,
        "lossy": one.lossy,
        "category": category,
        "prompts": len({run.id for run in runs}),
        "runs": len(runs),
        **_interval("speedup", summary.ratio(one, category)),
        **summary.stats(one.name, category).as_json(),
        "compared": len(equal),
        "equal_to_baseline": sum(equal) if equal else None,
        "faults": len(faults) if equal else None,
        **_interval("kl_nats_per_token", far.kl_nats_per_token if far else None),
        **_interval("variation_per_token", far.variation_per_token if far else None),
        "cpu_s": result.cpu_s(one.name) if whole else None,
        "peak_memory_bytes": result.peak_memory_bytes(one.name) if whole else None,
        "bytes_per_s": result.bytes_per_s(one.name) if whole else None,
    }


def _server_row(
    summary: ServerSummary, clients: int, server: str, category: str | None
) -> dict[str, Any]:
    result, load = summary.result, summary.load(clients, server, category)
    metadata, counters = result.header.servers[server], result.counters(server, clients, category)
    one = summary.comparisons.get(clients)
    judged = one if server == FIRST else None
    return {
        "run": summary.source,
        "complete": summary.complete,
        "server": server,
        "url": metadata.get("url"),
        "server_kind": metadata.get("server"),
        "server_version": metadata.get("version"),
        "model": metadata.get("model"),
        "workload": summary.header.workload.get("name"),
        "temperature": result.header.sampling.get("temperature"),
        "concurrency": clients,
        "category": category,
        "requests": load.requests,
        "failed": load.failed,
        "retries": load.retries,
        "output_tokens": load.output_tokens,
        "wall_s": load.wall_s,
        "tok_per_s": load.tok_per_s,
        **_spread("ttft_s", load.ttft_s),
        **_spread("tpot_s", load.s_per_token),
        **_spread("total_s", load.total_s),
        "tokens_per_piece": load.tokens_per_piece,
        "pairs": one and len(compared(one, category)),
        **_interval("speedup", judged.ratio(category) if judged else None),
        **_interval("speedup_whole", judged.whole_ratio(category) if judged else None),
        "equal_texts": one.equal[0] if one and one.equal and category is None else None,
        "drafts": counters and counters.drafts,
        "drafted": counters and counters.drafted,
        "accepted": counters and counters.accepted,
        "acceptance_rate": counters and counters.acceptance_rate,
        "tokens_per_drafted_round": counters and counters.tokens_per_drafted_round,
        "tokens_per_round": counters and counters.tokens_per_round,
        "accepted_at": (counters and list(counters.accepted_at)) or None,
    }


def _spread(name: str, spread: Spread | None) -> dict[str, float | None]:
    return {
        f"{name}_median": spread.median if spread else None,
        f"{name}_p95": spread.p95 if spread else None,
    }


def _interval(name: str, value: Ratio | Mean | None) -> dict[str, float | None]:
    return {
        name: value.value if value else None,
        f"{name}_low": value.low if value else None,
        f"{name}_high": value.high if value else None,
    }
