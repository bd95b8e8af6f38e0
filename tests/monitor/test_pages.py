"""Pages of counters: read by name, whole or cut off, and the same as the library reads them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")
pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.monitor.dialects import WANTED
from paceline.monitor.scrape import Metrics, MetricSample, cut_off, parse_metrics

PAGES = sorted((Path(__file__).parent / "metrics").glob("*.txt"))

# A page as a server may write it.

names = st.from_regex(r"[a-z_:][a-z0-9_:]{0,8}", fullmatch=True).filter(
    lambda name: not name.endswith(("_total", "_sum", "_count", "_bucket", "_created"))
)
values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(
        lambda v: (
            "NaN" if math.isnan(v) else ("+Inf" if v > 0 else "-Inf") if math.isinf(v) else f"{v!r}"
        )
    ),
    st.integers(-(10**12), 10**12).map(str),
)
label_values = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
    max_size=12,
)
labels = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), label_values, max_size=3
)
blanks = st.sampled_from([" ", "  "])
stamps = st.sampled_from(["", " 1395066363000"])


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def families(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A family's lines, and the names of its samples."""
    name, kind = (
        draw(names),
        draw(st.sampled_from(["counter", "gauge", "histogram", "untyped", None])),
    )
    lines = []
    if draw(st.booleans()):
        lines.append(f"# HELP {name} {escaped(draw(label_values))}")
    written = f"{name}_total" if kind == "counter" and draw(st.booleans()) else name
    if kind is not None:
        lines.append(f"# TYPE {written} {kind}")
    tails = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
    found = []
    for tail in tails:
        for _ in range(draw(st.integers(1, 2))):
            inner = ",".join(f'{k}="{escaped(v)}"' for k, v in draw(labels).items())
            told = f"{{{inner}}}" if inner or draw(st.booleans()) else ""
            lines.append(f"{written}{tail}{told}{draw(blanks)}{draw(values)}{draw(stamps)}")
            found.append(f"{written}{tail}")
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from(["", "# a comment", "#"])))
    return "\n".join(lines), found


def same(one: MetricSample, other: MetricSample) -> bool:
    equal = one.value == other.value or (math.isnan(one.value) and math.isnan(other.value))
    return equal and (one.name, one.labels) == (other.name, other.labels)


@settings(max_examples=150, deadline=None)
@given(st.lists(families(), min_size=1, max_size=5, unique_by=lambda one: one[1][0]), st.data())
def test_wanted_names_are_read_as_the_library_reads_them(
    metrics: list[tuple[str, list[str]]], data: st.DataObject
) -> None:
    text = "\n".join(lines for lines, _ in metrics) + "\n"
    whole = parse_metrics(text)
    wanted = set(data.draw(st.lists(st.sampled_from(sorted({s.name for s in whole.samples})))))
    some = parse_metrics(text, wanted)
    expected = [sample for sample in whole.samples if sample.name in wanted]
    read = [sample for sample in some.samples if sample.name in wanted]
    assert len(read) == len(expected)
    assert all(map(same, read, expected))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_real_pages_give_the_same_whether_read_in_whole_or_by_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    whole, some = parse_metrics(text), parse_metrics(text, WANTED)
    assert some.samples == tuple(s for s in whole.samples if s.name in WANTED)
    assert {name.removesuffix("_total") for name in whole.names} == {
        name.removesuffix("_total") for name in some.names
    }


def test_labels_may_hold_braces_quotes_and_line_feeds() -> None:
    metrics = parse_metrics('a_total{x="} 5 {",y="\\"\\n\\\\"} 7\n', {"a_total"})
    assert metrics.samples == (MetricSample("a_total", {"x": "} 5 {", "y": '"\n\\'}, 7.0),)


def test_a_counter_without_total_is_read_under_the_name_with_it() -> None:
    metrics = parse_metrics(
        "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens 5\n", WANTED
    )
    assert metrics.samples == (MetricSample("vllm:generation_tokens_total", {}, 5.0),)


@pytest.mark.parametrize("wanted", [None, WANTED])
@pytest.mark.parametrize(
    "text", ["<html></html>\n", '[{"iter": 1}]\n', '{"a": 1}\n', "hello\n", "a 1\n<p>\n"]
)
def test_what_is_no_page_is_refused_however_it_is_read(text: str, wanted: set[str] | None) -> None:
    with pytest.raises(ValueError, match="Prometheus"):
        parse_metrics(text, wanted)


def test_a_page_cut_off_is_noticed() -> None:
    text = PAGES[-1].read_text(encoding="utf-8")
    assert cut_off(text) is None
    assert cut_off("") is None
    for end in range(1, len(text)):
        if text[end - 1] != "\n":
            assert cut_off(text[:end]), text[max(0, end - 30) : end]
    assert cut_off('h_bucket{le="1"} 2\n') == "it ends within a histogram"
    assert cut_off('h_bucket{le="1"} 2\nh_sum 3\nh_count 2\n') is None


def test_names_are_known_whether_read_or_not() -> None:
    metrics = parse_metrics("a 1\nb 2\n", {"a"})
    assert metrics.names == {"a", "b"}
    assert metrics == Metrics((MetricSample("a", {}, 1.0),), frozenset({"b"}))
