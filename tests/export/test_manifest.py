"""Names, amounts and texts as Kubernetes takes them, and YAML that no reader takes for another."""

from __future__ import annotations

import re
import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some
from made_setups import received

from paceline.errors import SettingError
from paceline.export import kubernetes as cluster
from paceline.export.text import as_yaml, comment

# How long an example takes on a busy machine says nothing.
unhurried = settings(deadline=None)

# Names.

SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
"""RFC 1035, which Kubernetes asks of a Service."""


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2-5-1-5b-instruct"),
        ("/models/SmolLM2-135M.Q4_1.gguf", "smollm2-135m-q4-1"),
        ("7B", "model-7b"),
        ("/models/", "models"),
        ("日本語", "model"),
        ("a" * 62 + "-b", "a" * 62),
    ],
)
def test_a_model_gives_a_name(model: str, name: str) -> None:
    assert cluster.short_name(model) == name


@unhurried
@given(some.text(), some.integers(8, 63))
def test_whatever_a_model_is_called_its_name_is_one_that_kubernetes_takes(text, most) -> None:
    name = cluster.short_name(text, most)
    assert SERVICE_NAME.fullmatch(name)
    assert len(name) <= most


def test_thousandths_of_a_byte_are_refused() -> None:
    """Kubernetes takes them, and ends the pod at once."""
    with pytest.raises(SettingError, match="thousandths of a byte. Write 512Mi"):
        cluster.Cluster(name="a", memory="512m")
    assert cluster.Cluster(name="a", memory="16Gi").memory == "16Gi"


# Templates.


def test_what_is_missing_goes_with_its_key_or_its_item() -> None:
    template = {
        "a": "$a",
        "b": "$$b",
        "c": {"d": "$$b", "e": 1},
        "f": [{"name": "x", "value": {"of": "$b"}}, {"name": "y", "value": "$a"}],
        "g": [{"name": "$b"}],
        "h": {"i": "$$b"},
    }
    assert cluster.fill(template, {"a": 0, "b": None}) == {
        "a": 0,
        "c": {"e": 1},
        "f": [{"name": "y", "value": 0}],
    }


def test_a_template_keeps_what_it_is_filled_with_as_it_is() -> None:
    told = "$(A)\n---\nkind: Secret"
    assert cluster.fill({"a": ["$a"]}, {"a": told}) == {"a": [told]}
    assert yaml.safe_load(as_yaml({"a": told})) == {"a": told}


# YAML.

# Strings that YAML 1.1 or 1.2, in Python's reading or Go's, takes for something else when bare.
TRAPS = [
    "on", "off", "yes", "no", "y", "n", "Y", "N", "NO", "True", "null", "~", "", "Null", ".nan",
    ".inf", "nan", "1", "1.5", "1e3", "1E3", "+1", "0x1F", "0o17", "017", "0b1", "1_000", "1:30",
    "12:30:45", "2026-01-01", "2026-01-01T00:00:00Z", "=", "<<", "-", "?", ":", "a: b", "a #b",
    "#a", "- a", "? a", "&a", "*a", "!a", "!!int 1", "%a", "@a", "`a", "'a", '"a', "{a", "[a]",
    "|", ">", "---", "...", "a\nb", "a\n", "\na", " a", "a ", "a\n  b\n c \n", "\t", "a\u2028b",
    "\x85", "\ufeff", "a\\b", "$(A)", "é", "日本",
]  # fmt: skip


@pytest.mark.parametrize("text", TRAPS, ids=ascii)
def test_every_text_reads_back_as_a_text_as_key_value_and_item(text: str) -> None:
    value = {"value": text, text or "empty": [text], "deep": {"list": [{"k": text}]}}
    assert yaml.safe_load(as_yaml(value)) == value


@unhurried
@given(some.recursive(some.text() | some.booleans() | some.integers(), lambda inner: (
    some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3)
), max_leaves=8))  # fmt: skip
def test_every_document_reads_back(value) -> None:
    assert yaml.safe_load(as_yaml({"value": value})) == {"value": value}


