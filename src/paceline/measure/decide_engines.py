"""The same model on several engines, each with what is best on it: which is the fastest?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.measure.decide_parts import gain_of, pays
from paceline.measure.result import BenchResult
from paceline.measure.run import Described
from paceline.measure.stats import Ratio
from paceline.measure.wording import interval_words


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration and why; `remarks` say what decided."""

    one: Described
    remarks: tuple[str, ...]


def rivals_of(done: BenchResult, plain: Described) -> list[Described]:
    """Plain configurations of the same model and sampling on other engines."""
    return [
        one
        for one in done.configurations
        if one.is_plain
        and one.sampling == plain.sampling
        and one.target.get("engine") != plain.target.get("engine")
        and same_model(one, plain)
    ]


def same_model(one: Described, other: Described) -> bool:
    """Whether two targets are read from one place, or are called the same where one has none, and
    have the same tokens."""
    mine, theirs = one.target, other.target
    if mine.get("vocabulary_hash") != theirs.get("vocabulary_hash"):
        return False
    if mine.get("path") and theirs.get("path"):
        return bool(mine["path"] == theirs["path"])
    return bool(mine.get("model") and mine.get("model") == theirs.get("model"))


def fastest(done: BenchResult, home: Choice, away: Sequence[Choice]) -> Choice:
    """Of what is best on each engine the fastest. Another engine than the first is chosen only
    where it is faster with a 95 % interval above 1."""
    if not away:
        return home
    best, most = home, 1.0
    compared: list[str] = []
    for choice in away:
        ratio = done.ratio(choice.one.name, beside=home.one.name)
        if ratio is None:
            continue
        compared.append(sentence(choice.one, home.one, ratio))
        if pays(gain_of(ratio)) and ratio.value > most:
            best, most = choice, ratio.value
    if len({one.one.target.get("dtype") for one in (home, *away)}) > 1 and compared:
        compared.append("The engines compute in other numbers, so their texts can differ.")
    return Choice(best.one, (*best.remarks, *compared))


def sentence(one: Described, other: Described, ratio: Ratio) -> str:
    """Which of two is how much faster, on which engines."""
    return (
        f"{placed(one)} is {ratio.value:.2f} times as fast as {placed(other)} "
        f"({interval_words(ratio)})."
    )


def placed(one: Described) -> str:
    """A configuration with its engine, where its name doesn't say that."""
    engine = str(one.target.get("engine"))
    return one.name if engine in one.name else f"{one.name} on {engine}"
