"""Lossy verifiers on the command line: off by default, and marked wherever anything is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

GENERATE = ("generate", "toy:3", "--raw", "-p", "abcabcabc", "--max-tokens", "30")
DRAFTED = (*GENERATE, "-d", "lookup:min_match=1", "-n", "3", "--temperature", "1", "--seed", "1")


TEXTS = ("abcabcabcabc", "the boat and the boat", "hello hello hello")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--verifier", "typical"), "The verifier typical is lossy: it gives up the target's"),
        (("--verifier", "tolerance:budget=0.2"), "allow it with --lossy"),
        (("--lossy",), "--lossy is given, and the verifier chain is exact. Leave it out"),
        (("--lossy", "--verifier", "block"), "the verifier block is exact"),
        (("--lossy", "--verifier", "tolerance:bugdet=1"), "named 'bugdet'. Did you mean 'budget'"),
        (("--lossy", "--verifier", "tolerance:0.2"), "the option '0.2' without a value"),
        (("--lossy", "--verifier", "tolerance:budget=x"), "budget is 'x'. It must be a number"),
        (("--verifier", "chain:budget=1"), "The verifier 'chain' has no option 'budget'"),
        (("--verifier", "typicl"), "Did you mean 'typical'"),
    ],
)
@pytest.mark.parametrize("verb", ["generate", "bench"])
def test_it_is_refused_in_one_line_unless_asked_for(run, verb, given, message) -> None:
    command = DRAFTED if verb == "generate" else ("bench", "toy:3", "-d", "lookup")
    code, out, err = run(*command, *given)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith(f"paceline {verb}: ")
    assert len(err.splitlines()) == 1


def test_generate_marks_its_line_and_its_document(run) -> None:
    lossy = ("--verifier", "tolerance:budget=0.2", "--lossy")
    code, _, err = run(*DRAFTED, *lossy)
    assert code == 0
    assert "LOSSY (tolerance): " in err
    assert "nats per token from the target" in err
    document = json.loads(run(*DRAFTED, *lossy, "--json")[1])
    assert document["exact"] is False
    assert "up to 0.2 nats" in document["gives_up"]
    assert 0 < document["divergence"]["kl_nats_per_token"] <= 0.2
    assert document["divergence"]["tokens"] == len(document["tokens"])
    exact = json.loads(run(*DRAFTED, "--json")[1])
    assert (exact["exact"], exact["gives_up"], exact["divergence"]) == (True, None, None)
    assert "LOSSY" not in run(*DRAFTED)[2]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    place = tmp_path / "prompts.jsonl"
    place.write_text("".join(json.dumps({"id": text[:2], "prompt": text}) + "\n" for text in TEXTS))
    return str(place)


def bench(prompts: str, *given: str) -> tuple[str, ...]:
    drafts = ("-d", "lookup:min_match=1", "-n", "3", "--max-tokens", "40", "-o", "out.json")
    return ("bench", "toy:3", "--raw", "--prompts", prompts, *drafts, "--seed", "1", *given)


def test_bench_marks_card_table_and_document(run, prompts, tmp_path) -> None:
    lossy = ("--verifier", "tolerance:budget=0.2", "--lossy", "--temperature", "1")
    code, out, _ = run(*bench(prompts, *lossy))
    assert code == 0
    headline = out.splitlines()[0]
    table = next(line for line in out.splitlines() if line.startswith("TPOT in ms"))
    assert headline.startswith("lookup:min_match=1 -n 3 (lossy): ")
    assert table.endswith("lookup:min_match=1 -n 3 (lossy)")
    assert "LOSSY (tolerance): gives up the target's distribution" in out
    assert "nats per token from the target (95 % interval" in out
    assert "of tokens changed (95 % interval" in out
    code, out, _ = run(*bench(prompts, *lossy, "--json"))  # goes on with nothing left to do
    document = json.loads(out)
    baseline, drafted = document["configurations"]
    assert (baseline["exact"], baseline["gives_up"], baseline["divergence"]) == (True, None, None)
    assert drafted["exact"] is False
    assert "up to 0.2 nats" in drafted["gives_up"]
    kl = drafted["divergence"]["kl_nats_per_token"]
    assert kl["low"] <= kl["value"] <= kl["high"]
    assert 0 < kl["value"] <= drafted["divergence"]["largest_kl_nats"] <= 0.2
    for one in document["runs"]:
        assert one["exact"] is (one["configuration"] == "baseline")
        assert (one["divergence"] is None) is one["exact"]


def test_a_greedy_bench_compares_the_texts_and_marks_them(run, prompts) -> None:
    for verifier in ("typical", "tolerance:budget=1"):
        Path("out.json").unlink(missing_ok=True)
        code, out, _ = run(*bench(prompts, "--verifier", verifier, "--lossy"))
        assert code == 0
        assert "text equals the baseline's in 3 of 3 runs" in out
        assert "(lossy)" in out
        assert "0 nats per token from the target" in out


def test_a_lossy_bench_is_not_recorded(run, prompts) -> None:
    lossy = ("--verifier", "typical", "--lossy", "--record", "rounds.jsonl")
    code, out, err = run(*bench(prompts, *lossy))
    assert (code, out) == (2, "")
    assert "Record with an exact verifier" in err
    assert not Path("rounds.jsonl").exists()


def test_list_marks_them(run) -> None:
    lines = run("list")[1].splitlines()
    for name in ("typical", "tolerance"):
        [line] = [line for line in lines if line.split()[:1] == [name]]
        assert "LOSSY, needs --lossy" in line
        assert "gives up the target's distribution" in line
        assert "; exact" not in line
    found = json.loads(run("list", "--json")[1])["verifier"]
    marked = {name for name, line in found.items() if line.startswith("LOSSY")}
    assert marked == {"typical", "tolerance"}


def test_check_takes_no_verifier(run) -> None:
    """It proves the bookkeeping, which only an exact one can."""
    code, out, err = run("check", "toy:3", "--verifier", "typical", "--lossy")
    assert (code, out) == (2, "")
    assert "--verifier typical --lossy" in err
