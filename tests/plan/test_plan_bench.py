"""From a bench to a plan: the right figures, and the right choice."""

from __future__ import annotations

import doctest
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from paceline.bench.local.bench import Configuration, run_bench
from paceline.bench.local.divergence import FirstDifference
from paceline.bench.local.result import BenchHeader, BenchResult
from paceline.bench.local.run import Described, Run, check_run
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.drafts.create import create_draft
from paceline.engines.load import load
from paceline.errors import DataError, SettingError
from paceline.plan import decide as decide_words
from paceline.plan.bench import decide_bench
from paceline.plan.document import PlanDocument, decode_plan
from paceline.types import Round, Sampling

TARGET = {
    "engine": "llamacpp",
    "model": "t.gguf",
    "path": "/m/t.gguf",
    "vocabulary_size": 100,
    "vocabulary_hash": "ab",
    "threads": 2,
}
LOOKUP = {"lookup": {"draft": "lookup", "min_match": 2, "reach": None, "shared_store": False}}
MODEL = {"d.gguf": {"draft": "model", "fit": "same", **TARGET, "path": "/m/d.gguf"}}
BASELINE = Described(name="baseline", target=TARGET)
LOSSY = {"verifier": "tolerance", "lossy": True, "gives_up": "some of the distribution"}
FAULT = FirstDifference(4, 5, 6, 3.5, 0.08, numeric=False)
ROUNDING = FirstDifference(4, 5, 6, 0.01, 0.08, numeric=True)

Drafted = tuple[int, int, float]
"""Proposed, accepted, seconds."""


def described(name: str, **changes: Any) -> Described:
    given = {"target": TARGET, "max_draft_tokens": 3, "verifier": "chain", "drafts": LOOKUP}
    return Described(**{"name": name, **given, **changes})


def a_round(context: int, proposed: int, accepted: int, seconds: float, **changes: Any) -> Round:
    return Round(
        **{
            "proposed": proposed,
            "accepted": accepted,
            "emitted": accepted + 1,
            "source": "lookup" if proposed else None,
            "max_draft_tokens": proposed,
            "width": proposed + 1,
            "batch": 1,
            "context": context,
            "prefill": False,
            "draft_s": 0.25 * seconds if proposed else 0.0,
            "verify_s": 0.5 * seconds if proposed else 0.75 * seconds,
            "other_s": 0.25 * seconds,
            **changes,
        }
    )


def run(
    one: Described, id: str, drafted: Sequence[Drafted | Round], category: str = "code", **more: Any
) -> Run:
    """Its prompt took a second, which nothing may count."""
    rounds = [a_round(5, 0, 0, 1.0, prefill=True)]
    for each in drafted:
        context = rounds[-1].context + rounds[-1].emitted
        made = each if isinstance(each, Round) else a_round(0, *each)
        rounds.append(replace(made, context=context))
    done = Run(
        **{
            "configuration": one.name,
            "id": id,
            "category": category,
            "prompt_tokens": 5,
            "tokens": tuple(range(sum(round.emitted for round in rounds))),
            "text": "",
            "finish_reason": "max_tokens",
            "rounds": tuple(rounds),
            "equal_to_baseline": None if one.is_baseline or not one.greedy else True,
            **more,
        }
    )
    check_run(done)
    return done


def bench(configurations: Sequence[Described], runs: Sequence[Run], **changes: Any) -> BenchResult:
    prompts = dict.fromkeys((run.id, run.category) for run in runs)
    header = BenchHeader(
        **{
            "workload": {"name": "mine", "prompts": len(prompts), "skipped": []},
            "prompts": tuple(prompts),
            "configurations": tuple(configurations),
            "machine": {"cpu": "A CPU", "cores": 2},
            "started": "2026-03-01T12:00:00+00:00",
            **changes,
        }
    )
    return BenchResult(header, list(runs))


PROMPTS = tuple((f"p{i}", "chat" if i % 3 else "code") for i in range(12))


def paced(*gains: Described | tuple[Described, Sequence[float]], **changes: Any) -> BenchResult:
    """Twelve prompts; ordinary decoding takes 10 ms a token, each other configuration is so many
    times as fast, by prompt in turn."""
    pairs = [one if isinstance(one, tuple) else (one, [1.0]) for one in gains]
    configurations = [one for one, _ in pairs]
    runs = []
    for at, (id, category) in enumerate(PROMPTS):
        for one, each in pairs:
            gain = each[at % len(each)]
            rounds = [(0, 0, 0.01)] * 8 if one.is_baseline else [(1, 1, 0.02 / gain)] * 4
            runs.append(run(one, id, rounds, category))
    return bench(configurations, runs, **changes)


