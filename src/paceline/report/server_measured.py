"""How a run on live servers was measured."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from paceline.report.document import Block, Code, Metadata, Paragraph, Section, Table
from paceline.report.server_summary import ServerSummary
from paceline.report.words import bytes_words, count, number
from paceline.types import Sampling

_MOST_NAMED = 20


def how_measured(summary: ServerSummary) -> Section:
    header = summary.result.header
    blocks: list[Block] = [
        Metadata(tuple(_metadata(summary))),
        *(Metadata(tuple(_server(summary, server))) for server in summary.result.servers),
        *_skipped(summary),
    ]
    if header.command:
        blocks += [Paragraph("To measure it again:"), Code(shlex.join(header.command))]
    return Section("How it was measured", tuple(blocks))


def _metadata(summary: ServerSummary) -> Iterator[tuple[str, str]]:
    header = summary.result.header
    yield "file", summary.source
    yield "started", header.started or number(None)
    yield "complete", "yes" if summary.result.complete else "no"
    yield from _workload(summary)
    yield "most tokens an answer", str(header.max_tokens)
    yield "how answers ended", _endings(summary)
    yield "sampling", sampling_words(header.sampling)
    yield "clients at once", ", ".join(map(str, header.concurrency))
    yield "order", _order(summary)
    yield from ((f"patience: {key}", str(value)) for key, value in header.patience.items())
    yield from ((f"client: {key}", _value(key, value)) for key, value in header.client.items())


def _workload(summary: ServerSummary) -> Iterator[tuple[str, str]]:
    header, metadata = summary.result.header, summary.result.header.workload
    yield (
        "workload",
        f"{metadata.get('name', number(None))}, {count(len(header.prompts), 'prompt')}",
    )
    for key in ("version", "licence", "sha256", "prompts_sha256"):
        if metadata.get(key):
            yield f"workload: {key.replace('_', ' ')}", str(metadata[key])
    sample = metadata.get("sample")
    if sample:
        yield "workload: sample", f"{sample['count']} of {sample['of']}, seed {sample['seed']}"
    if metadata.get("repeated"):
        yield "workload: asked before", count(metadata["repeated"], "prompt")
    for sentence in metadata.get("notes", ()):
        yield "workload: note", sentence


def _endings(summary: ServerSummary) -> str:
    """An answer that was cut at its most tokens takes as long on any server."""
    good = [one.answer for one in summary.result.asked if one.answer.failure is None]
    ends = Counter(answer.finish_reason or "unknown" for answer in good)
    return ", ".join(f"{n} by {reason}" for reason, n in ends.most_common()) or number(None)


def sampling_words(sampling: Mapping[str, Any]) -> str:
    """What is not as it is by default, temperature first."""
    temperature = sampling.get("temperature")
    first = "greedy" if temperature == 0 else f"temperature {temperature}"
    usual = json.loads(json.dumps(asdict(Sampling())))
    rest = [
        f"{name} {_value(name, value)}"
        for name, value in sampling.items()
        if name != "temperature" and value != usual.get(name)
    ]
    return ", ".join([first, *rest])


def _order(summary: ServerSummary) -> str:
    said = (
        f"drawn by seed {summary.result.header.seed}; each prompt once for each number of clients"
    )
    if summary.several:
        said += "; servers take turns block by block, in random order"
    return f"{said}; one short warm-up before, in no figure"


def _server(summary: ServerSummary, server: str) -> Iterator[tuple[str, str]]:
    name = summary.name(server)
    for key, value in summary.result.header.servers[server].items():
        yield f"{name}: {key.replace('_', ' ')}", _value(key, value)
    for key, value in summary.result.header.fields.get(server, {}).items():
        yield f"{name}, sent: {key}", _value(key, value)


def _value(key: str, value: Any) -> str:
    if value is None:
        return number(None)
    if key.endswith("bytes") and isinstance(value, int | float):
        return bytes_words(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _skipped(summary: ServerSummary) -> Iterator[Block]:
    skipped = list(summary.result.header.workload.get("skipped", ()))
    if skipped:
        rows = tuple((sentence,) for sentence in skipped[:_MOST_NAMED])
        more = len(skipped) - len(rows)
        rows += ((f"… and {more} more",),) if more else ()
        yield Table(
            (f"Lines of the workload that were skipped ({len(skipped)})",), rows, words=None
        )
