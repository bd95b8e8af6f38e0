"""The page itself: one file, nothing from outside, nothing of a prompt that is more than text; and,
where there is a Chromium, as a browser has it."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_pieces as pieces
from report_browser import Browser, executable
from report_pieces import AUTO, BASELINE, EVERY, LOSSY, bench, drafted, run, written

from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import check_run
from paceline.cli.main import main
from paceline.errors import SettingError
from paceline.report import render
from paceline.report.document import Metadata
from paceline.report.make import report_of
from paceline.report.summary import BenchSummary

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

EVIL = '</p></script><script>alert(1)</script><img src=x onerror=alert(2)> "&lt;$x$ \u202e` ```'


def html_of(*results: BenchResult) -> str:
    return render.html(
        report_of([BenchSummary(f"{i}.jsonl", one) for i, one in enumerate(results)])
    )


class Elements(HTMLParser):
    """Names, attributes and text of a page; every element must be closed."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def whole() -> str:
    poor = bench((*EVERY, AUTO), categories={"story": 0.02, "chat": 0.1})
    return html_of(bench((*EVERY, AUTO, LOSSY)), bench((BASELINE, EVERY[1])), poor)


def test_the_page_is_one_well_formed_file_that_names_nothing_outside(whole: str) -> None:
    found = Elements(whole)
    assert not {"script", "img", "iframe", "object", "form"}.intersection(found.names)
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:")), (tag, value)
    assert "url(http" not in whole
    assert "@import" not in whole
    assert re.findall(r"https?://[^\s\"'<]+", whole) == []


def test_ids_are_unique_and_what_is_referred_to_exists(whole: str) -> None:
    found = Elements(whole)
    ids = [value for _, name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'(?:url\(|href=")#([^)"]+)', whole))
    labels = [value for _, name, value in found.attributes if name == "aria-labelledby"]
    assert referred | {one for value in labels for one in value.split()} <= set(ids)


def test_every_plot_has_text_a_title_a_description_and_the_page_s_colours(whole: str) -> None:
    plots = re.findall(r"<svg.*?</svg>", whole, re.S)
    assert len(plots) == 5 + 5 + 5
    for plot in plots:
        root = ET.fromstring(plot.replace("<svg", '<svg xmlns:xlink="x"', 1))
        assert root.find("title").text
        assert root.find("desc").text
        assert root.get("role") == "img"
        assert any(text.text for text in root.iter("text"))
        # No colour of matplotlib's own: those wouldn't follow the page into the dark.
        assert set(re.findall(r"#[0-9a-f]{6}", plot)) == set()
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", whole))
    assert used <= set(re.findall(r"--([a-z0-9-]+):", whole))


def test_tables_have_heads_with_a_scope_and_the_page_a_language(whole: str) -> None:
    found = Elements(whole)
    assert ("html", "lang", "en") in found.attributes
    assert found.names.count("th") == sum(
        tag == "th" and name == "scope" for tag, name, _ in found.attributes
    )


def test_all_metadata_stand_on_the_page() -> None:
    report = report_of([BenchSummary("0.jsonl", bench((*EVERY, AUTO, LOSSY)))])
    found = Elements(render.html(report))
    pairs = [
        pair
        for part in report.parts
        for section in part.sections
        for block in section.blocks
        if isinstance(block, Metadata)
        for pair in block.pairs
    ]
    assert found.names.count("dt") == found.names.count("dd") == len(pairs) > 20
    for name, value in pairs:
        assert f"{name}{value}" in found.text


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_and_lines_stand_out_in_light_dark_and_print(whole: str) -> None:
    """WCAG 2.2: 4.5 for text, 3 for what a picture is read by."""
    themes = [
        dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", whole, re.S)
    ]
    assert len(themes) == 3
    for theme in themes:
        for name in ("ink", "muted", "link", "good", "bad"):
            assert contrast(theme[name], theme["paper"]) >= 4.5, name
        assert contrast(theme["ink"], theme["drafted"]) >= 4.5
        assert contrast(theme["ink"], theme["bad-paper"]) >= 4.5
        assert contrast(theme["muted"], theme["panel"]) >= 4.5
        for name, colour in theme.items():
            if name.startswith("series") or name == "drafted-line":
                assert contrast(colour, theme["paper"]) >= 3, name


