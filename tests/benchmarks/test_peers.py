"""The peers' runner with a fake peer: its channel, its turns, its record and its table."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import config
import psutil
import pytest
import run
from config import Kind, Side, plan_of, read_plan
from process import Worker, WorkerLost
from record import Record
from summary import summarise
from table import markdown
from worker import Answer

from paceline.errors import PacelineError

FAKE = str(Path(__file__).with_name("fake_worker.py"))
SIDES = [Side("g", "fake", mode) for mode in ("baseline", "ngram", "draft")]


@pytest.fixture
def fake(monkeypatch, tmp_path, peers_folder):
    """Lets a config name the worker `fake`; gives the file that it notes its questions in."""
    asked = tmp_path / "asked.txt"
    monkeypatch.setitem(config.KINDS, "fake", Kind(FAKE, ("baseline", "ngram", "draft"), False))
    monkeypatch.setenv("PEERS", str(peers_folder))
    monkeypatch.setenv("ASKED", str(asked))
    return asked


def document(**changes):
    entry = {"peer": "fake", "worker": "fake", "python": sys.executable, "model": "m", "draft": "d"}
    return {"threads": 1, "context": 64, "groups": {"g": [{**entry, **changes}]}}


def workers_of(tmp_path, **changes):
    processes = plan_of(document(**changes)).groups["g"]
    return [Worker(process, tmp_path / "log", 30) for process in processes]


def chat(text):
    return [{"role": "user", "content": text}]


def run_peers(monkeypatch, tmp_path, texts, *options, **changes):
    """What `python run.py` does, and the path of its result."""
    settings, prompts = tmp_path / "peers.json", tmp_path / "prompts.jsonl"
    out = tmp_path / "result.json"
    settings.write_text(json.dumps(document(**changes)))
    prompts.write_text(
        "".join(json.dumps({"id": t, "prompt": t, "category": t[0]}) + "\n" for t in texts)
    )
    command = ["run.py", "--config", settings, "--prompts", prompts, "--out", out, *options]
    monkeypatch.setattr(sys, "argv", [*map(str, command)])
    monkeypatch.setattr(run, "COOL_DOWN_S", 0)
    return run.main(), out


def test_what_libraries_print_does_not_reach_the_channel(fake, tmp_path):
    workers = workers_of(tmp_path, modes=["baseline"])
    try:
        assert workers[0].metadata["versions"] == {"fake": "1"}
        answer = workers[0].ask("a", "baseline", chat("hello"), 8, 30)
        assert (answer["tokens"], answer["output_tokens"], answer["ended"]) == (8, 9, True)
        log = (tmp_path / "log").read_text()
        assert "loading the library" in log
        assert '"noise"' in log
    finally:
        workers[0].close()


def test_a_failed_prompt_is_an_error_and_the_worker_goes_on(fake, tmp_path):
    workers = workers_of(tmp_path, modes=["baseline", "ngram"])
    try:
        assert "no such n-gram" in workers[1].ask("a", "ngram", chat("fail"), 8, 30)["error"]
        assert workers[1].ask("b", "ngram", chat("fine"), 8, 30)["tokens"] == 8
    finally:
        for worker in workers:
            worker.close()


@pytest.mark.parametrize(("text", "why"), [("die", "ended"), ("hang", "said nothing for 1 s")])
def test_a_worker_that_dies_or_hangs_is_lost(fake, tmp_path, text, why):
    workers = workers_of(tmp_path, modes=["baseline", "ngram"])
    try:
        with pytest.raises(WorkerLost, match=why):
            workers[1].ask("a", "ngram", chat(text), 8, 1)
    finally:
        for worker in workers:
            worker.close()


def test_a_worker_that_cannot_start_says_why(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIL_START", "m")
    with pytest.raises(WorkerLost, match="the model is broken"):
        workers_of(tmp_path, modes=["baseline"])


def test_tokens_behind_the_end_token_are_refused():
    answer = Answer([1], [5, 0, 5], 0.1, 0.2, "", None, None, [0], True)
    with pytest.raises(ValueError, match="1 tokens stand after the end token"):
        answer.as_json()


def test_every_prompt_goes_to_all_sides_before_the_next_in_an_order_that_changes(
    fake, tmp_path, monkeypatch
):
    texts = [f"{n} text" for n in range(8)]
    code, out = run_peers(monkeypatch, tmp_path, texts)
    assert code == 0
    asked = [line.split(" ", 1) for line in fake.read_text().splitlines()]
    asked = [(mode, text) for mode, text in asked if text in texts]
    turns = [asked[i : i + 3] for i in range(0, len(asked), 3)]
    assert [turn[0][1] for turn in turns] == texts
    assert all({mode for mode, _ in turn} == {"baseline", "ngram", "draft"} for turn in turns)
    assert all(len({text for _, text in turn}) == 1 for turn in turns)
    assert len({tuple(mode for mode, _ in turn) for turn in turns}) > 1
    result = json.loads(out.read_text())
    sides = {side["mode"]: side for side in result["groups"][0]["sides"]}
    assert sides["baseline"]["all"]["ms_per_token"] == pytest.approx(100)
    assert sides["baseline"]["all"]["speedup"] is None
    assert sides["ngram"]["all"]["speedup"]["value"] == pytest.approx(2)
    assert sides["draft"]["by_category"]["0"]["speedup"]["value"] == pytest.approx(0.5)
    assert not out.with_suffix(".jsonl").exists()


def test_a_lost_worker_is_started_again_and_the_prompt_is_dropped_for_all(
    fake, tmp_path, monkeypatch
):
    code, out = run_peers(monkeypatch, tmp_path, ["a", "die", "b", "c"])
    assert code == 0
    [group] = json.loads(out.read_text())["groups"]
    assert group["dropped"] == ["die"]
    assert [error["mode"] for error in group["errors"]] == ["ngram"]
    assert {side["texts"] for side in group["sides"]} == {3}


def test_what_was_lost_with_a_worker_is_asked_again_by_a_second_start(
    fake, tmp_path, monkeypatch, capsys
):
    began, texts = run.Crew._begin, ["a", "die", "b"]
    starts = []

    def once(crew, process):
        starts.append(process)
        if len(starts) > 3:
            raise WorkerLost("no memory is left")
        return began(crew, process)

    monkeypatch.setattr(run.Crew, "_begin", once)
    _, out = run_peers(monkeypatch, tmp_path, texts)
    [group] = json.loads(out.read_text())["groups"]
    assert [error["id"] for error in group["errors"]] == ["die", "b"]
    assert "start again" in capsys.readouterr().err
    assert out.with_suffix(".jsonl").exists()
    monkeypatch.setattr(run.Crew, "_begin", began)
    monkeypatch.setenv("HEALTHY", "1")
    fake.unlink()
    code, out = run_peers(monkeypatch, tmp_path, texts)
    assert code == 0
    [group] = json.loads(out.read_text())["groups"]
    assert group["errors"] == group["dropped"] == []
    asked = [line.split()[1] for line in fake.read_text().splitlines() if len(line.split()) == 2]
    assert asked == ["die"] * 3 + ["b"] * 3, "whole turns, and what was answered is kept"
    assert not out.with_suffix(".jsonl").exists()


def test_a_group_whose_peer_cannot_start_is_left_out_and_can_be_added_later(
    fake, tmp_path, monkeypatch, capsys
):
    one = document(modes=["baseline"])["groups"]["g"]
    both = {**document(), "groups": {"broken": [{**one[0], "model": "bad"}], "g": one}}
    monkeypatch.setattr(sys.modules[__name__], "document", lambda: both)
    monkeypatch.setenv("FAIL_START", "bad")
    code, out = run_peers(monkeypatch, tmp_path, ["a"])
    assert code == 1
    assert "The group broken is left out" in capsys.readouterr().err
    assert [group["group"] for group in json.loads(out.read_text())["groups"]] == ["g"]
    monkeypatch.delenv("FAIL_START")
    code, out = run_peers(monkeypatch, tmp_path, ["a"])
    assert code == 0
    assert {group["group"] for group in json.loads(out.read_text())["groups"]} == {"broken", "g"}


def test_a_python_that_is_not_there_is_named(fake, tmp_path):
    with pytest.raises(WorkerLost, match="nowhere/python"):
        workers_of(tmp_path, modes=["baseline"], python="/nowhere/python")


def test_an_interrupted_run_goes_on_and_repeats_the_turn_that_was_cut(fake, tmp_path, monkeypatch):
    asked = []

    def interrupted(crew, side, prompt, max_tokens):
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.append((side.mode, prompt.id))
        return whole(crew, side, prompt, max_tokens)

    whole = run.Crew.ask
    monkeypatch.setattr(run.Crew, "ask", interrupted)
    code, out = run_peers(monkeypatch, tmp_path, ["a", "b", "c"])
    assert code == 130
    assert len(json.loads(out.read_text())["rows"]) == 4
    with out.with_suffix(".jsonl").open("a") as lines:
        lines.write('{"group": "g", "peer": "fa')  # a line that was being written
    monkeypatch.setattr(run.Crew, "ask", whole)
    fake.unlink()
    code, out = run_peers(monkeypatch, tmp_path, ["a", "b", "c"])
    assert code == 0
    again = [line.split()[1] for line in fake.read_text().splitlines() if len(line.split()) == 2]
    assert again == ["b"] * 3 + ["c"] * 3
    assert len(json.loads(out.read_text())["rows"]) == 9
    with pytest.raises(AssertionError):  # complete: a third start must not write over it
        assert run_peers(monkeypatch, tmp_path, ["a", "b", "c"])[0] == 0


def test_a_record_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    Record(path, {"max_tokens": 8, "seed": 0})
    before = path.read_bytes()
    with pytest.raises(PacelineError, match="its max_tokens differ"):
        Record(path, {"max_tokens": 9, "seed": 0})
    assert path.read_bytes() == before


def test_a_record_holds_what_was_measured_last_however_often_it_is_opened(tmp_path):
    path, header = tmp_path / "run.jsonl", {"seed": 0}
    Record(path, header).add(row("baseline", "a", 1.0))
    with path.open("a") as lines:
        lines.write('{"group": "g", "pe')  # it was ended while it wrote
    again = Record(path, header)
    assert not again.done("g", "a", SIDES[:2])
    again.begin_turn("g", "a")
    again.add(row("baseline", "a", 2.0))
    again.add(row("ngram", "a", 3.0))
    last = Record(path, header)
    assert last.done("g", "a", SIDES[:2])
    assert [found["decode_s"] for found in last.rows] == [2.0, 3.0]


def row(mode, name, seconds, tokens=10, **changes):
    return {
        "group": "g",
        "peer": "fake",
        "mode": mode,
        "id": name,
        "category": "edit",
        "tokens": tokens,
        "output_tokens": tokens + 1,
        "decode_s": seconds,
        "prefill_s": 0.1,
        "text": "same",
        "ended": True,
        "drafted": None,
        "accepted": None,
        "prompt_digest": "x",
        "retokenised": True,
        "wall_s": seconds,
        "idle_cpu_s": 0.0,
        **changes,
    }


def test_ratios_are_of_sums_and_slowdowns_are_marked():
    rows = [
        row("baseline", "a", 1.0),
        row("ngram", "a", 0.5),
        row("baseline", "b", 1.0),
        row("ngram", "b", 3.5, tokens=20, text="other", drafted=4, accepted=1),
    ]
    [group] = summarise(rows, SIDES)
    ngram = group["sides"][1]
    # 2 s over 20 tokens beside 4 s over 30
    assert ngram["all"]["speedup"]["value"] == pytest.approx(0.75)
    assert ngram["texts_as_baseline"] == 1
    assert ngram["drafted"] is None  # one row has no count: not measured, rather than 4
    text = markdown([{"groups": [group]}])
    assert "| fake | baseline | 100 | - | - | 100 |" in text
    assert "| fake | ngram | 133 (0.75 ▼) | - | 1 of 2 | 133 (0.75 ▼ [" in text


def test_a_side_that_fails_on_most_takes_no_prompt_from_the_others():
    rows = [row("baseline", name, 1.0) for name in "abc"]
    rows += [{**row("ngram", name, 1.0), "error": "no"} for name in "bc"]
    rows += [row("ngram", "a", 1.0)]
    rows += [row("draft", "a", 1.0), row("draft", "b", 1.0)]
    rows += [{**row("draft", "c", 1.0), "error": "no"}]
    [group] = summarise(rows, SIDES)
    assert group["dropped"] == ["c"]
    assert [side["answered"] for side in group["sides"]] == [True, False, True]
    text = markdown([{"groups": [group]}])
    assert "- g: never answered: fake, ngram." in text
    assert "- g: left out for all: c" in text


def test_a_waiting_worker_that_spins_is_measured(fake, tmp_path):
    waiting, working = workers_of(tmp_path, modes=["baseline", "ngram"])
    try:
        before = waiting.cpu_seconds()
        time.sleep(0.3)
        assert waiting.cpu_seconds() - before < 0.05
        waiting.ask("a", "baseline", chat("spin"), 8, 30)  # and its child goes on after the answer
        before = waiting.cpu_seconds()
        time.sleep(0.6)
        assert waiting.cpu_seconds() - before > 0.1
        [child] = psutil.Process(waiting.pid).children(recursive=True)
    finally:
        waiting.close()
        working.close()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_differing_prompts_counts_and_busy_waiting_are_told():
    rows = [
        row("baseline", "a", 1.0, idle_cpu_s=0.5),
        row("ngram", "a", 1.0, tokens=11, prompt_digest="y"),
    ]
    text = markdown([{"groups": summarise(rows, SIDES)}])
    assert "not the same prompt tokens for all: a" in text
    assert "same text, another number of tokens: a" in text
    assert "waiting workers used 25% of a core" in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"modes": ["ngram"]}, "has no baseline mode"),
        ({"modes": ["baseline", "tree"]}, "'tree'"),
        ({"worker": "lama"}, "'lama'"),
        ({"thread": 2}, "'thread'"),
        ({"eager": True}, "eager is set for fake"),
    ],
)
def test_a_wrong_config_is_refused_by_name(fake, changes, sentence):
    with pytest.raises(PacelineError) as caught:
        plan_of(document(**changes))
    assert sentence in str(caught.value)


def test_a_config_of_another_form_is_refused(tmp_path):
    path = tmp_path / "peers.json"
    path.write_text('{"threads": 2}')
    with pytest.raises(PacelineError, match="'context'"):
        read_plan(str(path))


def test_the_shipped_config_is_sound_and_draft_modes_have_their_model(peers_folder):
    plan, _ = read_plan(str(peers_folder / "peers.example.json"))
    assert {"llamacpp", "transformers", "vllm-ngram", "vllm-draft"} == set(plan.groups)
    commands = [p.command for group in plan.groups.values() for p in group]
    assert all("--draft" in c for c in commands if "draft" in c[c.index("--modes") + 1])


def test_the_order_of_a_resumed_turn_is_the_same():
    sides = [SimpleNamespace(mode=n) for n in range(5)]
    assert run.order(sides, 0, "a") == run.order(sides, 0, "a")
    assert {tuple(s.mode for s in run.order(sides, 0, str(n))) for n in range(9)} != {
        (0, 1, 2, 3, 4)
    }
