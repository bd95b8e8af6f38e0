"""How a run was measured, what it took of the machine, and several runs side by side. Runs are
never pooled: what differs between them is said."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline.bench.local.run import Described
from paceline.report.document import (
    NONE,
    Block,
    Cell,
    Code,
    Metadata,
    Paragraph,
    Part,
    Row,
    Table,
    Titled,
    bytes_words,
    count,
    named,
    number,
    part,
    percent,
    seconds_words,
    table_of,
    times,
)
from paceline.report.summary import BenchSummary, ServerSummary, Summary
from paceline.report.verdict import verdicts
from paceline.types import Sampling

_USUAL = json.loads(json.dumps(asdict(Sampling())))


def resources(summary: BenchSummary) -> list[Block | None]:
    """What each configuration took: memory, processor time, and bytes read."""
    result, most = summary.result, summary.result.header.bandwidth_bytes_per_s
    rows: list[Row] = []
    for one in result.configurations:
        if summary.runs(one.name):
            rate = result.bytes_per_s(one.name)
            rows.append(
                {
                    "configuration": summary.cell(one),
                    "peak memory": bytes_words(result.peak_memory_bytes(one.name)),
                    "processor time": seconds_words(result.cpu_s(one.name)),
                    "read in passes": f"{bytes_words(rate)}/s" if rate is not None else NONE,
                    "of the memory's": percent(rate / most if rate and most else None),
                }
            )
    if not rows:
        return []
    memory = (
        f"Memory gave {bytes_words(most)}/s here."
        if most
        else "What the target's memory gives was not measured."
    )
    return [
        table_of(rows, "What each took"),
        Paragraph(
            "A pass must read all weights and what the cache holds. What it reads a second, beside "
            "what memory gives when it is only read, says how far it is from that limit. A wider "
            "pass reads no more, so its share falls as its arithmetic grows. Processor time is "
            f"that of all threads over whole requests, prefill included. {memory}"
        ),
    ]


def how_measured(summary: Summary) -> list[Block | None]:
    """Every fact of the run, what it left out, and the command that measures it again."""
    workload = summary.header.workload
    blocks: list[Block | None] = [
        Metadata((("file", summary.source), *_metadata(summary).items())),
        *(Metadata(tuple(pairs)) for pairs in _measured_things(summary)),
    ]
    lists = {"Lines of the workload that were skipped": workload.get("skipped", ())}
    if isinstance(summary, BenchSummary):
        failed = [f"{id}: {why}" for id, why in summary.result.failed.items()]
        lists = {
            "Failed, and left out of all configurations": failed,
            "Disturbed by other programs, and left out": summary.disturbances,
            **lists,
        }
    blocks += [
        named([{f"{what} ({len(sentences)})": sentence} for sentence in sentences])
        for what, sentences in lists.items()
    ]
    if summary.header.command:
        blocks += [Paragraph("To measure it again:"), Code(shlex.join(summary.header.command))]
    return blocks


def _metadata(summary: Summary) -> dict[str, str]:
    """What is measured, on what, and how; some of it by one kind of file only."""
    header, workload = summary.header, summary.header.workload
    found = dict(_of_servers(summary) if isinstance(summary, ServerSummary) else _of_bench(summary))
    found |= {
        "started": header.started or NONE,
        "complete": "yes" if summary.complete else "no",
        "prompts measured": f"{len(summary.ids)} of {len(header.prompts)}",
        "most tokens an answer": str(header.max_tokens),
        "how answers ended": _endings(summary),
        "workload": f"{workload.get('name', NONE)}, {count(len(header.prompts), 'prompt')}",
    }
    for key in ("version", "licence", "sha256", "prompts_sha256", "raw"):
        if workload.get(key) is not None:
            found[f"workload: {key.replace('_', ' ')}"] = str(workload[key])
    if sample := workload.get("sample"):
        found["workload: sample"] = f"{sample['count']} of {sample['of']}, seed {sample['seed']}"
    if workload.get("repeated"):
        found["workload: asked before"] = count(workload["repeated"], "prompt")
    if workload.get("notes"):
        found["workload: notes"] = " ".join(workload["notes"])
    return found


def _endings(summary: Summary) -> str:
    """Of a bench the baseline's: an answer that was cut has no end that a draft could miss."""
    if isinstance(summary, ServerSummary):
        good = [one.answer for one in summary.result.asked if one.answer.failure is None]
        ends = Counter(answer.finish_reason for answer in good)
    else:
        first = [one.name for group in summary.groups[:1] for one in group.every[:1]]
        ends = Counter(run.finish_reason for name in first for run in summary.runs(name))
    words = [f"{n} by {(end or 'unknown').replace('_', ' ')}" for end, n in ends.most_common()]
    return ", ".join(words) or NONE


