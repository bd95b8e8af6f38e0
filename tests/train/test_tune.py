"""The search for layers that draft: what it estimates, measures, keeps, and says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "engines"))

import tiny_transformers as tiny  # noqa: E402

from paceline import Sampling  # noqa: E402
from paceline.bench.prompts.workload import Workload, WorkloadPrompt  # noqa: E402
from paceline.bench.stats import Ratio  # noqa: E402
from paceline.drafts.early_exit import EarlyExitDraft, read_setting, write_setting  # noqa: E402
from paceline.engines.base import Job  # noqa: E402
from paceline.engines.toy import ToyEngine  # noqa: E402
from paceline.engines.transformers.head import ExitHead, HeadFile  # noqa: E402
from paceline.engines.transformers.layers import LayerStack, PartialEngine, identity  # noqa: E402
from paceline.errors import DataError, SettingError  # noqa: E402
from paceline.train import tune  # noqa: E402
from paceline.train.tune import Tuner  # noqa: E402
from paceline.train.tune_result import Candidate, TuneResult  # noqa: E402


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def llama():
    engine = tiny.load("llama", 96, 2)
    yield engine
    engine.close()


def workload(count: int, text: str = "the cab") -> Workload:
    return Workload(
        "here",
        tuple(
            WorkloadPrompt(f"p{at}", "all", ({"role": "user", "content": f"{text} {at}"},), True)
            for at in range(count)
        ),
    )


def tuner(engine, *, count: int = 3, budget_s: float = 4, **options) -> Tuner:
    return Tuner(engine, workload(count), budget_s=budget_s, max_tokens=16, **options)


def test_a_search_ends_in_a_setting_that_a_draft_reads(llama, tmp_path: Path) -> None:
    search, shares = tuner(llama, budget_s=200), []
    search.on_progress = lambda share, doing: shares.append(share)
    result = search.run()
    assert result.complete
    assert shares == sorted(shares)
    assert result.looked_at in (5, 6), "what can be kept of three layers, near the best"
    best = result.best
    assert best is not None
    assert best.measured is not None
    assert result.ratio is not None
    assert result.prompts >= 1
    assert result.baseline_tok_per_s > 0
    assert result.tok_per_s > 0
    assert len(llama.free_slots) == 2
    here = identity(llama)
    write_setting(tmp_path / "s.json", result.setting(here))
    draft = EarlyExitDraft.create(llama, setting=str(tmp_path / "s.json"))
    assert draft.engine.kept == best.kept
    measured = read_setting(tmp_path / "s.json", here).measured
    assert measured["speedup"]["value"] == result.ratio.value
    assert measured["verdict"] == result.verdict
    assert len(measured["candidates"]) == result.looked_at
    assert json.dumps(measured)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_agreement_is_what_the_part_itself_would_give(llama, temperature: float) -> None:
    search = tuner(llama, sampling=Sampling(temperature=temperature, seed=1))
    report = {"held_out_acceptance_after": {"sampled": 0.3, "greedy": 0.2}}
    search.heads[Path("h")] = HeadFile(ExitHead(48, 4), 2, identity(llama), report)
    texts = [([5, 9, 40, 41, 200, 3, 77, 5, 9, 8], 3), ([7, 7, 12, 9, 30], 2)]
    with torch.inference_mode():
        wanted, found = search._look_at_exits(texts)
        by = {(c.kept, c.head): c.agreement for c in found}
        by[(0, 2), None] = search._agreement((0, 2), texts, wanted)
        by["again"] = search._agreement((0,), texts, wanted)
    assert by["again"] == pytest.approx(by[(0,), None])
    assert by[(0, 1), Path("h")] == (0.3 if temperature else 0.2), "what its fit held out"
    for kept in ((0,), (0, 1), (0, 2)):
        part, total = PartialEngine(llama, kept), 0.0
        for tokens, first in texts:
            distributions = []
            for engine in (llama, part):
                sequence = engine.open()
                [rows] = engine.score([Job(sequence, tokens, len(tokens))])
                sequence.close()
                distributions.append(rows[first - 1 : -1])
            p, q = distributions
            if temperature:
                p, q = ((x / temperature).softmax(-1) for x in distributions)
                total += float(torch.minimum(p, q).sum(-1).mean()) / 2
            else:
                total += float((p.argmax(-1) == q.argmax(-1)).float().mean()) / 2
        assert by[kept, None] == pytest.approx(total, abs=1e-5)


def test_estimates_rise_with_agreement_and_fall_with_layers(llama) -> None:
    search = tuner(llama)
    search._costs = tune.costs_for(llama)
    search._seconds = lambda layers: 0.1 + 0.3 * layers

    def estimate(kept: tuple[int, ...], agreement: float) -> float:
        search._add(candidate := Candidate(kept, None, agreement))
        return candidate.estimate

    assert estimate((0,), 0.9) > estimate((0,), 0.5) > estimate((0, 1), 0.5)
    assert search._prices(Candidate((0,))).draft_cost == pytest.approx(0.4)


def test_an_interrupt_leaves_what_was_found(llama, monkeypatch) -> None:
    search = tuner(llama, budget_s=60)
    assert search.result.best is None
    with pytest.raises(DataError, match="Nothing was found"):
        search.result.setting({})

    def interrupt(share: float, doing: str) -> None:
        if "measuring" in doing:
            raise KeyboardInterrupt

    search.on_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        search.run()
    result = search.result
    assert not result.complete
    assert "an estimate" in result.verdict
    assert result.setting(identity(llama)).kept == result.best.kept
    assert len(llama.free_slots) == 2
    stack = LayerStack("it", llama.module)
    assert all(layer.self_attn.layer_idx == at for at, layer in enumerate(stack.layers))


def test_a_budget_that_is_over_at_once_still_measures_one_prompt(llama) -> None:
    result = tuner(llama, count=6, budget_s=0.01).run()
    assert result.complete
    assert result.prompts == 1
    assert result.ratio is not None


def test_halving_measures_the_better_ones_on_more_prompts(llama, monkeypatch) -> None:
    search, seen = tuner(llama, count=6, budget_s=600), []
    search.result.candidates = [
        Candidate((0, at), None, 0.5, estimate=at / 100) for at in range(1, 20)
    ]

    def measure(some, workload, share) -> None:
        seen.append((len(some), len(workload.prompts)))
        for candidate in some:
            candidate.measured, candidate.prompts = candidate.kept[1] / 10, len(workload.prompts)

    for count, some in search._rungs():
        measure(some, search._first(count), 1)
    assert seen == [(8, 1), (4, 2), (2, 4), (1, 6)]
    assert search.result.best.kept == (0, 19)


def test_what_a_few_prompts_can_t_tell_apart_is_ranked_by_its_promise() -> None:
    slow, near, fast = (
        Candidate((at,), None, 0.5, estimate, measured, 2)
        for at, (estimate, measured) in enumerate([(2.0, 0.6), (0.9, 1.01), (0.8, 1.02)])
    )
    assert max([slow, near, fast], key=lambda c: c.speed) is near
    fast.measured = 1.2
    assert max([slow, near, fast], key=lambda c: c.speed) is fast


@pytest.mark.parametrize(
    ("ratio", "rounds", "said"),
    [
        (Ratio(1.3, 1.1, 1.5), 0.9, "It pays: speedup 1.30"),
        (Ratio(1.3, 0.9, 1.5), 0.9, "No setting clearly pays here: speedup 1.30"),
        (Ratio(1.0, 0.99, 1.01), 0.01, "the policy let it draft in 1% of the rounds"),
        (Ratio(1.2, None, None), 0.5, "It pays: speedup 1.20"),
        (None, None, "an estimate"),
    ],
)
def test_the_verdict_is_honest(ratio, rounds, said: str) -> None:
    result = TuneResult({}, "here", Sampling(), 8, 4, [Candidate((0,))])
    result.ratio, result.drafted_rounds = ratio, rounds
    assert said in result.verdict


def test_prompts_that_a_head_was_fitted_to_are_told() -> None:
    result = TuneResult({}, "here", Sampling(), 8, 4, [Candidate((0,), Path("h"))])
    result.ratio, result.prompts_fitted_to = Ratio(1.2, 1.1, 1.3), 5
    assert "its head was fitted to 5" in result.verdict


def test_another_engine_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="by the engine toy"):
        tuner(ToyEngine(8))


def test_prompts_that_don_t_fit_are_refused(llama) -> None:
    search = Tuner(llama, workload(2, "cab " * 100), budget_s=2, max_tokens=8)
    with pytest.raises(DataError, match="none of the 2 prompts of here. The prompt has"):
        search.run()
