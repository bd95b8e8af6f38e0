"""Plans as engines' settings: what is written, what is refused, what is said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from plans import DRAFT, TARGET, plan, steps

from paceline.economics.plan_document import Expected, PlanDocument
from paceline.errors import DataError, PacelineError, PairError, SettingError
from paceline.export import versions
from paceline.export.make import WRITERS, make_setup
from paceline.export.options import Options
from paceline.export.setup import Setup
from paceline.export.versions import KNOWN, LOSSY

GGUF = {"target": "target.gguf", "draft_model": "draft.gguf"}
ENGINES = list(KNOWN)


def exported(engine: str, made: PlanDocument, **options: Any) -> Setup:
    """A plan for llama-server is one of GGUF files, where the test names none itself."""
    if engine == "llama-server":
        if "target" not in options:
            made = replace(made, target=replace(made.target, path=GGUF["target"]))
        if made.draft is not None and made.draft.model is not None and "draft_model" not in options:
            made = replace(made, draft=replace(made.draft, model=GGUF["draft_model"]))
    return make_setup(engine, made, Options(**options))


def flags(setup: Setup) -> dict[str, str]:
    words = setup.arguments
    return {
        word: after if not after.startswith("--") else ""
        for word, after in zip(words, [*words[1:], "--"], strict=True)
        if word.startswith("--")
    }


def said(setup: Setup) -> str:
    return " ".join(setup.remarks)


def refusal(engine: str, made: PlanDocument, **options: Any) -> PacelineError:
    with pytest.raises(PacelineError) as caught:
        exported(engine, made, **options)
    assert caught.value.fact.endswith((".", ":"))
    assert caught.value.cure
    return caught.value


# What is written


def test_a_model_draft_is_each_engines_own_method() -> None:
    made = plan("model")
    assert exported("vllm", made).config == {
        "method": "draft_model",
        "model": DRAFT,
        "num_speculative_tokens": 4,
    }
    assert flags(exported("sglang", made)) == {
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": DRAFT,
        "--speculative-num-steps": "4",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "5",
    }
    speculative = exported("tensorrt-llm", made).config["speculative_config"]
    assert speculative == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 4,
        "speculative_model": DRAFT,
    }
    assert flags(exported("llama-server", made)) == {
        "--spec-type": "draft-simple",
        "--spec-draft-model": "draft.gguf",
        "--spec-draft-n-max": "4",
    }


@pytest.mark.parametrize("kind", ["lookup", "recycle", "ngram"])
@pytest.mark.parametrize("engine", ENGINES)
def test_drafts_from_text_are_the_engines_n_grams(engine: str, kind: str) -> None:
    setup = exported(engine, plan(kind))
    method = {
        "vllm": setup.config.get("method"),
        "sglang": flags(setup).get("--speculative-algorithm"),
        "tensorrt-llm": setup.config.get("speculative_config", {}).get("decoding_type"),
        "llama-server": flags(setup).get("--spec-type"),
    }
    wanted = {"vllm": "ngram", "sglang": "NGRAM", "tensorrt-llm": "NGram"}
    assert method[engine] == wanted.get(engine, "ngram-simple")
    assert ("stand in" in said(setup)) == (kind != "ngram")
    assert ("--ours" in said(setup)) == (kind != "ngram" and engine == "vllm")
    assert setup.draft is None


def test_n_grams_draft_as_they_were_measured() -> None:
    """Chains, up to the limit, of the request's own text."""
    found = flags(exported("sglang", plan()))
    assert found["--speculative-num-draft-tokens"] == "5"
    assert found["--speculative-ngram-max-bfs-breadth"] == "1"
    config = exported("tensorrt-llm", plan()).config["speculative_config"]
    assert config == {"decoding_type": "NGram", "max_draft_len": 4, "is_public_pool": False}
    assert flags(exported("llama-server", plan()))["--spec-ngram-simple-size-m"] == "4"


