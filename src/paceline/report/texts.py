"""Is the text the same? Equal to plain where greedy makes that meaningful, first divergences with
their cause, and how far a lossy verifier went."""

from __future__ import annotations

from paceline.bench.local.run import Described, Run
from paceline.report.document import FAULT, Block, Cell, Paragraph, Table
from paceline.report.summary import Group, Summary
from paceline.report.words import count, long_interval, name_cell, number, percent

_MOST_DIVERGENCES = 20


def same_text(summary: Summary, group: Group) -> list[Block | None]:
    if not group.drafted:
        return []
    return [
        _overview(summary, group),
        *(_divergence(summary, one) for one in group.drafted if one.lossy),
        _divergences(summary, group),
        *(_distributions(summary, one) for one in group.drafted if not one.greedy),
    ]


def _overview(summary: Summary, group: Group) -> Table:
    rows = []
    for one in group.drafted:
        runs = [run for run in summary.runs(one.name) if run.equal_to_baseline is not None]
        differing = [run.first_difference for run in runs if run.first_difference is not None]
        equal = sum(bool(run.equal_to_baseline) for run in runs)
        numeric = sum(found.numeric for found in differing)
        rows.append(
            (
                name_cell(one),
                one.verifier or number(None),
                f"{equal} of {len(runs)}" if runs else "sampled",
                str(numeric) if runs else number(None),
                _unexplained(one, len(differing) - numeric) if runs else number(None),
            )
        )
    head = ("configuration", "verifier", "equal to plain", "differ by rounding", "otherwise")
    return Table(head, tuple(rows), "Texts compared with plain decoding's", words=2)


def _unexplained(one: Described, amount: int) -> str | Cell:
    """Under a lossy verifier another text is what was asked for."""
    if one.lossy or not amount:
        return str(amount)
    return Cell(str(amount), marks=(FAULT,))


def _divergence(summary: Summary, one: Described) -> Paragraph:
    far = summary.result.divergence(one.name)
    if far is None:
        return Paragraph(
            f"{one.name} is LOSSY, and how far its text is from the target's is not measured: "
            f"{one.verifier} doesn't tell.",
            "warning",
        )
    kl, moved = far.kl_nats_per_token, far.variation_per_token
    return Paragraph(
        f"{one.name} is LOSSY: {kl.value:.3g} nats per token from the target "
        f"({long_interval(kl, lambda end: f'{end:.3g}')}), at most {far.largest_kl_nats:.3g} at a "
        f"token; {percent(moved.value, 1)} of tokens changed "
        f"({long_interval(moved, lambda end: percent(end, 1))}).",
        "warning",
    )


def _distributions(summary: Summary, one: Described) -> Paragraph | None:
    """Of sampled texts: whether they may come from the target's distribution."""
    found = summary.result.two_sample(one.name)
    if found is None:
        return Paragraph(
            f"{one.name}: sampled, and too few pairs of texts to compare their distributions."
        )
    return Paragraph(f"{one.name}: {found.sentence()}.", "warning" if found.differs else "")


def _divergences(summary: Summary, group: Group) -> Table | None:
    """Of exact configurations; faults first, then those with the largest gap: the least easily
    explained."""
    found = [
        (one, run, run.first_difference)
        for one in group.drafted
        if not one.lossy
        for run in summary.runs(one.name)
        if run.first_difference is not None
    ]
    found.sort(key=lambda each: (each[2].numeric, -(each[2].margin or 0.0)))
    rows = [
        (
            f"{run.id}{_repeat(summary, run)}",
            name_cell(one),
            str(first_difference.position),
            "plain had ended"
            if first_difference.margin is None
            else f"{first_difference.margin:.3g}",
            number(first_difference.movement, ".3g"),
            "numeric" if first_difference.numeric else Cell("", marks=(FAULT,)),
        )
        for one, run, first_difference in found[:_MOST_DIVERGENCES]
    ]
    caption = (
        "First differences from plain: its top-2 logit gap there, and how far width alone moves "
        "such gaps in that text"
    )
    if len(found) > len(rows):
        caption += f" ({len(rows)} of {count(len(found), 'difference')}, the largest gaps)"
    head = ("prompt", "configuration", "output token", "top-2 gap", "movement", "cause")
    return Table(head, tuple(rows), caption, words=2) if rows else None


def _repeat(summary: Summary, run: Run) -> str:
    return f" (repeat {run.repeat})" if summary.result.header.repeats > 1 else ""
