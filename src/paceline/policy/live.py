"""Costs of rounds while decoding, corrected or learned by what rounds really took.

Where a model was profiled, what is measured is split in two: a drift that is common to all widths,
because a shared machine drifts, and a correction for each number of rows that has been seen. Only
the second bends r(w). Inside another engine there is no profile: all steps are compared with the
first ones without a draft.
"""

from __future__ import annotations

import abc
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from paceline.errors import SettingError
from paceline.policy.acceptance import MOST
from paceline.policy.costs import Costs

FIRST_ROW_SHARE = 0.15
"""What a further row is taken to cost, in steps without drafts of one sequence, before any was
seen: between a GPU's 0.01 and the 0.5 of a CPU that computes more than it reads. Wrong either way
it is put right by the first rounds, which it only has to make worth trying where the draft is
likely right."""

_CONTEXT_STEP = 256
_MOST_MOVED = math.log(2)  # one interrupted forward says little
_SPEED = 0.1  # share of what is new, after the first few observations
_KEEP = 0.995  # of what was learned of a width, per round without a draft
_MOST_CORRECTED = math.log(2.5)
_OVERHEAD_KEEP = 0.95
_RENEWED_AFTER = 8  # rounds
_LINE_KEEP = 0.98  # of the line through all widths, per drafted step
_LINE_WEIGHT = 4.0  # of the assumed line, in drafted rows of one step
_MOST_ROWS = 512
_MOST_IN_VAIN = 4
_MOST_DRAFTED = 100  # steps in a row; one without a draft costs less than 1 % of what they gain


@dataclass(slots=True)
class Running:
    """A running figure; the first few observations count in full."""

    value: float = 0.0
    count: int = 0

    def gain(self, speed: float = _SPEED, start: int = 0) -> float:
        """Count an observation. Gives the share it moves the figure by."""
        self.count += 1
        return max(speed, 1 / (self.count + start))

    def move(self, target: float, speed: float = _SPEED) -> None:
        """Towards what was observed."""
        self.value += self.gain(speed) * (target - self.value)


class RoundCosts(abc.ABC):
    """Seconds of a target's rounds as they are now.

    profiled    what was measured beforehand; None without a profile
    frozen      nothing is learned from rounds: the same choices in every run
    """

    profiled: Costs | None = None
    frozen: bool = False

    def __init__(self) -> None:
        self._rounds: dict[tuple[int, int], tuple[int, list[float]]] = {}
        self._seen = 0  # rounds

    @property
    def drift(self) -> float:
        """How much slower everything is now than `round_s` says, as a factor."""
        return 1.0

    def round_s(self, sequences: int = 1, context: int = 0) -> list[float]:
        """Entry r: seconds of a round of r rows, what it takes outside forwards included; infinite
        below `sequences`. Renewed every few rounds; don't change it."""
        key = self._key(sequences, context)
        found = self._rounds.get(key)
        if found is None or self._seen - found[0] >= _RENEWED_AFTER:
            found = self._rounds[key] = self._seen, self._round_s(sequences, context)
        return found[1]

    @abc.abstractmethod
    def _key(self, sequences: int, context: int) -> tuple[int, int]:
        """Rounds with the same one cost the same."""

    @abc.abstractmethod
    def _round_s(self, sequences: int, context: int) -> list[float]: ...

    @abc.abstractmethod
    def observe(self, rows: int, sequences: int, context: int, seconds: float) -> None:
        """A forward took so long."""

    def observe_overhead(self, rows: int, seconds: float) -> None:  # noqa: B027
        """A round of so many rows took so long outside its forward. Where a step is timed as a
        whole there is nothing outside it."""