def test_the_shortest_match_of_the_plan_is_the_engines() -> None:
    made = plan("lookup", draft_settings={"min_match": 7})
    config = exported("vllm", made).config
    assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == (7, 7)
    assert flags(exported("llama-server", made))["--spec-ngram-simple-size-n"] == "7"
    for wrong in (0, "7", True, 1.5):
        assert "min_match" in refusal("vllm", plan(draft_settings={"min_match": wrong})).fact


def test_ours_is_our_proposer_and_weighs_each_round_itself() -> None:
    setup = exported("vllm", plan("lookup", limit=None, mean_limit=3.0), ours=True)
    assert setup.config == {
        "method": "custom_class",
        "model": "paceline.integrations.vllm.Proposer",
        "num_speculative_tokens": 15,
    }
    assert setup.draft is None
    assert "must be installed" in said(setup)


def test_ours_is_what_is_really_there() -> None:
    import importlib

    from paceline.export.vllm import PROPOSER

    module, _, name = PROPOSER.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(
    ("engine", "kind", "method"),
    [
        ("vllm", "suffix", "suffix"),
        ("vllm", "eagle", "eagle"),
        ("vllm", "eagle3", "eagle3"),
        ("vllm", "mtp", "mtp"),
        ("vllm", "dflash", "dflash"),
        ("sglang", "eagle", "EAGLE"),
        ("sglang", "eagle3", "EAGLE3"),
        ("sglang", "mtp", "NEXTN"),
        ("sglang", "dflash", "DFLASH"),
        ("tensorrt-llm", "suffix", "SA"),
        ("tensorrt-llm", "eagle3", "Eagle3"),
        ("tensorrt-llm", "mtp", "MTP"),
        ("tensorrt-llm", "dflash", "DFlash"),
        ("llama-server", "eagle3", "draft-eagle3"),
        ("llama-server", "mtp", "draft-mtp"),
        ("llama-server", "dflash", "draft-dflash"),
    ],
)
def test_trained_drafts_are_the_engines_own(engine: str, kind: str, method: str) -> None:
    setup = exported(engine, plan(kind))
    written = [*setup.arguments, str(setup.config)]
    assert any(method in part for part in written)


def test_mtp_needs_no_second_model() -> None:
    assert exported("vllm", plan("mtp")).config == {"method": "mtp", "num_speculative_tokens": 4}


def test_dflash_blocks_count_the_root_in_sglang() -> None:
    assert flags(exported("sglang", plan("dflash")))["--speculative-dflash-block-size"] == "5"


def test_a_limit_that_our_policy_chose_is_its_mean_and_that_is_said() -> None:
    setup = exported("vllm", plan(limit=None, mean_limit=2.6))
    assert setup.config["num_speculative_tokens"] == 3
    assert "2.6 tokens on average" in said(setup)
    least = exported("vllm", plan(limit=None, mean_limit=0.2))
    assert least.config["num_speculative_tokens"] == 1
    assert "--limit" in refusal("vllm", plan(limit=None)).cure
    assert exported("vllm", plan(limit=None), limit=5).config["num_speculative_tokens"] == 5


def test_a_limit_beyond_what_vllm_verifies_is_refused() -> None:
    assert "at most 128" in refusal("vllm", plan(limit=129), version="0.32.0").fact
    exported("vllm", plan(limit=128), version="0.32.0")


