"""Is the text the same? Texts equal to the baseline's, first differences with their cause, how far
a lossy verifier went; and sample texts with their accepted drafted tokens told apart."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.local.run import Described, Run
from paceline.bench.wording import interval_words
from paceline.report.document import (
    FAULT,
    MOST_NAMED,
    NONE,
    Block,
    Cell,
    Paragraph,
    Piece,
    Row,
    Sample,
    Samples,
    Table,
    count,
    first_of,
    number,
    percent,
    table_of,
)
from paceline.report.summary import BenchSummary, Group, ServerSummary, Summary

MOST_CHARACTERS = 900
MOST_SAMPLES = 12


def equality(summary: Summary, group: Group) -> list[Block | None]:
    """Whether texts equal the baseline's where greedy makes that meaningful; of a bench also first
    differences with their cause, and how far a lossy verifier went."""
    rows: list[Row] = [
        {
            "": summary.name_cell(one),
            "equal to the baseline": "{} of {}".format(*one.equal) if one.equal else "sampled",
            **_causes(summary, one.candidate),
        }
        for one in group.comparisons
    ]
    blocks: list[Block | None] = [table_of(rows, "Texts compared with the baseline's")]
    if isinstance(summary, ServerSummary):
        words = (
            "At temperature 0. A difference may come from a near-tie that wider kernels round "
            "otherwise; over an API there is no telling, so it isn't judged here."
        )
        if not summary.result.greedy:
            words = "Texts are not compared: they were sampled."
        return [*blocks, Paragraph(words)]
    return [
        *blocks,
        *(_divergence(summary, one) for one in group.drafted if one.lossy),
        _differences(summary, group),
        *(_distributions(summary, one) for one in group.drafted if not one.greedy),
    ]


def _causes(summary: Summary, name: str) -> Row:
    """Of a bench: why texts differ. Under a lossy verifier another text is what was asked for."""
    if isinstance(summary, ServerSummary):
        return {}
    one = summary.result.configuration(name)
    found = [run.first_difference for run in summary.runs(name) if run.first_difference]
    numeric = sum(difference.numeric for difference in found)
    rest = len(found) - numeric
    otherwise = Cell(str(rest), marks=(FAULT,) if rest and not one.lossy else ())
    return {
        "differ by rounding": str(numeric) if one.greedy else NONE,
        "otherwise": otherwise if one.greedy else NONE,
    }


def _divergence(summary: BenchSummary, one: Described) -> Paragraph:
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
        f"({interval_words(kl, lambda end: f'{end:.3g}')}), at most {far.largest_kl_nats:.3g} at a "
        f"token; {percent(moved.value, 1)} of tokens changed "
        f"({interval_words(moved, lambda end: percent(end, 1))}).",
        "warning",
    )


def _distributions(summary: BenchSummary, one: Described) -> Paragraph:
    """Of sampled texts: whether they may come from the target's distribution."""
    found = summary.result.two_sample(one.name)
    if found is None:
        return Paragraph(
            f"{one.name}: sampled, and too few pairs of texts to compare their distributions."
        )
    return Paragraph(f"{one.name}: {found.sentence()}.", "warning" if found.differs else "")


def _differences(summary: BenchSummary, group: Group) -> Table | None:
    """Of exact configurations; faults first, then those with the largest gap: the least easily
    explained."""
    found = [
        (one, run, run.first_difference)
        for one in group.drafted
        if not one.lossy
        for run in summary.runs(one.name)
        if run.first_difference is not None
    ]
    repeats, ended = summary.result.header.repeats, "the baseline had ended"
    found.sort(key=lambda each: (each[2].numeric, -(each[2].margin or 0.0)))
    rows: list[Row] = [
        {
            "prompt": f"{run.id} (repeat {run.repeat})" if repeats > 1 else run.id,
            "configuration": summary.cell(one),
            "output token": str(first.position),
            "top-2 gap": ended if first.margin is None else f"{first.margin:.3g}",
            "movement": number(first.movement, ".3g"),
            "cause": "numeric" if first.numeric else Cell("", marks=(FAULT,)),
        }
        for one, run, first in found[:MOST_NAMED]
    ]
    caption = (
        "First differences from the baseline: its top-2 logit gap there, and how far width alone "
        "moves such gaps in that text"
    )
    if len(found) > len(rows):
        caption += f" ({len(rows)} of {count(len(found), 'difference')}, the largest gaps)"
    return table_of(rows, caption, words=2)


def samples(summary: BenchSummary, group: Group) -> Samples | None:
    """One answer a category, by the fastest configuration that drafted; None if none did, or
    the file doesn't say where tokens end."""
    fastest = (one for one, _ in summary.rated(group) if summary.stats(one.name).drafted_rounds)
    chosen = next(fastest, None)
    if chosen is None:
        return None
    found = []
    for category in summary.categories[:MOST_SAMPLES]:
        run = next((run for run in summary.runs(chosen.name, category) if run.ends), None)
        if run is not None:
            found.append(_sample(run, f"{category}: prompt {run.id}, by {chosen.title}"))
    note = first_of(min(MOST_SAMPLES, len(summary.categories)), len(summary.categories))
    return Samples(tuple(found), note) if found else None


def _sample(run: Run, heading: str) -> Sample:
    kept, length = list[Piece](), 0
    for piece in pieces(run):
        if length < MOST_CHARACTERS:
            kept.append(Piece(piece.text[: MOST_CHARACTERS - length], piece.drafted))
            length += len(piece.text)
    return Sample(heading, tuple(kept), cut=len(run.text) > MOST_CHARACTERS)


def pieces(run: Run) -> Iterator[Piece]:
    """A text's pieces: in each round what was drafted and accepted (a chain's and a tree's path
    alike), then the target's own token. A character that several tokens share goes to the one that
    completes it."""
    drafted = [place < one.accepted for one in run.rounds for place in range(one.emitted)]
    start, begun, kind = 0, 0, False
    for end, mine in zip(run.ends, drafted, strict=True):
        if end != start and mine != kind:
            if start > begun:
                yield Piece(run.text[begun:start], kind)
            begun, kind = start, mine
        start = end
    if start > begun:
        yield Piece(run.text[begun:start], kind)
    if run.text[start:]:
        yield Piece(run.text[start:], False)