class LiveCosts(RoundCosts):
    """A model's profile, and what has changed since."""

    profiled: Costs

    def __init__(self, costs: Costs, *, frozen: bool = False) -> None:
        super().__init__()
        self.profiled, self.frozen = costs, frozen
        self._overhead = _Overhead(costs.overhead_s)
        self._drift = 0.0  # natural logarithm of measured over profiled seconds
        # Logarithms of factors, by sequences, then rows.
        self._corrections: dict[int, dict[int, Running]] = {}
        self._longest = costs.contexts[-1]
        self._tables: dict[tuple[int, int], np.ndarray] = {}
        self._feeds: list[float] = []
        self._steps = [0.0]
        self._uncorrected: dict[tuple[int, int], np.ndarray] = {}

    @property
    def drift(self) -> float:
        """How much slower everything is now than when it was profiled, as a factor."""
        return math.exp(self._drift)

    def table(self, sequences: int = 1, context: int = 0) -> np.ndarray:
        """`Costs.table` as corrected, without the common drift. Don't change it."""
        key = self._key(sequences, context)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._profile(key).copy()
            for rows, known in self._corrections.get(sequences, {}).items():
                if rows < len(table):
                    table[rows] *= math.exp(known.value)
        return table

    def _key(self, sequences: int, context: int) -> tuple[int, int]:
        """Beyond the longest context measured all are alike."""
        return sequences, min(context, self._longest) // _CONTEXT_STEP

    def _profile(self, key: tuple[int, int]) -> np.ndarray:
        if key not in self._uncorrected:
            self._uncorrected[key] = self.profiled.table(key[0], key[1] * _CONTEXT_STEP)
        return self._uncorrected[key]

    def _round_s(self, sequences: int, context: int) -> list[float]:
        """In profiled time, without the common drift."""
        table = self.table(sequences, context)
        whole: list[float] = (table + self._overhead.by_rows(len(table)) / self.drift).tolist()
        return whole

    def feed_s(self, tokens: int) -> float:
        """`Costs.feed_s` now, drift included."""
        known = self._feeds
        if len(known) <= tokens:
            known[:] = self.profiled.feeds_s(max(2 * tokens, 256)).tolist()
        return known[tokens] * self.drift

    def steps_s(self, most: int) -> list[float]:
        """Entry n: seconds of one token each for n sequences, drift included; entry 0 is 0."""
        while len(self._steps) <= most:
            count = len(self._steps)
            self._steps.append(self.profiled.forward_s(count, count))
        drift = self.drift
        return [step * drift for step in self._steps[: most + 1]]

    def observe(self, rows: int, sequences: int, context: int, seconds: float) -> None:
        """Rounds without a draft say what the drift is; the other rows are compared with them."""
        if self.frozen or seconds <= 0:
            return
        profiled = self._profile(self._key(sequences, context))
        if rows >= len(profiled) or not math.isfinite(profiled[rows]):
            return
        baseline = rows == sequences
        known = self._corrections.setdefault(sequences, {}).setdefault(rows, Running())
        off = math.log(seconds / float(profiled[rows])) - self._drift
        off = _bounded(off if baseline else off - known.value)
        gain = known.gain(start=1)
        if baseline:
            self._drift += gain * off
            self._forget(sequences)
        else:
            moved = known.value + gain * off
            known.value = max(-_MOST_CORRECTED, min(_MOST_CORRECTED, moved))
            self._apply(sequences, rows, known)

    def _forget(self, sequences: int) -> None:
        """Rows not seen for a while go back to the profile: else one bad moment would keep them
        from ever being tried again."""
        for rows, known in self._corrections[sequences].items():
            if known.value:
                known.value *= _KEEP
                self._apply(sequences, rows, known)

    def _apply(self, sequences: int, rows: int, known: Running) -> None:
        factor = math.exp(known.value)
        for key, table in self._tables.items():
            if key[0] == sequences and rows < len(table):
                table[rows] = self._uncorrected[key][rows] * factor

    def observe_whole(self, expected_s: float, seconds: float) -> None:
        """Several forwards together took so long where `expected_s` (drift included) was due."""
        if not self.frozen and expected_s > 0 and seconds > 0:
            self._drift += _SPEED * _bounded(math.log(seconds / expected_s))

    def observe_overhead(self, rows: int, seconds: float) -> None:
        """A round of so many rows took so long outside its forward."""
        if not self.frozen:
            self._seen += 1
            self._overhead.observe(rows, seconds)


class _Overhead:
    """A straight line through (rows, seconds) pairs, the older the less: each row has a
    distribution to be worked out, which is expensive where tokens are sampled from a large
    vocabulary."""

    def __init__(self, start_s: float) -> None:
        self._rows = self._seconds = self._products = self._squares = 0.0
        self._weight = 0.0
        self._base_s, self._row_s = start_s, 0.0

    def observe(self, rows: int, seconds: float) -> None:
        kept = min(seconds, 10 * self._base_s + 10 * self._row_s * rows) or seconds
        self._weight = _OVERHEAD_KEEP * self._weight + 1
        share = 1 / self._weight
        self._rows += share * (rows - self._rows)
        self._seconds += share * (kept - self._seconds)
        self._products += share * (rows * kept - self._products)
        self._squares += share * (rows * rows - self._squares)
        spread = self._squares - self._rows**2
        slope = (self._products - self._rows * self._seconds) / (spread + 1.0)
        self._row_s = max(0.0, slope)
        self._base_s = max(0.0, self._seconds - self._row_s * self._rows)

    def by_rows(self, count: int) -> np.ndarray:
        return self._base_s + self._row_s * np.arange(count)