def test_suffix_drafts_keep_vllms_own_limit_where_a_policy_chose() -> None:
    assert exported("vllm", plan("suffix", limit=None)).config == {"method": "suffix"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_without_a_draft_has_no_drafts_and_the_measurement(engine: str) -> None:
    setup = exported(engine, plan("none"))
    assert "speculative" not in str(setup.config) + str(setup.arguments).replace("spec-decode", "")
    assert "without a draft" in said(setup)
    assert "1.62 times plain" in said(setup)


def test_a_plan_that_was_asked_to_be_plain_says_no_gain() -> None:
    made = plan("none", expected=Expected())
    found = said(exported("vllm", made))
    assert "Measured by a bench (run.jsonl) on 2026-11-30: owner/target, no draft." in found
    assert "how much it gains" not in found
    assert "how much it gains isn't in the plan" in said(
        exported("vllm", plan(expected=Expected()))
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_schedule_that_never_drafts_is_plain_decoding(engine: str) -> None:
    setup = exported(engine, plan("lookup", schedule=steps((1, None, 0))))
    assert "without a draft" in said(setup)


def test_tensorrt_llms_older_version_has_older_names() -> None:
    config = exported("tensorrt-llm", plan("eagle3"), version="1.2.1").config
    assert config["speculative_config"] == {
        "decoding_type": "Eagle",
        "max_draft_len": 4,
        "speculative_model_dir": DRAFT,
    }
    assert exported("tensorrt-llm", plan(), version="1.2.1").arguments[0] == (
        "--extra_llm_api_options"
    )


@pytest.mark.parametrize(
    ("kind", "key"), [("several", "drafts"), ("first", "parts"), ("cascade", "parts")]
)
def test_ours_runs_all_drafts_that_need_no_model(kind: str, key: str) -> None:
    """A list of drafts beside the default one is named where our proposer reads it."""
    parts = [
        {"kind": "lookup", "name": "lookup", "model": None, "settings": {"min_match": 3}},
        {"kind": "recycle", "name": "recycle", "model": None, "settings": {}},
    ]
    made = plan(kind, draft_model=None, draft_settings={key: parts})
    setup = exported("vllm", made, ours=True)
    named = {"drafts": ["lookup", "recycle"]}
    assert json.loads(flags(setup)["--additional-config"]) == {"paceline": named}
    assert "no part of the speculative config" in said(setup)
    assert "in place of the plan's min_match 3" in said(setup)
    with_model = [*parts, {"kind": "model", "name": "m", "model": DRAFT, "settings": {}}]
    strange = plan(kind, draft_model=None, draft_settings={key: with_model})
    assert "runs lookup and recycle" in refusal("vllm", strange, ours=True).fact
    no_kind = plan(kind, draft_model=None, draft_settings={key: [{"kind": []}]})
    assert "runs lookup and recycle" in refusal("vllm", no_kind, ours=True).fact
    for wrong in ("lookup", [1], {"lookup": 1}):
        damaged = plan(kind, draft_model=None, draft_settings={key: wrong})
        assert isinstance(refusal("vllm", damaged, ours=True), DataError)


def test_ours_is_told_of_recycling_only_where_the_plan_has_it() -> None:
    from paceline.integrations.vllm import _drafts

    alone = flags(exported("vllm", plan("recycle"), ours=True))["--additional-config"]
    assert list(_drafts(json.loads(alone)["paceline"])) == ["recycle"]
    for kind in ("lookup", "ngram"):
        setup = exported("vllm", plan(kind), ours=True)
        assert "--additional-config" not in flags(setup)
        assert ("judge it anew" in said(setup)) == (kind == "ngram")
    assert list(_drafts({})) == ["lookup"], "what the proposer runs where it is told nothing"


def test_ours_says_that_a_schedule_is_not_written_and_has_no_draft_to_split() -> None:
    setup = exported("vllm", plan("lookup", schedule=FALLING), ours=True)
    assert "schedule by batch size is not written" in said(setup)
    assert "schedule" not in said(exported("vllm", plan("lookup"), ours=True))
    error = refusal("vllm", plan("lookup"), ours=True, draft_tensor_parallel=1)
    assert "has no model" in error.fact


@pytest.mark.parametrize("engine", ENGINES)
def test_lengths_that_n_grams_match_are_said_where_others_were_measured(engine: str) -> None:
    written = {
        "vllm": "from 6 to 6 tokens",
        "sglang": "no setting for the shortest match",
        "tensorrt-llm": "at most 2 tokens",
        "llama-server": "exactly 6 tokens",
    }
    for kind in ("lookup", "ngram"):
        found = said(exported(engine, plan(kind, draft_settings={"min_match": 6})))
        assert "measured with matches of 6 tokens or more" in found
        assert written[engine] in found
    assert "matched isn't in it" in said(exported(engine, plan("ngram")))
    assert "matched isn't in it" not in said(exported(engine, plan("lookup")))
    assert "at most 2 tokens" in said(exported("tensorrt-llm", plan("lookup")))


def test_a_repository_of_gguf_files_is_named_as_one() -> None:
    found = flags(exported("llama-server", plan("model"), draft_model="owner/name-GGUF:Q4_1"))
    assert found["--spec-draft-hf"] == "owner/name-GGUF:Q4_1"


@pytest.mark.parametrize(
    "place",
    ["./drat", "../drat", "~/drat", "/drat", ".\\drat", "a/b/c", "a b/c", "name", "a/b:", "a/"],
)
def test_a_mistyped_path_is_no_repository(place: str) -> None:
    assert "no GGUF file" in refusal("llama-server", plan("model"), draft_model=place).fact


# Schedules by batch size

FALLING = steps((1, 8, 4), (9, 32, 2), (33, None, 0))


def test_vllm_takes_the_schedule() -> None:
    config = exported("vllm", plan("eagle3", schedule=FALLING, limit=2)).config
    assert config["num_speculative_tokens"] == 4
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 32, 2], [33, 33, 0]]


