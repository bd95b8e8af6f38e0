"""All runs of a bench, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from paceline.bench.comparison import ComparedPrompt, Comparison
from paceline.bench.local.run import Described, Run
from paceline.bench.machine import machine_metadata
from paceline.bench.prompts.workload import WorkloadPrompt
from paceline.bench.stats import Mean, Pair, mean_per_token
from paceline.bench.two_sample import TwoSample, two_sample
from paceline.decode.stats import Stats, stats
from paceline.errors import DataError, unknown_name
from paceline.types import Divergence, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchHeader:
    """What holds for a whole bench.

    workload               facts of the prompts
    prompts                their ids and categories, in order
    seed                   of the order in which each prompt's configurations run
    machine                its facts
    bandwidth_bytes_per_s  what the machine's memory gives when it is only read; None if unmeasured
    started                ISO 8601, local time with its offset
    """

    command: tuple[str, ...] = ()
    workload: Mapping[str, Any] = field(default_factory=dict)
    prompts: tuple[tuple[str, str], ...] = ()
    configurations: tuple[Described, ...] = ()
    max_tokens: int = 0
    repeats: int = 1
    seed: int = 0
    machine: Mapping[str, Any] = field(default_factory=machine_metadata)
    bandwidth_bytes_per_s: float | None = None
    started: str = ""


@dataclass(slots=True)
class BenchResult:
    """A header and the runs so far; `failed` has one sentence for each prompt that was left out of
    all configurations. `known` has the key of each run that was ever added."""

    header: BenchHeader
    runs: list[Run] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    known: set[tuple[str, str, int]] = field(default_factory=set, repr=False, compare=False)
    _distributions: dict[tuple[str, int], TwoSample | None] = field(
        default_factory=dict, repr=False
    )

    @property
    def result(self) -> BenchResult:
        """Itself: `run_bench` fills a result, or a file that holds one."""
        return self

    @property
    def configurations(self) -> tuple[Described, ...]:
        """What was compared."""
        return self.header.configurations

    @property
    def drafted(self) -> list[Described]:
        """The configurations with drafts."""
        return [c for c in self.configurations if not c.is_baseline]

    @property
    def complete(self) -> bool:
        """Whether every prompt has been measured as often as asked, or has failed."""
        return not self.missing()

    def missing(self) -> list[tuple[str, int]]:
        """Prompts and repeats of which some configuration has no run yet, in order."""
        done = Counter((run.id, run.repeat) for run in self.runs if self._is_whole(run))
        return [
            (id, repeat)
            for repeat in range(self.header.repeats)
            for id, _ in self.header.prompts
            if id not in self.failed and done[id, repeat] < len(self.configurations)
        ]

    def _is_whole(self, run: Run) -> bool:
        """Whether it was compared with the baseline's, where that is done."""
        one = self.configuration(run.configuration)
        return run.equal_to_baseline is not None or one.is_baseline or not one.greedy

    @property
    def finished(self) -> BenchResult:
        """Only what was decoded in all configurations, and disturbed in none: other prompts would
        count for some of them and not for others."""
        left_out = set(self.missing()) | {(run.id, run.repeat) for run in self.disturbed}
        if not left_out:
            return self
        runs = [run for run in self.runs if (run.id, run.repeat) not in left_out]
        return BenchResult(self.header, runs, self.failed)

    @property
    def disturbed(self) -> list[Run]:
        """Runs that lacked processors, because other programs used them."""
        return [run for run in self.runs if run.disturbed]

    def disturbances(self) -> list[str]:
        """A sentence for each prompt that is left out because of them."""
        worst: dict[tuple[str, int], Run] = {}
        for run in sorted(self.disturbed, key=lambda run: run.others_cores or 0.0):
            worst[run.id, run.repeat] = run
        return [
            f"{run.id}: other programs used {run.others_cores or 0.0:.1f} processors while "
            f"{run.configuration} ran, the least of {run.attempts} attempts"
            for run in worst.values()
        ]

    def asked(self, prompt: WorkloadPrompt) -> WorkloadPrompt:
        """The prompt as it is asked: a later turn after the first baseline's answer to
        the turn before, in all configurations alike. Raises DataError if there is none."""
        if prompt.follows is None:
            return prompt
        for run in self.runs_of(self.configurations[0].name):
            if run.id == prompt.follows and run.repeat == 0:
                return prompt.after(run.text)
        raise DataError(
            f"The turn before it, {prompt.follows}, was not answered.", "Measure both turns."
        )

    def add(self, run: Run) -> None:
        """One more run."""
        self.known.add(run.key)
        self.runs.append(run)

    def fail(self, id: str, reason: str) -> None:
        """Leave a prompt out of all configurations."""
        self.failed[id] = reason
        self.runs = [run for run in self.runs if run.id != id]

    def configuration(self, name: str) -> Described:
        """Raises SettingError for a name that is none."""
        for one in self.configurations:
            if one.name == name:
                return one
        raise unknown_name("configuration", name, [c.name for c in self.configurations])

    @property
    def categories(self) -> list[str]:
        """The prompts' categories, in the order of their runs."""
        return list(dict.fromkeys(run.category for run in self.runs))

    def runs_of(self, configuration: str, category: str | None = None) -> list[Run]:
        """Runs of a configuration, in one category or all."""
        return [
            run
            for run in self.runs
            if run.configuration == configuration and category in (None, run.category)
        ]

    def rounds_of(self, configuration: str, category: str | None = None) -> Iterator[Round]:
        """Rounds of a configuration, in one category or all."""
        for run in self.runs_of(configuration, category):
            yield from run.rounds

    def stats(self, configuration: str, category: str | None = None) -> Stats:
        """Pooled figures of a configuration, in one category or all."""
        return stats(self.rounds_of(configuration, category))

    def comparison(self, configuration: str, *, beside: str | None = None) -> Comparison:
        """One configuration beside its baseline, or beside another; repeats of a prompt pooled, as
        an interval is one over prompts. Raises SettingError for a name that is none."""
        one = self.configuration(configuration)
        baseline = beside or one.baseline
        others, own = (self._by_prompt(name) for name in (baseline, configuration))
        categories = {run.id: run.category for run in self.runs_of(configuration)}
        return Comparison(
            candidate=configuration,
            title=one.title,
            baseline=baseline,
            prompts=tuple(
                ComparedPrompt(id, categories[id], _pair(others[id], own[id]))
                for id in others
                if id in own
            ),
            equal=self._equal(configuration),
        )

    def comparisons(self) -> list[Comparison]:
        """Each drafted configuration beside its baseline."""
        return [self.comparison(one.name) for one in self.drafted]

    def _equal(self, configuration: str) -> tuple[int, int] | None:
        found = [run.equal_to_baseline for run in self.runs_of(configuration)]
        known = [one for one in found if one is not None]
        return (sum(known), len(known)) if known else None

    def _by_prompt(self, configuration: str) -> dict[str, Stats]:
        runs: dict[str, list[Run]] = {}
        for run in self.runs_of(configuration):
            runs.setdefault(run.id, []).append(run)
        return {id: _pooled(found) for id, found in runs.items()}

    def two_sample(self, configuration: str) -> TwoSample | None:
        """Whether what was sampled here and in the baseline may come from one distribution: over
        the prompts that both finished. None when greedy, or with too few of them."""
        one = self.configuration(configuration)
        if one.greedy or one.is_baseline:
            return None
        undrafted, drafted = (
            {(run.id, run.repeat): run.tokens for run in self.runs_of(name)}
            for name in (one.baseline, configuration)
        )
        both = [key for key in undrafted if key in drafted]
        key = (configuration, len(both))
        if key not in self._distributions:  # some tenths of a second, and asked for more than once
            self._distributions[key] = two_sample(
                [(undrafted[pair], drafted[pair]) for pair in both]
            )
        return self._distributions[key]

    def divergence(self, configuration: str) -> DivergenceMeans | None:
        """How far a lossy verifier went from the target; None of an exact one, and of one that
        can't tell."""
        prompts: dict[str, list[Divergence]] = {}
        for run in self.runs_of(configuration):
            if run.divergence is None:
                return None
            prompts.setdefault(run.id, []).extend(run.divergences)
        return DivergenceMeans.of(list(prompts.values()))

    def bytes_per_s(self, configuration: str) -> float | None:
        """Bytes of the target that its decoding passes read a second: all weights and what the
        cache holds, once a pass. None where the engine doesn't say how many those are."""
        target = self.configuration(configuration).target
        weights = target.get("weights_bytes")
        decoding = [round for round in self.rounds_of(configuration) if not round.prefill]
        seconds = sum(round.verify_s for round in decoding)
        if weights is None or not seconds:
            return None
        # With a batch each of its sequences has a round, and the pass reads the weights once.
        passes = sum(1 / round.batch for round in decoding)
        cached = sum(round.context for round in decoding) * _cache_bytes_per_token(target)
        return float((passes * weights + cached) / seconds)

    def cpu_s(self, configuration: str) -> float | None:
        """CPU seconds of all its runs; None where they are not known."""
        return _total([run.cpu_s for run in self.runs_of(configuration)])

    def peak_memory_bytes(self, configuration: str) -> int | None:
        """The most memory that any of its runs took, in bytes."""
        known = [run.peak_memory_bytes for run in self.runs_of(configuration)]
        return max((one for one in known if one is not None), default=None)


