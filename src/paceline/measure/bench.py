"""Plain and drafted decoding of the same prompts in one run, interleaved prompt by prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paceline.decode.figures import Figures, figures
from paceline.decode.generate import Generation, decode, fitting_verifier
from paceline.decode.policy import Policy, fixed
from paceline.decode.step import Decoder
from paceline.drafts.base import Draft
from paceline.economics.account import Account
from paceline.economics.policy import MeasuredPolicy
from paceline.engines.base import Engine
from paceline.errors import PacelineError, SettingError
from paceline.measure.divergence import Divergence, explain
from paceline.measure.machine import machine_facts, peak_memory_bytes
from paceline.measure.stats import Mean, Pair, Ratio, mean_per_token, speed_ratio
from paceline.measure.workload import Workload, WorkloadPrompt
from paceline.types import Departure, Request, Round, Sampling, StopConditions
from paceline.verify.base import Verifier

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode: drafts on offer, judged by a verifier. No drafts is plain.

    limit     asks the only draft in every round for so many tokens; None leaves it to `policy`
    policy    makes the policy of one run, so that none begins with what another has counted
    """

    name: str
    drafts: Mapping[str, Draft] = field(default_factory=dict)
    limit: int | None = 0
    verifier: Verifier | None = None
    policy: Callable[[], MeasuredPolicy] | None = None
    chains_for_trees: bool = False

    @property
    def lossy(self) -> str | None:
        """The verifier's name if it gives up the target's distribution."""
        return self.verifier.name if self.verifier is not None and self.verifier.lossy else None

    @property
    def gives_up(self) -> str:
        return self.verifier.gives_up if self.verifier is not None else ""

    @property
    def title(self) -> str:
        """The name, marked if the verifier is lossy."""
        return f"{self.name} (lossy)" if self.lossy else self.name

    def make_policy(self) -> Policy:
        if self.policy is not None:
            return self.policy()
        return fixed(next(iter(self.drafts), None), self.limit or 0)


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt decoded in one configuration."""

    configuration: str
    prompt: WorkloadPrompt
    prompt_tokens: int
    generation: Generation
    equal_to_plain: bool | None
    divergence: Divergence | None
    account: Account | None = None

    @property
    def figures(self) -> Figures:
        return figures(self.generation.rounds)


@dataclass(slots=True)
class BenchResult:
    """All runs of a bench, and what was left out. `complete` is false after an interrupt."""

    target: dict[str, Any]
    configurations: list[Configuration]
    workload: Workload
    sampling: Sampling
    max_tokens: int
    runs: list[Run] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    complete: bool = False

    def runs_of(self, configuration: str, category: str | None = None) -> list[Run]:
        return [
            run
            for run in self.runs
            if run.configuration == configuration and category in (None, run.prompt.category)
        ]

    def rounds_of(self, configuration: str, category: str | None = None) -> Iterator[Round]:
        for run in self.runs_of(configuration, category):
            yield from run.generation.rounds

    def ratio(self, configuration: str, category: str | None = None) -> Ratio | None:
        """Plain time per token over this configuration's, over the prompts that both finished."""
        plain, drafted = (self._by_prompt(name, category) for name in (PLAIN, configuration))
        both = [name for name in plain if name in drafted]
        return speed_ratio([_pair(plain[name], drafted[name]) for name in both])

    def _by_prompt(self, configuration: str, category: str | None) -> dict[str, Figures]:
        """Figures of each prompt, its repeats pooled: an interval is one over prompts."""
        rounds: dict[str, list[Round]] = {}
        for run in self.runs_of(configuration, category):
            rounds.setdefault(run.prompt.id, []).extend(run.generation.rounds)
        return {name: figures(found) for name, found in rounds.items()}

    def departure(self, configuration: str) -> DepartureMeans | None:
        """How far a lossy verifier went from the target; None of an exact one, and of one that
        can't tell."""
        prompts: dict[str, list[Departure]] = {}
        for run in self.runs_of(configuration):
            if run.generation.departure is None:
                return None
            prompts.setdefault(run.prompt.id, []).extend(run.generation.departures)
        return DepartureMeans.of(list(prompts.values()))

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(run.prompt.category for run in self.runs))