def test_what_a_schedule_doesnt_know_is_said() -> None:
    open_ended = said(exported("vllm", plan("eagle3", schedule=FALLING)))
    assert "Nothing is known" not in open_ended
    ending = said(exported("vllm", plan("eagle3", schedule=steps((1, 8, 4), (9, 16, 2)))))
    assert "Nothing is known of batches above 16" in ending
    config = exported("tensorrt-llm", plan("model", schedule=steps((1, 8, 4)))).config
    assert config["speculative_config"]["draft_len_schedule"] == {8: 4}


def test_vllm_has_no_schedule_for_suffix_and_says_so() -> None:
    setup = exported("vllm", plan("suffix", schedule=FALLING))
    assert "num_speculative_tokens_per_batch_size" not in setup.config
    assert "no schedule by batch size" in said(setup)


def test_sglang_takes_the_schedule_for_eagle_only() -> None:
    setup = exported("sglang", plan("eagle3", schedule=FALLING))
    [(name, text)] = setup.files.items()
    assert flags(setup)["--speculative-adaptive-config"] == name
    slots = {"1": [4], "9": [2], "33": [0]}
    assert {key: slot["candidate_steps"] for key, slot in json.loads(text).items()} == slots
    other = exported("sglang", plan("model", schedule=FALLING))
    assert not other.files
    assert "no schedule by batch size" in said(other)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_schedules_dont_know_is_said_of_each_engine_that_goes_on(engine: str) -> None:
    ending = plan("eagle3", schedule=steps((1, 2, 4), (3, 8, 2)))
    assert "batches above 8" in said(exported(engine, ending))
    assert "with the last entry, 2" in said(exported(engine, ending))
    assert "Nothing is known of b" not in said(exported(engine, plan("eagle3", schedule=FALLING)))


def test_other_tokens_of_one_size_are_refused_wherever_a_model_drafts() -> None:
    other = {"draft_vocabulary_hash": "b", "target_vocabulary_hash": "a"}
    for engine in ("vllm", "sglang", "llama-server"):
        made = plan("model", draft_vocabulary_size=49152, **other)
        with pytest.raises(PairError, match="not the same ones"):
            exported(engine, made)


def test_tensorrt_llm_takes_a_falling_schedule_or_a_cut() -> None:
    def speculative(*limits: tuple[int, int | None, int]) -> Mapping[str, Any]:
        setup = exported("tensorrt-llm", plan("model", schedule=steps(*limits)))
        found: Mapping[str, Any] = setup.config["speculative_config"]
        return found

    assert speculative((1, 8, 4), (9, None, 0))["max_concurrency"] == 8
    falling = speculative((1, 8, 4), (9, 32, 2), (33, None, 1))
    assert falling["draft_len_schedule"] == {8: 4, 32: 2, 2048: 1}
    assert "max_concurrency" not in falling
    with pytest.raises(SettingError, match="lower bounds"):
        exported(
            "tensorrt-llm", plan("model", schedule=steps((1, 8, 4), (9, 32, 2))), version="1.2.1"
        )
    rising = speculative((1, 8, 2), (9, None, 4))
    assert "draft_len_schedule" not in rising
    assert rising["max_draft_len"] == 4