# What Go's readers take a bare word for: yaml.v2's table of words, and its numbers, which need no
# dot before an exponent (strconv.ParseFloat).
NOT_TEXT_IN_GO = re.compile(
    r"y|n|yes|no|on|off|true|false|null|nan|~|"
    r"[-+]?(\.inf|\.nan|inf|infinity|nan)|"
    r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])*|[-+]?0[xob][0-9a-f_]+|"
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)(e[-+]?[0-9]+)?|"
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*",
    re.IGNORECASE,
)


@unhurried
@given(some.sampled_from(TRAPS) | some.from_regex(NOT_TEXT_IN_GO, fullmatch=True) | some.text())
def test_no_text_stands_bare_that_go_reads_as_something_else(text: str) -> None:
    shown = as_yaml({"value": text}).removeprefix("value: ").rstrip("\n")
    bare = not shown.startswith(("'", '"', "|"))
    assert not (bare and NOT_TEXT_IN_GO.fullmatch(shown))


def test_json_stands_on_one_line_in_single_quotes() -> None:
    told = '{"method":"ngram","prompt_lookup_max":4,"long":"' + "x" * 200 + '"}'
    assert as_yaml({"args": [told]}) == f"args:\n  - '{told}'\n"


def test_a_part_that_is_used_twice_is_written_twice() -> None:
    part = {"a": "b"}
    assert "&" not in as_yaml({"x": part, "y": part})


def test_without_pyyaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SettingError, match=r"pip install 'paceline\[export\]'"):
        as_yaml({})


# Comments.


@unhurried
@given(some.lists(some.text()))
def test_nothing_leaves_a_comment(notes: list[str]) -> None:
    text = cluster.manifests([{"a": "b"}], notes)
    assert list(yaml.safe_load_all(text)) == [{"a": "b"}]
    for line in comment(notes):
        assert line.startswith("# ")
        assert line.isprintable()


def test_a_note_that_would_add_a_document_stays_a_note() -> None:
    notes = ["plan of x\n---\nkind: Secret\r\nb\u2028kind: Pod\x85kind: Job\x0bkind: Node"]
    assert list(yaml.safe_load_all(cluster.manifests([{"a": 1}], notes))) == [{"a": 1}]
    assert comment(["a\r\nb\t c\x1b"]) == ["# a b c?"]


def test_comments_are_wrapped_and_keep_their_words() -> None:
    lines = comment(["one " * 60, "two"])
    assert all(len(line) <= 98 for line in lines)
    assert " ".join(line.removeprefix("# ") for line in lines) == "one " * 60 + "two"


# Arguments.


@unhurried
@given(some.text(some.sampled_from("$()A{}b\"' "), max_size=12))
def test_every_argument_reaches_the_program_as_it_is(text: str) -> None:
    assert received(cluster.literal([text]), A="expanded", b="b") == [text]


def test_the_kubelets_rule_is_read_as_kubernetes_tests_it() -> None:
    """Cases of `TestMapReference` and `TestMapping` in Kubernetes' expansion_test.go."""
    cases = {
        "$(VAR_A)": "A", "___$(VAR_B)___": "___B___", "$(NONE)": "$(NONE)", "$$(VAR_A)": "$(VAR_A)",
        "f000-$$VAR_A": "f000-$VAR_A", "foo\\$(VAR_C)bar": "foo\\Cbar", "$VAR_A": "$VAR_A",
        "$": "$", "$$": "$", "$(": "$(", "$$$$$$(BIG_MONEY)": "$$$(BIG_MONEY)",
        "$?_boo_$!(VAR_A": "$?_boo_$!(VAR_A", "foo$$$$(VAR_A)": "foo$$(VAR_A)",
    }  # fmt: skip
    given = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C"}
    assert {case: received([case], **given)[0] for case in cases} == cases


@pytest.mark.parametrize("text", ["a\nb", "a\x00", "\x1b[0m", "a\u202eb", "\ud800"])
def test_what_cannot_be_shown_is_refused_by_its_number(text: str) -> None:
    with pytest.raises(SettingError, match=r"character U\+[0-9A-F]{4}"):
        cluster.literal([text])
