"""`paceline plan FILE` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.server.file import ServerFile
from paceline.bench.server.result import AGAINST, FIRST, ServerBenchHeader
from paceline.plan.document import read_plan

SHIPPED = "llama-3.1-8b-h100-vllm"
LINES = ["abcabcabc", "bcdbcdbcd", "aabbaabb", "dcbadcba"]


@pytest.fixture
def bench(run, tmp_path: Path):
    """A bench of the toy, in a file."""
    prompts = [json.dumps({"id": f"p{i}", "prompt": line}) for i, line in enumerate(LINES)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts), encoding="utf-8")
    arguments = ("--prompts", "prompts.jsonl", "--raw", "--max-tokens", "12", "-o", "bench.jsonl")
    assert run("bench", "toy:3", "-d", "lookup", "-d", "toy:4", "-n", "2", *arguments)[0] == 0
    return "bench.jsonl"


@pytest.fixture
def replay(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `paceline replay --json` printed of answers that repeat themselves."""
    lines = [
        json.dumps({"id": str(i), "prompt": "abc", "completion": (text + "abcd") * 6})
        for i, text in enumerate(("abcd", "bbcd", "dbca", "acdb"))
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines), encoding="utf-8")
    points = [
        {"rows": rows, "sequences": 1, "context": 0, "seconds": seconds}
        for rows, seconds in ((1, 1.0), (8, 1.75), (32, 4.75))
    ]
    costs = {"kind": "paceline costs", "version": 1, "points": points}
    (tmp_path / "costs.json").write_text(json.dumps(costs), encoding="utf-8")
    given = ("--target", "toy:1", "-n", "1,4", "--costs", "costs.json", "--batch", "1,2")
    code, out, _ = run("replay", "log.jsonl", *given, "--json")
    assert code == 0
    (tmp_path / "replay.json").write_text(out, encoding="utf-8")
    return "replay.json"


def test_a_bench_becomes_a_plan_and_a_card(run, bench) -> None:
    name = "toy:4 -n 2"
    code, out, err = run("plan", bench, "--configuration", name, "-o", "plan.json")
    assert (code, err) == (0, "The plan is in plan.json.\n")
    assert out.startswith("Run toy:3 with the draft toy:4, at most 2 tokens a round.\n")
    assert all(len(line) <= 80 for line in out.splitlines())
    plan = read_plan(Path("plan.json"))
    assert plan.draft is not None
    assert (plan.draft.kind, plan.draft.model, plan.max_draft_tokens) == ("model", "toy:4", 2)
    assert plan.measured.file == "bench.jsonl"
    assert f"{plan.expected.tokens_per_round:.2f} tokens per round" in out
    assert all(note.split()[0] in out for note in plan.notes)
    code, printed, _ = run("plan", bench, "--configuration", name, "--json")
    assert json.loads(printed) == json.loads(Path("plan.json").read_text(encoding="utf-8"))


def test_without_a_configuration_a_toy_that_gains_nothing_is_baseline(run, bench) -> None:
    """Its passes cost next to nothing, so that whatever a draft does is lost or in doubt."""
    code, out, _ = run("plan", bench, "-o", "plan.json")
    plan = read_plan(Path("plan.json"))
    assert code == 0
    if plan.draft is None:
        assert out.startswith("Run toy:3 without a draft.\n")
        assert plan.notes[0].startswith("Ordinary decoding, because")
    else:
        assert plan.expected.gain is not None
        assert plan.expected.gain.low is not None
        assert plan.expected.gain.low > 1


def test_a_bench_that_was_killed_is_planned_from_as_far_as_it_is_whole(run, bench) -> None:
    text = Path(bench).read_text(encoding="utf-8")
    whole = text.splitlines(keepends=True)
    Path("cut.jsonl").write_text("".join(whole[:8]) + whole[8][:50], encoding="utf-8")
    code, out, _ = run("plan", "cut.jsonl", "--configuration", "lookup -n 2")
    assert code == 0
    assert "The bench is not finished: left out are 2 of 4 prompts." in " ".join(out.split())
    Path("cut.jsonl").write_text(whole[0] + whole[1], encoding="utf-8")
    code, out, err = run("plan", "cut.jsonl")
    assert (code, out) == (2, "")
    assert "No prompt of the bench is finished in all configurations." in err