def checked(plan: PlanDocument) -> PlanDocument:
    """One that its own reader takes, and gives back as it is."""
    assert decode_plan(json.dumps(plan.as_json())) == plan
    return plan


def test_figures_are_pooled_over_decode_rounds_and_shares_over_drafted_ones() -> None:
    one = described("lookup -n 3")
    silent = replace(
        a_round(0, 0, 0, 0.01), source="lookup", max_draft_tokens=3
    )  # asked, nothing offered
    runs = [
        run(BASELINE, "a", [(0, 0, 0.01)] * 8),
        run(one, "a", [(3, 3, 0.02), (3, 0, 0.02), silent, (2, 1, 0.016)]),
        run(BASELINE, "b", [(0, 0, 0.01)] * 3),
        run(one, "b", [(3, 1, 0.02), (0, 0, 0.01)]),
    ]
    plan = checked(
        decide_bench(bench([BASELINE, one], runs), configuration="lookup -n 3", file="b.jsonl")
    )
    expected = plan.expected
    assert expected.acceptance_at == (3 / 4, 1 / 4, 1 / 4)  # acceptance would end in 1/3
    assert expected.acceptance_rate == 5 / 11
    assert expected.tokens_per_round == 11 / 6  # bonus included, the prompt's token is not
    assert expected.tokens_per_drafted_round == 1 + 5 / 4
    assert 1 + sum(expected.acceptance_at) == expected.tokens_per_drafted_round
    assert expected.break_even_tokens == pytest.approx(0.019 / 0.01)
    assert expected.gain is not None
    assert expected.gain.value == pytest.approx(0.11 / 0.096)
    assert (plan.max_draft_tokens, plan.mean_draft_tokens) == (3, 11 / 4)
    measured = plan.measured
    assert (measured.prompts, measured.tokens, measured.batch) == (2, 11, 1)
    assert (measured.file, measured.when) == ("b.jsonl", "2026-03-01T12:00:00+00:00")
    assert measured.machine == {"cpu": "A CPU", "cores": 2, "engine": "llamacpp", "threads": 2}
    assert measured.sampling == {"temperature": 0.0}
    assert (measured.configuration, measured.verifier) == ("lookup -n 3", "chain")
    assert plan.target.path == "/m/t.gguf"
    assert plan.target.vocabulary_size == 100
    assert plan.draft is not None
    assert plan.draft.kind == plan.draft.name == "lookup"
    assert plan.draft.settings == {"min_match": 2}


def test_a_tree_s_positions_are_depths() -> None:
    one = described("tree -n 6", max_draft_tokens=6)
    two_deep = replace(a_round(0, 6, 2, 0.03), path=(0, 3))
    runs = [
        run(BASELINE, "a", [(0, 0, 0.01)] * 4),
        run(one, "a", [two_deep, replace(a_round(0, 6, 0, 0.03), path=())]),
    ]
    plan = checked(decide_bench(bench([BASELINE, one], runs), configuration="tree -n 6"))
    assert plan.expected.acceptance_at == (1 / 2, 1 / 2)
    assert plan.expected.tokens_per_drafted_round == 2
    assert plan.expected.acceptance_rate == 2 / 12


def test_the_fastest_that_pays_is_chosen_and_its_worst_category_named() -> None:
    slow, fast = described("lookup -n 1", max_draft_tokens=1), described("lookup -n 3")
    plan = checked(decide_bench(paced(BASELINE, (slow, [1.2]), (fast, [0.9, 1.9, 1.8]))))
    assert plan.measured.configuration == "lookup -n 3"
    assert plan.max_draft_tokens == 3
    assert plan.expected.gain is not None
    assert plan.expected.gain.low is not None
    assert plan.expected.gain.low > 1
    assert plan.expected.gain_by_category["code"].value == pytest.approx(0.9)
    assert plan.notes[0].startswith("Worst in code: speedup 0.90 (95 % interval ")
    assert "It holds for one sequence at a time" in plan.notes[-1]