def evil() -> BenchResult:
    """Whatever can come from a prompt file, a command line or a model, hostile."""
    baseline = replace(
        BASELINE, name=f"baseline {EVIL}", baseline=f"baseline {EVIL}", target={"model": EVIL}
    )
    loose = drafted(
        f"lookup {EVIL}", 3, baseline=baseline.name, lossy=True, gives_up=EVIL, verifier=EVIL
    )
    exact = drafted(f"exact {EVIL}", 2, baseline=baseline.name, drafts={EVIL: {}})
    workload = {"name": EVIL, "version": EVIL, "licence": EVIL, "prompts": 2, "skipped": [EVIL]}
    prompts = [(f"one {EVIL}", f"kind {EVIL}"), ("two", "plain\x00\x1b\ntext")]
    result = BenchResult(
        pieces.header(
            (baseline, loose, exact),
            [*prompts, ("three", "c")],
            command=("paceline", "bench", EVIL),
            workload=workload,
            machine={"cpu": EVIL, EVIL: EVIL},
            started=EVIL,
        )
    )
    for id, category in prompts:
        for one in (baseline, loose, exact):
            done = run(one, id, category, tokens=90, acceptance=0.9, text=EVIL * 4)
            if one is exact:
                done = replace(done, equal_to_baseline=False, first_difference=pieces.fault())
            check_run(done)
            result.runs.append(done)
    result.fail("three", EVIL)
    return result


def test_a_prompt_that_is_html_shows_as_text() -> None:
    text = render.html(
        report_of([BenchSummary(EVIL, evil()), BenchSummary("b", bench((BASELINE, EVERY[1])))])
    )
    found = Elements(text)
    assert "script" not in found.names
    assert "img" not in found.names
    assert not any(name.startswith("on") for _, name, _ in found.attributes)
    assert "<script>alert(1)</script>" in found.text
    # Nor does it turn what stands behind it, or hide anything.
    assert not set("\u202e\x00\x1b") & set(text)


def test_markdown_shows_it_as_text_too() -> None:
    text = render.markdown(report_of([BenchSummary(EVIL, evil())]))
    outside = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.S | re.M)
    assert "<script" not in outside
    assert "<img" not in outside
    for line in outside.splitlines():
        if line.startswith("|"):
            head = line
            assert len(re.findall(r"(?<!\\)\|", line)) >= 2, head
    assert "````" in text  # a fence longer than any in the text


def test_markdown_has_every_number_of_the_page(whole: str) -> None:
    report = report_of([BenchSummary("0.jsonl", bench((*EVERY, AUTO, LOSSY)))])
    text, spoken = render.markdown(report), render.html(report)
    told = Elements(re.sub(r"<(svg|style).*?</\1>", "", spoken, flags=re.S)).text
    numbers = set(re.findall(r"\d+\.\d+", told))
    assert numbers
    assert numbers <= set(re.findall(r"\d+\.\d+", text)) | {render.paceline.__version__[:3]}


def test_many_categories_and_configurations_still_fit() -> None:
    many = [
        drafted(f"lookup -n {max_draft_tokens}", max_draft_tokens)
        for max_draft_tokens in range(1, 10)
    ]
    result = bench(
        (BASELINE, *many), categories={f"kind {i}": i / 40 for i in range(40)}, each=1, tokens=20
    )
    text = html_of(result)
    assert "kind 39" in text
    assert "The first 24 of 40 are shown." in text
    assert "The first 12 of 40 are shown." in text
    assert len(text) < 3_000_000


def test_a_page_of_ten_thousand_rounds_is_small() -> None:
    result = bench((*EVERY, AUTO), each=4, tokens=260)
    assert sum(len(one.rounds) for one in result.runs) > 10_000
    assert len(html_of(result).encode()) < 3_000_000


def plot_of(text: str, title: str) -> str:
    return next(plot for plot in re.findall(r"<svg.*?</svg>", text, re.S) if title in plot)


def test_letters_that_a_font_lacks_are_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    result = bench((BASELINE, EVERY[1]), categories={"日本語": 0.5, "עברית $x$": 0.6})
    text = html_of(result)
    for plot in re.findall(r"<svg.*?</svg>", text, re.S):
        assert ("日本語" in plot) == ("$x$" in plot)  # a dollar is no formula
    assert "$x$" in plot_of(text, "Speedup by category")
    assert [str(one.message) for one in recwarn] == []


# In a browser.


needs_chromium = pytest.mark.skipif(executable() is None, reason="there is no Chromium here")