@dataclass(frozen=True, slots=True)
class DepartureMeans:
    """`Departures` of a whole bench, with intervals over prompts, repeats pooled."""

    kl_nats_per_token: Mean
    variation_per_token: Mean
    largest_kl_nats: float

    @classmethod
    def of(cls, prompts: Sequence[Sequence[Departure]]) -> DepartureMeans | None:
        kl = mean_per_token([(sum(d.kl_nats for d in each), len(each)) for each in prompts])
        moved = mean_per_token([(sum(d.variation for d in each), len(each)) for each in prompts])
        if kl is None or moved is None:
            return None
        return cls(kl, moved, max(d.kl_nats for each in prompts for d in each))


def _pair(plain: Figures, drafted: Figures) -> Pair:
    return Pair(plain.decode_s, plain.tokens, drafted.decode_s, drafted.tokens)


def run_bench(
    engine: Engine,
    configurations: Sequence[Configuration],
    workload: Workload,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    repeats: int = 1,
    on_progress: Callable[[str, str], None] = lambda *_: None,
    result: BenchResult | None = None,
) -> BenchResult:
    """Decode every prompt plainly and in each configuration.

    Each prompt's runs follow one another, in an order that rotates from prompt to prompt, so that
    drift falls on all alike; every run starts with an empty sequence and a fresh draft state. A
    prompt that fails is left out of all configurations and named in `failed`.

    on_progress    called with prompt and configuration when a run has been decoded
    result         filled as prompts finish, so that an interrupt loses nothing
    """
    for configuration in configurations:
        if any(draft.remembers for draft in configuration.drafts.values()):
            raise SettingError(
                f"The draft of {configuration.name!r} remembers earlier requests, so it would see "
                "this bench's own answers.",
                "Measure it without a store.",
            )
    sampling = sampling or Sampling()
    every = [Configuration(PLAIN), *configurations]
    if result is None:
        result = BenchResult(engine.facts(), list(every), workload, sampling, max_tokens)
    _warm_up(engine, every, workload)
    for number in range(repeats * len(workload.prompts)):
        prompt = workload.prompts[number % len(workload.prompts)]
        turn = number % len(every)
        if any(sentence.startswith(f"{prompt.id}: ") for sentence in result.failed):
            continue
        try:
            _run_prompt(engine, every[turn:] + every[:turn], prompt, result, on_progress)
        except PacelineError as error:
            result.runs = [run for run in result.runs if run.prompt.id != prompt.id]
            result.failed.append(f"{prompt.id}: {error}")
    result.complete = True
    return result


def _warm_up(engine: Engine, configurations: Sequence[Configuration], workload: Workload) -> None:
    try:
        tokens = workload.prompts[0].tokens(engine)
        for configuration in configurations:
            request = Request(prompt=tokens, stop=StopConditions(max_tokens=8))
            decode(_decoder(engine, configuration, configuration.make_policy()), [request])
    except PacelineError:
        pass  # the run proper will name the fault


def _decoder(engine: Engine, configuration: Configuration, policy: Policy) -> Decoder:
    return Decoder(
        engine,
        configuration.drafts,
        configuration.verifier or fitting_verifier(configuration.drafts),
        policy,
        chains_for_trees=configuration.chains_for_trees,
    )


