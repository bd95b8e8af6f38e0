"""Plain and drafted decoding of the same prompts in one run, interleaved prompt by prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, Protocol

import numpy as np

from paceline.bench.local.divergence import explain
from paceline.bench.local.model_metadata import draft_metadata, target_metadata
from paceline.bench.local.result import BenchHeader, BenchResult
from paceline.bench.local.run import BASELINE, Described, Run, as_kept, check_run, ends_of
from paceline.bench.machine import TOLERATED_SHORTAGE, Taken, shortage, watched
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.decode.generate import Generation, decode, fitting_verifier
from paceline.decode.round import Policy, fixed
from paceline.decode.step import Decoder
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import PacelineError, SettingError
from paceline.policy.adaptive import MeasuredPolicy
from paceline.policy.costs import Costs
from paceline.policy.stats import PolicyStats
from paceline.types import Request, Sampling, StopConditions
from paceline.verify.base import Verifier

_WARM_UP_TOKENS = 8

MOST_ATTEMPTS = 3
"""Times a run is decoded while other programs disturb it."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode: drafts on offer, judged by a verifier. No drafts is ordinary decoding.

    max_draft_tokens       asks the only draft in every round for so many tokens; None leaves it to
                           `policy`
    policy      makes the policy of one run, so that none begins with what another has counted
    engine      unless given, the bench's; `sampling` too
    baseline    name of what it is compared with: same engine, same sampling
    warm        drafts may remember earlier prompts
    costs       what `policy` goes by, for the record; `recorded_costs` if they were given
    """

    name: str
    drafts: Mapping[str, Draft] = field(default_factory=dict)
    max_draft_tokens: int | None = 0
    verifier: Verifier | None = None
    policy: Callable[[], MeasuredPolicy] | None = None
    chains_for_trees: bool = False
    engine: Engine | None = None
    sampling: Sampling | None = None
    baseline: str = BASELINE
    warm: bool = False
    costs: Costs | None = None
    recorded_costs: bool = False

    def make_policy(self) -> Policy:
        """A policy that has counted nothing yet."""
        if self.policy is not None:
            return self.policy()
        return fixed(next(iter(self.drafts), None), self.max_draft_tokens or 0)

    @property
    def chosen_verifier(self) -> Verifier:
        """The verifier named, else the exact one that fits the drafts."""
        return self.verifier or fitting_verifier(self.drafts)

    def described(self, engine: Engine, sampling: Sampling) -> Described:
        """What a file keeps of it; engine and sampling are the bench's."""
        verifier = self.chosen_verifier
        return Described(
            name=self.name,
            baseline=self.baseline,
            target=target_metadata(self.engine or engine),
            sampling=self.sampling or sampling,
            max_draft_tokens=self.max_draft_tokens,
            verifier=verifier.name if self.drafts else None,
            lossy=verifier.lossy,
            gives_up=verifier.gives_up,
            warm=self.warm,
            chains_for_trees=self.chains_for_trees,
            drafts={label: draft_metadata(draft) for label, draft in self.drafts.items()},
            costs=None if self.costs is None else self.costs.as_document(),
            recorded_costs=self.recorded_costs,
        )


class Keeper(Protocol):
    """Where runs go as they come: a file, or a result alone."""

    @property
    def result(self) -> BenchResult:
        """What came so far."""

    def add(self, run: Run) -> None:
        """Keep a finished run."""

    def fail(self, id: str, reason: str) -> None:
        """Keep the reason why a prompt has no runs."""


def header_of(
    engine: Engine,
    configurations: Sequence[Configuration],
    workload: Workload,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    repeats: int = 1,
    seed: int = 0,
    command: Sequence[str] = (),
    bandwidth: float | None = None,
) -> BenchHeader:
    """The header of a bench, as `run_bench` takes it. Raises SettingError for configurations that
    can't stand in one bench."""
    _check(configurations, repeats)
    sampling = sampling or Sampling()
    return BenchHeader(
        command=tuple(command),
        workload=workload.metadata(),
        prompts=tuple((prompt.id, prompt.category) for prompt in workload.prompts),
        configurations=tuple(one.described(engine, sampling) for one in configurations),
        max_tokens=max_tokens,
        repeats=repeats,
        seed=seed,
        bandwidth_bytes_per_s=bandwidth,
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
    )


def with_baseline(configurations: Sequence[Configuration]) -> list[Configuration]:
    """The configurations, and before them the baselines they are compared with."""
    baseline = {
        one.baseline: Configuration(
            one.baseline, engine=one.engine, sampling=one.sampling, baseline=one.baseline
        )
        for one in configurations
    }
    return [*baseline.values(), *(one for one in configurations if one.name not in baseline)]


