"""A run on live servers as rows: for each number of clients and server one of all prompts, and one
for each category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.bench.server.result import FIRST, Spread
from paceline.bench.stats import Ratio
from paceline.report.server_summary import ServerSummary

CSV_MARK = "run,complete,server,url,server_kind"


def rows(summaries: Sequence[ServerSummary]) -> list[dict[str, Any]]:
    """`category` is None in the row of all prompts; docs/report.md explains the fields."""
    return [
        _row(summary, n, server, category)
        for summary in summaries
        for n, server in summary.loads
        for category in [*summary.categories, None]
    ]


def _row(summary: ServerSummary, clients: int, server: str, category: str | None) -> dict[str, Any]:
    result = summary.result
    metadata, load = result.header.servers[server], summary.load(clients, server, category)
    counters = result.counters(server, clients, category)
    equal = result.comparison(clients).equal if category is None and summary.several else None
    return {
        "run": summary.source,
        "complete": result.complete,
        "server": server,
        "url": metadata.get("url"),
        "server_kind": metadata.get("server"),
        "server_version": metadata.get("version"),
        "model": metadata.get("model"),
        "workload": result.header.workload.get("name"),
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
        **_spread("s_per_token", load.s_per_token),
        **_spread("total_s", load.total_s),
        "tokens_per_piece": load.tokens_per_piece,
        "pairs": len(
            [p for p in result.comparison(clients).prompts if category in (None, p.category)]
        )
        if summary.several
        else None,
        **_ratio("times_as_fast", server, summary.ratio(clients, category)),
        **_ratio("times_as_fast_whole", server, summary.whole_ratio(clients, category)),
        "equal_texts": equal and equal[0],
        "drafts": counters and counters.drafts,
        "drafted": counters and counters.drafted,
        "accepted": counters and counters.accepted,
        "acceptance_rate": counters and counters.acceptance_rate,
        "tokens_per_drafted_round": counters and counters.tokens_per_drafted_round,
        "tokens_per_round": counters and counters.tokens_per_round,
        "accepted_at": list(counters.accepted_at) if counters and counters.accepted_at else None,
    }


def _spread(name: str, spread: Spread | None) -> dict[str, float | None]:
    return {
        f"{name}_median": spread.median if spread else None,
        f"{name}_p95": spread.p95 if spread else None,
    }


def _ratio(name: str, server: str, ratio: Ratio | None) -> dict[str, float | None]:
    """Of the endpoint beside the other; the other's own row has none."""
    ratio = ratio if server == FIRST else None
    return {
        name: ratio.value if ratio else None,
        f"{name}_low": ratio.low if ratio else None,
        f"{name}_high": ratio.high if ratio else None,
    }