def _of_bench(summary: BenchSummary) -> Iterator[tuple[str, str]]:
    header, every = summary.result.header, summary.result.configurations
    yield "target", _each(one.target.get("model", NONE) for one in every)
    yield "engine", _each(one.target.get("engine", NONE) for one in every)
    yield "sampling", _each(sampling_words(asdict(one.sampling)) for one in every)
    yield from ((f"configuration: {one.name}", _configuration(one)) for one in every)
    yield "repeats", str(header.repeats)
    yield "order", f"drawn anew for each prompt, seed {header.seed}; all runs of a prompt in a row"
    yield from _pairs("machine", header.machine)


def _of_servers(summary: ServerSummary) -> Iterator[tuple[str, str]]:
    header = summary.result.header
    turns = "; servers take turns block by block, in random order" if summary.several else ""
    yield from ((summary.name(server), summary.about(server)) for server in summary.result.servers)
    yield "sampling", sampling_words(header.sampling)
    yield "clients at once", ", ".join(map(str, header.concurrency))
    yield (
        "order",
        f"drawn by seed {header.seed}; each prompt once for each number of clients{turns}; one "
        "short warm-up before, in no figure",
    )
    yield from _pairs("patience", header.patience)
    yield from _pairs("client", header.client)


def _configuration(one: Described) -> str:
    parts = ["baseline" if one.is_baseline else f"against {one.baseline}"]
    if not one.is_baseline:
        limit = "the policy's choice" if one.max_draft_tokens is None else one.max_draft_tokens
        parts += [
            f"drafts: {', '.join(one.drafts) or 'none'}",
            f"max_draft_tokens: {limit}",
            f"verifier: {one.verifier}",
            *(["LOSSY"] if one.lossy else []),
            *(["drafts may remember earlier prompts"] if one.warm else []),
        ]
    return "; ".join([*parts, sampling_words(asdict(one.sampling))])


def _measured_things(summary: Summary) -> Iterator[list[tuple[str, str]]]:
    """What each target or server says of itself."""
    if isinstance(summary, ServerSummary):
        for server in summary.result.servers:
            name, header = summary.name(server), summary.result.header
            sent = _pairs(f"{name}, sent", header.fields.get(server, {}))
            yield [*_pairs(name, header.servers[server]), *sent]
    else:
        targets: list[Mapping[str, Any]] = []
        for one in summary.result.configurations:
            if one.target not in targets:
                targets.append(one.target)
        for target in targets:  # where its files lie is nobody's business who gets the page
            yield list(_pairs("target", {k: v for k, v in target.items() if k != "path"}))


