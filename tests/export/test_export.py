"""Plans as engines' settings: what is written, what is refused, what is said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from plans import DRAFT, TARGET, plan, steps

from paceline.economics.plan_document import PlanDocument
from paceline.errors import DataError, PacelineError, PairError, SettingError
from paceline.export import versions
from paceline.export.make import WRITERS, make_setup
from paceline.export.options import Options
from paceline.export.setup import Setup
from paceline.export.versions import KNOWN, LOSSY

GGUF = {"target": "target.gguf", "draft_model": "draft.gguf"}
ENGINES = list(KNOWN)


def exported(engine: str, made: PlanDocument, **options: Any) -> Setup:
    """llama-server is told of GGUF files, where the test names none itself."""
    if engine == "llama-server":
        options.setdefault("target", GGUF["target"])
        other = made.draft is not None and made.draft.kind in ("shared", "text")
        if made.draft is not None and made.draft.model is not None and not other:
            options.setdefault("draft_model", GGUF["draft_model"])
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


def test_a_repository_of_gguf_files_is_named_as_one() -> None:
    found = flags(exported("llama-server", plan("model"), draft_model="owner/name-GGUF:Q4_1"))
    assert found["--spec-draft-hf"] == "owner/name-GGUF:Q4_1"


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


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", " ", "-rf"])
def test_names_that_are_none_are_refused(name: str) -> None:
    refusal("vllm", plan(), target=name)
    refusal("vllm", plan("model"), draft_model=name)


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