def _check(configurations: Sequence[Configuration], repeats: int) -> None:
    for name, count in Counter(one.name for one in configurations).items():
        if count > 1:
            raise SettingError(f"Two configurations are {name!r}.", "Name each once.")
    for one in configurations:
        remembering = [name for name, draft in one.drafts.items() if draft.remembers]
        if remembering and not one.warm:
            raise SettingError(
                f"The draft {remembering[0]!r} of {one.name!r} remembers earlier requests, so it "
                "would see this bench's own answers.",
                "Measure it without, or allow it with --warm.",
            )
        if remembering and repeats > 1:
            raise SettingError(
                f"Each prompt is run {repeats} times, and {one.name!r} may remember its answer.",
                "Leave --repeats out.",
            )
    warm = [one.name for one in configurations if any(d.remembers for d in one.drafts.values())]
    if len(warm) > 1:
        raise SettingError(
            f"{warm[0]!r} and {warm[1]!r} remember, and one could tell the other its answers.",
            "Measure each in a bench of its own.",
        )


def run_bench(
    engine: Engine,
    configurations: Sequence[Configuration],
    workload: Workload,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    repeats: int = 1,
    on_progress: Callable[[str, str], None] = lambda *_: None,
    keeper: Keeper | None = None,
) -> BenchResult:
    """Decode every prompt without drafts and in each configuration.

    Each prompt's runs follow one another, in an order drawn anew for each prompt, so that drift
    falls on all alike; every run starts with an empty sequence and a fresh draft state. A prompt
    that fails is left out of all configurations and named in `failed`. A prompt that follows
    another is asked after the first baseline's answer to that one, in all alike.

    on_progress    called with prompt and configuration when a run has been decoded
    keeper         of these configurations with their baselines (`header_of`, `with_baseline`);
                   filled as prompts finish, and what it has is not decoded again
    """
    sampling = sampling or Sampling()
    every = with_baseline(configurations)
    if keeper is None:
        given = {"max_tokens": max_tokens, "sampling": sampling, "repeats": repeats}
        keeper = BenchResult(header_of(engine, every, workload, **given))  # type: ignore[arg-type]
    else:
        _check(every, repeats)
    result = keeper.result
    bench = _Bench(engine, every, sampling, result, keeper, on_progress)
    by_id = {prompt.id: (place, prompt) for place, prompt in enumerate(workload.prompts)}
    missing = result.missing()
    if missing:
        bench.warm_up(by_id[missing[0][0]][1])
    for id, repeat in missing:
        place, prompt = by_id[id]
        if id not in result.failed:
            bench.run_prompt(prompt, place, repeat)
    return result


class _Done(NamedTuple):
    generation: Generation
    taken: Taken
    policy_stats: PolicyStats | None
    attempts: int = 1
    disturbed: bool = False


