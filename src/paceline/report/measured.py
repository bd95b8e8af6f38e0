"""What a run took of the machine, and how it was measured."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.bench.local.result import BenchHeader
from paceline.bench.local.run import Described
from paceline.report.document import Block, Code, Metadata, Paragraph, Section, Table
from paceline.report.summary import Summary
from paceline.report.words import bytes_words, count, name_cell, number, percent, seconds_words
from paceline.types import Sampling

_MOST_NAMED = 20


def resources(summary: Summary) -> Section | None:
    result = summary.result
    most = result.header.bandwidth_bytes_per_s
    rows = []
    for one in result.configurations:
        if not summary.runs(one.name):
            continue
        rate, cpu_s = result.bytes_per_s(one.name), result.cpu_s(one.name)
        rows.append(
            (
                name_cell(one),
                bytes_words(result.peak_memory_bytes(one.name)),
                seconds_words(cpu_s),
                number(None) if rate is None else f"{bytes_words(rate)}/s",
                percent(None if rate is None or not most else rate / most),
            )
        )
    if not rows:
        return None
    head = (
        "configuration",
        "peak memory",
        "processor time",
        "read in passes",
        "of the memory's",
    )
    return Section("Resources", (Table(head, tuple(rows), "What each took"), _bandwidth(most)))


def _bandwidth(most: float | None) -> Paragraph:
    said = (
        "A pass must read all weights and what the cache holds. What it reads a second, beside "
        "what memory gives when it is only read, says how far it is from that limit. A wider pass "
        "reads no more, so its share falls as its arithmetic grows. Processor time is that of all "
        "threads over whole requests, with the reading of their prompts."
    )
    if most is None:
        return Paragraph(f"{said} What the target's memory gives was not measured.")
    return Paragraph(f"{said} Memory gave {bytes_words(most)}/s here.")


def how_measured(summary: Summary) -> Section:
    header = summary.result.header
    blocks: list[Block] = [
        Metadata(tuple(_metadata(summary))),
        *(Metadata(tuple(_target_metadata(target))) for target in _targets(header)),
        *_left_out(summary),
    ]
    if header.command:
        blocks += [Paragraph("To measure it again:"), Code(shlex.join(header.command))]
    return Section("How it was measured", tuple(blocks))


def _metadata(summary: Summary) -> Iterator[tuple[str, str]]:
    header = summary.result.header
    yield "file", summary.source
    yield "started", header.started or number(None)
    yield "complete", "yes" if not summary.missing else "no"
    yield from ((f"machine: {key}", _value(key, value)) for key, value in header.machine.items())
    yield "workload", _workload(header.workload)
    for key in ("version", "licence", "sha256"):
        yield f"workload: {key}", str(header.workload.get(key) or number(None))
    sample = header.workload.get("sample")
    if sample:
        yield "workload: sample", f"{sample['count']} of {sample['of']}, seed {sample['seed']}"
    if header.workload.get("repeated"):
        yield "workload: asked before", count(header.workload["repeated"], "prompt")
    for sentence in header.workload.get("notes", ()):
        yield "workload: note", sentence
    yield "prompts measured", f"{summary.prompts} of {len(header.prompts)}"
    yield "most tokens an answer", str(header.max_tokens)
    yield "how answers ended", _endings(summary)
    yield "repeats", str(header.repeats)
    yield "order", f"drawn anew for each prompt, seed {header.seed}; all runs of a prompt in a row"
    for one in summary.result.configurations:
        yield f"configuration: {one.name}", _configuration(one)


def _workload(metadata: Mapping[str, Any]) -> str:
    name = str(metadata.get("name", number(None)))
    return f"{name}, {count(metadata['prompts'], 'prompt')}" if "prompts" in metadata else name


def _endings(summary: Summary) -> str:
    """Of plain answers: one that was cut has no end that a draft could miss."""
    baseline = summary.groups[0].baseline.name if summary.groups else ""
    ends = Counter(run.finish_reason or "unknown" for run in summary.runs(baseline))
    words = [f"{amount} by {reason.replace('_', ' ')}" for reason, amount in ends.most_common()]
    return ", ".join(words) or number(None)


def _configuration(one: Described) -> str:
    parts = ["baseline" if one.is_baseline else f"against {one.baseline}"]
    if not one.is_baseline:
        max_draft_tokens = (
            "the policy's choice" if one.max_draft_tokens is None else str(one.max_draft_tokens)
        )
        parts += [f"drafts: {', '.join(one.drafts) or 'none'}", f"limit: {max_draft_tokens}"]
        parts.append(f"verifier: {one.verifier}")
        parts += ["LOSSY"] if one.lossy else []
        parts += ["drafts may remember earlier prompts"] if one.warm else []
    return "; ".join([*parts, sampling_words(one.sampling)])


def sampling_words(sampling: Sampling) -> str:
    """What is not as it is by default."""
    baseline = Sampling()
    fields = [name for name in baseline.__dataclass_fields__ if name != "temperature"]
    changed = [
        f"{name} {getattr(sampling, name)}"
        for name in fields
        if getattr(sampling, name) != getattr(baseline, name)
    ]
    first = "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}"
    return ", ".join([first, *changed])


def _targets(header: BenchHeader) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for one in header.configurations:
        if one.target not in found:
            found.append(one.target)
    return found


def _target_metadata(target: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Without where its files lie, which is nobody's business who gets the page."""
    shown = (item for item in target.items() if item[0] != "path")
    return ((f"target: {key}", _value(key, value)) for key, value in shown)


def _value(key: str, value: Any) -> str:
    if value is None:
        return number(None)
    if key.endswith("bytes") and isinstance(value, int | float):
        return bytes_words(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _left_out(summary: Summary) -> Iterator[Block]:
    skipped = list(summary.result.header.workload.get("skipped", ()))
    failed = [f"{id}: {why}" for id, why in summary.result.failed.items()]
    for what, sentences in (
        ("Failed, and left out of all configurations", failed),
        ("Lines of the workload that were skipped", skipped),
    ):
        if sentences:
            shown = sentences[:_MOST_NAMED]
            more = len(sentences) - len(shown)
            rows = tuple((sentence,) for sentence in shown)
            rows += ((f"… and {more} more",),) if more else ()
            yield Table((f"{what} ({len(sentences)})",), rows, words=None)