@pytest.mark.parametrize(
    ("gains", "why"),
    [
        ([0.8, 0.9], "Ordinary decoding, because no draft pays: the best to choose from is "),
        ([0.8, 1.4], "Ordinary decoding, because the interval reaches 1, which is no evidence: "),
        ([1.0], "Ordinary decoding, because the interval reaches 1"),
    ],
)
def test_what_does_not_clearly_pay_is_baseline_decoding(gains: list[float], why: str) -> None:
    worse = described("lookup -n 1", max_draft_tokens=1)
    plan = checked(decide_bench(paced(BASELINE, (worse, [0.7]), (described("lookup -n 3"), gains))))
    assert (plan.draft, plan.max_draft_tokens, plan.mean_draft_tokens) == (None, 0, None)
    assert plan.expected.gain is None
    assert plan.expected.acceptance_at == ()
    assert plan.notes[0].startswith(why)
    assert "is lookup -n 3, speedup" in plan.notes[0]
    assert plan.measured.configuration == "baseline"
    assert plan.measured.prompts == 12


def test_one_prompt_is_no_evidence() -> None:
    one = described("lookup -n 3")
    runs = [run(BASELINE, "a", [(0, 0, 0.01)] * 8), run(one, "a", [(3, 3, 0.01)] * 2)]
    plan = checked(decide_bench(bench([BASELINE, one], runs)))
    assert plan.draft is None
    assert plan.notes[0] == (
        "Ordinary decoding, because one prompt is no evidence: the best to choose from is "
        "lookup -n 3, speedup 4.00 (one prompt: no interval)."
    )


def test_a_faster_one_whose_interval_reaches_1_is_passed_over_by_name() -> None:
    sure, wild = described("lookup -n 1", max_draft_tokens=1), described("lookup -n 3")
    plan = checked(decide_bench(paced(BASELINE, (sure, [1.2, 1.3]), (wild, [0.5, 9, 9]))))
    assert plan.measured.configuration == "lookup -n 1"
    [said] = [note for note in plan.notes if note.startswith("Not chosen")]
    assert said.startswith("Not chosen: lookup -n 3, ")
    assert said.endswith("its interval reaches 1.")


def test_a_lossy_verifier_is_chosen_by_name_only() -> None:
    lossy, sound = described("lossy -n 3", **LOSSY), described("lookup -n 3")
    result = paced(BASELINE, (lossy, [2.0]), (sound, [1.5]))
    plan = checked(decide_bench(result))
    assert (plan.measured.configuration, plan.measured.exact) == ("lookup -n 3", True)
    assert (
        "Not chosen: lossy -n 3, speedup 2.00 (95 % interval 2.00 to 2.00): it is lossy and "
        "gives up some of the distribution."
    ) in plan.notes
    named = checked(decide_bench(result, configuration="lossy -n 3"))
    assert (named.measured.exact, named.measured.verifier) == (False, "tolerance")
    assert named.notes[0] == "LOSSY (tolerance): it gives up some of the distribution."
    alone = checked(decide_bench(paced(BASELINE, (lossy, [2.0]))))
    assert alone.draft is None
    assert alone.measured.exact
    assert alone.notes[0].startswith("Ordinary decoding, because no configuration with a draft can")
    assert "lossy" in alone.notes[1]


def test_a_text_that_differs_by_a_fault_is_not_chosen_and_one_by_rounding_is() -> None:
    one = described("lookup -n 3")
    result = paced(BASELINE, (one, [1.5]))
    result.runs[1] = replace(result.runs[1], first_difference=ROUNDING, equal_to_baseline=False)
    assert decide_bench(result).draft is not None
    result.runs[1] = replace(result.runs[1], first_difference=FAULT)
    plan = checked(decide_bench(result))
    assert plan.draft is None
    assert any("its text differs from the baseline's by a fault" in said for said in plan.notes)
    named = decide_bench(result, configuration="lookup -n 3")
    assert named.draft is not None
    assert "A FAULT: in 1 run (p0) its text differs" in named.notes[0]