def test_a_replay_becomes_a_plan_with_a_schedule(run, replay) -> None:
    code, out, _ = run("plan", replay, "-o", "plan.json")
    assert code == 0
    plan = read_plan(Path("plan.json"))
    assert plan.draft is not None
    assert (plan.draft.kind, plan.max_draft_tokens, plan.measured.source) == ("lookup", 4, "replay")
    assert (plan.schedule[0].from_batch, plan.schedule[0].max_draft_tokens) == (1, 4)
    assert "1 to 2: at most 4 tokens" in out
    assert ", predicted" in out
    assert plan.target.vocabulary_size
    pretty = json.dumps(json.loads(Path(replay).read_text(encoding="utf-8")), indent=1)
    Path("pretty.json").write_text(pretty, encoding="utf-8")
    assert run("plan", "pretty.json")[1].replace("pretty", "replay") == out
    code, out, _ = run("plan", replay, "--configuration", "measured")
    assert "as many tokens a round as Paceline's policy chooses" in " ".join(out.split())


def test_costs_and_one_acceptance_become_a_plan(run) -> None:
    given = ("--costs", SHIPPED, "-d", "eagle3")
    code, out, err = run("break-even", *given, "--acceptance", "0.7", "-o", "plan.json")
    assert (code, err) == (0, "The plan is in plan.json.\n")
    assert out.startswith("Run Llama-3.1-8B-Instruct with the draft eagle3, at most ")
    plan = read_plan(Path("plan.json"))
    assert (plan.measured.source, plan.measured.file) == ("costs", SHIPPED)
    code, out, err = run("break-even", *given, "-o", "other.json")
    assert (code, out) == (2, "")
    assert "hangs on how often it is accepted, and none is given. Assume one with" in err
    assert not Path("other.json").exists()


def test_a_loaded_pair_becomes_a_plan_with_its_vocabulary(run) -> None:
    given = ("toy:3", "-d", "toy:4", "--acceptance", "1.0", "-o", "plan.json", "--json")
    code, out, _ = run("break-even", *given)
    assert code == 0
    plan = read_plan(Path("plan.json"))
    assert json.loads(out) == json.loads(Path("plan.json").read_text(encoding="utf-8"))
    assert plan.target.vocabulary_size
    assert plan.target.engine == "toy"


def test_a_plan_goes_over_a_plan_and_over_nothing_else(run, bench) -> None:
    for _ in range(2):
        assert run("plan", bench, "-o", "plan.json")[0] == 0
    whole = Path("plan.json").read_text(encoding="utf-8")
    for damaged in (whole.replace('"version": 2', '"version": 9'), whole[: len(whole) // 2]):
        Path("plan.json").write_text(damaged, encoding="utf-8")
        assert run("plan", bench, "-o", "plan.json")[0] == 0
        assert Path("plan.json").read_text(encoding="utf-8") == whole
    before = Path(bench).read_bytes()
    for other in (bench, "notes.txt"):
        Path("notes.txt").write_text("mine", encoding="utf-8")
        code, out, err = run("plan", bench, "-o", other)
        assert (code, out) == (2, "")
        assert err == (
            f"paceline plan: {other} is there already, and is not a plan. Choose another file "
            "with -o.\n"
        )
    assert Path(bench).read_bytes() == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("-d", "lookup"), "Unrecognized arguments: -d lookup."),
        (
            ("--max-draft-tokens", "3"),
            "--max-draft-tokens is 3, and bench.jsonl is a bench, which says what",
        ),
        (("--draft-kind", "ngram"), "--draft-kind is ngram, and bench.jsonl is a bench"),
        (("--draft-model", "x"), "--draft-model is x, and bench.jsonl is a bench"),
        (("--configuration", "lookup -n 3"), "Did you mean 'lookup -n 2'?"),
        (("-o", "nowhere/plan.json"), "nowhere/plan.json can't be written."),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(run, bench, given, said) -> None:
    code, out, err = run("plan", bench, *given)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.fixture
def live(tmp_path: Path) -> str:
    """A run on two servers, without an answer yet."""
    served = {"url": "u", "model": "m", "server": "vLLM", "version": "1"}
    header = ServerBenchHeader(
        servers={FIRST: served, AGAINST: served}, prompts=(("a", "all", None),)
    )
    ServerFile.open(tmp_path / "live.jsonl", header).close()
    return "live.jsonl"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "live.jsonl is of live servers, which don't tell what drafted. Say it with --draft-k"),
        (
            ("--draft-kind", "ngram"),
            "which don't tell what drafted. Say it with --max-draft-tokens.",
        ),
        (
            ("--draft-kind", "eagle3", "--max-draft-tokens", "3"),
            "A draft of the kind eagle3 has a model.",
        ),
        (
            ("--draft-kind", "ngram", "--max-draft-tokens", "3", "--draft-model", "x"),
            "--draft-model is x, and a draft of the kind ngram has none.",
        ),
        (("--configuration", "x"), "--configuration is x, and live.jsonl is a run on live"),
        (("--draft-kind", "ngrm"), "There is no 'ngrm'. Did you mean 'ngram'?"),
        (("--draft-kind", "several"), "There is no 'several'."),
        (
            ("--draft-kind", "mtp", "--max-draft-tokens", "1"),
            "No prompt was answered by both servers.",
        ),
        (("--draft-kind", "ngram", "--max-draft-tokens", "0"), "0 is below 1"),
    ],
)
def test_what_drafts_on_a_server_has_to_be_said(run, live, given, said) -> None:
    code, out, err = run("plan", live, *given)
    assert (code, out) == (2, "")
    assert said in err


