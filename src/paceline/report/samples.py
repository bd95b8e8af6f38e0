"""Answers with their accepted drafted tokens told apart."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.local.run import Run
from paceline.report.canvas import first_of
from paceline.report.document import Piece, Sample, Samples
from paceline.report.summary import Group, Summary
from paceline.report.words import title

MOST_CHARACTERS = 900
MOST_SAMPLES = 12


def samples(summary: Summary, group: Group) -> Samples | None:
    """One answer a category, by the fastest configuration that drafted; None if none did, or
    the file doesn't say where tokens end."""
    chosen = next((one for one, _ in summary.rated(group) if summary.drafted(one.name)), None)
    if chosen is None:
        return None
    found = []
    for category in summary.categories[:MOST_SAMPLES]:
        run = next((run for run in summary.runs(chosen.name, category) if run.ends), None)
        if run is not None:
            found.append(_sample(run, f"{category}: prompt {run.id}, by {title(chosen)}"))
    note = first_of(min(MOST_SAMPLES, len(summary.categories)), len(summary.categories))
    return Samples(tuple(found), note) if found else None


def _sample(run: Run, heading: str) -> Sample:
    pieces, length = [], 0
    for piece in merged(run):
        room = MOST_CHARACTERS - length
        pieces.append(Piece(piece.text[:room], piece.drafted))
        length += len(piece.text)
        if length >= MOST_CHARACTERS:
            break
    return Sample(heading, tuple(pieces), cut=len(run.text) > MOST_CHARACTERS)


def merged(run: Run) -> Iterator[Piece]:
    """The text's pieces: in each round what was drafted and accepted, then the target's own token.
    A character that several tokens share goes to the one that completes it. Drafted pieces of two
    rounds stay apart, the target's own token being between them."""
    text, drafted = "", False
    start = 0
    for end, mine in zip(run.ends, _drafted(run), strict=True):
        if end == start:
            continue
        if mine != drafted and text:
            yield Piece(text, drafted)
            text = ""
        drafted = mine
        text += run.text[start:end]
        start = end
    rest = run.text[start:]
    if text:
        yield Piece(text, drafted)
    if rest:
        yield Piece(rest, False)


def _drafted(run: Run) -> Iterator[bool]:
    """Per output token, whether it was drafted: in a round the accepted ones come first, of a
    chain and of a tree's path alike."""
    for round in run.rounds:
        yield from (place < round.accepted for place in range(round.emitted))
