"""Reports of runs on live servers: what they say, in every form, alone and beside other files."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_browser import Browser, executable
from report_pieces import bench
from report_pieces import written as bench_written
from server_pieces import AGAINST, FIRST, live, written

from paceline.bench.server.result import ServerResult
from paceline.cli.main import main
from paceline.report import render
from paceline.report.document import Plot, Table
from paceline.report.make import report_of
from paceline.report.sections import part_of
from paceline.report.summary import BenchSummary, ServerSummary
from paceline.report.verdict import verdicts

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def summary(result: ServerResult) -> ServerSummary:
    return ServerSummary("run.jsonl", result)


def text(*results: ServerResult) -> str:
    return render.markdown(
        report_of([ServerSummary(f"{i}.jsonl", r) for i, r in enumerate(results)])
    )


def table(result: ServerResult, caption: str) -> list[dict[str, str]]:
    """A table's rows by the words of its head; a first cell with what stands beneath it."""
    tables = [
        block
        for section in part_of(summary(result)).sections
        for block in section.blocks
        if isinstance(block, Table)
    ]
    found = next(one for one in tables if one.caption == caption)
    return [
        {str(head): getattr(cell, "text", cell) for head, cell in zip(found.head, row, strict=True)}
        | {"small": getattr(row[0], "small", "")}
        for row in found.rows
    ]


def plots(result: ServerResult) -> dict[str, Plot]:
    blocks = [block for section in part_of(summary(result)).sections for block in section.blocks]
    return {block.title: block for block in blocks if isinstance(block, Plot)}


def change(result: ServerResult, server: str, clients: int, **changes: object) -> None:
    """The first answer of a server."""
    place = next(
        i
        for i, one in enumerate(result.asked)
        if (one.server, one.concurrency) == (server, clients)
    )
    one = result.asked[place]
    result.asked[place] = replace(one, answer=replace(one.answer, **changes))


# The verdict.


def test_the_verdict_is_one_a_number_of_clients_with_its_interval() -> None:
    result = live(each=8)
    one, eight = verdicts(summary(result))
    ratio = result.comparison(1).ratio()
    assert ratio is not None
    assert one.sentence == (
        f"One client: it pays. The endpoint has a speedup of {ratio.value:.2f}× per "
        f"token after the first (95 % interval {ratio.low:.2f} to {ratio.high:.2f}, 32 prompts)."
    )
    assert eight.sentence.startswith(
        "8 clients at once: no clear difference. The endpoint has a speedup of 0."
    )
    slower = verdicts(summary(live(categories={"a": 0.5}, each=12, clients=(1,))))
    assert "it does not pay" in slower[0].sentence
    assert any("story (0.7" in doubt or "story (0.8" in doubt for doubt in one.doubts)


def test_of_one_server_nothing_is_said_of_a_gain() -> None:
    (found,) = verdicts(summary(live(servers=(FIRST,), clients=(1,))))
    assert "TTFT 48.1 ms, TPOT 15.1 ms, 794 ms per answer" in found.sentence
    assert "medians of 24 answers" in found.sentence
    assert "pays" not in found.sentence
    assert "nothing can be said of a gain" in found.doubts[0]
    assert "Speedup" not in text(live(servers=(FIRST,)))


def test_one_prompt_has_no_interval_and_few_are_told() -> None:
    (found,) = verdicts(summary(live(categories={"a": 2.0}, each=1, clients=(1,))))
    assert "on one prompt. A single prompt says nothing of others" in found.sentence
    (found,) = verdicts(summary(live(categories={"a": 2.0}, each=4, clients=(1,))))
    assert any("4 prompts are few" in doubt for doubt in found.doubts)


def test_a_server_that_makes_users_wait_is_doubted_in_the_verdict() -> None:
    result = live(categories={"a": 2.0}, each=12, clients=(1,))
    for place, one in enumerate(result.asked):
        if one.server == FIRST:
            waited = replace(one.answer, retries=1, waited_s=5.0, total_s=one.answer.total_s + 5.0)
            result.asked[place] = replace(one, answer=waited)
    (found,) = verdicts(summary(result))
    assert "it pays" in found.sentence
    assert any("say otherwise: it does not pay" in doubt for doubt in found.doubts)
    assert "refused 12 of its answered requests at first" in text(result)


