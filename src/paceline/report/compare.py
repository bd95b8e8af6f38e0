"""Several run files side by side. They are never pooled: what differs between them is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from paceline.report.document import Cell, Paragraph, Part, Section, Table
from paceline.report.measured import sampling_words
from paceline.report.summary import Summary
from paceline.report.verdict import verdicts
from paceline.report.words import name_cell, number, times


def side_by_side(summaries: Sequence[Summary]) -> Part:
    return Part(
        "Side by side",
        (
            Section("What differs", (_apart(summaries), _differences(summaries))),
            Section("Verdicts", (_verdicts(summaries),)),
            Section("Times plain, run by run", (_figures(summaries),)),
        ),
    )


def _target(summary: Summary) -> str:
    return _each(one.target.get("model", number(None)) for one in summary.result.configurations)


def _engine(summary: Summary) -> str:
    return _each(one.target.get("engine", number(None)) for one in summary.result.configurations)


def _each(values: Any) -> str:
    return ", ".join(dict.fromkeys(map(str, values))) or number(None)


def _workload(summary: Summary) -> str:
    metadata = summary.result.header.workload
    digest = metadata.get("prompts_sha256") or metadata.get("sha256")
    name = str(metadata.get("name", number(None)))
    return f"{name}, sha256 {str(digest)[:12]}…" if digest else name


def _raw(summary: Summary) -> str:
    """Prompts that no chat template was put around."""
    raw = summary.result.header.workload.get("raw")
    return number(None) if raw is None else str(int(raw))


def _machine(summary: Summary) -> str:
    metadata = summary.result.header.machine
    return f"{metadata.get('cpu', number(None))}, {metadata.get('cores', number(None))} cores"


def _prompts(summary: Summary) -> str:
    return str(summary.prompts)


ASPECTS: dict[str, Callable[[Summary], str]] = {
    "target": _target,
    "engine": _engine,
    "workload": _workload,
    "raw prompts": _raw,
    "prompts measured": _prompts,
    "most tokens an answer": lambda summary: str(summary.result.header.max_tokens),
    "sampling": lambda summary: _each(
        sampling_words(one.sampling) for one in summary.result.configurations
    ),
    "machine": _machine,
    "Paceline": lambda summary: str(summary.result.header.machine.get("paceline", number(None))),
    "started": lambda summary: summary.result.header.started or number(None),
}

_MUST_BE_ALIKE = (
    "target",
    "engine",
    "workload",
    "raw prompts",
    "most tokens an answer",
    "sampling",
    "machine",
)
"""Where one of these differs, seconds of two runs say nothing about each other."""


def differing(summaries: Sequence[Summary]) -> list[str]:
    """What is not the same in all runs, the prompts that were really measured included."""
    found = [name for name in _MUST_BE_ALIKE if len({ASPECTS[name](s) for s in summaries}) > 1]
    prompts = {json.dumps(sorted({run.id for run in s.result.runs})) for s in summaries}
    return [*found, *(["prompts measured"] if len(prompts) > 1 else [])]


def _apart(summaries: Sequence[Summary]) -> Paragraph:
    found = differing(summaries)
    if not found:
        return Paragraph(
            "These runs have the same target, workload, settings and machine. They were measured "
            "at different times all the same, so nothing is pooled: compare speedup, each "
            "against its own plain decoding."
        )
    return Paragraph(
        f"These runs differ in {', '.join(found)}. Nothing is pooled, and their seconds are not "
        "compared: each stands against its own plain decoding.",
        "warning",
    )


def _differences(summaries: Sequence[Summary]) -> Table:
    rows = tuple(
        (name, *(tell(summary) for summary in summaries)) for name, tell in ASPECTS.items()
    )
    return Table(("", *(s.source for s in summaries)), rows, "The runs", words=None)


def _verdicts(summaries: Sequence[Summary]) -> Table:
    rows = [
        (summary.source, " ".join(verdict.sentence for verdict in verdicts(summary)))
        for summary in summaries
    ]
    return Table(("run", "verdict"), tuple(rows), words=None)


def _figures(summaries: Sequence[Summary]) -> Table:
    """A row a configuration, by name: plain milliseconds, and speedup of the others."""
    known = {one.name: one for s in summaries for one in s.result.configurations}
    rows = [
        (name_cell(one), *(_figure(summary, name) for summary in summaries))
        for name, one in known.items()
    ]
    return Table(
        ("configuration", *(s.source for s in summaries)),
        tuple(rows),
        "All prompts: milliseconds per token, and speedup with its 95 % interval",
    )


def _figure(summary: Summary, name: str) -> Cell | str:
    one = next((c for c in summary.result.configurations if c.name == name), None)
    if one is None:
        return number(None)
    ms = number(summary.stats(name).ms_per_token, ".2f", " ms")
    return Cell(ms) if one.is_baseline else Cell(ms, times(summary.ratio(name)))
