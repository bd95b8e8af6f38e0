"""The same model on several engines, each with what is best on it: which is the fastest?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import Described
from paceline.bench.stats import Ratio
from paceline.bench.wording import interval_words
from paceline.plan.decide_parts import gain_of, pays

KEPT = (None, "as stored", "of the GGUF file", "float32", "bfloat16", "float16")
"""Weights that the openvino engine has as their source does, or each number only rounded. Any other
export is another model than the one it was made of."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A configuration and why; `notes` say what decided."""

    one: Described
    notes: tuple[str, ...]


def rivals_of(done: BenchResult, baseline: Described) -> list[Described]:
    """Plain configurations of the same model and sampling on other engines."""
    return [
        one
        for one in done.configurations
        if one.is_baseline
        and one.sampling == baseline.sampling
        and one.target.get("engine") != baseline.target.get("engine")
        and same_model(one, baseline)
    ]


def same_model(one: Described, other: Described) -> bool:
    """Whether two targets are read from one place, or are called the same where one has none, have
    the same tokens, and neither was quantised on the way."""
    mine, theirs = one.target, other.target
    if mine.get("vocabulary_hash") != theirs.get("vocabulary_hash"):
        return False
    if not {mine.get("weights"), theirs.get("weights")} <= set(KEPT):
        return False
    if mine.get("path") and theirs.get("path"):
        return bool(mine["path"] == theirs["path"])
    return bool(mine.get("model") and mine.get("model") == theirs.get("model"))


def fastest(done: BenchResult, home: Decision, away: Sequence[Decision]) -> Decision:
    """Of what is best on each engine the fastest. Another engine than the first is chosen only
    where it is faster with a 95 % interval above 1."""
    if not away:
        return home
    best, most = home, 1.0
    compared: list[str] = []
    for choice in away:
        ratio = done.ratio(choice.one.name, beside=home.one.name)
        if ratio is None:
            compared.append(
                f"{placed(choice.one)} and {placed(home.one)} have no prompt that both decoded "
                "past its first token, so they aren't compared."
            )
            continue
        compared.append(sentence(choice.one, home.one, ratio))
        if pays(gain_of(ratio)) and ratio.value > most:
            best, most = choice, ratio.value
    every = (home, *away)
    if len({choice.one.target.get("dtype") for choice in every}) > 1:
        compared.append("The engines compute in other numbers, so their texts can differ.")
    others = [
        f"On {choice.one.target.get('engine')}: {note}"
        for choice in every
        if choice is not best
        for note in choice.notes
    ]
    return Decision(best.one, (*best.notes, *compared, *others))


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
