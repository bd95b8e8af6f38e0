"""Search which of a target's layers should draft for it, by measured speed under the policy.

First what one forward of the target's own text tells of every exit, and one forward a candidate of
every set of skipped layers (SWIFT, Xia et al. 2025); then the best by that are measured beside
ordinary decoding, the better half of them on more prompts, until one is left (successive halving,
Jamieson and Talwalkar 2016), which is measured on all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline.bench.local.bench import Configuration, header_of, run_bench, with_baseline
from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import BASELINE
from paceline.bench.profile.measured_policy import gather_costs, sources
from paceline.bench.profile.profile import costs_for
from paceline.bench.prompts.workload import Workload
from paceline.drafts.early_exit import EarlyExitDraft
from paceline.engines.base import Engine, Job
from paceline.errors import DataError, SettingError
from paceline.policy.adaptive import MeasuredPolicy
from paceline.policy.break_even import Prices, expected_tokens, prices, speed_up
from paceline.policy.costs import Costs
from paceline.policy.live import LiveCosts
from paceline.train.texts import write_texts
from paceline.train.tune_result import Candidate, TuneResult
from paceline.types import Sampling

if TYPE_CHECKING:
    from paceline.engines.transformers.engine import TransformersEngine
    from paceline.engines.transformers.head import HeadFile

ROWS = 32
"""Most rows of a text that candidates are held against."""
TEXT_TOKENS = 256
"""Longer texts are cut in front before candidates read them."""
STARTERS = 8
"""How many candidates are measured at first."""
SHARES = (0.12, 0.35, 0.65)
"""Of the budget, until which the target writes text, candidates are looked at, and halving goes
on; what is left is for measuring the last one on all prompts."""


class _OverError(Exception):
    """The time for this part of the search is over."""


class Tuner:
    """One search on one target.

    heads          fitted to it, by their files; to be filled before `run`
    budget_s       seconds it may take; a forward or a run that has begun is ended
    on_measure     told, in a line, that costs are measured
    on_progress    told the share of the budget that is over, and what is being done

    Raises SettingError for a target that isn't the transformers engine.
    """

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        *,
        budget_s: float,
        max_tokens: int,
        sampling: Sampling | None = None,
        on_measure: Callable[[str], None] = lambda _: None,
    ) -> None:
        if engine.name != "transformers":
            raise SettingError(
                f"{engine.model} is loaded by the engine {engine.name}, which only runs all layers "
                "of a model.",
                "Load it with the transformers engine (--engine transformers).",
            )
        from paceline.engines.transformers.layers import LayerStack

        self.engine: TransformersEngine = engine  # type: ignore[assignment]
        self.workload = workload
        self.heads: dict[Path, HeadFile] = {}
        self.on_progress: Callable[[float, str], None] = lambda *_: None
        self._on_measure = on_measure
        self._stack = LayerStack(engine.model, self.engine.module)
        self._budget_s, self._began = budget_s, perf_counter()
        if len(self._stack.layers) < 2:
            raise SettingError(f"{engine.model} has one layer.", "There is nothing to leave out.")
        layers, how = len(self._stack.layers), sampling or Sampling()
        self.result = TuneResult(engine.metadata(), workload.name, how, max_tokens, layers)

    def run(self) -> TuneResult:
        """Search until the budget is over. An interrupt leaves `result` as far as it came.

        Raises DataError if the target answers no prompt.
        """
        self._began = perf_counter()
        self._costs = costs_for(self.engine, on_measure=self._on_measure)
        self._seconds = self._step_seconds()
        texts = self._texts()
        self._look(texts)
        with suppress(_OverError):
            for prompts, some in self._rungs():
                self._measure(some, self._first(prompts), SHARES[2])
        self._measure_best()
        self.result.complete = True
        return self.result

    def _spent(self) -> float:
        return (perf_counter() - self._began) / self._budget_s

    def _check(self, share: float, doing: str) -> None:
        self.on_progress(min(1.0, self._spent()), doing)
        if self._spent() > share:
            raise _OverError

    def _step_seconds(self) -> Callable[[int], float]:
        """Seconds of one row through so many layers: a line through the shortest part and the
        whole, measured in turns."""
        parts: list[Engine] = [self._part((0,)), self.engine]
        context = [token % self.engine.vocabulary_size for token in range(32)]
        taken: list[list[float]] = [[], []]
        with ExitStack() as stack:
            held = [stack.enter_context(closing(part.open())) for part in parts]
            for _ in range(8):
                for part, sequence, times in zip(parts, held, taken, strict=True):
                    began = perf_counter()
                    part.score([Job(sequence, [1] if sequence.length else context)])
                    times.append(perf_counter() - began)
                    sequence.rewind(len(context))
        one, whole = (min(times[1:]) for times in taken)
        each = (whole - one) / (self.result.layers - 1)
        return lambda layers: one + each * (layers - 1)

    def _part(self, kept: Sequence[int], head: Path | None = None) -> Any:
        from paceline.engines.transformers.layers import PartialEngine

        found = None if head is None else self.heads[head].head
        return PartialEngine(self.engine, kept, found)

    def _texts(self) -> list[tuple[list[int], int]]:
        """Text that the target wrote, each with where its output begins. At least one."""
        texts: list[tuple[list[int], int]] = []
        how, most = [self.result.sampling], self.result.max_tokens
        for _, some in write_texts(self.engine, self.workload, how, max_tokens=most):
            for text in some:
                whole = [*text.prompt, *text.output][-TEXT_TOKENS:]
                texts.append((whole, max(1, len(whole) - len(text.output))))
            try:
                self._check(SHARES[0], f"{len(texts)} texts")
            except _OverError:
                if texts:
                    break
        return texts

    def _look(self, texts: list[tuple[list[int], int]]) -> None:
        """Estimates of candidates, until their share of the budget is over: all exits and heads,
        blocks of skipped layers, then changes of the best one by a layer or two."""
        import torch

        with torch.inference_mode():
            wanted, found = self._look_at_exits(texts)
            for candidate in found:
                self._add(candidate)
            seen = {candidate.kept for candidate in found}
            chosen = random.Random(0)
            with suppress(_OverError):
                for kept in self._proposals(chosen):
                    self._check(SHARES[1], f"{self.result.looked_at} settings tried")
                    if kept not in seen:
                        seen.add(kept)
                        self._add(Candidate(kept, None, self._agreement(kept, texts, wanted)))

    def _add(self, candidate: Candidate) -> None:
        """With its estimate. Those of which nothing can come are forgotten, so that memory and file
        stay small."""
        priced = self._prices(candidate)
        candidate.estimate = max(
            speed_up(expected_tokens(min(1.0, candidate.agreement), limit), limit, priced)
            for limit in range(1, max(2, priced.most + 1))
        )
        result = self.result
        result.looked_at += 1
        result.candidates.append(candidate)
        result.candidates.sort(key=lambda c: (c.head is None, -c.estimate))
        del result.candidates[4 * STARTERS :]

    def _prices(self, candidate: Candidate) -> Prices:
        found = prices(self._costs)
        share = self._seconds(len(candidate.kept)) / self._seconds(self.result.layers)
        return replace(found, draft_cost=share)

    def _look_at_exits(
        self, texts: list[tuple[list[int], int]]
    ) -> tuple[list[Any], list[Candidate]]:
        """Per text the target's own distributions, and every exit held against them: one forward
        of a text gives the states behind all layers. A head's agreement is the held-out one that
        its fit has measured."""
        import torch

        wanted: list[Any] = []
        layers = self.result.layers
        exits = [Candidate(tuple(range(at))) for at in range(1, layers)]
        for tokens, first in texts:
            with self._stack.noting() as noted:
                self._score(tokens)
            rows = _rows(len(tokens), first)
            states = {at: torch.cat(noted[at])[rows] for at in noted}
            wanted.append(self._distributions(self._stack.read_out(states[layers])))
            for candidate in exits:
                behind = self._stack.read_out(states[len(candidate.kept)])
                shared = self._overlap(wanted[-1], self._distributions(behind))
                candidate.agreement += shared / len(texts)
                self.on_progress(min(1.0, self._spent()), "exits")
        way = "sampled" if self.result.sampling.temperature else "greedy"
        for path, file in self.heads.items():
            agreement = file.report["held_out_acceptance_after"][way]
            exits.append(Candidate(tuple(range(file.layers)), path, agreement))
        return wanted, exits

    def _score(self, tokens: list[int], rows: int = 1) -> Any:
        """Logits of a text's last rows, before temperature: float32, shape (rows, vocabulary)."""
        with closing(self.engine.open()) as sequence:
            [logits] = self.engine.score([Job(sequence, tokens, rows)])
        return logits

    def _agreement(
        self, kept: tuple[int, ...], texts: list[tuple[list[int], int]], wanted: list[Any]
    ) -> float:
        """Of a set of layers, reading the texts in one forward each. Its own entries stand for the
        target's there, as in SWIFT."""
        total = 0.0
        with self._stack.running(self._stack.part(kept)):
            for (tokens, first), target in zip(texts, wanted, strict=True):
                rows = _rows(len(tokens), first)
                logits = self._score(tokens, len(tokens) - rows[0])
                found = self._distributions(logits[[row - rows[0] for row in rows]])
                total += self._overlap(target, found)
        return total / len(texts)

    def _distributions(self, logits: Any) -> Any:
        """Greedy: the best tokens; else the distributions at the sampling's temperature."""
        temperature = self.result.sampling.temperature
        return logits.argmax(-1) if not temperature else (logits / temperature).softmax(-1)

    def _overlap(self, target: Any, found: Any) -> float:
        if self.result.sampling.temperature:
            return float(target.minimum(found).sum(-1).mean())
        return float((target == found).float().mean())

    def _proposals(self, chosen: random.Random) -> Iterator[tuple[int, ...]]:
        """Sets of layers worth a look: blocks left out, the longest and the shortest last; then
        without end the best set so far with one or two layers changed."""
        layers = self.result.layers
        for share in (0.3, 0.5, 0.15, 0.65):
            length = max(1, round(share * layers))
            for at in range(1, 4):
                start = max(1, round((layers - length) * at / 4))
                yield tuple(i for i in range(layers) if not start <= i < start + length)
        for _ in range(100 * layers):
            sets = [c for c in self.result.candidates if c.head is None]
            best = max(sets, key=lambda c: c.estimate)
            changed = {chosen.randrange(layers) for _ in range(chosen.choice((1, 2)))}
            changed ^= {*best.kept}
            if 0 < len(changed) < layers:
                yield tuple(sorted(changed))

    def _rungs(self) -> Iterator[tuple[int, list[Candidate]]]:
        """Numbers of prompts with the candidates to measure on them, each time the better half."""
        some = self._starters()
        prompts = 1
        while True:
            yield min(prompts, len(self.workload.prompts)), some
            if len(some) == 1:
                return
            some.sort(key=lambda c: c.speed, reverse=True)
            some, prompts = some[: (len(some) + 1) // 2], 2 * prompts

    def _starters(self) -> list[Candidate]:
        """The candidates that promise most, among them every head and the best exit without one."""
        ranked = sorted(self.result.candidates, key=lambda c: -c.estimate)
        exits = [c for c in ranked if c.head is None and c.kept == tuple(range(len(c.kept)))]
        first = [*(c for c in ranked if c.head is not None), *exits[:1]]
        return [*first, *(c for c in ranked if c not in first)][: max(STARTERS, len(first))]

    def _first(self, prompts: int) -> Workload:
        return replace(self.workload, prompts=self.workload.prompts[:prompts])

    def _measure(self, some: list[Candidate], workload: Workload, share: float) -> None:
        """Measured speed of candidates beside the baseline, interleaved, under the policy by
        estimated costs, which it corrects while decoding."""
        drafts = {str(at): EarlyExitDraft(self._part(c.kept, c.head)) for at, c in enumerate(some)}
        priced = [self._configuration(name, d, self._scaled(d)) for name, d in drafts.items()]
        result = self._bench(priced, workload, share)
        for name, candidate in zip(drafts, some, strict=True):
            ratio = result.comparison(name).ratio()
            if ratio is not None:
                candidate.measured = ratio.value
                candidate.prompts = len({run.id for run in result.runs_of(name)})
        if not result.complete:
            raise _OverError

    def _measure_best(self) -> None:
        """The last one, by its own measured costs, on all prompts."""
        best = self.result.best
        assert best is not None, "all exits were looked at"
        draft = EarlyExitDraft(self._part(best.kept, best.head))
        costs = gather_costs(self.engine, {"best": draft}, on_measure=self._on_measure)
        configuration = self._configuration("best", draft, costs)
        result = self._bench([configuration], self.workload, 1.0, self._keep_final, whole=True)
        if not result.runs:
            reasons = " ".join(f"{id}: {why}" for id, why in result.failed.items())
            raise DataError(
                f"No prompt of {self.workload.name} could be measured. {reasons}",
                "Correct that and run it again.",
            )

    def _keep_final(self, bench: BenchResult) -> None:
        result = self.result
        result.ratio = bench.comparison("best").ratio()
        baseline, drafted = (bench.stats(name) for name in (BASELINE, "best"))
        result.baseline_tok_per_s = baseline.ms_per_token and 1e3 / baseline.ms_per_token
        result.tok_per_s = drafted.ms_per_token and 1e3 / drafted.ms_per_token
        result.drafted_rounds = drafted.drafted_rounds / max(1, drafted.rounds)
        measured = {run.id for run in bench.runs_of("best")}
        result.prompts = len(measured)
        if result.best is not None and result.best.head is not None:
            fitted = self.heads[result.best.head].report["fitted_prompts"]
            result.prompts_fitted_to = len(measured & {*fitted})

    def _bench(
        self,
        configurations: list[Configuration],
        workload: Workload,
        share: float,
        keep: Callable[[BenchResult], None] = lambda _: None,
        *,
        whole: bool = False,
    ) -> BenchResult:
        sampling, most = self.result.sampling, self.result.max_tokens
        every = with_baseline(configurations)
        header = header_of(self.engine, every, workload, max_tokens=most, sampling=sampling)
        result, done = BenchResult(header), count(1)

        def look(prompt: str, _: str) -> None:
            # The last one is measured on whole prompts, and on one in any case.
            ended = next(done) % (len(configurations) + 1) == 0
            must = whole and not ended
            self._check(float("inf") if must else share, f"measuring on {prompt}")

        asked: dict[str, Any] = {"max_tokens": most, "sampling": sampling, "keeper": result}
        try:
            with suppress(_OverError):
                run_bench(self.engine, configurations, workload, on_progress=look, **asked)
        finally:
            if result.runs:
                keep(result)
        return result

    def _configuration(self, name: str, draft: EarlyExitDraft, costs: Costs) -> Configuration:
        drafts = {name: draft}
        priced = replace(costs, drafts={name: next(iter(costs.drafts.values()))})
        # That a setting doesn't pay is what the verdict is for: nothing is said of each.
        policy = MeasuredPolicy(LiveCosts(priced), sources(priced, drafts), say=lambda _: None)
        return Configuration(name, drafts, None, None, policy.fresh)

    def _scaled(self, draft: EarlyExitDraft) -> Costs:
        """The target's costs, and for the part the same times what a row of it takes of one of the
        target's: enough to begin with."""
        share = self._seconds(len(draft.engine.kept)) / self._seconds(self.result.layers)
        points = []
        for point in self._costs.points:
            times = {name: getattr(point, name) for name in ("seconds", "low", "high")}
            scaled = {name: time and share * time for name, time in times.items()}
            points.append(replace(point, **scaled))
        part = replace(self._costs, points=tuple(points), feeds=(), drafts={})
        return replace(self._costs, drafts={"part": part})


def _rows(length: int, first: int) -> list[int]:
    """Places of a text whose rows say what was drawn next, at most ROWS of them, spread evenly."""
    places = range(first - 1, length - 1)
    step = max(1, -(-len(places) // ROWS))
    return list(places[::step])
