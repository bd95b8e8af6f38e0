"""Drafts of every kind on the command line: what fits them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import options
from paceline.errors import ModelError
from paceline.testing import ToyEngine

GENERATE = ("generate", "toy:3", "--raw", "-p", "abcabc", "--max-tokens", "20")


def test_drafts_that_offer_trees_bring_their_verifier(run) -> None:
    code, out, err = run(*GENERATE, "-d", "recycle", "-n", "4", "--json")
    assert (code, json.loads(out)["verifier"]) == (0, "tree"), err
    code, out, _ = run(*GENERATE, "-d", "recycle:branches=1", "-n", "4", "--json")
    assert json.loads(out)["verifier"] == "chain"
    code, _, err = run(*GENERATE, "-d", "recycle", "-n", "4", "--verifier", "chain")
    assert code == 2
    assert "offers trees, and the verifier chain takes chains" in err
    assert "--allow-chains" in err
    code, out, _ = run(
        *GENERATE, "-d", "recycle", "-n", "4", "--verifier", "chain", "--allow-chains"
    )
    assert code == 0


def test_leave_to_take_chains_is_refused_where_nothing_needs_it(run) -> None:
    code, _, err = run(*GENERATE, "-d", "lookup", "-n", "4", "--allow-chains")
    assert code == 2
    assert "no draft here offers trees" in err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("-d", "tree:engine=x,toy:4"), "has no option 'engine'"),
        (("-d", "first:drafts=x,lookup+lookup"), "has no option 'drafts'"),
        (("-d", "lookup:target=x"), "has no option 'target'"),
        (("-d", "lookup:cls=x"), "has no option 'cls'"),
        (("-d", "tree:depth=2,depth=3,toy:4"), "depth of the draft 'tree' is given twice"),
        (("-d", "lookup", "--verifier", "tree:cls=1"), "has no option 'cls'"),
        (("-d", "lookup", "--verifier", "tree:x=1"), "has no option 'x'"),
        (("-d", "first:lookup+mixture:lookup+toy:4"), "is made of 1 part"),
        (("-d", "cascade:lookup+tree:toy:4"), "can't go on behind drafted tokens"),
    ],
    ids=str,
)
def test_options_that_nothing_has_are_refused(run, option, said) -> None:
    code, _, err = run(*GENERATE, *option, "-n", "3")
    assert code == 2
    assert said in err


def test_a_bench_records_no_trees(run, tmp_path: Path) -> None:
    prompts = str(tmp_path / "prompts.jsonl")
    Path(prompts).write_text('{"prompt": "abcabc", "id": "one"}\n')
    options = ("-d", "recycle", "-n", "4", "--record", "r.jsonl", "--prompts", prompts)
    code, _, err = run("bench", "toy:3", *options)
    assert code == 2
    assert "'recycle' offers trees, and a recording holds chains" in err


def test_check_tells_of_each_part(run) -> None:
    code, out, _ = run("check", "toy:3", "-d", "cascade:lookup+toy:4")
    assert code == 0
    assert "cascade:lookup+toy:4 fits: same 27 tokens" in out


def test_profile_prices_whatever_holds_a_model(run) -> None:
    code, out, err = run("profile", "toy:3", "-d", "shared:toy:4", "--sweeps", "2")
    assert code == 0, err
    assert "shared:toy:4" in out
    code, _, err = run("profile", "toy:3", "-d", "recycle", "--sweeps", "2")
    assert code == 2
    assert "'recycle' has no model" in err


def test_plan_knows_what_it_can_price(run) -> None:
    code, out, _ = run("break-even", "toy:3", "-d", "recycle")
    assert code == 0
    assert "match" not in out
    code, _, err = run("break-even", "toy:3", "-d", "tree:toy:4")
    assert code == 2
    assert "offers trees, and this arithmetic is of chains" in err


def test_a_combined_draft_may_hold_models(run) -> None:
    code, out, err = run(*GENERATE, "-d", "tree:depth=2,toy:4", "-n", "4", "--json")
    assert code == 0, err
    assert json.loads(out)["verifier"] == "tree"
    code, _, err = run(*GENERATE, "-d", "tree:depth=2,")
    assert code == 2
    assert "none is named" in err


@pytest.mark.parametrize(
    ("engine", "kept"), [("llamacpp", ["threads"]), ("toy", ["cache_type", "dtype", "threads"])]
)
def test_what_is_said_of_the_target_holds_for_a_draft_on_the_same_engine_and_threads_on_any(
    engine: str, kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    def load(model: str, **told: object) -> None:
        given.update(told)
        raise ModelError(f"{model} was asked for.", "That is all.")

    monkeypatch.setattr(options, "load", load)
    said: dict[str, Any] = {"threads": 3, "dtype": "float32", "cache_type": "float16"}
    loading, place = options.DraftOptions(draft_engine=engine), options.PlaceOptions(**said)
    with ToyEngine.load("toy:3") as target, pytest.raises(ModelError, match="was asked for"):
        loading.load("draft.gguf", target, place)
    assert {name: given[name] for name in said if name in given} == {
        name: said[name] for name in kept
    }
