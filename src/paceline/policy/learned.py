"""Costs of steps that nobody profiled, learned from watching them.

Inside another engine there is no measuring beforehand: a step takes what it takes, its rows are
counted, and the first plain steps say what everything else is compared with. It stands where
`LiveCosts` stands in the policy.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from paceline.errors import SettingError
from paceline.policy.acceptance import MOST

FIRST_ROW_SHARE = 0.15
"""What a further row is taken to cost, in plain steps of one sequence, before any was seen: between
a GPU's 0.01 and the 0.5 of a CPU that computes more than it reads. Wrong either way it is put right
by the first rounds, which it only has to make worth trying where the draft is likely right."""

_SPEED = 0.1  # share of what is new, after the first few observations
_MOST_MOVED = math.log(2)  # one interrupted step says little
_FORGET = 0.005  # of what was learned of a width, per plain step
_LINE_KEEP = 0.98  # of the line through all widths, per drafted step
_LINE_WEIGHT = 4.0  # of the assumed line, in drafted rows of one step
_MOST_ROWS = 512
_RENEWED_AFTER = 8
_MOST_IN_VAIN = 4
_MOST_DRAFTED = 100  # steps in a row; a plain one among them costs less than 1 % of what they gain


@dataclass(slots=True)
class _Seen:
    """A running figure; the first few count in full."""

    value: float = 0.0
    count: int = 0

    def move(self, target: float) -> None:
        self.count += 1
        self.value += max(_SPEED, 1 / self.count) * (target - self.value)


class LearnedCosts:
    """Seconds of a step by its rows and sequences.

    A step of n sequences and e drafted rows takes P(n) · (1 + x(n, e)). P is learned from plain
    steps; x from drafted ones, width by width, and a width that was not seen lies on a line through
    those that were. What hasn't been seen for a while goes back to the line.

    row_share    what a row is taken to cost before any was seen, in plain steps
    """

    drift = 1.0  # seconds are as they are now

    def __init__(self, row_share: float = FIRST_ROW_SHARE) -> None:
        """Raises SettingError for a share below 0."""
        if not row_share >= 0:
            raise SettingError(f"row_share is {row_share}.", "It must be 0 or more.")
        self._start = row_share
        self._baseline: dict[int, _Seen] = {}  # logarithm of seconds, by sequences
        self._extra: dict[int, dict[int, _Seen]] = {}  # x, by sequences and drafted rows
        self._up = self._across = 0.0  # of the line: sums of x·e and e²
        self._tables: dict[int, tuple[int, list[float]]] = {}
        self._in_vain: Counter[int] = Counter()
        self._steps = self._since_baseline = 0

    @property
    def row_share(self) -> float:
        """What a drafted row costs over the widths seen, in plain steps of one sequence."""
        return (self._up + self._start * _LINE_WEIGHT) / (self._across + _LINE_WEIGHT)

    def needs_baseline(self, sequences: int) -> bool:
        """Whether the step that comes now should be plain: there is nothing, or nothing recent, to
        compare drafted ones with. A few such steps are asked for in vain and no more, where all of
        them have a prompt in them: then `round_s` goes by other numbers of sequences, or by what is
        assumed."""
        if sequences in self._baseline:
            return self._since_baseline >= _MOST_DRAFTED
        self._in_vain[sequences] += 1
        return self._in_vain[sequences] <= _MOST_IN_VAIN

    def observe(self, rows: int, sequences: int, context: int, seconds: float) -> None:  # noqa: ARG002
        """One step of `sequences` took so long with so many rows."""
        if seconds <= 0:
            return
        self._steps += 1
        if rows == sequences:
            self._observe_baseline(sequences, seconds)
        elif sequences in self._baseline:
            self._observe_drafted(rows - sequences, sequences, seconds)

    def observe_overhead(self, rows: int, seconds: float) -> None:
        """A step is timed as a whole; there is nothing outside it."""

    def _observe_baseline(self, sequences: int, seconds: float) -> None:
        self._since_baseline = 0
        known = self._baseline.setdefault(sequences, _Seen())
        off = math.log(seconds) - known.value
        known.move(known.value + (_bounded(off) if known.count > 2 else off))
        for extra, seen in self._extra.get(sequences, {}).items():
            seen.value += _FORGET * (self._line(sequences, extra) - seen.value)

    def _observe_drafted(self, extra: int, sequences: int, seconds: float) -> None:
        self._since_baseline += 1
        baseline, line = self._baseline_s(sequences), self._line(sequences, extra)
        known = self._extra.setdefault(sequences, {}).setdefault(extra, _Seen(line))
        # A step may be held up by anything, and is never early: what is far too long says little.
        due = baseline * (1 + known.value)
        x = max(0.0, due * math.exp(_bounded(math.log(seconds / due))) / baseline - 1)
        known.move(x)
        # All on one line, as if the sequences were one (`_line`).
        alone = x * (1 + self.row_share * (sequences - 1))
        self._up = _LINE_KEEP * self._up + alone * extra
        self._across = _LINE_KEEP * self._across + extra * extra

    def _line(self, sequences: int, extra: int) -> float:
        """x by the line. A step of n sequences is taken for one of n rows: seconds are linear in
        rows, so a further row is the less, in such steps, the more there are."""
        share = self.row_share
        return share * extra / (1 + share * (sequences - 1))

    def _baseline_s(self, sequences: int) -> float:
        """Of a number of sequences not seen yet, by the line from the nearest one."""
        if sequences in self._baseline:
            return math.exp(self._baseline[sequences].value)
        if not self._baseline:
            return 1.0
        near = min(self._baseline, key=lambda n: abs(n - sequences))
        share = self.row_share
        scale = (1 + share * (sequences - 1)) / (1 + share * (near - 1))
        return math.exp(self._baseline[near].value) * scale

    def round_s(self, sequences: int = 1, context: int = 0) -> list[float]:  # noqa: ARG002
        """Entry r: seconds of a step of r rows; infinite below `sequences`. Renewed every few
        steps; don't change it."""
        found = self._tables.get(sequences)
        if found is None or self._steps - found[0] >= _RENEWED_AFTER:
            extra = np.arange(min(MOST, _MOST_ROWS // sequences) * sequences + 1)
            x = self._line(sequences, 1) * extra
            for drafted, seen in self._extra.get(sequences, {}).items():
                if drafted < len(x):
                    x[drafted] = seen.value
            table = [math.inf] * sequences + (self._baseline_s(sequences) * (1 + x)).tolist()
            found = self._tables[sequences] = self._steps, table
        return found[1]


def _bounded(off: float) -> float:
    return max(-_MOST_MOVED, min(_MOST_MOVED, off))