def _pairs(what: str, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((f"{what}: {key}", _value(key, value)) for key, value in found.items())


def _value(key: str, value: Any) -> str:
    if value is None:
        return NONE
    if key.endswith("bytes") and isinstance(value, int | float):
        return bytes_words(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def sampling_words(sampling: Mapping[str, Any]) -> str:
    """What is not as it is by default, temperature first."""
    temperature = sampling.get("temperature")
    changed = [
        f"{name} {_value(name, value)}"
        for name, value in json.loads(json.dumps(sampling)).items()
        if name != "temperature" and value != _USUAL.get(name)
    ]
    return ", ".join(["greedy" if temperature == 0 else f"temperature {temperature}", *changed])


# Several runs.


def together(summaries: Sequence[Summary]) -> list[Part]:
    """What stands before several files: those of one kind side by side, and of both kinds that they
    are not compared."""
    kinds = [
        [one for one in summaries if isinstance(one, kind)]
        for kind in (BenchSummary, ServerSummary)
    ]
    if not all(kinds):
        return [_side_by_side(summaries, [("Verdicts", [_verdicts(summaries)])])]
    words = Paragraph(
        "Some of these files are benches of a model in Paceline's own process, others are runs "
        "on live servers. They measure different things, and are not compared."
    )
    every = part("All files", [("Verdicts", [words, _verdicts(summaries)])])
    return [every, *(_side_by_side(found, ()) for found in kinds if len(found) > 1)]


_MUST_BE_ALIKE = (
    "target",
    "engine",
    "endpoint",
    "the other",
    "clients at once",
    "workload",
    "workload: sha256",
    "workload: prompts sha256",
    "workload: raw",
    "most tokens an answer",
    "sampling",
    "machine: cpu",
    "machine: cores",
    "client: cpu",
    "client: cores",
)
"""Where one of these differs, seconds of two runs say nothing about each other."""


_LONGEST = 40  # letters: a digest would fill the page


def _side_by_side(summaries: Sequence[Summary], sections: Sequence[Titled]) -> Part:
    """What differs between files of one kind, other sections, and the speedups."""
    found = {summary.source: _metadata(summary) for summary in summaries}
    told = [name for name in _MUST_BE_ALIKE if any(name in one for one in found.values())]
    told += ["prompts measured", "started"]
    rows: list[Row] = [
        {"": name, **{source: one.get(name, NONE)[:_LONGEST] for source, one in found.items()}}
        for name in told
    ]
    differing = [
        name for name in told[:-2] if len({one.get(name, NONE) for one in found.values()}) > 1
    ]
    if len({frozenset(summary.ids) for summary in summaries}) > 1:
        differing.append("prompts measured")
    said = "These runs have the same target, workload, settings and machine."
    if differing:
        kinds = dict.fromkeys(name.split(":")[0] for name in differing)
        said = f"These runs differ in {', '.join(kinds)}."
    said += (
        " They were measured at different times, so nothing is pooled, and times of one are not "
        "compared with those of another: each stands beside its own baseline."
    )
    live = isinstance(summaries[0], ServerSummary)
    apart = Paragraph(said, "warning" if differing else "")
    return part(
        "Live servers, side by side" if live else "Side by side",
        [
            ("What differs", [apart, table_of(rows, "The runs", words=None)]),
            *sections,
            ("Speedup, run by run", [_figures(summaries)]),
        ],
    )


def _each(values: Any) -> str:
    return ", ".join(dict.fromkeys(map(str, values))) or NONE


def _verdicts(summaries: Sequence[Summary]) -> Table | None:
    rows: list[Row] = [
        {"run": summary.source, "verdict": " ".join(one.sentence for one in verdicts(summary))}
        for summary in summaries
    ]
    return table_of(rows, words=None)


def _figures(summaries: Sequence[Summary]) -> Table | None:
    """A row for each configuration or number of clients that any run has, by name."""
    found: dict[str, Row] = {}
    for summary in summaries:
        for name, ms, ratio in summary.figures():
            row = found.setdefault(name.text, {"": name, **{s.source: NONE for s in summaries}})
            row[summary.source] = Cell(number(ms, ".2f", " ms"), times(ratio) if ratio else "")
    caption = "All prompts: milliseconds per token, and speedup with its 95 % interval"
    return table_of([*found.values()], caption)