def test_what_drafted_nothing_is_not_chosen_however_fast_it_was() -> None:
    one = described("lookup -n auto", max_draft_tokens=None)
    runs = [
        made
        for id, category in PROMPTS
        for made in (
            run(BASELINE, id, [(0, 0, 0.010)] * 8, category),
            run(one, id, [(0, 0, 0.009)] * 8, category),
        )
    ]
    plan = checked(decide_bench(bench([BASELINE, one], runs)))
    assert plan.draft is None
    assert "it drafted nothing" in plan.notes[1]


def test_a_plug_in_s_draft_is_no_engine_s() -> None:
    one = described("bigram -n 3", drafts={"bigram": {"draft": "bigram"}})
    result = paced(BASELINE, (one, [1.5]))
    plan = checked(decide_bench(result))
    assert plan.draft is None
    assert "no engine but Paceline knows the draft 'bigram'" in plan.notes[1]
    with pytest.raises(SettingError, match="'bigram' is of the kind 'bigram'"):
        decide_bench(result, configuration="bigram -n 3")
    metadata = {"draft": "first", "parts": [{"draft": "bigram"}, *LOOKUP.values()]}
    inside = described("first -n 3", drafts={"first:bigram+lookup": metadata})
    assert decide_bench(paced(BASELINE, (inside, [1.5]))).draft is None


def test_what_the_policy_chose_has_no_limit_but_a_mean_one() -> None:
    one = described("lookup -n auto", max_draft_tokens=None)
    plan = checked(decide_bench(paced(BASELINE, (one, [1.5]))))
    assert (plan.max_draft_tokens, plan.mean_draft_tokens) == (None, 1)
    assert plan.draft is not None
    assert plan.draft.kind == "lookup"


def test_several_drafts_on_offer_are_listed() -> None:
    one = described("lookup + d.gguf -n auto", max_draft_tokens=None, drafts={**LOOKUP, **MODEL})
    plan = checked(decide_bench(paced(BASELINE, (one, [1.5]))))
    assert plan.draft is not None
    assert (plan.draft.kind, plan.draft.name) == ("several", "lookup + d.gguf")
    assert plan.draft.model == "/m/d.gguf"
    assert plan.draft.settings == {
        "drafts": [
            {"kind": "lookup", "name": "lookup", "model": None, "settings": {"min_match": 2}},
            {"kind": "model", "name": "d.gguf", "model": "/m/d.gguf", "settings": {}},
        ]
    }


def test_a_model_s_place_is_told_or_its_name_is_said_to_be_no_place() -> None:
    one = described("d.gguf -n 3", drafts=MODEL)
    plan = checked(decide_bench(paced(BASELINE, (one, [1.5]))))
    assert plan.draft is not None
    assert (plan.draft.model, plan.draft.vocabulary_size) == ("/m/d.gguf", 100)
    assert plan.draft.vocabulary_hash == plan.target.vocabulary_hash == "ab"
    old = {"d.gguf": {k: v for k, v in MODEL["d.gguf"].items() if k != "path"}}
    plan = checked(decide_bench(paced(BASELINE, (described("d.gguf -n 3", drafts=old), [1.5]))))
    assert plan.draft is not None
    assert plan.draft.model is None
    assert (
        "Where the model of the draft d.gguf lies is not known: t.gguf is its name only."
    ) in plan.notes
    hub = {"d": MODEL["d.gguf"] | {"path": None, "model": "owner/name"}}
    plan = checked(decide_bench(paced(BASELINE, (described("d -n 3", drafts=hub), [1.5]))))
    assert plan.draft is not None
    assert plan.draft.model == "owner/name"


def test_a_draft_made_of_drafts_names_its_parts() -> None:
    metadata = {"draft": "cascade", "parts": [*LOOKUP.values(), *MODEL.values()]}
    one = described("cascade -n 3", drafts={"cascade:lookup+d.gguf": metadata})
    plan = checked(decide_bench(paced(BASELINE, (one, [1.5]))))
    assert plan.draft is not None
    assert (plan.draft.kind, plan.draft.model) == ("cascade", "/m/d.gguf")
    assert [part["kind"] for part in plan.draft.settings["parts"]] == ["lookup", "model"]


