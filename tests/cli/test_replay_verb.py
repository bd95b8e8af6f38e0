"""`paceline replay` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.bench.profile.profile import costs_key
from paceline.engines.load import load
from paceline.policy.costs import Costs, Point
from paceline.simulate.trace import read_recording

REPEATS = "the cat and the cat and the cat and the cat and the cat"
COSTS = Costs(key={}, points=(Point(1, 1, 0, 1.0), Point(8, 1, 0, 1.75), Point(32, 1, 0, 4.75)))


@pytest.fixture
def log(run, tmp_path: Path) -> str:
    """Lines of several kinds; `run` has made this the working directory."""
    lines = [
        {"id": "a", "category": "quote", "prompt": "the cat", "completion": REPEATS},
        {"id": "b", "category": "song", "prompt": "sing", "completion": "my bird flew off"},
        {"id": "c", "category": "quote", "prompt": "the cat", "completion": REPEATS},
        {"id": "f", "category": "quote", "prompt": "a cat", "completion": REPEATS},
        {"id": "g", "category": "quote", "prompt": "the dog", "completion": REPEATS},
        {"id": "d", "category": "song", "prompt": "talk"},
        {"id": "e", "category": "song", "prompt": "talk", "completion": "no, 42!"},
    ]
    text = "\n".join(["{nothing", *map(json.dumps, lines)])
    (tmp_path / "log.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "costs.json").write_text(json.dumps(COSTS.as_document()), encoding="utf-8")
    return "log.jsonl"


TOY = ("--target", "toy:1")


@pytest.fixture(autouse=True)
def _letters_and_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy vocabulary that can spell words: its last token is the end's."""
    from paceline.engines.toy import ToyTokenizer

    spelled = ToyTokenizer.encode
    monkeypatch.setattr(
        ToyTokenizer, "encode", lambda self, text: spelled(self, text.replace(" ", "z"))
    )


def test_without_costs_tokens_per_round_and_no_word_of_speed(run, log) -> None:
    code, out, err = run("replay", log, *TOY, "-n", "1,4")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("How many tokens a round would bring is below; whether that pays")
    assert lines[2] == "Replayed: 241 tokens, 5 answers of log.jsonl."
    assert "Prompts left out, without an answer or with an empty one: 1." in lines
    assert "Left out: e: The toy vocabulary has no '!'. It has" in out
    assert "speedup" not in out
    rows = [line.split() for line in lines if line.startswith(("song", "quote", "all answers"))]
    assert [row[0] for row in rows[:3]] == ["song", "quote", "all"], "the worst category first"
    assert "log.jsonl: Line 1 is not JSON. Left out." in err
    assert "-n" not in err