def test_llama_server_has_no_schedule_and_says_so() -> None:
    assert "no schedule by batch size" in said(exported("llama-server", plan(schedule=FALLING)))


def test_a_limit_that_is_given_replaces_the_schedule() -> None:
    setup = exported("vllm", plan("eagle3", schedule=FALLING), limit=3)
    assert setup.config["num_speculative_tokens"] == 3
    assert "num_speculative_tokens_per_batch_size" not in setup.config


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("schedule", "where"),
    [
        (FALLING, "also at batches of 33 and more"),
        (steps((1, 2, 0), (3, 3, 0), (4, 8, 4)), "at batches of 1 to 2 and a batch of 3,"),
        (steps((1, 8, 4), (9, None, 2)), "drafts go on."),
    ],
)
def test_that_a_given_limit_drafts_where_the_plan_does_not_is_said(
    engine: str, schedule: Any, where: str
) -> None:
    found = said(exported(engine, plan("model", schedule=schedule), limit=3))
    assert "With --limit the plan's schedule by batch size is gone" in found
    assert where in found
    assert "no schedule by batch size" not in found, "it is said once"
    assert "schedule" not in said(exported(engine, plan("model"), limit=3))


# What is refused

INEXPRESSIBLE = ["tree", "early-exit", "first", "cascade", "mixture", "shared", "text"]


@pytest.mark.parametrize("kind", INEXPRESSIBLE)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_cant_express_is_refused_and_the_nearest_named(
    engine: str, kind: str
) -> None:
    error = refusal(engine, plan(kind))
    assert "can't express" in error.fact
    assert "--nearest exports that" in error.cure
    setup = exported(engine, plan(kind), nearest=True)
    assert "In its place" in said(setup)
    assert setup.arguments


def test_the_nearest_to_an_early_exit_is_a_derived_draft_where_there_is_one() -> None:
    made = plan("early-exit")
    assert "paceline derive" in refusal("vllm", made).cure
    assert exported("vllm", made, nearest=True).config["method"] == "ngram"
    with_model = exported("vllm", made, nearest=True, draft_model="owner/derived")
    assert with_model.config["method"] == "draft_model"


def test_the_nearest_to_first_of_is_two_drafts_on_llama_server() -> None:
    made = plan("first", draft_model="draft.gguf")
    found = flags(exported("llama-server", made, nearest=True))
    assert found["--spec-type"] == "ngram-simple,draft-simple"
    assert {"--spec-draft-model", "--spec-ngram-simple-size-m"} <= set(found)


def test_the_nearest_to_other_vocabularies_is_vllms_intersection() -> None:
    made = plan("shared", draft_vocabulary_size=32000)
    config = exported("vllm", made, nearest=True).config
    assert config["use_heterogeneous_vocab"] is True
    assert flags(exported("sglang", made, nearest=True))["--speculative-algorithm"] == "NGRAM"


def test_medusa_is_vllms_up_to_0_32() -> None:
    config = exported("vllm", plan("medusa"), version="0.32.0").config
    assert config["method"] == "medusa"
    for engine, version in [("vllm", "0.33.0"), ("sglang", None), ("llama-server", None)]:
        error = refusal(engine, plan("medusa"), version=version, nearest=True)
        assert "can't express" in error.fact
        assert "0.32.0" in error.cure


def test_eagle_of_the_first_kind_is_no_tensorrt_llm_draft() -> None:
    assert "can't express" in refusal("tensorrt-llm", plan("eagle")).fact


def test_a_lossy_plan_is_refused() -> None:
    for engine in ENGINES:
        error = refusal(engine, plan(measured_exact=False))
        assert isinstance(error, DataError)
        assert "lossy" in error.fact


@pytest.mark.parametrize("asked", [{"min_p": 0.1}, {"logit_bias": {"3": 1.0}}])
def test_vllm_refuses_sampling_that_it_refuses_with_drafts(asked: dict[str, Any]) -> None:
    error = refusal("vllm", plan(measured_sampling=asked))
    assert next(iter(asked)) in error.fact
    exported("vllm", plan("none", measured_sampling=asked))
    exported("llama-server", plan(measured_sampling=asked))