class LearnedCosts(RoundCosts):
    """Seconds of steps inside another engine, where there is no profile.

    A step of n sequences and e drafted rows takes P(n) · (1 + x(n, e)). P is learned from steps
    without drafts; x from drafted ones, width by width, and a width that was not seen lies on a
    line through those that were. What hasn't been seen for a while goes back to the line.

    row_share    what a row is taken to cost before any was seen, in steps without drafts
    """

    def __init__(self, row_share: float = FIRST_ROW_SHARE) -> None:
        """Raises SettingError for a share below 0."""
        if not row_share >= 0:
            raise SettingError(f"row_share is {row_share}.", "It must be 0 or more.")
        super().__init__()
        self._start = row_share
        self._baseline: dict[int, Running] = {}  # logarithm of seconds, by sequences
        self._extra: dict[int, dict[int, Running]] = {}  # x, by sequences and drafted rows
        self._up = self._across = 0.0  # of the line: sums of x·e and e²
        self._in_vain: Counter[int] = Counter()
        self._since_baseline = 0

    @property
    def row_share(self) -> float:
        """What a drafted row costs over the widths seen, in steps without drafts of one
        sequence."""
        return (self._up + self._start * _LINE_WEIGHT) / (self._across + _LINE_WEIGHT)

    def needs_baseline(self, sequences: int) -> bool:
        """Whether the step that comes now should have no draft: there is nothing, or nothing
        recent, to compare drafted ones with. Where all such steps read a prompt it asks for a few
        and no more: then `round_s` goes by other numbers of sequences, or by what is assumed."""
        if sequences in self._baseline:
            return self._since_baseline >= _MOST_DRAFTED
        self._in_vain[sequences] += 1
        return self._in_vain[sequences] <= _MOST_IN_VAIN

    def observe(self, rows: int, sequences: int, context: int, seconds: float) -> None:  # noqa: ARG002
        """One step of `sequences` took so long with so many rows."""
        if seconds <= 0:
            return
        self._seen += 1
        if rows == sequences:
            self._observe_baseline(sequences, seconds)
        elif sequences in self._baseline:
            self._observe_drafted(rows - sequences, sequences, seconds)

    def _observe_baseline(self, sequences: int, seconds: float) -> None:
        self._since_baseline = 0
        known = self._baseline.setdefault(sequences, Running())
        off = math.log(seconds) - known.value
        known.move(known.value + (_bounded(off) if known.count > 2 else off))
        for extra, seen in self._extra.get(sequences, {}).items():
            seen.value += (1 - _KEEP) * (self._line(sequences, extra) - seen.value)

    def _observe_drafted(self, extra: int, sequences: int, seconds: float) -> None:
        self._since_baseline += 1
        baseline, line = self._baseline_s(sequences), self._line(sequences, extra)
        known = self._extra.setdefault(sequences, {}).setdefault(extra, Running(line))
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
        if not self._baseline:
            return 1.0
        near = sequences
        if near not in self._baseline:
            near = min(self._baseline, key=lambda n: abs(n - sequences))
        share = self.row_share
        scale = (1 + share * (sequences - 1)) / (1 + share * (near - 1))
        return math.exp(self._baseline[near].value) * scale

    def _key(self, sequences: int, context: int) -> tuple[int, int]:  # noqa: ARG002
        return sequences, 0

    def _round_s(self, sequences: int, context: int) -> list[float]:  # noqa: ARG002
        extra = np.arange(min(MOST, _MOST_ROWS // sequences) * sequences + 1)
        x = self._line(sequences, 1) * extra
        for drafted, seen in self._extra.get(sequences, {}).items():
            if drafted < len(x):
                x[drafted] = seen.value
        whole: list[float] = (self._baseline_s(sequences) * (1 + x)).tolist()
        return [math.inf] * sequences + whole


def _bounded(off: float) -> float:
    return max(-_MOST_MOVED, min(_MOST_MOVED, off))
