"""A bench's file: it grows line by line, a second start goes on, and no other run's is touched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from paceline import Sampling
from paceline.bench.local.bench import Configuration, header_of, run_bench, with_baseline
from paceline.bench.local.file import RunFile, read_result
from paceline.bench.local.result import BenchHeader, BenchResult
from paceline.bench.local.run import Described, ends_of
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.drafts.lookup import LookupDraft
from paceline.drafts.tree import TreeDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import DataError

ENGINE = ToyEngine(8, seed=2)


def workload(count: int = 3) -> Workload:
    chats = [
        ({"role": "user", "content": "abcabc" if i % 2 else "hg" * (i + 1)},) for i in range(count)
    ]
    kinds = ("even", "odd")
    return Workload(
        "toy", tuple(WorkloadPrompt(f"p{i}", kinds[i % 2], chat) for i, chat in enumerate(chats))
    )


def configurations() -> list[Configuration]:
    tree = TreeDraft(ToyEngine(8, seed=2), ENGINE, depth=2, branches=2)
    return with_baseline(
        [
            Configuration("lookup -n 3", {"lookup": LookupDraft()}, 3),
            Configuration("tree -n 4", {"tree": tree}, 4),
        ]
    )


def header(**changes) -> BenchHeader:
    given = {"max_tokens": 12, "repeats": 2, **changes}
    return header_of(ENGINE, configurations(), workload(), **given)


class StoppedError(Exception):
    pass


def bench(path: Path, *, stop_after: int | None = None) -> BenchResult:
    file = RunFile.open(path, header())
    done = []

    def look(*names: str) -> None:
        done.append(names)
        if len(done) == stop_after:
            raise StoppedError

    with file:
        run_bench(
            ENGINE,
            configurations(),
            workload(),
            max_tokens=12,
            repeats=2,
            on_progress=look,
            keeper=file,
        )
    return file.result


def test_a_file_holds_all_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    result = bench(path)
    read = read_result(str(path))
    assert read.complete
    assert read.configurations == json_equal(result.configurations)
    assert len(read.runs) == 3 * 3 * 2
    for mine, theirs in zip(result.runs, read.runs, strict=True):
        assert mine == theirs
    trees = [round for run in read.runs_of("tree -n 4") for round in run.rounds]
    assert any(round.path is not None for round in trees)
    for name in ("lookup -n 3", "tree -n 4"):
        one, other = result.comparison(name).ratio(), read.comparison(name).ratio()
        assert one is not None
        assert other is not None
        assert other == one


def json_equal(described):
    """What JSON makes of facts: tuples become lists."""
    return tuple(kept(one) for one in described)


def kept(one: Described) -> Described:
    """Written and read."""
    line = json.loads(json.dumps(msgspec.to_builtins(one, str_keys=True)))
    return msgspec.convert(line, Described, str_keys=True)


@pytest.mark.parametrize("stop_after", [1, 3, 4, 11])
def test_a_second_start_goes_on_where_the_first_ended(tmp_path: Path, stop_after: int) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(StoppedError):
        bench(path, stop_after=stop_after)
    before = read_result(str(path))
    assert not before.complete
    whole = [run for run in before.runs if (run.id, run.repeat) not in set(before.missing())]
    assert len(whole) == (stop_after - 1) // 3 * 3  # the prompt at hand wasn't compared yet
    result = bench(path)
    assert result.complete
    after = read_result(str(path))
    assert after.runs[: len(whole)] == whole
    assert len(after.runs) == 3 * 3 * 2
    keys = [(run.configuration, run.id, run.repeat) for run in after.runs]
    assert len(set(keys)) == len(keys)


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bench(path)
    text = path.read_text()
    path.write_text(text[:-200])
    with pytest.raises(DataError, match="Line 19 of .* was cut off"):
        read_result(str(path))
    assert bench(path).complete
    assert len(read_result(str(path)).runs) == 18


def test_a_header_that_was_cut_off_is_no_bench_yet(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bench(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="is not a paceline bench file"):
        read_result(str(path))
    assert bench(path).complete
    path.write_text("my notes")
    with pytest.raises(DataError, match="is not a paceline bench file"):
        RunFile.open(path, header())
    assert path.read_text() == "my notes"


def test_an_interrupt_while_texts_are_compared_has_the_prompt_decoded_again(
    tmp_path: Path, monkeypatch
) -> None:
    from paceline.bench.local import bench as module

    path = tmp_path / "run.jsonl"
    calls = []

    def interrupted(*_):
        calls.append(1)
        raise StoppedError

    monkeypatch.setattr(module, "explain", interrupted)
    with pytest.raises(StoppedError):
        bench(path)
    monkeypatch.undo()
    assert len(read_result(str(path)).runs) == 3  # kept, for who looks now
    assert read_result(str(path)).finished.runs == []
    result = bench(path)
    assert result.complete
    drafted = [run for run in result.runs if run.configuration != "baseline"]
    assert all(run.equal_to_baseline is not None for run in drafted)
    assert len(read_result(str(path)).runs) == 18


def test_a_line_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bench(path)
    with path.open("a") as file:
        file.write("[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(DataError, match="can't be read|is not JSON"):
        read_result(str(path))


def test_a_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bench(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    with pytest.raises(DataError, match="Line 20 of .* once more"):
        read_result(str(path))


def test_a_warm_bench_does_not_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    warm = replace(header().configurations[1], warm=True)
    begun = replace(
        header(), configurations=(header().configurations[0], warm, header().configurations[2])
    )
    file = RunFile.open(path, begun)
    file.add(bench(tmp_path / "other.jsonl").runs[0])
    file.close()
    with pytest.raises(DataError, match="what they remembered is gone"):
        RunFile.open(path, begun)


def test_two_benches_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = RunFile.open(path, header())
    with first, pytest.raises(DataError, match="is being written by another run"):
        RunFile.open(path, header())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_tokens": 13}, "max_tokens is 12, and this 13"),
        ({"repeats": 1}, "repeats is 2, and this 1"),
        ({"sampling": Sampling(temperature=1.0)}, "configurations are not the same"),
    ],
)
def test_another_run_s_file_is_left_alone(tmp_path: Path, changes: dict, said: str) -> None:
    path = tmp_path / "run.jsonl"
    bench(path)
    before = path.read_bytes()
    with pytest.raises(DataError, match=f"holds another run: its {said}"):
        RunFile.open(path, header(**changes))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("hello\n", "is not a paceline bench file"),
        ("[1]\n", "it has no kind"),
        ('{"kind": "paceline rounds"}\n', "its kind is 'paceline rounds'"),
        ('{"kind": "paceline bench"}\n', "has version None of the format"),
        ('{"kind": "paceline bench", "version": 4}\n', "has no 'command'"),
    ],
)
def test_what_is_no_bench_is_said_and_not_touched(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_result(str(path))
    if text:
        with pytest.raises(DataError, match=said):
            RunFile.open(path, header())
        assert path.read_text() == text


def break_line(path: Path, change) -> None:
    first, second, *rest = path.read_text().splitlines()
    row = json.loads(second)
    change(row["run"])
    path.write_text("\n".join([first, json.dumps(row), *rest]) + "\n")


def at(name: str) -> int:
    from paceline.bench.local.run import ROUND_FIELDS

    return ROUND_FIELDS.index(name)


def more(name: str, by: int):
    def change(run: dict) -> None:
        run["rounds"][1][at(name)] += by

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (more("emitted", 1), "emitted 13 tokens, and it has 12"),
        (more("context", 1), "began at"),
        (more("accepted", 9), "accepted"),
        (more("proposed", 9), "drafted tokens in a pass"),
        (more("width", 9), "drafted tokens in a pass"),
        (more("verify_s", -1e3), "less than no time"),
        (lambda run: run["rounds"][1].__setitem__(at("prefill"), True), "exactly one round"),
        (lambda run: run["ends"].pop(), "11 tokens have an end"),
        (lambda run: run["rounds"].pop(), "emitted"),
    ],
)
def test_a_run_that_does_not_add_up_is_refused(tmp_path: Path, change, said: str) -> None:
    path = tmp_path / "run.jsonl"
    bench(path)
    break_line(path, change)
    with pytest.raises(DataError, match=f"Line 2 of .*doesn't add up: .*{said}"):
        read_result(str(path))


def test_a_failed_prompt_is_kept_as_failed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with RunFile.open(path, header()) as file:
        file.fail("p1", "Why not.")
    assert read_result(str(path)).failed == {"p1": "Why not."}
    result = bench(path)
    assert result.complete
    assert {run.id for run in result.runs} == {"p0", "p2"}


def test_what_a_policy_began_with_may_be_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bench(path)
    auto = replace(header().configurations[1], costs={"points": []})
    other = replace(
        header(), configurations=(header().configurations[0], auto, header().configurations[2])
    )
    RunFile.open(path, other).close()
    assert len(read_result(str(path)).runs) == 18


@pytest.mark.parametrize("max_draft_tokens", [None, 0, 3])
def test_a_configuration_survives_its_line(max_draft_tokens: int | None) -> None:
    sampling = Sampling(
        temperature=0.5,
        logit_bias={3: -1.5},
        banned_tokens=(1,),
        allowed_tokens=(2, 3),
        banned_sequences=((4, 5),),
        seed=7,
    )
    one = Described(
        name="x", max_draft_tokens=max_draft_tokens, sampling=sampling, lossy=True, gives_up="all"
    )
    assert kept(one) == one


def test_a_token_ends_where_its_last_whole_character_does() -> None:
    pieces = [b"ab", "é".encode()[:1], "é".encode()[1:], b"", "cd€".encode()]
    assert ends_of(pieces, 100) == (2, 2, 3, 3, 6)
    assert ends_of(pieces, 4) == (2, 2, 3, 3, 4)  # a stop string cut the text
    assert ends_of([b"\xff", b"a"], 100) == (1, 2)  # no character, and shown as one


def test_a_prompt_that_fails_in_the_end_is_in_no_figure() -> None:
    result = run_bench(ENGINE, configurations()[1:], workload(), max_tokens=12, repeats=2)
    result.fail("p1", "In its second turn.")
    assert {run.id for run in result.runs} == {"p0", "p2"}
    assert result.complete
