"""`paceline break-even` as a user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main

SHIPPED = "llama-3.1-8b-h100-vllm"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run `paceline break-even`; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))

    def command(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["break-even", *arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def write(path: str, seconds: list[float], **fields: object) -> None:
    points = [
        {"rows": rows, "sequences": 1, "context": 0, "seconds": s}
        for rows, s in enumerate(seconds, start=1)
    ]
    Path(path).write_text(
        json.dumps({"kind": "paceline costs", "version": 1, "points": points, **fields})
    )


def test_the_decision_comes_first_then_the_arithmetic(run) -> None:
    code, out, err = run("--costs", SHIPPED)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Draft with lookup, ")
    assert "draft with eagle3" in lines[0]
    assert lines[1] == ""
    assert "arXiv 2601.11580" in out
    assert "2.135 ms a proposal" in out  # how the draft's figure was read


def test_costs_from_a_file_decide(run) -> None:
    one_row = {"rows": 1, "sequences": 1, "context": 0, "seconds": 0.1}
    dear = {"kind": "paceline costs", "version": 1, "points": [one_row]}
    write("costs.json", [0.1, 0.14, 0.16, 0.135], drafts={"small": dear})
    code, out, _ = run("--costs", "costs.json", "-d", "small", "-d", "lookup")
    assert code == 0
    assert out.startswith("Draft with lookup, ")
    assert "small can't pay here" in out.splitlines()[0]
    only = run("--costs", "costs.json", "-d", "small", "--acceptance", "0.98")[1]
    assert only.startswith("Decode without drafts; small can't pay here")


def test_json_is_one_document_with_the_given_acceptances(run) -> None:
    code, out, err = run("--costs", SHIPPED, "-d", "eagle3", "--acceptance", "0.6,0.8", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert [draft["name"] for draft in document["drafts"]] == ["eagle3"]
    assert [best["acceptance"] for best in document["drafts"][0]["best"]] == [0.6, 0.8]


def test_a_loaded_pair_is_measured_once(run) -> None:
    arguments = ("toy:3", "-d", "lookup", "-d", "toy:4", "--json")
    code, out, err = run(*arguments)
    assert code == 0
    assert len(err.splitlines()) == 2  # target and draft
    document = json.loads(out)
    assert [draft["name"] for draft in document["drafts"]] == ["lookup", "toy:4"]
    assert document["drafts"][0]["draft_cost"] == 0 < document["drafts"][1]["draft_cost"]
    assert run(*arguments) == (0, out, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "There is no TARGET."),
        (("toy:3", "--costs", SHIPPED), "Both TARGET (toy:3) and --costs"),
        (("--costs", SHIPPED, "--acceptance", "1.5"), "The acceptance is 1.5."),
        (("toy:3", "--acceptance", "-0.5"), "The acceptance is -0.5."),
        (("toy:3", "--acceptance", "high"), "'high' is not a list of numbers"),
        (("--costs", "llama-3.1-8b-h100"), f"Did you mean '{SHIPPED}'?"),
        (("--costs", SHIPPED, "-d", "eagle"), "Did you mean 'eagle3'?"),
        (("--costs", "broken.json"), "is not JSON"),
        (("--costs", "negative.json"), "must be above 0"),
        (("--costs", "narrow.json"), "one row only"),
        (("toy:3", "-d", "none"), "There is no draft to decide on."),
        (("toy:3", "--plot", "plan.gif"), "ends in '.gif'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, said: str) -> None:
    Path("broken.json").write_text("{")
    write("negative.json", [0.1, -0.1])
    write("narrow.json", [0.1])
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_plot_without_matplotlib_names_the_extra(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = run("--costs", SHIPPED, "--plot", "plan.svg")
    assert (code, out) == (2, "")
    assert "pip install 'paceline[plot]'" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("suffix", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_a_plot_is_written(run, suffix: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = run("--costs", SHIPPED, "--plot", f"plan.{suffix}")
    assert code == 0
    assert out.startswith("Draft")
    assert err == f"The plot is in plan.{suffix}.\n"
    assert Path(f"plan.{suffix}").read_bytes().startswith(begins)


def test_a_plot_names_every_acceptance_and_break_even() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from paceline.plan.break_even import make_plan
    from paceline.policy.adaptive import Source
    from paceline.policy.costs import read_costs
    from paceline.report.cost_plots import _draw

    (draft,) = make_plan(read_costs(SHIPPED), [Source("lookup", True, True)]).drafts
    panel = Figure().subplots()
    _draw(panel, draft, [0.5, 0.9])
    legend = panel.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["0.5", "0.9", "break-even"]
    assert legend.get_title().get_text() == "acceptance"
    heights = [tuple(line.get_ydata()) for line in panel.lines]
    assert tuple(draft.speedup(0.9)) in heights
    assert (1.0, 1.0) in heights


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(run) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = run("toy:3", "--plot", "nowhere/plan.svg")
    assert (code, out) == (2, "")
    assert err == (
        "paceline break-even: nowhere/plan.svg can't be written. Choose another file with --plot.\n"
    )
