"""What a report says: its verdict, what speaks against it, and that nothing is pooled or hidden."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import report_pieces as pieces
from report_pieces import AUTO, BASELINE, EVERY, bench, drafted
from report_pieces import LOSSY as LOOSE

from paceline.bench.comparison import Comparison
from paceline.bench.local.result import BenchResult
from paceline.bench.stats import Ratio
from paceline.decode.stats import stats
from paceline.errors import DataError, SettingError
from paceline.report import make, rows
from paceline.report.document import FAULT, LOSSY, Cell, Paragraph, Plot, Report, Samples, Table
from paceline.report.make import report_of
from paceline.report.summary import BenchSummary, is_slower, is_unclear
from paceline.report.texts import MOST_CHARACTERS
from paceline.report.texts import pieces as text_pieces
from paceline.report.verdict import slower_prompts, verdicts


def summary(result: BenchResult) -> BenchSummary:
    return BenchSummary("run.jsonl", result)


def said(result: BenchResult) -> str:
    """The verdicts and doubts, as text."""
    found = verdicts(summary(result))
    return "\n".join(line for each in found for line in (each.sentence, *each.doubts))


def blocks(report: Report, title: str) -> list[Any]:
    return [
        block
        for part in report.parts
        for section in part.sections
        if section.title.startswith(title)
        for block in section.blocks
    ]


def words(report: Report) -> Iterator[str]:
    """All that is said in paragraphs and tables."""
    for part in report.parts:
        for section in part.sections:
            yield section.title
            for block in section.blocks:
                if isinstance(block, Paragraph):
                    yield block.text
                if isinstance(block, Table):
                    yield from (str(cell) for row in (block.head, *block.rows) for cell in row)


def changed(result: BenchResult, name: str, change: dict[str, Any], ids: set[str] = frozenset()):
    """The runs of a configuration (of some prompts) with other values."""
    runs = [
        replace(run, **change) if run.configuration == name and (not ids or run.id in ids) else run
        for run in result.runs
    ]
    return replace(result, runs=runs)


# The verdict.


def test_the_verdict_names_the_fastest_with_its_interval_and_prompts() -> None:
    result = bench()
    ratio = result.comparison("lookup -n 3").ratio()
    assert verdicts(summary(result))[0].sentence == (
        f"Use lookup -n 3: a speedup of {ratio.value:.2f}× (95 % interval "
        f"{ratio.low:.2f} to {ratio.high:.2f}, 12 prompts)."
    )


def test_where_the_recommended_one_loses_is_said_with_the_verdict() -> None:
    result = bench()
    ratio = result.comparison("lookup -n 3").ratio("story")
    assert ratio.high < 1
    assert f"lookup -n 3 is slower than the baseline in story ({ratio.value:.2f}×)." in said(result)
    assert "is slower than the baseline" not in said(bench(categories={"code": 0.9}))


def test_where_no_draft_pays_baseline_is_best() -> None:
    result = bench(categories={"story": 0.0, "chat": 0.02}, each=6)
    text = said(result)
    assert text.startswith(
        "The baseline is best. The fastest draft, lookup -n 1, has a speedup of 0.9"
    )
    assert summary(result).best(summary(result).groups[0], None) == "baseline"


def test_an_interval_with_1_in_it_is_no_clear_difference() -> None:
    result = bench((BASELINE, drafted("lookup -n 7", 7)), categories={"a": 0.8, "b": 0.0}, each=5)
    ratio = result.comparison("lookup -n 7").ratio()
    assert ratio.low < 1 < ratio.high
    assert said(result).startswith("No clear difference. The fastest draft, lookup -n 7")


def test_one_prompt_has_no_interval_and_says_nothing_of_others() -> None:
    result = bench((BASELINE, drafted("lookup -n 3", 3)), categories={"code": 0.8}, each=1)
    text = said(result)
    assert "was faster" in text
    assert "no interval" in text
    assert "A single prompt says nothing of others." in text
    assert "interval 1" not in text


def test_few_prompts_are_said() -> None:
    assert "4 prompts are few" in said(bench(each=1))
    assert "are few" not in said(bench(each=3))


def test_a_fault_is_never_recommended() -> None:
    sound = bench()
    assert said(sound).startswith("Use lookup -n 3")
    result = changed(
        sound,
        "lookup -n 3",
        {"equal_to_baseline": False, "first_difference": pieces.fault()},
        {"code-1"},
    )
    text = said(result)
    assert not text.startswith("Use lookup -n 3")
    assert "lookup -n 3 has a fault: in 1 run" in text
    whole = summary(result)
    assert whole.best(whole.groups[0], None) != "lookup -n 3"
    table = blocks(report_of([whole]), "By category")[0]
    assert Cell("lookup -n 3", marks=(FAULT,)) in table.head


def test_if_all_have_faults_baseline_is_to_be_used() -> None:
    result = bench((BASELINE, EVERY[2]))
    fault = {"equal_to_baseline": False, "first_difference": pieces.fault()}
    assert said(changed(result, "lookup -n 3", fault)).startswith("Use the baseline")


def test_a_lossy_configuration_is_marked_wherever_it_is_named_and_never_recommended() -> None:
    result = bench((BASELINE, EVERY[1], LOOSE))
    result.runs = [
        replace(run, divergences=pieces.departed(len(run.tokens)), equal_to_baseline=False)
        if run.configuration == LOOSE.name
        else run
        for run in result.runs
    ]
    assert (
        result.comparison(LOOSE.name).ratio().value > result.comparison("lookup -n 1").ratio().value
    )
    text = said(result)
    assert text.startswith("Use lookup -n 1")
    loose = result.comparison(LOOSE.name).ratio()
    assert f"{LOOSE.name} has a speedup of {loose.value:.2f}×, but is LOSSY." in text
    assert f"{LOOSE.name} is LOSSY: it gives up the target's distribution" in text
    report = report_of([summary(result)])
    for part in report.parts:
        for section in part.sections:
            for block in section.blocks:
                tables = [block] if isinstance(block, Table) else []
                tables += [block.table] if isinstance(block, Plot) and block.table else []
                for table in tables:
                    for cell in (cell for row in (table.head, *table.rows) for cell in row):
                        text = cell.text if isinstance(cell, Cell) else cell
                        if text == LOOSE.name:
                            assert LOSSY in cell.marks, section.title
    far = next(b for b in blocks(report, "Is the text") if isinstance(b, Paragraph))
    assert "nats per token from the target" in far.text
    assert "of tokens changed" in far.text


def test_a_lossy_verifier_that_does_not_tell_is_not_measured() -> None:
    report = report_of([summary(bench((BASELINE, LOOSE)))])
    assert any("is not measured" in text for text in words(report))


def test_nothing_to_compare_is_said() -> None:
    assert said(bench((BASELINE,))).startswith("Only the baseline was measured: 20.8 ms per token")
    failed = bench((BASELINE,), categories={"a": 0.5}, each=2)
    for id, _ in failed.header.prompts:
        failed.fail(id, "The prompt is too long.")
    assert said(failed) == "Nothing was measured: all 2 prompts failed."
    empty = replace(failed, runs=[], failed={})
    assert said(empty).startswith("Nothing was measured: no prompt is finished")
    one_token = bench((BASELINE, EVERY[1]), tokens=1)
    assert said(one_token).startswith("Nothing can be compared")
    policy = bench((BASELINE, AUTO), tokens=1)
    for result in (failed, empty, one_token, policy):
        assert report_of([summary(result)]).parts  # and nothing falls over


def test_a_configuration_that_never_drafted_is_named() -> None:
    idle = drafted("lookup -n auto", None)
    result = bench((BASELINE, EVERY[1]))
    baseline = [run for run in result.runs if run.configuration == "baseline"]
    runs = [replace(run, configuration=idle.name, equal_to_baseline=True) for run in baseline]
    header = replace(result.header, configurations=(*result.configurations, idle))
    text = said(replace(result, header=header, runs=[*result.runs, *runs]))
    assert "lookup -n auto never drafted" in text


def test_looping_answers_are_said_to_flatter_drafts() -> None:
    result = bench((BASELINE, EVERY[1]))
    loop = changed(result, "baseline", {"tokens": (1, 2, 3) * 20}, {"code-0"})
    assert "1 of 12 baseline answers repeat themselves (code)" in said(loop)
    assert "repeat themselves" not in said(result)
    assert "say little of sound text" in said(
        changed(result, "baseline", {"tokens": (1, 2, 3) * 20})
    )


def test_configurations_that_are_as_fast_are_said_to_be() -> None:
    again = drafted("lookup -n 3 again", 3)
    result = bench((BASELINE, EVERY[2], again))
    assert "is not clearly faster than lookup -n 3" in said(result)
    assert "not clearly faster" not in said(bench((BASELINE, EVERY[1], EVERY[2]), each=20))


def test_an_incomplete_run_is_shown_and_marked_on_the_same_prompts_only() -> None:
    result = bench((BASELINE, EVERY[2]))
    last = [run for run in result.runs if run.id == "story-2"]
    result.runs.remove(next(run for run in last if run.configuration == "baseline"))
    found = summary(result)
    assert "The run is not complete: 1 of 12 prompts is still to be measured." in said(result)
    assert "1 run of prompts that were only begun is left out." in said(result)
    names = [{run.id for run in found.runs(one)} for one in ("baseline", "lookup -n 3")]
    assert names[0] == names[1]
    assert len(names[0]) == 11
    assert ("complete", "no") in blocks(report_of([found]), "How it")[0].pairs


def test_what_prints_as_1_is_no_loss_and_of_a_single_prompt_it_is_said(monkeypatch) -> None:
    near, clear = Ratio(0.996, 0.993, 0.999), Ratio(0.96, 0.94, 0.98)
    assert (is_slower(near), is_unclear(near)) == (False, True)
    assert (is_slower(clear), is_unclear(clear)) == (True, False)
    assert not is_slower(Ratio(0.996, None, None))
    result = bench((BASELINE, EVERY[3]), categories={"code": 0.9, "story": 0.0}, each=1)
    one = result.comparison("lookup -n 7").ratio("story")
    assert f"slower than the baseline in story ({one.value:.2f}×, one prompt)." in said(result)
    monkeypatch.setattr(Comparison, "ratio", lambda *_, **__: near)
    monkeypatch.setattr(Comparison, "prompt_ratios", lambda *_: {"code-0": near})
    assert said(result).startswith("No clear difference.")
    assert "slower than the baseline" not in said(result)
    assert slower_prompts(summary(result).comparison(EVERY[3])) == "0 of 1"


# The sections.


def test_a_category_may_have_any_name() -> None:
    found = summary(bench((BASELINE, EVERY[2]), categories={"None": 0.1, "code": 0.9}))
    for ask in (
        lambda *scope: found.stats("lookup -n 3", *scope),
        found.comparison(EVERY[2]).ratio,
    ):
        assert ask() != ask("None")
        assert ask("None") != ask("code")


def test_slowdowns_come_first_the_worst_of_all_at_the_top() -> None:
    report = report_of([summary(bench())])
    titles = [section.title for section in report.parts[0].sections]
    assert titles[:2] == ["Verdict", "The worst, first"]
    table = blocks(report, "The worst")[0]
    ratios = [float(row[2].text.rstrip("×")) for row in table.rows]
    assert ratios == sorted(ratios)
    assert all(row[1] == "story" for row in table.rows)
    assert all(row[2].marks == ("slower",) for row in table.rows)


def test_the_category_table_has_the_bench_s_own_figures() -> None:
    result = bench()
    table = blocks(report_of([summary(result)]), "By category")[0]
    names = [one.name for one in result.configurations]
    for row in table.rows:
        scope = None if row[0].text == "all prompts" else row[0].text
        for name, cell in zip(names, row[1:], strict=True):
            ms = stats(result.rounds_of(name, scope)).ms_per_token
            assert cell.text == f"{ms:.2f} ms"
            ratio = None if name == "baseline" else result.comparison(name).ratio(scope)
            if ratio is not None:
                assert cell.small == f"{ratio.value:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})"
                assert ("slower" in cell.marks) == (ratio.high < 1)
                assert ("unclear" in cell.marks) == (ratio.low <= 1 <= ratio.high)
        best = [cell for cell in row[1:] if "best" in cell.marks]
        assert len(best) == 1
        assert float(best[0].text.split()[0]) == min(float(c.text.split()[0]) for c in row[1:])


def test_figures_of_all_prompts_are_the_pooled_ones_by_the_field_s_names() -> None:
    result = bench()
    table = blocks(report_of([summary(result)]), "By category")[1]
    for row in table.rows:
        cells, pooled = dict(zip(table.head, row, strict=True)), result.stats(row[0].text)
        assert cells["TPOT, ms"] == f"{pooled.ms_per_token:.2f}"
        assert cells["tokens per second"] == f"{pooled.tokens / pooled.decode_s:.1f}"
        parts = cells["TPOT: target + draft + rest"].split(" + ")
        assert sum(map(float, parts)) == pytest.approx(pooled.ms_per_token, abs=0.02)
        prefill_ms = 1e3 * pooled.prefill_s / len(result.runs_of(row[0].text))
        assert float(cells["TTFT, ms"]) == pytest.approx(prefill_ms, rel=0.01)
        assert cells["mean accepted length τ"] == f"{pooled.tokens_per_round:.2f}"
        rate = pooled.acceptance_rate
        assert cells["acceptance rate"] == ("–" if rate is None else f"{100 * rate:.0f} %")


def test_differences_are_told_faults_before_rounding() -> None:
    result = bench((BASELINE, EVERY[1], EVERY[2]))
    numeric = {"equal_to_baseline": False, "first_difference": pieces.numeric()}
    fault = {"equal_to_baseline": False, "first_difference": pieces.fault()}
    result = changed(result, "lookup -n 1", numeric, {"code-0", "chat-0"})
    result = changed(result, "lookup -n 3", fault, {"story-2"})
    overview, differences = blocks(report_of([summary(result)]), "Is the text")
    assert [row[1] for row in overview.rows] == ["10 of 12", "11 of 12"]
    assert [row[0] for row in differences.rows] == ["story-2", "code-0", "chat-0"]
    assert differences.rows[0][5] == Cell("", marks=(FAULT,))
    assert differences.rows[1][3:] == ("0.013", "0.08", "numeric")


def test_sampled_texts_are_compared_by_their_distributions() -> None:
    every = [pieces.sampled(one) for one in (BASELINE, EVERY[2])]
    report = report_of([summary(bench(every, each=4))])
    told = [block.text for block in blocks(report, "Is the text") if isinstance(block, Paragraph)]
    assert any("token counts" in text or "counted differently" in text for text in told)
    few = report_of([summary(bench(every, categories={"a": 0.5}, each=2))])
    told = [block.text for block in blocks(few, "Is the text") if isinstance(block, Paragraph)]
    assert any("too few pairs of texts" in text for text in told)


def test_width_costs_are_the_policy_s_and_this_run_s() -> None:
    plot = blocks(report_of([summary(bench())]), "What width")[0]
    row = next(row for row in plot.table.rows if row[0] == "4")
    assert row[1] == f"{pieces.ROW_S[4] / pieces.ROW_S[1]:.2f}"
    assert row[2].startswith("1.1")  # the rounds' own medians
    assert "drafted in" in blocks(report_of([summary(bench())]), "What width")[1].text
    without = blocks(report_of([summary(bench(EVERY))]), "What width")[0]
    assert next(row for row in without.table.rows if row[0] == "4")[1] == "–"
    assert not blocks(report_of([summary(bench((BASELINE,)))]), "What width")


def test_acceptance_has_the_rounds_that_offered_so_many() -> None:
    result = bench()
    plot = blocks(report_of([summary(result)]), "Acceptance")[0]
    pooled = result.stats("lookup -n 3")
    told = [row[2] for row in plot.table.rows if row[2] != "–"]
    pairs = zip(pooled.acceptance, pooled.offered, strict=True)
    assert told == [f"{100 * share:.0f} % of {offered:,}" for share, offered in pairs]
    assert pooled.offered[0] != pooled.rounds


def test_break_even_s_points_are_speedup() -> None:
    result = bench()
    plot = blocks(report_of([summary(result)]), "Break-even")[0]
    for one, category, cost, tokens, _ in plot.table.rows:
        scope = None if category == "all prompts" else category
        ratio = result.comparison(one.text).ratio(scope)
        assert float(tokens) / float(cost) == pytest.approx(ratio.value, rel=0.02)


def test_engines_and_samplings_stand_apart() -> None:
    hot = [pieces.sampled(one) for one in (BASELINE, EVERY[2])]
    other = replace(hot[0], name="baseline hot", baseline="baseline hot")
    mine = replace(hot[1], name="lookup hot", baseline="baseline hot")
    result = bench((BASELINE, EVERY[2], other, mine))
    found = verdicts(summary(result))
    assert [each.sentence.split(":")[0] for each in found] == [
        "Against baseline",
        "Against baseline hot",
    ]
    report = report_of([summary(result)])
    first = blocks(report, "By category – against baseline")[0]
    second = blocks(report, "By category – against baseline hot")[0]
    assert [cell.text for cell in first.head[1:]] == ["baseline", "lookup -n 3"]
    assert [cell.text for cell in second.head[1:]] == ["baseline hot", "lookup hot"]


def test_what_was_left_out_is_named() -> None:
    result = bench((BASELINE, EVERY[1]))
    result.fail("code-0", "The prompt has 9000 tokens.")
    found = blocks(report_of([summary(result)]), "How it")
    tables = {str(block.head[0]): block.rows for block in found if isinstance(block, Table)}
    assert tables["Failed, and left out of all configurations (1)"] == (
        ("code-0: The prompt has 9000 tokens.",),
    )
    assert tables["Lines of the workload that were skipped (1)"] == (("Line 3 is not JSON.",),)
    metadata = dict(found[0].pairs)
    assert metadata["prompts measured"] == "11 of 12"
    assert metadata["workload: sha256"] == "ab" * 32


def test_what_was_not_measured_is_never_0() -> None:
    header = {"bandwidth_bytes_per_s": None}
    untold = replace(BASELINE, target={"model": "tiny.gguf"})
    result = bench((untold, EVERY[1]), **header)
    result = replace(
        result, runs=[replace(r, cpu_s=None, peak_memory_bytes=None) for r in result.runs]
    )
    table = blocks(report_of([summary(result)]), "Resources")[0]
    assert table.rows[0][1:] == ("–",) * 4
    assert table.rows[1][3].endswith("/s")
    assert table.rows[1][4] == "–"
    found = json.loads(rows.as_json([summary(result)]))["rows"]
    assert found[0]["cpu_s"] is None
    assert found[0]["acceptance_rate"] is None


# Samples.


def test_a_sample_s_marks_are_the_accepted_drafted_tokens() -> None:
    one = drafted("lookup -n 3", 3)
    done = pieces.run(one, "a", "code", tokens=40, acceptance=0.7, seed=3)
    found = list(text_pieces(done))
    assert "".join(piece.text for piece in found) == done.text
    assert all(a.drafted != b.drafted for a, b in pairwise(found))
    starts = [0, *done.ends]
    place = 0
    expected = ""
    for each in done.rounds:
        for token in range(each.emitted):
            if token < each.accepted:
                expected += done.text[starts[place] : starts[place + 1]]
            place += 1
    assert "".join(piece.text for piece in found if piece.drafted) == expected
    assert expected


def test_a_character_of_several_tokens_and_a_rest_lose_nothing() -> None:
    done = pieces.run(drafted("x", 3), "a", "code", tokens=12, acceptance=0.9, seed=1)
    count = len(done.tokens)
    ends = tuple(min(i // 2, 5) for i in range(1, count + 1))
    found = list(text_pieces(replace(done, text="abcdefgh", ends=ends)))
    assert "".join(piece.text for piece in found) == "abcdefgh"


def test_samples_are_one_a_category_and_cut() -> None:
    result = bench((BASELINE, EVERY[2]), tokens=400)
    [block] = [b for b in blocks(report_of([summary(result)]), "Sample") if isinstance(b, Samples)]
    assert [sample.title.split(":")[0] for sample in block.samples] == summary(result).categories
    assert all(sample.cut for sample in block.samples)
    for sample in block.samples:
        assert sum(len(piece.text) for piece in sample.pieces) == MOST_CHARACTERS
    bare = replace(result, runs=[replace(run, ends=()) for run in result.runs])
    assert not blocks(report_of([summary(bare)]), "Sample")


# Rows.


def test_rows_are_the_same_as_csv_and_json() -> None:
    found = [summary(bench())]
    documents = json.loads(rows.as_json(found))["rows"]
    table = list(csv.DictReader(io.StringIO(rows.as_csv(found))))
    assert len(documents) == len(table) == 5 * (4 + 1)
    for document, line in zip(documents, table, strict=True):
        assert list(document) == list(line)
        for name, value in document.items():
            written = " ".join(map(str, value)) if isinstance(value, list) else value
            assert line[name] == ("" if written is None else str(written))
    whole = next(r for r in documents if r["configuration"] == "lookup -n 3" and not r["category"])
    parts = [r for r in documents if r["configuration"] == "lookup -n 3" and r["category"]]
    for name in ("tokens", "rounds", "proposed", "accepted", "runs", "equal_to_baseline"):
        assert whole[name] == sum(part[name] for part in parts)
    assert whole["speedup_low"] < whole["speedup"] < whole["speedup_high"]


def test_a_fault_counts_in_its_category() -> None:
    change = {"equal_to_baseline": False, "first_difference": pieces.fault()}
    result = changed(bench((BASELINE, EVERY[2])), "lookup -n 3", change, {"chat-0", "chat-2"})
    found = {
        row["category"]: row["faults"]
        for row in json.loads(rows.as_json([summary(result)]))["rows"]
        if row["configuration"] == "lookup -n 3"
    }
    assert found == {"code": 0, "summary": 0, "chat": 2, "story": 0, None: 2}


# Files.


def test_several_runs_are_never_pooled(tmp_path: Path) -> None:
    first = bench((BASELINE, EVERY[2]))
    other = bench(
        (replace(BASELINE, target={"model": "big.gguf"}), EVERY[2]),
        categories={"code": 0.1},
        machine={"cpu": "Another", "cores": 64},
    )
    one = pieces.written(first, tmp_path / "one.jsonl")
    two = pieces.written(other, tmp_path / "two.jsonl")
    found = make.summaries_of([one, two])
    report = report_of(found)
    assert [part.title for part in report.parts] == ["Side by side", "one.jsonl", "two.jsonl"]
    apart = blocks(report, "What differs")[0]
    assert apart.text.startswith(
        "These runs differ in target, engine, workload, machine, prompts measured."
    )
    ms = {s.source: s.stats("baseline").ms_per_token for s in found}
    row = blocks(report, "Speedup, run by run")[0].rows[0]
    assert [cell.text for cell in row[1:]] == [f"{value:.2f} ms" for value in ms.values()]
    alike = report_of([found[0], BenchSummary("again.jsonl", first)])
    assert "same target, workload, settings and machine" in blocks(alike, "What differs")[0].text


@pytest.mark.parametrize(
    ("metadata", "named"),
    [({"prompts_sha256": "cd" * 32}, "workload"), ({"raw": 12}, "workload")],
)
def test_runs_of_other_prompts_differ(metadata: dict[str, Any], named: str) -> None:
    before = bench((BASELINE, EVERY[2]))
    told = {**before.header.workload, "prompts_sha256": "ab" * 32, "raw": 0}
    one, other = (
        BenchSummary(name, replace(before, header=replace(before.header, workload=workload)))
        for name, workload in (("a", told), ("b", told | metadata))
    )
    assert blocks(report_of([one, other]), "What differs")[0].text.startswith(
        f"These runs differ in {named}."
    )


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    path = pieces.written(bench((BASELINE,)), tmp_path / "one.jsonl")
    with pytest.raises(SettingError, match="named twice"):
        make.summaries_of([path, f"{tmp_path}/../{tmp_path.name}/one.jsonl"])


def test_files_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    paths = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        paths.append(pieces.written(bench((BASELINE,)), tmp_path / place / "run.jsonl"))
    assert [one.source for one in make.summaries_of(paths)] == paths


def test_a_line_cut_off_at_the_end_is_a_run_not_finished(tmp_path: Path) -> None:
    path = Path(pieces.written(bench((BASELINE, EVERY[1])), tmp_path / "run.jsonl"))
    path.write_text(path.read_text()[:-100])
    [found] = make.summaries_of([str(path)])
    assert found.missing == 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("hello", "is not a paceline bench file"),
        (
            '{"kind": "paceline rounds"}',
            "paceline bench file: its kind is 'paceline rounds'",
        ),
        ('{"kind": "paceline bench", "version": 2}', "has version 2 of the format"),
        ('{"kind": "paceline bench", "version": 4}', "has no 'command'"),
    ],
)
def test_what_is_no_bench_is_refused(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text and f"{text}\n")
    with pytest.raises(DataError, match=match):
        make.summaries_of([str(path)])


def test_broken_lines_and_counters_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    path = Path(pieces.written(bench((BASELINE, EVERY[1])), tmp_path / "x.jsonl"))
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], "{broken", *lines[1:]]))
    with pytest.raises(DataError, match="Line 2 of .* is not JSON"):
        make.summaries_of([str(path)])
    row = json.loads(lines[1])
    row["run"]["tokens"] = row["run"]["tokens"][:-1]
    path.write_text("\n".join([lines[0], json.dumps(row), *lines[2:]]))
    with pytest.raises(DataError, match="doesn't add up"):
        make.summaries_of([str(path)])


def test_another_file_is_never_overwritten_and_a_report_is(tmp_path: Path) -> None:
    found = [summary(bench((BASELINE, EVERY[1])))]
    for suffix in (".md", ".csv", ".json"):
        path = tmp_path / f"report{suffix}"
        path.write_text("my own notes")
        with pytest.raises(DataError, match="is not a report of Paceline's"):
            make.check_out(path)
        path.unlink()
        make.write(found, make.check_out(path))
        make.write(found, make.check_out(path))
    with pytest.raises(SettingError, match="It can end in .html, .md, .csv, .json"):
        make.check_out(tmp_path / "report.pdf")
    with pytest.raises(DataError, match="can't be written"):
        make.check_out(tmp_path / "nowhere" / "report.md")


def test_a_full_disk_leaves_the_report_that_was_there(tmp_path: Path, monkeypatch) -> None:
    found = [summary(bench((BASELINE, EVERY[1])))]
    path = tmp_path / "report.md"
    make.write(found, path)
    before = path.read_text()

    def full(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DataError, match="No space left on device"):
        make.write(found, path)
    assert path.read_text() == before


def test_auto_is_a_limit_like_any_other() -> None:
    assert AUTO.max_draft_tokens is None
    assert (
        "the policy's choice"
        in dict(blocks(report_of([summary(bench())]), "How it")[0].pairs)[
            "configuration: lookup -n auto"
        ]
    )


def test_runs_of_a_repeat_are_pooled_by_prompt() -> None:
    result = bench((BASELINE, EVERY[1]), categories={"a": 0.6}, each=2, repeats=2)
    again = [replace(run, repeat=1) for run in result.runs]
    whole = replace(result, runs=[*result.runs, *again])
    assert summary(whole).missing == 0
    assert "2 prompts are few" in said(whole)