def test_other_files_are_refused_with_what_they_are(run, bench, replay) -> None:
    assert run("plan", bench, "-o", "plan.json")[0] == 0
    given = ("-n", "2", "--prompts", "prompts.jsonl", "--raw", "--max-tokens", "4")
    summary = run("bench", "toy:3", *given, "--json")[1]
    files = {
        "plan.json": ("is a paceline plan file, and no plan can", "It is a plan already."),
        "costs.json": ("is a paceline costs file", "Take `paceline break-even --costs FILE`."),
        "summary.json": ("is a paceline bench summary file", "It lacks the rounds"),
        "break.json": ("is a paceline break-even file", "It is arithmetic already"),
        "rounds.jsonl": ("is a paceline rounds file", "Give the bench that it was recorded"),
        "other.json": ("is no file of Paceline's", "Give a file of `paceline bench -o`"),
        "list.json": ("is no file of Paceline's", "Give a file of"),
        "printed.json": ("is a paceline server bench file as --json prints it", "Give a file"),
        "text.txt": ("is not JSON", "Give a file of"),
        "deep.json": ("is not JSON", "Give a file of"),
        "empty.json": ("is not JSON", "Give a file of"),
        "nan.json": ("is not JSON", "Give a file of"),
        "bytes.bin": ("is not JSON", "Give a file of"),
        "absent.json": ("can't be read: No such file", "Give a file of"),
    }
    Path("summary.json").write_text(summary, encoding="utf-8")
    Path("break.json").write_text(
        run("break-even", "--costs", SHIPPED, "--json")[1], encoding="utf-8"
    )
    Path("rounds.jsonl").write_text('{"kind": "paceline rounds"}\n{}\n', encoding="utf-8")
    Path("other.json").write_text('{"kind": 5}', encoding="utf-8")
    Path("list.json").write_text("[1, 2]", encoding="utf-8")
    printed = {"kind": "paceline server bench", "version": 3, "requests": []}
    Path("printed.json").write_text(json.dumps(printed), encoding="utf-8")
    Path("text.txt").write_text("hello", encoding="utf-8")
    Path("deep.json").write_text("[" * 200_000, encoding="utf-8")
    Path("empty.json").write_text("", encoding="utf-8")
    Path("nan.json").write_text('{"kind": "paceline replay", "temperature": NaN}', encoding="utf-8")
    Path("bytes.bin").write_bytes(b"\xff\xfe\x00\x01")
    for name, (fact, hint) in files.items():
        code, out, err = run("plan", name)
        assert (code, out) == (2, ""), name
        assert err.startswith(f"paceline plan: {name} ")
        assert fact in err
        assert hint in err
        assert len(err.splitlines()) == 1


def test_a_bench_of_another_version_is_refused(run, bench) -> None:
    header, *rest = Path(bench).read_text(encoding="utf-8").splitlines()
    changed = json.dumps(json.loads(header) | {"version": 2})
    Path(bench).write_text("\n".join([changed, *rest, ""]), encoding="utf-8")
    code, _, err = run("plan", bench)
    assert code == 2
    assert "bench.jsonl has version 2 of the format, and this Paceline reads version 4." in err


@pytest.mark.model
def test_a_real_bench_becomes_a_plan(run, smollm2_path: Path, tmp_path: Path) -> None:
    text = "the cat sat on the mat and the dog sat on the rug, "
    lines = [json.dumps({"id": f"p{i}", "prompt": text * 6 + "the"[:i]}) for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    arguments = ("--prompts", "prompts.jsonl", "--raw", "--max-tokens", "16", "-o", "bench.jsonl")
    assert run("bench", str(smollm2_path), "-n", "3", *arguments, "--context", "512")[0] == 0
    name = ("--configuration", "lookup -n 3")
    code, out, _ = run("plan", "bench.jsonl", *name, "-o", "plan.json")
    assert code == 0
    plan = read_plan(Path("plan.json"))
    assert plan.target.path == str(smollm2_path.absolute())
    assert plan.target.vocabulary_size == 49152
    assert plan.expected.acceptance_at
    assert plan.expected.tokens_per_drafted_round is not None
    assert plan.expected.tokens_per_drafted_round > 1.5  # the text repeats itself
    assert plan.expected.break_even_tokens is not None
    assert plan.expected.break_even_tokens > 1
    assert "Run SmolLM2-135M-Instruct.Q4_1.gguf with the draft lookup, at most 3 tokens" in out