@pytest.mark.parametrize(
    "asked", [{"min_p": 0.1}, {"repetition_penalty": 1.1}, {"presence_penalty": 0.5}]
)
def test_sglang_refuses_what_it_would_only_roughly_apply(asked: dict[str, Any]) -> None:
    assert next(iter(asked)) in refusal("sglang", plan(measured_sampling=asked)).fact


def test_neutral_sampling_is_no_fault() -> None:
    neutral = {"min_p": 0.0, "logit_bias": {}, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    for engine in ENGINES:
        exported(engine, plan(measured_sampling=neutral))


def test_tensorrt_llm_refuses_penalties() -> None:
    asked = {"frequency_penalty": 0.5}
    assert "frequency_penalty" in refusal("tensorrt-llm", plan(measured_sampling=asked)).fact


def test_unequal_vocabularies_are_refused() -> None:
    made = plan("model", draft_vocabulary_size=49000)
    for engine in ENGINES:
        error = refusal(engine, made)
        assert isinstance(error, PairError)
        assert "49,000" in error.fact
        assert "49,152" in error.fact
    near = plan("model", draft_vocabulary_size=49152 + 128)
    assert isinstance(refusal("vllm", near), PairError)
    exported("llama-server", near)
    assert isinstance(
        refusal("llama-server", plan("model", draft_vocabulary_size=49152 + 129)), PairError
    )


def test_vocabularies_of_equal_size_and_other_tokens_are_refused() -> None:
    made = plan("model", draft_vocabulary_hash="a", target_vocabulary_hash="b")
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        assert "not the same ones" in refusal(engine, made).fact


def test_a_model_that_was_replaced_is_not_judged_by_the_plans() -> None:
    """The plan's draft doesn't fit, and the one that is named may; the other way round too."""
    unfit = plan("model", draft_vocabulary_size=49000, draft_vocabulary_hash="a")
    assert isinstance(refusal("vllm", unfit, draft_model=DRAFT), PairError), "it is the plan's own"
    assert isinstance(refusal("vllm", unfit, target=TARGET), PairError)
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        other = said(exported(engine, unfit, draft_model="owner/fits"))
        assert "nothing is known of the draft owner/fits" in other
        assert "nothing is known of the target owner/o" in said(
            exported(engine, unfit, target="owner/o")
        )
    renamed = said(exported("llama-server", unfit, target="o.gguf", draft_model="f.gguf"))
    assert "nothing is known of the draft f.gguf and the target o.gguf" in renamed
    unlike = plan("model", draft_vocabulary_hash="a", target_vocabulary_hash="b")
    exported("vllm", unlike, draft_model="owner/fits")
    exported("vllm", unlike, target="owner/o")


def test_what_of_the_vocabularies_was_checked_is_said() -> None:
    assert "Whether their tokens do was not checked" in said(exported("vllm", plan("model")))
    same = plan("model", draft_vocabulary_hash="a", target_vocabulary_hash="a")
    assert "not checked" not in said(exported("vllm", same))


def test_a_drafts_tensor_parallelism_is_the_targets() -> None:
    model = plan("model")
    parallel = exported("vllm", model, tensor_parallel=2, draft_tensor_parallel=2)
    assert parallel.config["draft_tensor_parallel_size"] == 2
    assert "may have 2" in refusal("vllm", model, tensor_parallel=2, draft_tensor_parallel=1).fact
    eagle = exported("vllm", plan("eagle3"), tensor_parallel=2, draft_tensor_parallel=1)
    assert eagle.config["draft_tensor_parallel_size"] == 1
    assert (
        "1 or 4" in refusal("vllm", plan("eagle3"), tensor_parallel=4, draft_tensor_parallel=2).fact
    )
    for engine in ("sglang", "tensorrt-llm", "llama-server"):
        refusal(engine, model, tensor_parallel=2, draft_tensor_parallel=1)
    refusal("vllm", plan("lookup"), draft_tensor_parallel=1)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_plan_of_gguf_files_needs_repositories_named(engine: str) -> None:
    made = plan("model", target_path="/m/target.gguf", draft_model="/m/draft.gguf")
    assert "--target" in refusal(engine, made).cure
    assert "--draft-model" in refusal(engine, made, target=TARGET).cure
    setup = exported(engine, made, target=TARGET, draft_model=DRAFT)
    assert (setup.target, setup.draft) == (TARGET, DRAFT)


def test_llama_server_needs_gguf_files_named() -> None:
    with pytest.raises(SettingError, match="--target FILE.gguf"):
        make_setup("llama-server", plan("model"), Options(draft_model="d.gguf"))
    with pytest.raises(SettingError, match="--draft-model FILE.gguf"):
        make_setup("llama-server", plan("model"), Options(target="t.gguf"))


def test_a_model_that_nothing_would_read_is_refused() -> None:
    for engine in ENGINES:
        error = refusal(engine, plan("lookup"), draft_model="draft.gguf")
        assert "needs no model" in error.fact


def test_a_draft_that_lies_nowhere_is_refused() -> None:
    for engine in ENGINES:
        made = plan("model", draft_model=None)
        assert "--draft-model" in refusal(engine, made).cure


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", ["a\nb", "a\x00b", " ", "-rf", "\x1b[31m.gguf", "a/" * 2500, "é" * 2100]
)
def test_names_that_are_none_are_refused(engine: str, name: str) -> None:
    """Before anything looks at the disk, or says the name."""
    for error in (
        refusal(engine, plan(), target=name),
        refusal(engine, plan("model"), draft_model=name),
        refusal(engine, plan("model", target_path=name), target=None),
    ):
        assert "model's name" in error.fact
        assert error.fact.isprintable()
        assert len(error.fact) < 300


@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_that_no_file_may_have_is_not_here(engine: str) -> None:
    """It is one that Linux refuses to look for; a repository's may be as long."""
    long = "owner/" + "x" * 300 + (".gguf" if engine == "llama-server" else "")
    setup = exported(engine, plan("model"), draft_model=long, target=long)
    assert setup.draft == long
    assert "nothing is known of the draft" in said(setup)


def test_ours_is_refused_where_it_runs_nothing() -> None:
    assert "--ours" in refusal("sglang", plan(), ours=True).cure
    assert "runs lookup and recycle" in refusal("vllm", plan("model"), ours=True).fact
    assert "--ours" in refusal("vllm", plan("none"), ours=True).fact


def test_options_about_drafts_are_refused_without_one() -> None:
    for options in ({"draft_model": "d"}, {"limit": 3}, {"draft_tensor_parallel": 2}):
        assert "without a draft" in refusal("vllm", plan("none"), **options).fact


def test_max_running_is_sglangs() -> None:
    found = flags(exported("sglang", plan(), max_running=64))
    assert found["--max-running-requests"] == "64"
    refusal("vllm", plan(), max_running=64)


def test_unknown_engines_and_versions_name_the_nearest() -> None:
    assert "'vllm'" in refusal("vlm", plan()).cure
    for engine, version, near in [
        ("vllm", "0.32.1", "0.32.0"),
        ("vllm", "1.0", "0.33.0"),
        ("sglang", "0.5.20", "0.5.21"),
        ("llama-server", "b11500", "b11549"),
    ]:
        assert f"nearest known is {near} " in refusal(engine, plan(), version=version).cure
    assert exported("vllm", plan(), version="v0.31.0").version == "0.31.0"
    assert exported("llama-server", plan(), version="11434").version == "b11434"
    assert exported("vllm", plan()).version == KNOWN["vllm"][-1]


# The tables are closed


def keys_of(setup: Setup) -> set[str]:
    speculative = setup.config.get("speculative_config", {})
    return {*flags(setup), *setup.config, *speculative} - {"--speculative-config", "--config"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["model", "lookup", "mtp", "dflash"])
def test_a_key_that_the_version_doesnt_know_is_an_error_here(
    monkeypatch: pytest.MonkeyPatch, engine: str, kind: str
) -> None:
    whole = versions.table(engine)
    for key in keys_of(exported(engine, plan(kind))):
        without = replace(
            whole,
            keys=whole.keys - {key},
            by_method={name: known - {key} for name, known in whole.by_method.items()},
        )
        monkeypatch.setattr(versions, "_read", lambda *_, table=without: table)
        assert repr(key) in refusal(engine, plan(kind)).fact


@pytest.mark.parametrize("engine", ENGINES)
def test_every_known_version_has_a_table_and_exports(engine: str) -> None:
    for version in KNOWN[engine]:
        table = versions.table(engine, version)
        assert table.source
        assert exported(engine, plan(), version=version).version == version
        assert exported(engine, plan("model"), version=version).draft


def test_removed_flags_are_errors() -> None:
    table = versions.table("llama-server")
    for flag in ("--draft", "--draft-max", "--draft-n", "--draft-min", "--draft-n-min"):
        with pytest.raises(SettingError, match="any more"):
            table.admit({flag: "4"})


@pytest.mark.parametrize(
    ("engine", "settings", "method"),
    [
        ("vllm", {"rejection_sample_method": "synthetic"}, None),
        ("vllm", {"rejection_sample_method": "fly"}, None),
        ("vllm", {"synthetic_acceptance_length": 2.0}, None),
        ("vllm", {"fly_window_size": 4}, None),
        ("sglang", {"--speculative-accept-threshold-single": "0.9"}, None),
        ("tensorrt-llm", {"use_relaxed_acceptance_for_thinking": True}, "MTP"),
        ("tensorrt-llm", {"posterior_threshold": 0.1}, "Eagle3"),
        ("llama-server", {"--spec-synth-len": "3"}, None),
    ],
)
def test_a_rule_is_never_relaxed(engine: str, settings: Any, method: str | None) -> None:
    table = versions.table(engine)
    known = table.keys if method is None else table.by_method[method]
    assert set(settings) <= known, "the engine does have it: what refuses it is our rule"
    with pytest.raises(SettingError, match="never relaxes"):
        table.admit(settings, method)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_export_has_a_lossy_key(engine: str) -> None:
    for kind in ("model", "lookup", "mtp", "dflash", "eagle3"):
        setup = exported(engine, plan(kind))
        assert not any(LOSSY.search(key) for key in keys_of(setup))


# What is said


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["model", "lookup", "mtp"])
def test_every_export_says_what_was_measured_and_how_to_undo_it(engine: str, kind: str) -> None:
    text = said(exported(engine, plan(kind, remarks=("Loops were many.",))))
    assert "Measured by a bench (run.jsonl) on 2026-11-30" in text
    assert "1.62 times plain (1.50 to 1.75)" in text
    assert "40 prompts, 5,120 tokens, one sequence at a time, greedy, A CPU, 2 cores" in text
    assert "To undo:" in text
    assert "Loops were many." in text


