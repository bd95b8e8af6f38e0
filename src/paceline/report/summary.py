"""What one run file adds up to, each figure computed once: a bench's, or that of a run on live
servers. Only this module reads results; verdicts, sections, pictures and rows ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from paceline.bench.comparison import ComparedPrompt, Comparison
from paceline.bench.local.result import BenchHeader, BenchResult
from paceline.bench.local.run import Described, Run
from paceline.bench.server.notes import title
from paceline.bench.server.result import (
    AGAINST,
    Load,
    ServerBenchHeader,
    ServerResult,
    clients_words,
)
from paceline.bench.stats import Ratio
from paceline.decode.stats import Stats
from paceline.report.document import FAULT, LOSSY, Cell
from paceline.types import Round

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """Comparisons that stand in one table: with one baseline, so of one engine and sampling, or of
    two servers. `baseline` and `drafted` are the configurations of a local bench."""

    comparisons: tuple[Comparison, ...]
    baseline: Described | None = None
    drafted: tuple[Described, ...] = ()

    @property
    def every(self) -> tuple[Described, ...]:
        """The baseline and all that is compared with it."""
        return (*([self.baseline] if self.baseline else []), *self.drafted)


class _Figures:
    """What both kinds of files have.

    source       the file's name
    header       what holds for the whole run
    complete     whether everything asked for was measured
    categories   of what was measured, in order
    ids          of the prompts that were measured
    groups       what is compared with what
    """

    source: str
    header: BenchHeader | ServerBenchHeader
    complete: bool
    categories: list[str]
    ids: set[str]
    groups: list[Group]

    def __init__(self) -> None:
        self._known: dict[tuple[str | int | None, ...], object] = {}

    def _once(self, key: tuple[str | int | None, ...], make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[return-value]

    def scopes(self, group: Group) -> list[str | None]:
        """Categories, the worst first, and None for all prompts unless there is one category."""

        def least(category: str) -> float:
            ratios = [one.ratio(category) for one in group.comparisons]
            return min((one.value for one in ratios if one is not None), default=float("inf"))

        found = sorted(self.categories, key=least)
        return [*found, None] if len(found) != 1 else [*found]

    def prompts(self, group: Group, category: str | None = None) -> list[int]:
        """How many prompts each comparison is over."""
        return [len(compared(one, category)) for one in group.comparisons]

    def name_cell(self, one: Comparison) -> Cell:
        """What is compared, as a table has it."""
        return Cell(one.title)

    def figures(self) -> Iterator[tuple[Cell, float | None, Ratio | None]]:
        """Of all prompts: names, milliseconds per token, and speedup of what isn't a baseline."""
        for group in self.groups:
            for one in group.comparisons:
                yield self.name_cell(one), ms_per_token(one), one.ratio()


