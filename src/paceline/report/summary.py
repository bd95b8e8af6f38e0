"""What one bench adds up to, each figure computed once, for the pages and the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from paceline.bench.comparison import Comparison
from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import Described, Run
from paceline.bench.stats import Ratio
from paceline.decode.stats import Stats
from paceline.types import Round

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """A plain configuration and those that are compared with it: one engine, one sampling. Times
    of different groups are not compared."""

    baseline: Described
    drafted: tuple[Described, ...]

    @property
    def every(self) -> tuple[Described, ...]:
        return (self.baseline, *self.drafted)


class Summary:
    """A bench's figures.

    source    the file's name
    result    without runs whose prompt is not measured in all configurations yet: what is compared
              was measured on the same prompts
    begun     how many runs that left out
    """

    def __init__(self, source: str, result: BenchResult) -> None:
        self.source = source
        self.missing = len(result.missing())
        self.result = result.finished
        self.begun = len(result.runs) - len(self.result.runs)
        self._known: dict[tuple[str | None, ...], object] = {}

    def _once(self, key: tuple[str | None, ...], make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[return-value]

    @cached_property
    def groups(self) -> list[Group]:
        every = self.result.configurations
        return [
            Group(one, tuple(c for c in every if c.baseline == one.name and not c.is_baseline))
            for one in every
            if one.is_baseline
        ]

    def group_of(self, name: str) -> Group:
        return next(g for g in self.groups if name in [c.name for c in g.every])

    @cached_property
    def categories(self) -> list[str]:
        return self.result.categories

    @property
    def scopes(self) -> list[str | None]:
        """Categories, and None for all prompts, which is left out where it says the same."""
        return [*self.categories, None] if len(self.categories) != 1 else [*self.categories]

    @cached_property
    def prompts(self) -> int:
        return len({run.id for run in self.result.runs})

    def stats(self, name: str, category: str | None = None) -> Stats:
        return self._once(("stats", name, category), lambda: self.result.stats(name, category))

    def ratio(self, name: str, category: str | None = None) -> Ratio | None:
        return self._once(("ratio", name, category), lambda: self._beside(name).ratio(category))

    def _beside(self, name: str) -> Comparison:
        return self._once(("comparison", name), lambda: self.result.comparison(name))

    def beside(self, name: str, other: str) -> Ratio | None:
        """Times as fast as another configuration."""
        return self._once(
            ("beside", name, other), lambda: self.result.comparison(name, beside=other).ratio()
        )

    def prompt_ratios(self, name: str) -> dict[str, Ratio]:
        return self._once(("prompts", name), lambda: self._beside(name).prompt_ratios())

    def runs(self, name: str, category: str | None = None) -> list[Run]:
        return self.result.runs_of(name, category)

    def rounds(self, name: str) -> list[Round]:
        """Its decoding rounds."""
        return self._once(
            ("rounds", name), lambda: [r for r in self.result.rounds_of(name) if not r.prefill]
        )

    def rated(self, group: Group, category: str | None = None) -> list[tuple[Described, Ratio]]:
        """Drafted configurations with their speedup, the fastest first."""
        found = [
            (one, ratio)
            for one in group.drafted
            if (ratio := self.ratio(one.name, category)) is not None
        ]
        return sorted(found, key=lambda pair: -pair[1].value)

    def best(self, group: Group, category: str | None) -> str | None:
        """Name of the configuration with the least time per token, plain among them; a lossy one
        can't be it, nor one with a fault."""
        times = [
            (ms, one.name)
            for one in group.every
            if self.sound(one) and (ms := self.stats(one.name, category).ms_per_token) is not None
        ]
        return min(times, default=(0.0, None))[1]

    def worst(self, name: str) -> tuple[str, Ratio] | None:
        """The category where it does worst beside plain; None without any."""
        found = [
            (category, ratio)
            for category in self.categories
            if (ratio := self.ratio(name, category)) is not None
        ]
        return min(found, key=lambda pair: pair[1].value, default=None)

    def faults(self, name: str) -> list[Run]:
        """Runs of an exact configuration whose text differs from plain's for no numeric reason."""
        if self.result.configuration(name).lossy:
            return []
        return self._once(
            ("faults", name),
            lambda: [
                r for r in self.runs(name) if r.first_difference and not r.first_difference.numeric
            ],
        )

    def sound(self, one: Described) -> bool:
        """Whether its text is the target's, as far as was seen."""
        return not one.lossy and not self.faults(one.name)

    def drafted(self, name: str) -> bool:
        """Whether any decoding round drafted anything."""
        return self.stats(name).drafted_rounds > 0

    def looping(self, group: Group) -> list[Run]:
        """Plain answers that repeat themselves: such text is easy to draft."""
        return [run for run in self.runs(group.baseline.name) if is_loop(run.tokens)]


_GRAM, _LEAST_NEW = 4, 0.5


def is_loop(tokens: Sequence[int]) -> bool:
    """Whether fewer than half of a text's 4-token sequences are new in it.

    >>> is_loop([1, 2, 3] * 10)
    True
    >>> is_loop(range(30))
    False
    """
    grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
    return bool(grams) and len(set(grams)) < _LEAST_NEW * len(grams)


def is_slower(ratio: Ratio) -> bool:
    """Whether it clearly is, and prints as less than 1; of a single prompt, whether it was."""
    return round(ratio.value, 2) < 1 and (ratio.high is None or ratio.high < 1)


def is_unclear(ratio: Ratio) -> bool:
    """Whether the interval includes 1, or the ratio prints as 1."""
    return ratio.low is not None and ratio.low <= 1 and not is_slower(ratio)
