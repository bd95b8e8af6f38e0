"""`paceline simulate` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.policy.costs import Costs, Feed, Point
from paceline.simulate.simulate import policy_named, simulate
from paceline.simulate.trace import Recording, RecordingHeader, SourceTrace, Trace, write
from paceline.testing import sample_round
from paceline.types import Round

COSTS = Costs(
    key={},
    points=(Point(1, 1, 0, 1.0), Point(2, 1, 0, 1.25), Point(3, 1, 0, 1.5)),
    feeds=(Feed(4, 3.0),),
    drafts={},
)


def measured(context: int, max_draft_tokens: int, accepted: int, seconds: float) -> Round:
    return sample_round(
        max_draft_tokens=max_draft_tokens,
        accepted=accepted,
        source="lookup" if max_draft_tokens else None,
        context=context,
        prefill=context == 4,
        draft_s=0.0,
        verify_s=seconds,
        other_s=0.0,
    )


def trace(configuration: str, rounds: list[Round]) -> Trace:
    """Prompt of 4 and answer of 6; the lookup has two tokens to offer twice, all right."""
    offered = (0, 2, 0, 0, 2, 0)
    known = SourceTrace((9,) * 6, (0, 2, 0, 0, 2, 0), offered, offered)
    return Trace(
        id="a",
        category="chat",
        prompt_tokens=4,
        output_tokens=6,
        most_tokens=8,
        sources={"lookup": known},
        rounds=tuple(rounds),
        configuration=configuration,
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    header = RecordingHeader(target={}, temperature=0.0, sources={"lookup": True, "model": False})
    baseline = [measured(4, 0, 0, 9.0), *(measured(n, 0, 0, 0.8) for n in range(5, 10))]
    drafted = [measured(4, 0, 0, 9.0), measured(5, 2, 2, 2.0), measured(8, 2, 2, 2.0)]
    with Path("rounds.jsonl").open("w") as stream:
        write(header, stream)
        write(trace("baseline", baseline), stream)
        write(trace("lookup -n 2", drafted), stream)
    Path("costs.json").write_text(json.dumps(COSTS.as_document()))

    def command(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["simulate", *arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


GOOD = ("rounds.jsonl", "--costs", "costs.json")


def test_a_row_a_policy_then_what_was_measured_then_hindsight(run) -> None:
    code, out, err = run(*GOOD, "--policy", "lookup:1,baseline")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "policy"
    # Two drafted rounds of one token each and a baseline one, after 3 s of reading the prompt.
    assert lines[1].split() == ["lookup:1", "6.50", "700.00", "1.43", "1.67", "67%", "6.50", "s"]
    assert lines[2].split() == ["baseline", "8.00", "1000.00", "1.00", "1.00", "0%", "8.00", "s"]
    assert lines[4] == (
        "measured   baseline: 4.00 s of decoding; predicted as baseline: 5.00 s, 1.25 "
        "times the measured"
    )
    assert lines[5] == (
        "measured   lookup -n 2: 4.00 s of decoding; predicted as lookup:2: 3.00 s, "
        "0.75 times the measured"
    )
    assert lines[7] == ("hindsight  chat: best fixed is lookup:2; lookup:1 +16.7%, baseline +66.7%")


def test_the_document_says_the_same(run) -> None:
    code, out, err = run(*GOOD, "--json", "--configuration", "lookup -n 2")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document["policies"]) == ["measured", "baseline"]
    assert document["policies"]["baseline"]["decode_s"] == 5.0
    assert document["measured"] == {
        "lookup -n 2": {
            "policy": "lookup:2",
            "decode_s": 4.0,
            "predicted_s": 3.0,
            "predicted_over_measured": 0.75,
        }
    }
    assert document["hindsight"]["chat"]["policy"] == "lookup:2"


def test_a_measured_policy_is_predicted_with_nothing_counted_before(run) -> None:
    """As a bench runs it: each request with a fresh policy. One for all would have learned."""
    costs = Costs(key={}, points=tuple(Point(n, 1, 0, 1 + 0.1 * n) for n in range(1, 34)))
    size = 40
    right = tuple(min(20, size - t) if t % 2 else 0 for t in range(size))
    lists = (3,) * size, right, (20,) * size, (20,) * size
    one = replace(
        trace("auto", []),
        output_tokens=size,
        most_tokens=size,
        sources={"lookup": SourceTrace(*lists)},
    )
    header = RecordingHeader(
        target={}, temperature=0.0, sources={"lookup": True}, has_confidence=("lookup",)
    )

    def served(*traces: Trace):
        policy = policy_named("measured", costs, header.sources)
        return simulate(Recording(header, traces), costs, policy).served

    fresh, learned = served(one)[0].rounds, served(one, one)[1].rounds
    assert sum(r.verify_s for r in fresh) != sum(r.verify_s for r in learned)
    with Path("two.jsonl").open("w") as stream:
        for line in (header, replace(one, rounds=fresh), replace(one, id="b", rounds=fresh)):
            write(line, stream)
    Path("wide.json").write_text(json.dumps(costs.as_document()))
    code, out, _ = run("two.jsonl", "--costs", "wide.json", "--json")
    found = json.loads(out)["measured"]["auto"]
    assert (code, found["policy"]) == (0, "measured")
    assert found["predicted_over_measured"] == pytest.approx(1, abs=1e-12)


def test_arrivals_batch_and_budget_reach_the_server(run) -> None:
    def total(*more: str) -> float:
        code, out, _ = run(*GOOD, "--policy", "lookup:2", "--json", *more)
        assert code == 0
        return json.loads(out)["policies"]["lookup:2"]["total_s"]

    assert total() == 6.0
    assert total("--budget", "2") > 6.0
    late = total("--arrivals", "0.1")
    assert late > 6.0
    assert total("--arrivals", "0.1", "--seed", "1") != late
    assert json.loads(run(*GOOD, "--json", "--batch", "2")[1])["hindsight"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.jsonl", "--costs", "costs.json"), "none.jsonl can't be read"),
        (
            ("costs.json", "--costs", "costs.json"),
            "is not a paceline rounds file: its kind is 'paceline costs'",
        ),
        (("empty.jsonl", "--costs", "costs.json"), "empty.jsonl is empty"),
        (("header.jsonl", "--costs", "costs.json"), "a header and no request"),
        (("rounds.jsonl", "--costs", "none.json"), "none.json can't be read"),
        (
            ("rounds.jsonl", "--costs", "bad.json"),
            "bad.json is not a paceline costs file: it has no kind",
        ),
        (("rounds.jsonl", "--costs", "rounds.jsonl"), "rounds.jsonl is not JSON"),
        (("rounds.jsonl",), "--costs"),
        ((*GOOD, "--policy", "mesured"), "Did you mean 'measured'"),
        ((*GOOD, "--policy", "baseline,lokup:3"), "Did you mean 'lookup'"),
        ((*GOOD, "--policy", "lookup:0"), "1 or more"),
        ((*GOOD, "--policy", "lookup:2,"), "no policy named ''"),
        ((*GOOD, "--policy", "model:2"), "never asked the draft 'model'"),
        ((*GOOD, "--configuration", "lookup"), "Did you mean 'lookup -n 2'"),
        ((*GOOD, "--arrivals", "0"), "arrivals are 0.0"),
        ((*GOOD, "--arrivals", "few"), "few"),
        ((*GOOD, "--batch", "0"), "0 is below 1"),
        ((*GOOD, "--batch", "4", "--budget", "3"), "budget of 3 rows is below the batch of 4"),
        ((*GOOD, "--policy", "lookup:2", "--seed", "-1"), "-1 is below 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(run, arguments, message) -> None:
    Path("empty.jsonl").write_text("")
    header = Path("rounds.jsonl").read_text().splitlines()[0]
    Path("header.jsonl").write_text(header + "\n")
    Path("bad.json").write_text("{}")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
    assert "Traceback" not in err


def test_rows_that_were_not_measured_are_one_line_and_exit_2(run) -> None:
    line = Path("rounds.jsonl").read_text().splitlines()[1]
    Path("many.jsonl").write_text(
        "\n".join([Path("rounds.jsonl").read_text().splitlines()[0], *[line] * 4])
    )
    code, out, err = run("many.jsonl", "--costs", "costs.json", "--batch", "4")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "batch of 4 came to 4 rows" in err


def test_a_recording_of_trees_is_refused_by_name(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    prompt = {"id": "a", "category": "chat", "prompt": "abcabcabcabc"}
    Path("prompts.jsonl").write_text(json.dumps(prompt) + "\n")
    bench = ["bench", "toy:3", "-d", "recycle:branches=1", "-n", "4", "--prompts", "prompts.jsonl"]
    assert main([*bench, "--max-tokens", "40", "-o", "b.json", "--record", "r.jsonl"]) == 0
    capsys.readouterr()
    lines = Path("r.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[1:]:
        for round in row["rounds"]:
            round["path"] = None if round["source"] is None else [0][: round["accepted"]]
    Path("r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("costs.json").write_text(json.dumps(COSTS.as_document()))
    assert main(["simulate", "r.jsonl", "--costs", "costs.json"]) == 2
    assert "offered trees, and only chains can be simulated" in capsys.readouterr().err
