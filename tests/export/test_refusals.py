"""Plans that an engine, or one version of it, can't be told of: refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from exporting import ENGINES, exported, flags, refusal, said
from plans import DRAFT, TARGET, plan

from paceline.errors import DataError, PairError, SettingError
from paceline.export.make import make_setup
from paceline.export.setup import ENGINES as PROFILES
from paceline.export.setup import ExportOptions
from paceline.export.text import command

INEXPRESSIBLE = ["tree", "early-exit", "first", "cascade", "mixture", "shared", "text"]


@pytest.mark.parametrize("kind", INEXPRESSIBLE)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_cant_express_is_refused_and_the_nearest_named(
    engine: str, kind: str
) -> None:
    error = refusal(engine, plan(kind))
    assert "can't express" in error.fact
    assert "--nearest exports that" in error.hint
    setup = exported(engine, plan(kind), nearest=True)
    assert "In its place" in said(setup)
    assert setup.arguments


def test_the_nearest_to_an_early_exit_is_a_derived_draft_where_there_is_one() -> None:
    made = plan("early-exit")
    assert "paceline derive" in refusal("vllm", made).hint
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
        assert "0.32.0" in error.hint


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
    assert "--target" in refusal(engine, made).hint
    assert "--draft-model" in refusal(engine, made, target=TARGET).hint
    setup = exported(engine, made, target=TARGET, draft_model=DRAFT)
    assert (setup.target, setup.draft) == (TARGET, DRAFT)


def test_llama_server_needs_gguf_files_named() -> None:
    with pytest.raises(SettingError, match="--target FILE.gguf"):
        make_setup("llama-server", plan("model"), ExportOptions(draft_model="d.gguf"))
    with pytest.raises(SettingError, match="--draft-model FILE.gguf"):
        make_setup("llama-server", plan("model"), ExportOptions(target="t.gguf"))


def test_llama_server_fetches_a_target_that_is_named_as_a_repository() -> None:
    place = "ggml-org/x-GGUF:Q4_K_M"
    for kind in ("lookup", "none"):
        setup = exported("llama-server", plan(kind), target=place)
        assert command(setup)[:3] == ["llama-server", "-hf", place]
    opened = exported("llama-server", plan(), target="x/y.gguf")
    assert command(opened)[:3] == ["llama-server", "--model", "x/y.gguf"]
    for wrong in ("./x", "a/b/c", "x"):
        assert "not a GGUF file" in refusal("llama-server", plan(), target=wrong).fact


def test_a_model_that_nothing_would_read_is_refused() -> None:
    for engine in ENGINES:
        error = refusal(engine, plan("lookup"), draft_model="draft.gguf")
        assert "needs no model" in error.fact


def test_a_draft_that_lies_nowhere_is_refused() -> None:
    for engine in ENGINES:
        made = plan("model", draft_model=None)
        assert "--draft-model" in refusal(engine, made).hint


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
    assert "--ours" in refusal("sglang", plan(), ours=True).hint
    assert "runs lookup and recycle" in refusal("vllm", plan("model"), ours=True).fact
    assert "--ours" in refusal("vllm", plan("none"), ours=True).fact


def test_options_about_drafts_are_refused_without_one() -> None:
    for options in ({"draft_model": "d"}, {"max_draft_tokens": 3}, {"draft_tensor_parallel": 2}):
        assert "without a draft" in refusal("vllm", plan("none"), **options).fact


def test_max_running_is_sglangs() -> None:
    found = flags(exported("sglang", plan(), max_running=64))
    assert found["--max-running-requests"] == "64"
    refusal("vllm", plan(), max_running=64)


def test_unknown_engines_and_versions_name_the_nearest() -> None:
    assert "'vllm'" in refusal("vlm", plan()).hint
    for engine, version, near in [
        ("vllm", "0.32.1", "0.32.0"),
        ("vllm", "1.0", "0.33.0"),
        ("sglang", "0.5.20", "0.5.21"),
        ("llama-server", "b11500", "b11549"),
    ]:
        assert f"nearest known is {near} " in refusal(engine, plan(), version=version).hint
    assert exported("vllm", plan(), version="v0.31.0").version == "0.31.0"
    assert exported("llama-server", plan(), version="11434").version == "b11434"
    assert exported("vllm", plan()).version == PROFILES["vllm"].versions[-1]