def _pooled(runs: Sequence[Run]) -> Stats:
    """Of one run its own, which it computes only once."""
    if len(runs) == 1:
        return runs[0].stats
    return stats(round for run in runs for round in run.rounds)


def _cache_bytes_per_token(target: Mapping[str, Any]) -> float:
    size = target.get("context_size", 0) * target.get("max_sequences", 1)
    return target.get("cache_bytes", 0) / size if size else 0.0


def _total(values: Sequence[float | None]) -> float | None:
    return None if not values or None in values else sum(v for v in values if v is not None)


def _pair(undrafted: Stats, drafted: Stats) -> Pair:
    return Pair(undrafted.decode_s, undrafted.tokens, drafted.decode_s, drafted.tokens)


@dataclass(frozen=True, slots=True)
class DivergenceMeans:
    """`DivergenceStats` of a whole bench, with intervals over prompts, repeats pooled."""

    kl_nats_per_token: Mean
    variation_per_token: Mean
    largest_kl_nats: float

    @classmethod
    def of(cls, prompts: Sequence[Sequence[Divergence]]) -> DivergenceMeans | None:
        """Means over prompts, from the divergences of each one's tokens; None without tokens."""
        kl = mean_per_token([(sum(d.kl_nats for d in each), len(each)) for each in prompts])
        moved = mean_per_token([(sum(d.variation for d in each), len(each)) for each in prompts])
        if kl is None or moved is None:
            return None
        return cls(kl, moved, max(d.kl_nats for each in prompts for d in each))