def test_another_sampling_is_not_compared_but_can_be_named() -> None:
    hot = {"baseline": "baseline hot", "sampling": Sampling(temperature=0.8, min_p=0.1, seed=3)}
    baseline_hot = replace(BASELINE, name="baseline hot", **hot)
    one, other = described("lookup -n 3"), described("lookup -n 3 hot", **hot)
    result = paced(BASELINE, baseline_hot, (one, [1.3]), (other, [2]))
    plan = checked(decide_bench(result))
    assert plan.measured.configuration == "lookup -n 3"
    assert any(said.startswith("Not compared, because of another") for said in plan.notes)
    named = checked(decide_bench(result, configuration="lookup -n 3 hot"))
    assert named.measured.sampling == {"temperature": 0.8, "min_p": 0.1, "seed": 3}
    assert named.expected.gain is not None
    assert named.expected.gain.value == pytest.approx(2)


OPENVINO = TARGET | {"engine": "openvino", "dtype": "f32, weights of the GGUF file"}
ELSEWHERE = Described(name="baseline --engine openvino", baseline="baseline --engine openvino",
                      target=OPENVINO)  # fmt: skip


def elsewhere(**changes: Any) -> Described:
    return described(
        "lookup --engine openvino", **{"baseline": ELSEWHERE.name, "target": OPENVINO, **changes}
    )


def both(away_baseline: float, away: list[float], home: float = 1.3, **changes: Any) -> BenchResult:
    """Speeds in times the first engine's plain; `away` are the second engine's with a draft."""
    slow = [(0, 0, 0.01 / away_baseline)] * 8
    one, other = described("lookup"), elsewhere(**changes)
    runs = []
    for at, (id, category) in enumerate(PROMPTS):
        gain = away[at % len(away)]
        runs += [
            run(BASELINE, id, [(0, 0, 0.01)] * 8, category),
            run(one, id, [(1, 1, 0.02 / home)] * 4, category),
            run(ELSEWHERE, id, slow, category),
            run(other, id, [(1, 1, 0.02 / gain)] * 4, category),
        ]
    return bench([BASELINE, one, ELSEWHERE, other], runs)


def test_of_several_engines_with_the_same_model_the_fastest_is_chosen() -> None:
    plan = checked(decide_bench(both(0.8, [1.6])))
    assert plan.target.engine == "openvino"
    assert plan.measured.configuration == "lookup --engine openvino"
    assert plan.expected.gain is not None
    assert plan.expected.gain.value == pytest.approx(2.0)  # beside plain on the same engine
    said = " ".join(plan.notes)
    assert "lookup --engine openvino is 1.23 times as fast as lookup on llamacpp (95 %" in said
    assert "their texts can differ" in said
    assert "On llamacpp" not in said  # there was nothing to say of it


def test_another_engine_is_not_chosen_without_an_interval_above_1() -> None:
    plan = decide_bench(both(0.8, [1.0, 1.9, 1.1], home=1.2))
    assert plan.target.engine == "llamacpp"
    assert "lookup --engine openvino is 1.0" in " ".join(plan.notes)


def test_what_was_said_of_the_other_engines_is_said_with_their_name() -> None:
    said = " ".join(decide_bench(both(0.8, [1.6], home=0.9)).notes)
    assert "On llamacpp: Ordinary decoding, because no draft pays" in said