def test_failures_and_an_unfinished_run_are_told() -> None:
    result = live(clients=(1,))
    change(result, FIRST, 1, failure="answered 503: 'full'", failure_kind="http 503", total_s=None)
    del result.asked[-1]
    (found,) = verdicts(summary(result))
    assert any("1 of 24 requests failed (1 http 503)" in doubt for doubt in found.doubts)
    assert any("not complete" in doubt for doubt in found.doubts)
    assert "22 prompts" in found.sentence  # what failed or is missing on one is judged on neither
    assert "answered 503: 'full'" in text(result)
    for one in list(result.asked):
        failed = replace(one.answer, failure="no", failure_kind="timeout")
        result.asked[result.asked.index(one)] = replace(one, answer=failed)
    (found,) = verdicts(summary(result))
    assert found.sentence == "Nothing was measured: no request was answered."
    assert "timeout" in text(result)
    assert verdicts(summary(ServerResult(result.header)))[0].sentence == found.sentence
    assert "Nothing was measured" in text(ServerResult(result.header))


# Figures.


def test_categories_stand_with_the_worst_first() -> None:
    rows = table(live(), "Milliseconds per token, and speedup with its 95 % interval")
    assert [row["category"] for row in rows] == ["story", "chat", "summary", "code", "all prompts"]
    assert rows[0]["small"] == "6 prompts"


def test_figures_are_those_of_the_run_by_clients_and_server() -> None:
    result = live()
    times = table(result, "Medians by number of clients and server; beneath them p95")
    load = table(result, "All clients together")
    who = [("endpoint", "one client"), ("the other", "one client")]
    who += [("endpoint", "8 clients at once"), ("the other", "8 clients at once")]
    for rows in (times, load):
        assert [(row["server"], row["small"]) for row in rows] == who
    found = result.load(AGAINST, 8)
    assert found.ttft_s is not None
    assert found.tok_per_s is not None
    assert times[3]["TTFT, ms"] == f"{1e3 * found.ttft_s.median:.0f}"
    assert load[3]["tokens per second"] == f"{found.tok_per_s:.1f}"


def test_the_worst_category_of_each_number_of_clients_comes_first() -> None:
    result = live()
    rows = table(result, "The category in which each does worst")
    assert [row["compared"] for row in rows] == ["8 clients at once", "one client"]
    for n, row in zip((8, 1), rows, strict=True):
        category, ratio = result.comparison(n).worst_first()[0]
        assert row["worst category"] == category
        assert row["speedup there"] == f"{ratio.value:.2f}×"


def test_both_kinds_say_the_field_s_words() -> None:
    names = ("TTFT", "TPOT", "acceptance rate", "mean accepted length", "tokens per second")
    for said in (text(live()), render.markdown(report_of([BenchSummary("b", bench())]))):
        for name in (*names, "speedup", "baseline"):
            assert name in said, name
        assert "plain" not in said.replace("explain", "").replace("s plain by its costs", "")


def test_drafts_are_the_servers_own_counts_and_none_where_there_are_none() -> None:
    result = live(clients=(1,))
    endpoint, other = table(result, "What each server counted of its drafts")
    assert (endpoint["drafted"], endpoint["accepted"]) == ("1,920", "720")
    assert endpoint["acceptance rate"] == "38 %"
    assert endpoint["mean accepted length τ of them"] == "2.50"
    assert other["drafted"] == "none"
    assert set(list(other.values())[2:-1]) == {"–"}
    said = text(result)
    assert "The other: no drafts counted: http://gpu-1:8001/metrics answers 501" in said
    assert "vLLM counts a round only if a token was drafted in it" in said
    change(result, AGAINST, 1, drafted=8, accepted=2)
    other = table(result, "What each server counted of its drafts")[1]
    assert (other["drafted"], other["accepted"], other["acceptance rate"]) == ("8", "2", "25 %")
    assert "no drafts counted" not in text(result)


def test_pictures_are_drawn_only_of_what_is_known() -> None:
    assert list(plots(live())) == [
        "Speedup by category",
        "Tokens per second by number of clients",
        "Acceptance by position, as the servers count it",
    ]
    assert list(plots(live(clients=(1,), servers=(FIRST,), counters=False))) == []
    shares = plots(live())["Acceptance by position, as the servers count it"].table
    assert shares is not None
    assert [row[1] for row in shares.rows] == ["70 %", "45 %", "25 %", "10 %"]
    for plot in plots(live()).values():
        plot.draw()


def test_texts_are_compared_only_where_greedy() -> None:
    result = live(clients=(1,))
    change(result, FIRST, 1, text="y")
    assert "23 of 24" in text(result)
    sampled = live(clients=(1,), sampling={"temperature": 0.7, "seed": 1})
    assert "Texts are not compared: they were sampled." in text(sampled)
    assert "temperature 0.7, seed 1" in text(sampled)


def test_how_it_was_measured_holds_every_fact_and_the_command() -> None:
    said = text(live())
    for fact in (
        "paceline bench-server http://gpu-1:8000",
        "endpoint: version: 0.32.0",
        "sent: max\\_tokens: 60",
        "patience: retries: 4",
        "client: cpu: A CPU",
        "Line 3 is not JSON.",
    ):
        assert fact in said, fact