@pytest.mark.browser
@needs_chromium
def test_a_browser_asks_for_nothing_and_complains_of_nothing(whole: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(whole, encoding="utf-8")
    hostile = tmp_path / "evil.html"
    hostile.write_text(render.html(report_of([BenchSummary(EVIL, evil())])), encoding="utf-8")
    with Browser() as browser:
        for one in (path, hostile):
            for width, dark in ((1100, False), (1100, True), (390, False)):
                browser.open(one, width=width, dark=dark)
                # Nothing is wider than the window: what is scrolls by itself.
                assert browser.evaluate("document.documentElement.scrollWidth") <= width
                assert browser.evaluate("document.querySelectorAll('svg.plot').length") > 4
                ink = browser.evaluate("getComputedStyle(document.body).color")
                assert ink == ("rgb(232, 234, 237)" if dark else "rgb(22, 25, 29)")
        assert set(browser.requests) == {path.as_uri(), hostile.as_uri()}
        assert browser.complaints == []
        assert browser.pdf().startswith(b"%PDF")


OVERLAPS = """
(() => {
  const found = [];
  for (const plot of document.querySelectorAll('svg.plot')) {
    const edge = plot.getBoundingClientRect();
    const texts = [...plot.querySelectorAll('text')].map(
      text => [text.textContent.trim(), text.getBoundingClientRect()]);
    for (const [word, a] of texts) {
      if (a.left < edge.left - 1 || a.right > edge.right + 1 ||
          a.top < edge.top - 1 || a.bottom > edge.bottom + 1)
        found.push('outside: ' + word);
      for (const [other, b] of texts)
        if (word < other && a.left < b.right - 2 && b.left < a.right - 2 &&
            a.top < b.bottom - 3 && b.top < a.bottom - 3)
          found.push(word + ' over ' + other);
    }
  }
  return JSON.stringify(found);
})()
"""


@pytest.mark.browser
@needs_chromium
def test_no_label_of_a_plot_covers_another_or_leaves_the_picture(
    whole: str, tmp_path: Path
) -> None:
    path, hostile = tmp_path / "report.html", tmp_path / "evil.html"
    path.write_text(whole, encoding="utf-8")
    hostile.write_text(render.html(report_of([BenchSummary(EVIL, evil())])), encoding="utf-8")
    with Browser() as browser:
        for one in (hostile, path):
            browser.open(one)
            assert json.loads(browser.evaluate(OVERLAPS)) == []
        # The check can fail: a word put over another is found.
        browser.evaluate(
            "(() => { const t = document.querySelectorAll('svg.plot text');"
            "const c = t[0].cloneNode(true); c.textContent += ' too';"
            "t[0].parentNode.appendChild(c); })()"
        )
        assert json.loads(browser.evaluate(OVERLAPS)) != []


@pytest.mark.parametrize(
    ("missing", "said"),
    [("matplotlib.figure", "A plot needs matplotlib"), ("jinja2", "A page needs Jinja")],
)
def test_without_its_libraries_a_page_is_refused_and_markdown_is_not(
    monkeypatch, missing: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    report = report_of([BenchSummary("run.jsonl", bench((BASELINE, EVERY[1])))])
    with pytest.raises(SettingError, match=said):
        render.html(report)
    assert render.markdown(report).startswith(render.MARKDOWN_MARK)


def test_help_opens_with_two_examples(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("  paceline report ")
    assert second.startswith("  paceline report ")


def test_the_file_a_user_gets_is_that_page(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(bench((BASELINE, EVERY[2])), Path("run.jsonl"))
    assert main(["report", "run.jsonl"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("Use lookup -n 3: ")
    assert out.err == "The report is in paceline-report.html.\n"
    assert Path("paceline-report.html").read_text().startswith("<!doctype html>")
    every = ["-o", "a.md", "-o", "b.csv", "-o", "c.json", "-o", "d.html"]
    assert main(["report", "run.jsonl", *every]) == 0
    capsys.readouterr()
    assert Path("d.html").read_text() == Path("paceline-report.html").read_text()
    for arguments, complaint in (
        (["run.jsonl", "-o", "a.md", "-o", "a.md"], "-o a.md is given twice."),
        (["run.jsonl", "-o", "run.jsonl"], "ends in '.jsonl'"),
        (["nothing.jsonl"], "nothing.jsonl can't be read"),
    ):
        assert main(["report", *arguments]) == 2
        assert complaint in capsys.readouterr().err
