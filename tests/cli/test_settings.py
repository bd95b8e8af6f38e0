"""Options declared by dataclasses: what they read, what stands in the help, what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from paceline.cli.parser import Parser
from paceline.cli.settings import (
    Verb,
    add_options,
    argument,
    flag,
    group,
    option,
    read_options,
    whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: int = whole("of it", 3, least=2)
    name: tuple[str, ...] = option("one more", "NAME", repeat=True, default=("x",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """Do it."""

    file: str = argument("a file", "FILE")
    rate: float = option("how often (default: 1.5 or 50 %)", default=1.5, type=float)
    fast: bool = flag("at once")
    also: str | None = option("more options", "OPTIONS", quoted=True)
    inner: Inner = group(Inner, size=7)


def parsed(*words: str, changes: bool = False) -> dict[str, object]:
    parser = Parser()
    add_options(parser, Outer, changes=changes)
    return vars(parser.parse_args(words))


def test_what_is_not_given_has_the_default_of_the_group_that_holds_it() -> None:
    assert read_options(parsed("f"), Outer) == Outer(file="f", inner=Inner(size=7))
    given = read_options(parsed("f", "--name", "a", "--name", "b", "--fast", "--size", "4"), Outer)
    assert given == Outer(file="f", fast=True, inner=Inner(size=4, name=("a", "b")))


def test_changes_leave_the_rest_as_it_was() -> None:
    base = Outer(file="f", rate=2.0, inner=Inner(name=("a",)))
    assert read_options(parsed(changes=True), Outer, base) == base
    changed = read_options(parsed("--file", "g", "--size", "9", changes=True), Outer, base)
    assert changed == Outer(file="g", rate=2.0, inner=Inner(size=9, name=("a",)))


def test_a_quoted_text_of_options_may_begin_with_a_dash() -> None:
    assert read_options(parsed("f", "--also", "-n 7"), Outer).also == "-n 7"


def test_the_help_says_defaults_and_what_is_repeatable() -> None:
    parser = Parser()
    add_options(parser, Outer)
    text = " ".join(parser.format_help().split())
    for told in ("of it (default: 7)", "one more (repeatable; default: x)", "1.5 or 50 %) --fast"):
        assert told in text


def test_an_action_refuses_the_options_of_its_verb(capsys) -> None:
    top = Parser(prog="p")
    verbs = top.add_subparsers(parser_class=Parser)
    inner = Verb(Inner, lambda settings: settings.size, description="Count it.")
    Verb(Outer, None, actions={"count": inner}).add(verbs, "do")
    args = top.parse_args(["do", "f", "count", "--size", "5"])
    with pytest.raises(Exception, match="has no option --file"):
        args.run(args)
    with pytest.raises(SystemExit):
        top.parse_args(["do", "--help"])
    assert "count it" in capsys.readouterr().out