def test_answers_without_times_are_none_and_not_zero() -> None:
    result = live(clients=(1,))
    for place, one in enumerate(result.asked):
        bare = replace(one.answer, ttft_s=None, decode_s=None, streamed=False)
        result.asked[place] = replace(one, answer=bare)
    (found,) = verdicts(summary(result))
    assert "for whole answers" in found.sentence
    rows = table(result, "Medians by number of clients and server; beneath them p95")
    assert rows[0]["TPOT, ms"] == "–"
    assert "does not stream" in text(result)
    assert "Speedup by category" not in plots(result)


# Forms and files.


def test_a_report_of_live_servers_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(live(), tmp_path / "run.jsonl")
    outs = [f"r.{suffix}" for suffix in ("html", "md", "csv", "json")]
    command = ["report", "run.jsonl", *(part for out in outs for part in ("-o", out))]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("One client: it pays.")
    assert main(command) == 0  # over reports of its own
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "<script" not in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_text(encoding="utf-8"))))
    assert len(rows) == 2 * 2 * 5
    whole = next(row for row in rows if row["category"] == "" and row["server"] == FIRST)
    assert float(whole["speedup"]) == pytest.approx(live().comparison(1).ratio().value)  # type: ignore[union-attr]
    assert whole["accepted_at"] == "0.7 0.45 0.25 0.1"
    other = next(row for row in rows if row["category"] == "" and row["server"] == AGAINST)
    assert (other["speedup"], other["drafted"]) == ("", "")
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert "rows" not in document
    assert [row["concurrency"] for row in document["server_rows"]] == [1] * 10 + [8] * 10


def test_files_of_both_kinds_stand_apart_and_are_never_pooled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(live(), tmp_path / "a.jsonl")
    written(live(clients=(1,), servers=(FIRST,)), tmp_path / "b.jsonl")
    bench_written(bench(), tmp_path / "c.jsonl")
    names = ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert main(["report", *names, "-o", "all.md", "-o", "all.html", "-o", "all.json"]) == 0
    said = (tmp_path / "all.md").read_text(encoding="utf-8")
    assert [line[3:] for line in said.splitlines() if line.startswith("## ")] == [
        "All files", "Live servers, side by side", *names,
    ]  # fmt: skip
    assert "These runs differ in the other, clients at once." in said
    assert "They measure different things, and are not compared." in said
    document = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert {row["run"] for row in document["rows"]} == {"c.jsonl"}
    assert {row["run"] for row in document["server_rows"]} == {"a.jsonl", "b.jsonl"}
    capsys.readouterr()
    assert main(["report", *names, "-o", "all.csv"]) == 2
    assert "have other columns" in capsys.readouterr().err
    assert not (tmp_path / "all.csv").exists()


def test_a_run_of_a_real_server_becomes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("httpx")
    sys.path.append(str(Path(__file__).parents[1] / "bench"))
    from fake_server import serving

    monkeypatch.chdir(tmp_path)
    prompts = [{"prompt": f"<b>{i}", "id": f"p{i}", "category": f"c{i % 2}"} for i in range(4)]
    lines = "".join(f"{json.dumps(prompt)}\n" for prompt in prompts)
    (tmp_path / "p.jsonl").write_text(lines, encoding="utf-8")
    drafts = "vllm:spec_decode_num_drafts_total"
    page = lambda server: f"vllm:generation_tokens_total {server.tokens}\n{drafts} 0\n"  # noqa: E731
    with serving(pause_s=0.005, metrics=page) as first, serving(pause_s=0.02) as against:
        command = ["bench-server", first.url, "--against", against.url]
        assert (
            main([*command, "--prompts", "p.jsonl", "--concurrency", "1,2", "-o", "r.jsonl"]) == 0
        )
    assert main(["report", "r.jsonl", "-o", "r.html", "-o", "r.md"]) == 0
    said = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "**One client: it pays. The endpoint has" in said
    assert "4 of 4" in said
    assert "clients at once: 1, 2" in said


@pytest.mark.browser
@pytest.mark.skipif(executable() is None, reason="there is no Chromium")
def test_a_browser_shows_it_and_asks_for_nothing(tmp_path: Path) -> None:
    run = written(live(), tmp_path / "run.jsonl")
    page = tmp_path / "r.html"
    assert main(["report", run, "-o", str(page)]) == 0
    with Browser() as browser:
        for width, dark in ((1100, False), (390, True)):
            browser.open(page, width=width, dark=dark)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate("document.querySelectorAll('svg.plot').length") == 3
        assert browser.complaints == []
        assert all(url.startswith(("file:", "data:")) for url in browser.requests)
