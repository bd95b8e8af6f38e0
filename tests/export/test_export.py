"""Plans as engines' settings: what is written and what is said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from exporting import ENGINES, exported, flags, refusal, said
from plans import DRAFT, TARGET, plan, steps

from paceline.errors import DataError, PairError, SettingError
from paceline.export import setup as tables
from paceline.export.make import WRITERS
from paceline.export.setup import ENGINES as PROFILES
from paceline.export.setup import LOSSY, EngineSetup, engine_table
from paceline.plan.document import Expected

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
    setup = exported(
        "vllm", plan("lookup", max_draft_tokens=None, mean_draft_tokens=3.0), ours=True
    )
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
    setup = exported("vllm", plan(max_draft_tokens=None, mean_draft_tokens=2.6))
    assert setup.config["num_speculative_tokens"] == 3
    assert "2.6 tokens on average" in said(setup)
    least = exported("vllm", plan(max_draft_tokens=None, mean_draft_tokens=0.2))
    assert least.config["num_speculative_tokens"] == 1
    assert "--max-draft-tokens" in refusal("vllm", plan(max_draft_tokens=None)).hint
    assert (
        exported("vllm", plan(max_draft_tokens=None), max_draft_tokens=5).config[
            "num_speculative_tokens"
        ]
        == 5
    )


def test_a_limit_beyond_what_vllm_verifies_is_refused() -> None:
    assert "at most 128" in refusal("vllm", plan(max_draft_tokens=129), version="0.32.0").fact
    exported("vllm", plan(max_draft_tokens=128), version="0.32.0")


def test_suffix_drafts_keep_vllms_own_limit_where_a_policy_chose() -> None:
    assert exported("vllm", plan("suffix", max_draft_tokens=None)).config == {"method": "suffix"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_without_a_draft_has_no_drafts_and_the_measurement(engine: str) -> None:
    setup = exported(engine, plan("none"))
    assert "speculative" not in str(setup.config) + str(setup.arguments).replace("spec-decode", "")
    assert "without a draft" in said(setup)
    assert "speedup 1.62×" in said(setup)


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
    assert list(_drafts(json.loads(alone))) == ["recycle"]
    for kind in ("lookup", "ngram"):
        setup = exported("vllm", plan(kind), ours=True)
        assert "--additional-config" not in flags(setup)
        assert ("measure it anew" in said(setup)) == (kind == "ngram")
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
    assert "not a GGUF file" in refusal("llama-server", plan("model"), draft_model=place).fact


# Schedules by batch size

FALLING = steps((1, 8, 4), (9, 32, 2), (33, None, 0))


def test_vllm_takes_the_schedule() -> None:
    config = exported("vllm", plan("eagle3", schedule=FALLING)).config
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
    setup = exported("vllm", plan("eagle3", schedule=FALLING), max_draft_tokens=3)
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
    found = said(exported(engine, plan("model", schedule=schedule), max_draft_tokens=3))
    assert "With --max-draft-tokens the plan's schedule by batch size is gone" in found
    assert where in found
    assert "no schedule by batch size" not in found, "it is said once"
    assert "schedule" not in said(exported(engine, plan("model"), max_draft_tokens=3))


# The tables are closed


def keys_of(setup: EngineSetup) -> set[str]:
    speculative = setup.config.get("speculative_config", {})
    return {*flags(setup), *setup.config, *speculative} - {"--speculative-config", "--config"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["model", "lookup", "mtp", "dflash"])
def test_a_key_that_the_version_doesnt_know_is_an_error_here(
    monkeypatch: pytest.MonkeyPatch, engine: str, kind: str
) -> None:
    whole = engine_table(engine)
    for key in keys_of(exported(engine, plan(kind))):
        without = replace(
            whole,
            keys=whole.keys - {key},
            by_method={name: known - {key} for name, known in whole.by_method.items()},
        )
        monkeypatch.setattr(tables, "_read", lambda *_, table=without: table)
        assert repr(key) in refusal(engine, plan(kind)).fact


@pytest.mark.parametrize("engine", ENGINES)
def test_every_known_version_has_a_table_and_exports(engine: str) -> None:
    for version in PROFILES[engine].versions:
        table = engine_table(engine, version)
        assert table.source
        assert exported(engine, plan(), version=version).version == version
        assert exported(engine, plan("model"), version=version).draft


def test_removed_flags_are_errors() -> None:
    table = engine_table("llama-server")
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
    table = engine_table(engine)
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
    text = said(exported(engine, plan(kind, notes=("Loops were many.",))))
    assert "Measured by a bench (run.jsonl) on 2026-11-30" in text
    assert "speedup 1.62× (1.50 to 1.75)" in text
    assert "40 prompts, 5,120 tokens, one sequence at a time, greedy, A CPU, 2 cores" in text
    assert "To roll back:" in text
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
    assert set(WRITERS) == set(PROFILES)
