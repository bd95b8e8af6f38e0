"""How a draft's own sequence comes to hold what is wanted of it, whatever it held before."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence

from paceline.engines.base import Sequence


def agreed_length(
    held: AbstractSequence[int], wanted: AbstractSequence[int], known: int, most: int
) -> int:
    """How many of the held tokens are the first of those wanted, at most `most`.

    known    how many were found to be so before: they are not compared again
    """
    most = max(0, most)
    agreed, end = min(known, most), min(len(held), most)
    while agreed < end and held[agreed] == wanted[agreed]:
        agreed += 1
    return agreed


def catch_up(
    sequence: Sequence,
    wanted: AbstractSequence[int],
    drafted: AbstractSequence[int],
    known: int,
) -> tuple[list[int], int]:
    """Rewind a sequence to what it rightly holds. Gives what it must be fed to hold all that is
    wanted and the drafted tokens behind that, and how many of those wanted it holds.

    Whatever it holds beyond the common part, rejected or superseded, is rewound. The last token
    never counts as held, because its row is what is asked for.
    """
    agreed = agreed_length(sequence.tokens, wanted, known, len(wanted) - (not drafted))
    missing, more = list(wanted[agreed:]), 0
    if not missing:
        more = agreed_length(sequence.tokens[agreed:], drafted, 0, len(drafted) - 1)
    sequence.rewind(agreed + more)
    return [*missing, *drafted[more:]], agreed