def test_what_was_predicted_is_not_called_measured() -> None:
    text = said(exported("vllm", plan(measured_source="costs")))
    assert "Predicted, not measured, from costs" in text


def test_models_that_are_not_the_plans_are_said() -> None:
    made = plan("model", target_path="/m/target.gguf")
    text = said(exported("vllm", made, target=TARGET))
    assert "made with the target /m/target.gguf, and this names owner/target" in text
    assert "and this names" not in said(exported("vllm", plan(), target="/models/target"))
    assert "with the draft" not in text
    assert "and this names" not in said(exported("vllm", plan("model")))


def test_the_traps_of_engines_are_said() -> None:
    assert "at most 48" in said(exported("sglang", plan()))
    assert "at most 48" not in said(exported("sglang", plan(), max_running=8))
    warm = plan(measured_sampling={"temperature": 0.8})
    assert "CPU and XPU" in said(exported("sglang", warm))
    assert "CPU and XPU" not in said(exported("sglang", plan()))
    assert "draft_n is above 0" in said(exported("llama-server", plan()))
    assert "V1" in said(exported("vllm", plan("suffix")))
    assert "arctic-inference" in said(exported("vllm", plan("suffix")))
    assert "not tried" in said(exported("tensorrt-llm", plan()))


def test_engines_are_those_that_versions_are_known_of() -> None:
    assert set(WRITERS) == set(KNOWN)
