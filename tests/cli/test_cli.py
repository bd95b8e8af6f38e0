"""The command line as a user meets it: what it prints, where, and its exit codes."""

from __future__ import annotations

import errno
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.bench.local.file import read_result
from paceline.cli.main import VERBS, main
from paceline.errors import DownloadError
from paceline.models import catalog

GENERATE = ("generate", "toy:3", "--raw", "-p", "abcabc", "--max-tokens", "20")


def test_a_verb_loads_no_other_one() -> None:
    asked = "import sys; from paceline.cli import main; main.parser('report')"
    ended = subprocess.run(
        [sys.executable, "-c", f"{asked}; print('paceline.cli.bench' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "False\n"


def test_every_verb_is_in_the_help_and_a_wrong_one_is_refused(run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for verb in VERBS:
        assert re.search(rf"^    {verb}( |$)", out, re.MULTILINE), verb
        assert run(verb, "--help")[0] == 0
    assert "Did you mean 'report'?" in run("reprot")[2]


def test_generate_prints_text_and_one_line_of_figures(run) -> None:
    code, out, err = run(*GENERATE)
    drafted = run(*GENERATE, "-d", "lookup:min_match=1", "-n", "3")
    assert code == drafted[0] == 0
    assert out == drafted[1]
    assert out.endswith("\n")
    assert len(out.strip()) >= 5
    assert len(err.splitlines()) == len(drafted[2].splitlines()) == 1
    assert "ms per token" in err
    assert "drafted tokens accepted" in drafted[2]


def test_by_default_a_draft_is_asked_when_it_pays(run) -> None:
    _, baseline, _ = run(*GENERATE)
    code, out, err = run(*GENERATE, "-d", "lookup", "-d", "toy:3")
    assert (code, out) == (0, baseline)
    assert err.splitlines()[0].startswith("Measuring once what width costs toy:3 here")
    assert "rounds, limits" in err
    _, out, err = run(*GENERATE, "-d", "lookup", "-d", "toy:3")
    assert out == baseline
    assert "Measuring" not in err, "it is kept"


def test_profile_measures_keeps_and_tells(run, tmp_path: Path) -> None:
    code, out, err = run("profile", "toy:3", "-d", "toy:4", "--sweeps", "2", "-o", "costs.json")
    assert code == 0
    for word in ("T(1)", "r(4)=", "cheapest per row", "8 sequences", "toy:4: a drafted token"):
        assert word in out
    assert err.count("Kept in") == 2
    document = json.loads((tmp_path / "costs.json").read_text())
    assert set(document["drafts"]) == {"toy:4"}
    assert "Measuring" not in run(*GENERATE, "-d", "lookup")[2]
    by_costs = (*GENERATE, "-d", "lookup", "-d", "toy:4", "--costs", "costs.json", "--json")
    first, second = (json.loads(run(*by_costs)[1]) for _ in range(2))
    assert first["policy"]["limits"] == second["policy"]["limits"]
    assert first["max_draft_tokens"] == "auto"
    code, _, err = run("generate", "toy:5", "--raw", "-p", "a", "-d", "lookup", *by_costs[-3:])
    assert code == 2
    assert "are for model 'toy:3'; here it is 'toy:5'" in err


def interrupt_after(monkeypatch, count: int) -> None:
    from paceline.bench.profile import profile

    measure, calls = profile._forward, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) > count:
            raise KeyboardInterrupt
        return measure(*args, **kwargs)

    monkeypatch.setattr(profile, "_forward", interrupted)


def test_an_interrupted_profile_keeps_what_it_has(run, monkeypatch) -> None:
    interrupt_after(monkeypatch, 60)
    code, out, err = run("profile", "toy:3")
    assert code == 1
    assert "Interrupted; what was measured is kept." in err
    assert "T(1)" in out
    assert "Measuring" not in run(*GENERATE, "-d", "lookup")[2]


def test_an_interrupted_profile_does_not_replace_a_whole_one(run, monkeypatch, tmp_path) -> None:
    assert run("profile", "toy:3", "--sweeps", "2")[0] == 0
    [place] = (tmp_path / "cache" / "costs").iterdir()
    whole = place.read_text()
    interrupt_after(monkeypatch, 60)
    assert run("profile", "toy:3")[0] == 1
    assert place.read_text() == whole


def test_a_profile_interrupted_at_once_says_so(run, monkeypatch) -> None:
    interrupt_after(monkeypatch, 0)
    code, out, err = run("profile", "toy:3")
    assert (code, out) == (1, "")
    assert "Interrupted; nothing had been measured." in err


def test_a_recorded_bench_can_be_simulated(run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "abcabcabc"}\n{"id": "b", "prompt": "hello"}\n')
    bench = ("bench", "toy:3", "--raw", "--prompts", str(prompts), "-d", "lookup")
    code, out, _ = run(*bench, "-n", "auto,3", "-o", "b.json", "--record", "r.jsonl")
    assert code == 0
    assert "policy: drafted in" in out
    result = read_result("b.json")
    assert [c.max_draft_tokens for c in result.configurations] == [0, None, 3]
    policies = {run.configuration: run.policy_stats for run in result.runs}
    assert policies["baseline"] is policies["lookup -n 3"] is None
    assert policies["lookup -n auto"].rounds > 0
    assert result.configuration("lookup -n auto").costs["points"]
    run("profile", "toy:3", "--sweeps", "2", "-o", "costs.json")
    code, out, _ = run("simulate", "r.jsonl", "--costs", "costs.json", "--policy", "measured")
    assert code == 0
    assert "lookup -n 3" in out


def test_generate_json_is_one_document(run) -> None:
    code, out, err = run(*GENERATE, "-d", "lookup", "-n", "3", "--json", "--logprobs")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["text"] == run(*GENERATE)[1].rstrip("\n")
    assert len(document["log_probs"]) == len(document["tokens"])
    assert document["drafts"]["lookup"]["draft"] == "lookup"
    assert document["stats"]["tokens"] == len(document["tokens"]) - 1


def test_a_model_draft_and_every_setting_reach_the_loop(run) -> None:
    settings = (
        "--temperature",
        "0.9",
        "--top-k",
        "9",
        "--top-p",
        "0.9",
        "--min-p",
        "0.01",
        "--seed",
        "4",
        "--repetition-penalty",
        "1.2",
        "--presence-penalty",
        "0.1",
        "--frequency-penalty",
        "0.1",
        "--logit-bias",
        "3=1.5",
        "--ban-token",
        "5",
        "--ban-text",
        "xy",
        "--min-tokens",
        "4",
    )
    code, out, _ = run(*GENERATE, "-d", "lookup", *settings)
    assert code == 0
    assert out == run(*GENERATE, *settings)[1]
    assert out != run(*GENERATE)[1]
    assert "f" not in out
    for dropped in range(0, len(settings), 2):
        if settings[dropped] in ("--logit-bias", "--seed"):
            fewer = (*settings[:dropped], *settings[dropped + 2 :])
            assert run(*GENERATE, *fewer)[1] != out, settings[dropped]
    assert run(*GENERATE, "-d", "toy:4", "--verifier", "block", *settings)[0] == 0


def test_the_prompt_may_come_from_stdin(run, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("abcabc"))
    _, out, _ = run("generate", "toy:3", "--raw", "--max-tokens", "20")
    assert out == run(*GENERATE)[1]


def test_stops(run) -> None:
    _, whole, _ = run(*GENERATE)
    string = whole[3:5]
    _, cut, _ = run(*GENERATE, "--stop", string)
    assert cut.strip() == whole[: whole.index(string)].strip()


BAD = {
    "unknown verb": (("genrate",), "Did you mean 'generate'"),
    "unknown model": (("generate", "smollm2-153m", "-p", "a"), "Did you mean 'smollm2-135m'"),
    "missing file": (("generate", "no/such.gguf", "-p", "a"), "There is no file no/such.gguf"),
    "demo model not pulled": (("generate", "smollm2-135m", "-p", "a"), "models pull smollm2-135m"),
    "unknown engine": (("generate", "toy", "--engine", "toi", "-p", "a"), "Did you mean 'toy'"),
    "unknown draft": ((*GENERATE, "-d", "lokup"), "no draft named 'lokup'. Did you mean 'lookup'"),
    "missing draft": ((*GENERATE, "-d", "no/such.gguf"), "There is no file no/such.gguf"),
    "draft option": ((*GENERATE, "-d", "lookup:mn_match=2"), "Did you mean 'min_match'"),
    "draft value": ((*GENERATE, "-d", "lookup:min_match=two"), "must be a whole number"),
    "draft form": ((*GENERATE, "-d", "lookup:min_match"), "NAME:KEY=VALUE"),
    "model without one": ((*GENERATE, "-d", "model"), "none is named"),
    "option of none": ((*GENERATE, "-d", "none:x=1"), "has no option 'x'"),
    "unknown verifier": ((*GENERATE, "--verifier", "chian"), "Did you mean 'chain'"),
    "unknown demo name": (("models", "pull", "smollm"), "Did you mean 'smollm2-135m'"),
    "empty prompt": (("generate", "toy", "-p", " "), "The prompt is empty"),
    "long prompt": (("generate", "toy", "-p", "a" * 600), "600 tokens; the context of 512"),
    "costs without a draft": ((*GENERATE, "--costs", "x.json"), "--costs is x.json and there is"),
    "costs and a limit": (
        (*GENERATE, "-d", "lookup", "-n", "3", "--costs", "x.json"),
        "--costs x.json would decide nothing",
    ),
    "costs of no file": ((*GENERATE, "-d", "lookup", "--costs", "x.json"), "x.json can't be read"),
    "limit of two drafts": (
        (*GENERATE, "-d", "lookup", "-d", "toy:4", "-n", "3"),
        "-n is 3 and 2 drafts are named",
    ),
    "bench costs without auto": (("bench", "toy", "-n", "3", "--costs", "x"), "no limit is auto"),
    "profile of no model": (("profile", "toy", "-d", "lookup"), "'lookup' has no model"),
    "record out of reach": (("bench", "toy", "--record", "no/such/x"), "file with --record"),
    "limit without a draft": ((*GENERATE, "-n", "3"), "-n is 3 and there is no draft"),
    "logprobs in plain text": ((*GENERATE, "--logprobs"), "Add --json"),
    "model option for lookup": (
        (*GENERATE, "-d", "lookup", "--draft-context", "9"),
        "names no model",
    ),
    "json elsewhere": (("models", "--json", "path", "smollm2-135m"), "has no option --json"),
    "very long name": (("generate", "x" * 300 + "/y", "-p", "a"), "can't be read"),
    "not the toy": (("generate", "no/such.gguf", "--engine", "toy", "-p", "a"), "not a toy model"),
    "odd seed": (("generate", "toy:²", "-p", "a"), "not a toy model"),
    "infinite reach": ((*GENERATE, "-d", "lookup:reach=inf"), "reach is inf"),
    "draft named twice": (("bench", "toy", "-d", "lookup", "-d", "lookup"), "named twice"),
    "category": (("bench", "toy", "--categories", "edit,maht"), "Did you mean 'maths'"),
    "stop token": ((*GENERATE, "--stop-token", "99"), "Token 99"),
    "max_draft_tokens": ((*GENERATE, "-n", "-1"), "-1 is below 0"),
    "limit of words": ((*GENERATE, "-n", "x"), "'x' is not a whole number"),
    "temperature": ((*GENERATE, "--temperature", "-0.5"), "temperature is -0.5. It must be 0"),
    "top-p of 0": ((*GENERATE, "--top-p", "0"), "top_p is 0.0. It must be above 0"),
    "top-p over 1": ((*GENERATE, "--top-p", "1.5"), "top_p is 1.5"),
    "bias": ((*GENERATE, "--logit-bias", "3"), "Write TOKEN=X"),
    "token": ((*GENERATE, "--ban-token", "99"), "banned_tokens names token 99"),
    "unknown option": ((*GENERATE, "--temprature", "1"), "nrecognized arguments: --temprature"),
    "option of another engine": (
        (*GENERATE, "--dtype", "float16"),
        "no option of the toy engine named 'dtype'",
    ),
    "prompts missing": (("bench", "toy", "--prompts", "none.jsonl"), "none.jsonl can't be read"),
    "out of reach": (("bench", "toy", "-o", "no/such/dir/x.json"), "can't be written"),
    "system and raw": ((*GENERATE, "--system", "x"), "--system needs the chat template"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_exit_code_2(run, case: str) -> None:
    arguments, message = BAD[case]
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert message in err
    assert "Traceback" not in err


def test_a_file_that_is_no_model_is_refused(run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    code, _, err = run("generate", "notes.txt", "-p", "a")
    assert code == 2
    assert "notes.txt is not a model: it does not begin as a GGUF file." in err


def test_a_truncated_model_is_refused(run, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(8))
    code, out, err = run("generate", "cut.gguf", "-p", "a")
    assert (code, out) == (2, "")
    assert "cut.gguf" in err
    assert "can't be loaded" in err


def test_a_checksum_mismatch_is_one_line(run, monkeypatch) -> None:
    def mismatch(model):
        raise DownloadError("smollm2 has checksum 1, expected 2.", "Pull it again.")

    monkeypatch.setattr("paceline.models.pull.pull", mismatch)
    assert run("models", "pull", "smollm2-135m") == (
        2,
        "",
        "paceline models: smollm2 has checksum 1, expected 2. Pull it again.\n",
    )


def test_a_prompt_that_is_no_utf_8_is_refused(run, monkeypatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    code, _, err = run("generate", "toy", "--raw")
    assert code == 2
    assert "not UTF-8" in err


def test_a_bench_without_any_measured_prompt_is_a_failure(run, tmp_path: Path) -> None:
    code, out, err = run("bench", "toy:3")  # the built-in prompts are not in its letters
    assert (code, out) == (2, "")
    assert "No prompt was measured. edit: The toy vocabulary has no" in err
    assert not list(tmp_path.glob("paceline-bench*"))


def test_a_failed_start_leaves_no_file(run, tmp_path: Path) -> None:
    assert run("bench", "no/such.gguf")[0] == 2
    assert not list(tmp_path.glob("paceline-bench*"))


def test_whatever_ends_a_bench_what_was_measured_is_written(
    run, tmp_path: Path, monkeypatch
) -> None:
    import paceline.bench.local.bench as bench

    real, calls = bench.decode, []

    def faulty(decoder, requests):
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("a plugin's fault")
        return real(decoder, requests)

    monkeypatch.setattr(bench, "decode", faulty)
    with pytest.raises(RuntimeError):
        run(
            "bench", "toy:3", "--max-tokens", "12", "--prompts", prompts(tmp_path), "-o", "out.json"
        )
    assert len(read_result("out.json").runs) == 3


def test_a_draft_with_another_vocabulary_is_refused(run, monkeypatch) -> None:
    from paceline.engines.load import load as real
    from paceline.engines.toy import ToyEngine

    def load(target, **options):
        if target != "toy:4":
            return real(target, **options)
        return ToyEngine(27, alphabet="zyxwvutsrqponmlkjihgfedcba ")

    monkeypatch.setattr("paceline.cli.options.load", load)
    code, _, err = run(*GENERATE, "-d", "toy:4")
    assert code == 2
    assert "token 0 is 'a' in the target and 'z' in the draft" in err
    code, out, _ = run("check", "toy", "-d", "toy:4")
    assert code == 1
    assert "token 0 is 'a'" in out
    assert "sound     NO" in out


def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "abcabc", "id": "one"}\nbroken\n{"prompt": "bab", "id": "two"}\n')
    return str(path)


def test_bench_prints_a_card_and_writes_a_file(run, tmp_path: Path) -> None:
    code, out, err = run(
        "bench",
        "toy:3",
        "-d",
        "lookup",
        "-n",
        "2,5",
        "--max-tokens",
        "12",
        "--prompts",
        prompts(tmp_path),
        "-o",
        "out.json",
    )
    assert code == 0
    assert "times as fast as ordinary decoding (95 % interval" in out
    assert "lookup -n 5" in out
    assert "Line 2 is not JSON. Left out." in err
    assert "Left out: Line 2 is not JSON." in out
    result = read_result("out.json")
    assert result.complete
    assert len(result.runs) == 6
    assert result.header.command
    assert result.header.bandwidth_bytes_per_s > 0


def test_bench_json_prints_the_document(run, tmp_path: Path) -> None:
    code, out, _ = run(
        "bench",
        "toy:3",
        "--max-tokens",
        "12",
        "--json",
        "--prompts",
        prompts(tmp_path),
        "-o",
        "out.json",
    )
    assert code == 0
    assert [run["text"] for run in json.loads(out)["runs"]] == [
        run.text for run in read_result("out.json").runs
    ]


def test_an_interrupted_bench_writes_what_it_has(run, tmp_path: Path, monkeypatch) -> None:
    import paceline.bench.local.bench as bench

    real, calls = bench.decode, []

    def interrupted(decoder, requests):
        calls.append(1)
        if len(calls) == 6:  # two of them warm up
            raise KeyboardInterrupt
        return real(decoder, requests)

    monkeypatch.setattr(bench, "decode", interrupted)
    code, out, err = run(
        "bench", "toy:3", "--max-tokens", "12", "--prompts", prompts(tmp_path), "-o", "out.json"
    )
    assert code == 1
    assert "Interrupted" in out
    assert "kept" in err
    result = read_result("out.json")
    assert not result.complete
    assert [run.id for run in result.runs] == ["one", "one", "two"]
    code, out, err = run(
        "bench",
        "toy:3",
        "--max-tokens",
        "12",
        "--prompts",
        str(tmp_path / "prompts.jsonl"),
        "-o",
        "out.json",
    )
    assert code == 0
    assert "Going on: 2 of 4 runs are there" in err
    assert "Interrupted" not in out


def test_a_full_disk_in_the_middle_of_a_bench_is_said(run, tmp_path: Path, monkeypatch) -> None:
    from paceline import storage as growing_file

    real, written = growing_file.os.write, []

    def full(descriptor: int, data) -> int:
        written.append(1)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(growing_file.os, "write", full)
    code, out, err = run(
        *("bench", "toy:3", "--max-tokens", "12", "-n", "2", "-o", "out.jsonl"),
        *("--prompts", prompts(tmp_path)),
    )
    assert code == 2
    assert "times as fast" in out
    assert "No space left on device" in err
    monkeypatch.undo()
    result = read_result(str(tmp_path / "out.jsonl"))
    assert [one.id for one in result.runs] == ["one", "one"]


def test_check_says_what_fits_and_what_width_costs(run) -> None:
    code, out, _ = run("check", "toy", "-d", "toy:4")
    assert code == 0
    for part in (
        "fits: same 27 tokens",
        "r(8)=",
        "of its own tokens",
        "text equal to the baseline",
        "sound     yes",
    ):
        assert part in out
    code, out, _ = run("check", "toy", "-d", "lookup", "--json")
    document = json.loads(out)
    assert document["sound"] is True
    assert [cost["width"] for cost in document["width_costs"]][:3] == [1, 2, 3]


def test_list_shows_what_each_needs(run) -> None:
    _, out, _ = run("list")
    for name in ("llamacpp", "transformers", "toy", "lookup", "model", "none", "chain", "block"):
        assert f"  {name} " in out
    _, out, _ = run("list", "--json")
    assert set(json.loads(out)) == {"engine", "draft", "verifier"}


def test_models_lists_the_demo_models_and_their_state(run) -> None:
    code, out, _ = run("models")
    assert code == 0
    for name in catalog.CATALOG:
        assert name in out
    assert "absent" in out
    code, out, _ = run("models", "--json")
    assert {entry["name"] for entry in json.loads(out)} == set(catalog.CATALOG)
    code, _, err = run("models", "path", "smollm2-135m")
    assert code == 2
    assert "models pull smollm2-135m" in err


@pytest.mark.parametrize(
    "verb", [(), ("generate",), ("bench",), ("check",), ("models",), ("list",)]
)
def test_help_opens_with_two_examples(run, verb: tuple[str, ...]) -> None:
    code, out, _ = run(*verb, "--help")
    first, second = out.splitlines()[:2]
    assert code == 0
    assert first.startswith("  paceline ")
    assert second.startswith("  paceline ")


def test_the_reader_of_a_pipe_may_go_away(monkeypatch) -> None:
    def gone(found):
        raise BrokenPipeError

    monkeypatch.setattr("paceline.cli.list_._lines", gone)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert main(["list"]) == 1


def test_costs_are_never_written_over_another_file(run) -> None:
    Path("notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = run("profile", "toy:3", "--sweeps", "2", "-o", "notes.txt")
    assert code == 2
    assert "notes.txt is there already, and is not a file of costs." in err
    assert Path("notes.txt").read_text(encoding="utf-8") == "mine"