def test_baseline_decoding_on_another_engine_may_be_the_fastest() -> None:
    plan = checked(decide_bench(both(1.9, [1.2])))
    assert (plan.target.engine, plan.draft) == ("openvino", None)
    assert "baseline --engine openvino is 1.46 times" in " ".join(plan.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/m/other.gguf"},
        {"vocabulary_hash": "cd"},
        {"path": None, "model": "b"},
        {"weights": "int8"},
    ],
)
def test_another_model_on_another_engine_is_not_compared(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = OPENVINO | changes
    monkeypatch.setitem(globals(), "ELSEWHERE", replace(ELSEWHERE, target=target))
    plan = decide_bench(both(0.8, [1.9], target=target))
    assert plan.target.engine == "llamacpp"
    assert "Not compared, because of another target" in " ".join(plan.notes)


def test_what_was_named_is_taken_though_it_does_not_pay() -> None:
    result = paced(BASELINE, (described("lookup -n 3"), [0.8, 0.9]))
    plan = checked(decide_bench(result, configuration="lookup -n 3"))
    assert plan.draft is not None
    assert plan.max_draft_tokens == 3
    assert plan.notes[0].startswith(
        "lookup -n 3 was asked for, though it isn't known to pay: speedup 0.8"
    )
    assert checked(decide_bench(result, configuration="baseline")).notes[0] == (
        "Ordinary decoding was asked for."
    )
    with pytest.raises(SettingError, match="Did you mean 'lookup -n 3'"):
        decide_bench(result, configuration="lookup -n 4")


def test_an_unfinished_bench_counts_whole_prompts_and_says_how_many_are_missing() -> None:
    one = described("lookup -n 3")
    whole = paced(BASELINE, (one, [1.5, 1.6]))
    late = replace(whole.runs[-1], rounds=(), tokens=())
    begun = BenchResult(whole.header, whole.runs[:-3])  # p10 has run plainly, p11 not at all
    assert late.id == "p11"
    plan = checked(decide_bench(begun))
    assert plan.measured.prompts == 10
    assert plan.measured.tokens == 80
    assert "The bench is not finished: left out are 2 of 12 prompts." in plan.notes
    with pytest.raises(DataError, match="No prompt of the bench is finished"):
        decide_bench(BenchResult(whole.header, whole.runs[:1]))


def test_what_failed_and_what_was_skipped_is_said() -> None:
    one = described("lookup -n 3")
    workload = {"prompts": 12, "skipped": ["Line 3 is not JSON."]}
    result = paced(BASELINE, (one, [1.5]), workload=workload)
    result.fail("p1", "too long")
    result.fail("p2", "too long")
    plan = checked(decide_bench(result))
    assert plan.measured.prompts == 10
    assert plan.measured.workload["skipped"] == 1
    assert "Failed and left out: 2 prompts (p1, p2)." in plan.notes
    assert "Lines of the workload that were skipped: 1." in plan.notes
    for id, _ in PROMPTS:
        result.fail(id, "too long")
    with pytest.raises(DataError, match="12 prompts failed"):
        decide_bench(result)


def test_few_prompts_and_drafts_that_remember_are_said() -> None:
    one = described("lookup -n 3", warm=True)
    whole = paced(BASELINE, (one, [1.5]))
    few = replace(whole.header, prompts=whole.header.prompts[:9])
    plan = checked(decide_bench(BenchResult(few, [r for r in whole.runs if int(r.id[1:]) < 9])))
    assert "9 prompts are few: intervals of fewer than 10 are too narrow." in plan.notes
    assert any("could remember earlier prompts" in said for said in plan.notes)
    assert not any("are few" in said for said in decide_bench(whole).notes)


def test_repeats_count_tokens_and_not_prompts() -> None:
    one = described("lookup -n 3")
    result = paced(BASELINE, (one, [1.5]), repeats=2)
    result.runs += [replace(run, repeat=1) for run in result.runs]
    plan = checked(decide_bench(result))
    assert (plan.measured.prompts, plan.measured.tokens) == (12, 2 * 12 * 8)


def test_baseline_decoding_alone_is_nothing_to_choose_from() -> None:
    with pytest.raises(DataError, match="ordinary decoding only"):
        decide_bench(paced(BASELINE))


def test_the_examples_of_what_decisions_share() -> None:
    done = doctest.testmod(decide_words)
    assert done.attempted > 0
    assert done.failed == 0


def test_a_schedule_is_in_order_whatever_order_its_sizes_have() -> None:
    assert [step.max_draft_tokens for step in decide_words.schedule_of({8: 1, 1: 7, 4: 3})] == [
        7,
        3,
        1,
    ]


def test_a_real_bench_tells_where_models_lie_and_what_vocabulary_they_have() -> None:
    engine = load("toy:3")
    drafts = {name: create_draft(name, engine) for name in ("lookup", "toy:4")}
    every = [Configuration(f"{name} -n 2", {name: draft}, 2) for name, draft in drafts.items()]
    prompts = [
        WorkloadPrompt(f"p{i}", "all", ({"role": "user", "content": "abcab"},)) for i in (1, 2)
    ]
    result = run_bench(engine, every, Workload("two", tuple(prompts)), max_tokens=12)
    plan = checked(decide_bench(result, configuration="toy:4 -n 2"))
    assert plan.target.vocabulary_size == engine.vocabulary_size
    assert plan.draft is not None
    assert plan.draft.model == "toy:4"
    assert plan.draft.vocabulary_hash == plan.target.vocabulary_hash
    assert len(plan.target.vocabulary_hash or "") == 64
    assert plan.target.path is None  # a toy lies nowhere