@dataclass(slots=True)
class _Bench:
    engine: Engine
    configurations: list[Configuration]
    sampling: Sampling
    result: BenchResult
    keeper: Keeper
    on_progress: Callable[[str, str], None]

    def warm_up(self, prompt: WorkloadPrompt) -> None:
        """A few tokens of everything, apart: first passes load pages and choose kernels. Nothing
        that a draft could remember."""
        for one in self.configurations:
            if one.warm:
                continue
            try:
                request = Request(
                    prompt=prompt.tokens(self._engine(one)),
                    stop=StopConditions(max_tokens=_WARM_UP_TOKENS),
                )
                decode(self._decoder(one, one.make_policy()), [request])
            except PacelineError:
                pass  # the run proper will name the fault

    def run_prompt(self, prompt: WorkloadPrompt, place: int, repeat: int) -> None:
        order = np.random.default_rng([self.result.header.seed, repeat, place])
        places = order.permutation(len(self.configurations))
        group = _Group(self, place, repeat, [self.configurations[i] for i in places])
        runs: list[Run] = []
        reason = ""
        try:
            group.decode(self.result.asked(prompt))
            runs = group.runs(compare=True)
        except PacelineError as error:
            reason = str(error)
        except BaseException:
            # An interrupt, or a fault: what was measured is kept, though not compared any more.
            runs = group.runs(compare=False)
            raise
        finally:
            for run in runs:
                self.keeper.add(run)
        if reason:
            self.keeper.fail(prompt.id, reason)

    def request(
        self, one: Configuration, prompt: WorkloadPrompt, place: int, repeat: int
    ) -> Request:
        sampling = self._sampling(one, place, repeat)
        return Request(
            prompt=prompt.tokens(self._engine(one)),
            sampling=sampling,
            stop=StopConditions(max_tokens=self.result.header.max_tokens),
            margins=sampling.temperature == 0,
        )

    def _sampling(self, one: Configuration, place: int, repeat: int) -> Sampling:
        """With random numbers of its own: what is drawn in two configurations is independent, as
        the test of their distributions wants it."""
        sampling = one.sampling or self.sampling
        if sampling.seed is None or sampling.temperature == 0:
            return sampling
        number = self.configurations.index(one)
        [seed] = np.random.SeedSequence([sampling.seed, place, repeat, number]).generate_state(1)
        return replace(sampling, seed=int(seed))

    def _engine(self, one: Configuration) -> Engine:
        return one.engine or self.engine

    def decode(self, one: Configuration, request: Request) -> _Done:
        """Decoded once, or again while other programs took processors that it needed; the least
        disturbed attempt. What remembers its answer can't be asked again."""
        threads = self._engine(one).metadata().get("threads")
        once = any(draft.remembers for draft in one.drafts.values())
        found: list[tuple[float, _Done]] = []
        while not found or (
            found[-1][0] > TOLERATED_SHORTAGE and len(found) < (1 if once else MOST_ATTEMPTS)
        ):
            done = self._decode_once(one, request)
            found.append((shortage(done.taken.others_cores, threads), done))
        lacked, done = min(found, key=lambda each: each[0])
        return done._replace(attempts=len(found), disturbed=lacked > TOLERATED_SHORTAGE)

    def _decode_once(self, one: Configuration, request: Request) -> _Done:
        policy = one.make_policy()
        decoder = self._decoder(one, policy)
        with watched() as taken:
            [generation] = decode(decoder, [request])
        if generation.error is not None:
            raise generation.error
        if not isinstance(policy, MeasuredPolicy):
            return _Done(generation, taken, None)
        policy.learn_from_rounds()
        return _Done(generation, taken, policy.policy_stats)

    def _decoder(self, one: Configuration, policy: Policy) -> Decoder:
        return Decoder(self._engine(one), one.drafts, one.chosen_verifier, policy)


@dataclass(slots=True)
class _Group:
    """One prompt in all configurations, once."""

    bench: _Bench
    place: int
    repeat: int
    configurations: Sequence[Configuration]
    prompt: WorkloadPrompt | None = None
    requests: dict[str, Request] = field(default_factory=dict)
    done: dict[str, _Done] = field(default_factory=dict)

    def decode(self, prompt: WorkloadPrompt) -> None:
        self.prompt = prompt
        for one in self.configurations:
            request = self.bench.request(one, prompt, self.place, self.repeat)
            self.requests[one.name] = request
            self.done[one.name] = self.bench.decode(one, request)
            self.bench.on_progress(prompt.id, one.name)

    def runs(self, *, compare: bool) -> list[Run]:
        """Those that finished. Raises DataError for one whose counters don't add up."""
        found = [self._run(one, compare) for one in self.configurations if one.name in self.done]
        for run in found:
            check_run(run)
        return found

    def _run(self, one: Configuration, compare: bool) -> Run:
        """A finished run, compared with ordinary decoding where greedy makes that meaningful."""
        assert self.prompt is not None
        done = self.done[one.name]
        generation, taken, policy_stats = done.generation, done.taken, done.policy_stats
        request = self.requests[one.name]
        engine = one.engine or self.bench.engine
        equal, first_difference = None, None
        if compare and request.sampling.temperature == 0 and one.name != one.baseline:
            baseline = self.done[one.baseline].generation
            equal = generation.tokens == baseline.tokens
            first_difference = explain(
                engine,
                request,
                baseline.tokens,
                generation.tokens,
                baseline.margins,
                [round.width for round in generation.rounds if not round.prefill],
            )
        reason = generation.finish_reason
        pieces = map(engine.tokenizer.token_bytes, generation.tokens)
        return Run(
            configuration=one.name,
            id=self.prompt.id,
            category=self.prompt.category,
            repeat=self.repeat,
            prompt_tokens=generation.prompt_tokens,
            tokens=generation.tokens,
            text=generation.text,
            ends=ends_of(pieces, len(generation.text)),
            finish_reason=reason and reason.value,
            rounds=tuple(map(as_kept, generation.rounds)),
            equal_to_baseline=equal,
            first_difference=first_difference,
            divergences=generation.divergences,
            policy_stats=policy_stats,
            cpu_s=taken.cpu_s,
            others_cores=taken.others_cores,
            attempts=done.attempts,
            disturbed=done.disturbed,
            peak_memory_bytes=taken.peak_memory_bytes,
        )