class BenchSummary(_Figures):
    """A local bench's figures.

    result    without runs whose prompt is not measured in all configurations yet: what is compared
              was measured on the same prompts
    missing   how many prompts are still to be measured
    begun     how many runs `result` leaves out for that
    disturbances    what it leaves out because other programs disturbed it, a sentence a prompt
    """

    def __init__(self, source: str, result: BenchResult) -> None:
        super().__init__()
        self.source, self.header = source, result.header
        self.missing = len(result.missing())
        self.complete = not self.missing
        self.result = result.finished
        self.disturbances = result.disturbances()
        unfinished = set(result.missing())
        self.begun = sum((run.id, run.repeat) in unfinished for run in result.runs)
        self.categories = self.result.categories
        self.ids = {run.id for run in self.result.runs}
        self._comparisons = {one.candidate: one for one in self.result.comparisons()}
        every = self.result.configurations
        self.groups = [self._group(one, every) for one in every if one.is_baseline]

    def _group(self, baseline: Described, every: Sequence[Described]) -> Group:
        drafted = tuple(c for c in every if c.baseline == baseline.name and not c.is_baseline)
        return Group(tuple(self._comparisons[one.name] for one in drafted), baseline, drafted)

    def prompts(self, group: Group, category: str | None = None) -> list[int]:
        """How many prompts its configurations decoded."""
        return [len({run.id for run in self.runs(one.name, category)}) for one in group.every[:1]]

    def name_cell(self, one: Comparison) -> Cell:
        """The candidate, with LOSSY and FAULT where that is so."""
        return self.cell(self.result.configuration(one.candidate))

    def cell(self, one: Described) -> Cell:
        """A configuration's name, with LOSSY and FAULT where that is so."""
        fault = (FAULT,) if self.faults(one) else ()
        return Cell(one.name, marks=((LOSSY,) if one.lossy else ()) + fault)

    def figures(self) -> Iterator[tuple[Cell, float | None, Ratio | None]]:
        """Those of baselines too."""
        for one in self.result.configurations:
            yield self.cell(one), self.stats(one.name).ms_per_token, self.ratio(one)

    def stats(self, name: str, category: str | None = None) -> Stats:
        """Pooled figures of a configuration."""
        return self._once(("stats", name, category), lambda: self.result.stats(name, category))

    def ratio(self, one: Described, category: str | None = None) -> Ratio | None:
        """A configuration's speedup; None of a baseline."""
        return None if one.is_baseline else self._comparisons[one.name].ratio(category)

    def comparison(self, one: Described) -> Comparison:
        """A drafted configuration beside its baseline."""
        return self._comparisons[one.name]

    def beside(self, one: Described, other: Described) -> Ratio | None:
        """Speedup beside another drafted configuration."""
        return self.result.comparison(one.name, beside=other.name).ratio()

    def runs(self, name: str, category: str | None = None) -> list[Run]:
        """A configuration's answers."""
        return self.result.runs_of(name, category)

    def rounds(self, name: str) -> list[Round]:
        """Its decoding rounds."""
        return self._once(
            ("rounds", name), lambda: [r for r in self.result.rounds_of(name) if not r.prefill]
        )

    def rated(self, group: Group) -> list[tuple[Described, Ratio]]:
        """Drafted configurations with their speedup, the fastest first."""
        found = [(one, ratio) for one in group.drafted if (ratio := self.ratio(one)) is not None]
        return sorted(found, key=lambda pair: -pair[1].value)

    def best(self, group: Group, category: str | None) -> str | None:
        """Name of the configuration with the least time per token, the baseline among them; a lossy
        one can't be it, nor one with a fault."""
        found = [
            (ms, one.name)
            for one in group.every
            if self.sound(one) and (ms := self.stats(one.name, category).ms_per_token) is not None
        ]
        return min(found, default=(0.0, None))[1]

    def faults(self, one: Described) -> list[Run]:
        """Runs of an exact configuration whose text differs from the baseline's for no numeric
        reason."""
        if one.lossy:
            return []
        return self._once(
            ("faults", one.name),
            lambda: [
                run
                for run in self.runs(one.name)
                if run.first_difference and not run.first_difference.numeric
            ],
        )

    def sound(self, one: Described) -> bool:
        """Whether its text is the target's, as far as was seen."""
        return not one.lossy and not self.faults(one)

    def looping(self, group: Group) -> list[Run]:
        """Baseline answers that repeat themselves: such text is easy to draft."""
        return [
            one for each in group.every[:1] for one in self.runs(each.name) if is_loop(one.tokens)
        ]


class ServerSummary(_Figures):
    """The figures of a run on live servers.

    loads     numbers of clients and servers of which there is anything
    """

    def __init__(self, source: str, result: ServerResult) -> None:
        super().__init__()
        self.source, self.header, self.result = source, result.header, result
        self.complete = result.complete
        self.categories = result.categories
        self.ids = {one.id for one in result.asked if one.answer.failure is None}
        self.loads = [
            (n, server)
            for n in result.header.concurrency
            for server in result.servers
            if result.of(server, n)
        ]
        self.clients = list(dict.fromkeys(n for n, _ in self.loads))
        self.comparisons = {n: result.comparison(n) for n in self.clients if self.several}
        found = tuple(self.comparisons.values())
        self.groups = [Group(found)] if found else []

    @property
    def several(self) -> bool:
        """Whether two servers were measured."""
        return AGAINST in self.result.servers

    def load(self, clients: int, server: str, category: str | None = None) -> Load:
        """One server's figures under one load."""
        return self._once(
            (server, clients, category), lambda: self.result.load(server, clients, category)
        )

    def name(self, server: str, clients: int | None = None) -> str:
        """As tables and legends have it; with the number of clients where there are several."""
        words = title(server)
        if clients is None or len(self.clients) == 1:
            return words
        return f"{words}, {clients_words(clients)}"

    def about(self, server: str) -> str:
        """Address, what made the server, and model."""
        metadata = self.result.header.servers[server]
        kind = " ".join(str(metadata[key]) for key in ("server", "version") if metadata.get(key))
        return f"{metadata['url']}, {kind or 'server not told'}, model {metadata['model']}"


Summary: TypeAlias = BenchSummary | ServerSummary


def compared(one: Comparison, category: str | None) -> list[ComparedPrompt]:
    """A comparison's prompts of one category, or all of them."""
    return [prompt for prompt in one.prompts if category in (None, prompt.category)]


def ms_per_token(one: Comparison, category: str | None = None) -> float | None:
    """The candidate's, over the prompts that it and the baseline finished."""
    pairs = [prompt.per_token for prompt in compared(one, category)]
    tokens = sum(pair.drafted_tokens for pair in pairs)
    return 1e3 * sum(pair.drafted_s for pair in pairs) / tokens if tokens else None


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