def as_document(result: BenchResult) -> dict[str, Any]:
    """What a bench adds up to, as one JSON document; docs/bench-file.md explains its fields."""
    header, complete, disturbances = result.header, result.complete, result.disturbances()
    result = result.finished
    return {
        "kind": "paceline bench summary",
        "command": header.command,
        "complete": complete,
        "machine": header.machine,
        "bandwidth_bytes_per_s": header.bandwidth_bytes_per_s,
        "workload": header.workload,
        "failed": result.failed,
        "disturbed": disturbances,
        "max_tokens": header.max_tokens,
        "repeats": header.repeats,
        "configurations": [_summary(result, one) for one in result.configurations],
        "runs": [_run_summary(result, run) for run in result.runs],
    }


def _summary(result: BenchResult, one: Described) -> dict[str, Any]:
    name, far = one.name, result.divergence(one.name)
    return {
        **msgspec.to_builtins(one, str_keys=True),
        **result.comparison(name).as_json(result.categories),
        "exact": not one.lossy,
        "gives_up": one.gives_up or None,
        "divergence": far and asdict(far),
        "stats": result.stats(name).as_json(),
        "cpu_s": result.cpu_s(name),
        "peak_memory_bytes": result.peak_memory_bytes(name),
        "bytes_per_s": result.bytes_per_s(name),
    }


def _run_summary(result: BenchResult, run: Run) -> dict[str, Any]:
    row = run.as_json()
    for long in ("tokens", "ends", "divergences", "rounds"):
        del row[long]
    return row | {
        "output_tokens": len(run.tokens),
        "stats": run.stats.as_json(),
        "exact": not result.configuration(run.configuration).lossy,
        "divergence": run.divergence and run.divergence.as_json(),
    }