def _run_prompt(
    engine: Engine,
    configurations: Sequence[Configuration],
    prompt: WorkloadPrompt,
    result: BenchResult,
    on_progress: Callable[[str, str], None],
) -> None:
    request = Request(
        prompt=prompt.tokens(engine),
        sampling=result.sampling,
        stop=StopConditions(max_tokens=result.max_tokens),
        margins=result.sampling.temperature == 0,
    )
    done: dict[str, Generation] = {}
    accounts: dict[str, Account] = {}
    compare = False
    try:
        for configuration in configurations:
            policy = configuration.make_policy()
            [generation] = decode(_decoder(engine, configuration, policy), [request])
            if generation.error is not None:
                raise generation.error
            done[configuration.name] = generation
            if isinstance(policy, MeasuredPolicy):
                policy.settle()
                accounts[configuration.name] = policy.account
            on_progress(prompt.id, configuration.name)
        compare = result.sampling.temperature == 0
    finally:
        # Also after an interrupt: what was measured is kept, though not compared any more.
        for configuration in configurations:
            if configuration.name in done:
                run = _run(engine, configuration, prompt, request, done, compare)
                account = accounts.get(configuration.name)
                result.runs.append(replace(run, account=account))


def _run(
    engine: Engine,
    configuration: Configuration,
    prompt: WorkloadPrompt,
    request: Request,
    done: dict[str, Generation],
    compare: bool,
) -> Run:
    """One finished run, compared with plain decoding if asked (greedy makes that meaningful)."""
    generation, plain = done[configuration.name], done.get(PLAIN)
    equal, divergence = None, None
    if compare and plain is not None and plain is not generation:
        equal = generation.tokens == plain.tokens
        divergence = explain(
            engine,
            request,
            plain.tokens,
            generation.tokens,
            plain.margins,
            _widths(generation),
        )
    return Run(configuration.name, prompt, generation.prompt_tokens, generation, equal, divergence)


def _widths(generation: Generation) -> set[int]:
    """The commonest widths of a run, and the widest. For each of them the text is scored again from
    a fresh sequence, because a rewind is among the things that may be at fault."""
    counts = Counter(round.width for round in generation.rounds if round.width > 1)
    return {*(width for width, _ in counts.most_common(3)), max(counts, default=1)}


def as_document(result: BenchResult) -> dict[str, Any]:
    """Everything measured, as one JSON document; docs/bench-file.md explains its fields."""
    return {
        "kind": "paceline bench",
        "complete": result.complete,
        "machine": machine_facts(),
        "peak_memory_bytes": peak_memory_bytes(),
        "target": result.target,
        "workload": {
            "name": result.workload.name,
            "prompts": len(result.workload.prompts),
            "skipped": list(result.workload.skipped),
            "failed": result.failed,
        },
        "sampling": asdict(result.sampling),
        "max_tokens": result.max_tokens,
        "configurations": [_configuration(result, c) for c in result.configurations],
        "runs": [_run_document(run) for run in result.runs],
    }


def _configuration(result: BenchResult, configuration: Configuration) -> dict[str, Any]:
    name = configuration.name
    far = result.departure(name)
    ratios = {category: result.ratio(name, category) for category in (None, *result.categories)}
    return {
        "name": name,
        "limit": "auto" if configuration.limit is None else configuration.limit,
        "verifier": configuration.verifier.name if configuration.verifier else None,
        "exact": not configuration.lossy,
        "gives_up": configuration.gives_up or None,
        "departure": far and asdict(far),
        "drafts": {label: draft.facts() for label, draft in configuration.drafts.items()},
        "figures": figures(result.rounds_of(name)).as_json(),
        "times_plain": {key or "all": asdict(r) if r else None for key, r in ratios.items()},
    }


def _run_document(run: Run) -> dict[str, Any]:
    return {
        "configuration": run.configuration,
        "id": run.prompt.id,
        "category": run.prompt.category,
        "prompt_tokens": run.prompt_tokens,
        "output_tokens": len(run.generation.tokens),
        "finish_reason": run.generation.finish_reason and run.generation.finish_reason.value,
        "figures": run.figures.as_json(),
        "equal_to_plain": run.equal_to_plain,
        "divergence": asdict(run.divergence) if run.divergence else None,
        "exact": run.generation.exact,
        "departure": run.generation.departure and run.generation.departure.as_json(),
        "policy": run.account.as_json() if run.account else None,
        "text": run.generation.text,
    }
