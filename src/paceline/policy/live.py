"""Costs while decoding: a profile, corrected by what rounds really took.

A shared machine drifts. What is measured is split in two: a drift that is common to all widths, and
a correction for each number of rows that has been seen. Only the second bends r(w).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.policy.costs import Costs

_CONTEXT_STEP = 256
_MOST_MOVED = math.log(2)  # one interrupted forward says little
_SPEED = 0.1  # share of what is new, after the first few observations
_KEEP = 0.995  # of a correction, per round without a draft
_MOST_CORRECTED = math.log(2.5)
_OVERHEAD_KEEP = 0.95
_RENEWED_AFTER = 8


@dataclass(slots=True)
class _Correction:
    log: float = 0.0  # natural logarithm of the factor
    seen: int = 0


class LiveCosts:
    """A model's costs as they are now.

    frozen    keep to the profile, so that decisions are the same in every run
    """

    def __init__(self, costs: Costs, *, frozen: bool = False) -> None:
        self.costs, self.frozen = costs, frozen
        self._overhead = _Overhead(costs.overhead_s)
        self._drift = 0.0  # natural logarithm of measured over profiled seconds
        self._corrections: dict[int, dict[int, _Correction]] = {}  # by sequences, then rows
        self._rounds: dict[tuple[int, int], tuple[int, list[float]]] = {}
        self._seen = 0  # rounds
        self._longest = costs.contexts[-1]
        self._tables: dict[tuple[int, int], np.ndarray] = {}
        self._feeds: list[float] = []
        self._steps = [0.0]
        self._profiled: dict[tuple[int, int], np.ndarray] = {}

    def table(self, sequences: int = 1, context: int = 0) -> np.ndarray:
        """`Costs.table` as corrected, without the common drift. Don't change it."""
        key = self._key(sequences, context)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._profile(key).copy()
            for rows, known in self._corrections.get(sequences, {}).items():
                if rows < len(table):
                    table[rows] *= math.exp(known.log)
        return table

    def _key(self, sequences: int, context: int) -> tuple[int, int]:
        """Beyond the longest context measured all are alike."""
        return sequences, min(context, self._longest) // _CONTEXT_STEP

    def _profile(self, key: tuple[int, int]) -> np.ndarray:
        if key not in self._profiled:
            self._profiled[key] = self.costs.table(key[0], key[1] * _CONTEXT_STEP)
        return self._profiled[key]

    @property
    def drift(self) -> float:
        """How much slower everything is now than when it was profiled, as a factor."""
        return math.exp(self._drift)

    def feed_s(self, tokens: int) -> float:
        """`Costs.feed_s` now, drift included."""
        known = self._feeds
        if len(known) <= tokens:
            known[:] = self.costs.feeds_s(max(2 * tokens, 256)).tolist()
        return known[tokens] * self.drift

    def steps_s(self, most: int) -> list[float]:
        """Entry n: seconds of one token each for n sequences, drift included; entry 0 is 0."""
        while len(self._steps) <= most:
            count = len(self._steps)
            self._steps.append(self.costs.forward_s(count, count))
        drift = self.drift
        return [step * drift for step in self._steps[: most + 1]]

    def observe(self, rows: int, sequences: int, context: int, seconds: float) -> None:
        """One forward took so long."""
        if self.frozen or seconds <= 0:
            return
        profiled = self._profile(self._key(sequences, context))
        if rows >= len(profiled) or not math.isfinite(profiled[rows]):
            return
        baseline = rows == sequences
        known = self._corrections.setdefault(sequences, {}).setdefault(rows, _Correction())
        off = (
            math.log(seconds / float(profiled[rows])) - self._drift - (0 if baseline else known.log)
        )
        off = max(-_MOST_MOVED, min(_MOST_MOVED, off))
        known.seen += 1
        gain = max(_SPEED, 1 / (known.seen + 1))
        if baseline:
            # Rounds without a draft say what the drift is; the other rows are compared with them.
            self._drift += gain * off
            self._forget(sequences)
        else:
            known.log = max(-_MOST_CORRECTED, min(_MOST_CORRECTED, known.log + gain * off))
            self._apply(sequences, rows, known)

    def _forget(self, sequences: int) -> None:
        """Rows not seen for a while go back to the profile: else one bad moment would keep them
        from ever being tried again."""
        for rows, known in self._corrections[sequences].items():
            if known.log:
                known.log *= _KEEP
                self._apply(sequences, rows, known)

    def _apply(self, sequences: int, rows: int, known: _Correction) -> None:
        factor = math.exp(known.log)
        for key, table in self._tables.items():
            if key[0] == sequences and rows < len(table):
                table[rows] = self._profiled[key][rows] * factor

    def observe_whole(self, expected_s: float, seconds: float) -> None:
        """Several forwards together took so long where `expected_s` (drift included) was due."""
        if not self.frozen and expected_s > 0 and seconds > 0:
            off = math.log(seconds / expected_s)
            self._drift += _SPEED * max(-_MOST_MOVED, min(_MOST_MOVED, off))

    def observe_overhead(self, rows: int, seconds: float) -> None:
        """One round of so many rows took so long outside forwards."""
        if not self.frozen:
            self._seen += 1
            self._overhead.observe(rows, seconds)

    def round_s(self, sequences: int = 1, context: int = 0) -> list[float]:
        """`table` with what a round takes outside forwards, both in profiled time. Renewed every
        few rounds."""
        key = self._key(sequences, context)
        found = self._rounds.get(key)
        if found is None or self._seen - found[0] >= _RENEWED_AFTER:
            table = self.table(sequences, context)
            whole = table + self._overhead.by_rows(len(table)) / self.drift
            found = self._rounds[key] = self._seen, whole.tolist()
        return found[1]


class _Overhead:
    """A straight line through (rows, seconds) pairs, the older the less: each row has a
    distribution to be worked out, which is dear where tokens are sampled from a large
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