def test_with_costs_what_pays_comes_first(run, log) -> None:
    code, out, _ = run("replay", log, *TOY, "-n", "1,4", "--costs", "costs.json", "--batch", "1,2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("Batch 1: ")
    assert "it pays" in lines[0]
    assert lines[1].startswith("  song: no draft pays")
    assert lines[2].startswith("  quote: it pays: ")
    assert any(line.startswith("  song: Fewer answers than a batch of 2") for line in lines)
    assert "Costs: costs.json. Times are predicted, none was measured." in lines
    assert "The costs were measured with at most 1 sequences at once" in out


def test_whose_costs_they_are_is_said_unless_they_are_of_this_target_here(run, log) -> None:
    with load("toy:1") as target, load("toy:2") as other:
        here, of_another = costs_key(target), costs_key(other)

    def told(key: dict, drafts: dict | None = None, *arguments: str) -> list[str]:
        given = replace(COSTS, key=key, drafts=drafts or {}).as_document()
        Path("costs.json").write_text(json.dumps(given), encoding="utf-8")
        command = ("replay", log, *TOY, *arguments, "-n", "4", "--costs", "costs.json")
        lines = run(*command)[1].splitlines()
        notes = json.loads(run(*command, "--json")[1])["notes"]
        found = [note for note in notes if note.startswith("The costs")]
        place = lines.index("Costs: costs.json. Times are predicted, none was measured.")
        assert lines[place + 1 : place + 1 + len(found)] == found
        return found

    assert told(here) == []
    assert told(here | {"threads": 64}) == [], "what a tokenizer can't know is not compared"
    cpu = f"{here['cpu']}, {here['cores']} cores"
    assert told(of_another) == [f"The costs are of toy:2 on {cpu}, not of this target, toy:1."]
    assert told(here | {"cores": 640}) == [
        f"The costs are of toy:1 on {here['cpu']}, 640 cores: this target, but not this machine."
    ]
    assert told({"model": "Big", "device": "NVIDIA H100"}) == [
        "The costs are of Big on NVIDIA H100; they don't say whether that is this target, toy:1."
    ]
    assert told({}) == ["The costs don't say of which model they are, in place of this target."]
    drafts = {"toy:1": replace(COSTS, key=of_another)}
    assert told(here, drafts, "-d", "toy:1") == [
        f"The costs are of toy:2 on {cpu}, not of this draft 'toy:1', toy:1."
    ]


def test_shipped_costs_of_another_model_are_no_silent_promise(run, log) -> None:
    _, out, _ = run("replay", log, *TOY, "-n", "4", "--costs", "llama-3.1-8b-h100-vllm")
    assert (
        "The costs are of Llama-3.1-8B-Instruct on NVIDIA H100; they don't say whether that is this"
        in out
    )


def test_the_document_and_the_recording_say_the_same(run, log) -> None:
    code, out, err = run("replay", log, *TOY, "-n", "4", "-o", "rounds.jsonl", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["kind"] == "paceline replay"
    assert document["complete"]
    assert document["predicted"] == {}
    assert document["answers"]["replayed"] == 5
    assert document["answers"]["unanswered"] == 1
    assert len(document["answers"]["failed"]) == 1
    limits = document["drafts"]["lookup"]["limits"]["4"]
    assert set(limits["categories"]) == {"song", "quote"}
    recording = read_recording("rounds.jsonl")
    assert [trace.id for trace in recording.traces] == ["a", "b", "c", "f", "g"]
    assert not any(trace.rounds for trace in recording.traces)
    assert "paceline simulate rounds.jsonl" in err
    code, out, _ = run(
        "simulate", "rounds.jsonl", "--costs", "costs.json", "--policy", "lookup:4", "--json"
    )
    assert code == 0
    simulated = json.loads(out)
    assert simulated["measured"] == {}, "nothing was decoded"
    found = simulated["policies"]["lookup:4"]["tokens_per_round"]
    assert found == limits["all"]["tokens_per_round"]


def test_a_model_draft_is_judged_by_its_own_pass(run, log) -> None:
    code, out, _ = run("replay", log, *TOY, "-d", "lookup", "-d", "toy:1", "-n", "4", "--json")
    assert code == 0
    document = json.loads(out)
    assert set(document["drafts"]) == {"lookup", "toy:1"}
    code, out, _ = run("replay", log, *TOY, "-d", "toy:1", "-n", "4", "--costs", "costs.json")
    assert code == 0
    assert "The costs have no figures of the draft 'toy:1', so it isn't priced" in out
    assert "speedup" not in out


def test_what_a_sampled_log_says_of_each_draft_is_said(run, log) -> None:
    _, out, _ = run("replay", log, *TOY, "-d", "lookup", "-d", "toy:1", "--temperature", "0.7")
    assert "Sampled at temperature 0.7: what a lookup gets right" in out
    assert (
        "Sampled at temperature 0.7: a model draft is judged as if it offered its likeliest" in out
    )
    _, out, _ = run("replay", log, *TOY)
    assert "The answers are taken for greedily decoded ones" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-d", "recycle"), "The draft 'recycle' can't be replayed: it learns from the target's"),
        (("-d", "early-exit:layers=2"), "it needs the target"),
        (("-d", "none"), "it offers nothing"),
        (("-d", "lookop"), "There is no draft named 'lookop'. Did you mean 'lookup'?"),
        (("-d", "lookup:store=s"), "it remembers other requests"),
        (("-d", "lookup:min_match=0"), "min_match is 0."),
        (("-d", "lookup", "-d", "lookup"), "The draft 'lookup' is named twice."),
        (("--threads", "2"), "--threads is 2, and no draft here is a model."),
        (("--batch", "4"), "--batch is 4, and without costs no speed is predicted."),
        (("-n", "33"), "33 is above 32"),
        (("-n", "0"), "0 is below 1"),
        (("--temperature", "-1"), "temperature is -1.0."),
        (("--costs", "h200"), "There is no file or shipped costs named 'h200'."),
        (("-o", "costs.json"), "costs.json is there already."),
        (("--engine", "llamacpp"), "There is no file toy:1."),
        (("--categories", "quotes"), "Did you mean 'quote'?"),
    ],
)
def test_what_cant_be_honoured_is_refused_in_a_line(run, log, arguments, said) -> None:
    code, out, err = run("replay", log, *TOY, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_log_without_answers_is_refused(run, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n', encoding="utf-8")
    code, _, err = run("replay", "log.jsonl", *TOY)
    assert code == 2
    assert "log.jsonl holds no answer to replay: 2 of 2 prompts have none." in err
    code, _, err = run("replay", "gone.jsonl", *TOY)
    assert code == 2
    assert "gone.jsonl can't be read" in err


def test_an_interrupt_keeps_what_was_replayed(run, log, monkeypatch) -> None:
    from paceline.simulate import replay as module

    judged, real = [], module._judged

    def interrupted(*arguments):
        judged.append(arguments)
        if len(judged) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "_judged", interrupted)
    code, out, err = run("replay", log, *TOY, "-n", "4", "-o", "rounds.jsonl")
    assert code == 1
    assert "Interrupted" in err
    assert "1 answer of log.jsonl" in out
    assert "Interrupted: these are the answers replayed so far." in out
    assert len(read_recording("rounds.jsonl").traces) == 1


def test_answers_that_were_cut_are_counted(run, log) -> None:
    _, out, _ = run("replay", log, *TOY, "--max-tokens", "16")
    assert "Cut at their most tokens, so no end token follows: 5 answers." in out
    _, out, _ = run("replay", log, *TOY, "--max-tokens", "100", "--json")
    assert json.loads(out)["answers"]["cut"] == 0
