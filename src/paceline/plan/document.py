"""The draft to run, how far, and on what evidence, as one small file.

`paceline plan -o` writes it, `paceline export` turns it into an engine's settings, and `paceline
watch` holds a live server against it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from paceline.errors import DataError

KIND, VERSION = "paceline plan", 2

SOURCES = ("bench", "replay", "costs", "endpoint")
"""Where evidence comes from: real decoding, answers replayed, costs alone, live servers."""

TRAINED = ("eagle", "eagle3", "medusa", "mtp", "dflash", "speculators")
"""Kinds of trained drafts, which engines load and we only describe."""

DRAFT_KINDS = (
    "lookup",
    "recycle",
    "ngram",
    "suffix",
    "model",
    "tree",
    "early-exit",
    "first",
    "cascade",
    "mixture",
    "shared",
    "text",
    "several",
    *TRAINED,
)
"""`several` is no draft of its own: drafts on offer to our policy, which asks one of them a round.
`settings["drafts"]` lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model that is decoded.

    name              as the user named it
    path              where its files lie on the machine that measured; None of a server's
    engine            what decoded it: `llamacpp`, `transformers`, or a server's name
    vocabulary_size   rows of its logits
    vocabulary_hash   of its tokens' names, trailing padding left out: equal hashes are equal
                      vocabularies (`measure.model_metadata`)
    """

    name: str
    engine: str
    path: str | None = None
    vocabulary_size: int | None = None
    vocabulary_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDraft:
    """What proposes.

    kind              one of `DRAFT_KINDS`
    name              as `-d` has it
    model             where its model lies, a path or a repository; None if it needs none, has
                      several, which its parts name, or where that isn't known
    settings          the draft's own options that were set; `parts` of one made of drafts, with
                      `kind`, `name`, `model` and `settings` each, and so `drafts` of `several`
    vocabulary_size, vocabulary_hash    as of the target
    """

    kind: str
    name: str
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    vocabulary_size: int | None = None
    vocabulary_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Of a schedule by batch size: from so many sequences on, up to so many (None: and more), the
    limit. Limit 0 is ordinary decoding."""

    from_batch: int
    to_batch: int | None
    max_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Speedup: time per token without the draft over that with it, with its 95 % interval where
    there is one. Predicted, not measured, where the evidence is costs or a replay."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a server that runs the plan should show under the conditions that were measured.

    acceptance_at         by position, the share of all drafted rounds whose token there was
                          accepted, so that they add up to tokens per drafted round less 1; empty
                          if unknown. Acceptance has the same counts over the rounds that offered so
                          many tokens, which are fewer where a draft offers less than its limit
    tokens_per_round      emitted over all rounds, bonus included
    tokens_per_drafted_round   1 + accepted / drafted rounds, those that verified a draft: what
                          vLLM's and llama.cpp's counters show
    acceptance_rate       accepted / proposed, pooled
    break_even_tokens     tokens per drafted round from which drafting pays at this limit and
                          `measured.batch`: seconds of a drafted round over those of a plain one
    gain                  overall, and by category
    """

    acceptance_at: tuple[float, ...] = ()
    tokens_per_round: float | None = None
    tokens_per_drafted_round: float | None = None
    acceptance_rate: float | None = None
    break_even_tokens: float | None = None
    gain: Gain | None = None
    gain_by_category: Mapping[str, Gain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The conditions that the evidence holds for.

    source        one of `SOURCES`
    file          its name
    when          ISO 8601, with offset; empty if unknown
    machine       facts of the machine (or of the costs) that were measured
    workload      facts of the prompts
    sampling      temperature and the like
    prompts       how many, and `tokens` that they were decoded to, first ones left out
    batch         sequences decoded together; 1 in a bench
    exact         the output distribution was the target's; False under a lossy verifier
    configuration    which of the file's ways to decode; None where it has but one
    verifier      the accept rule; None of a server's
    """

    source: str
    file: str | None = None
    when: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    prompts: int = 0
    tokens: int = 0
    batch: int = 1
    exact: bool = True
    configuration: str | None = None
    verifier: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A decision about a draft that can travel.

    draft      None: decode plainly
    max_draft_tokens      most drafted tokens in a round; None: our policy chose per round. 0
                          without a draft
    mean_limit tokens proposed per drafted round, for engines that want one fixed number where our
               policy chose
    schedule   by batch size, where it is known; steps are in order, begin at 1, leave no gap, and
               none is above `max_draft_tokens`. The last one ends where evidence ends, or at None:
               and more
    notes    what a reader must know, a sentence each
    """

    target: Target
    draft: PlannedDraft | None
    max_draft_tokens: int | None
    mean_draft_tokens: float | None = None
    schedule: tuple[Step, ...] = ()
    expected: Expected = field(default_factory=Expected)
    measured: Measurement
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"kind": KIND, "version": VERSION, **asdict(self)}

    def write(self, path: Path) -> None:
        """Raises DataError where it can't be written."""
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"{path} can't be written: {error.strerror}.", "Choose another."
            ) from None


def read_plan(path: Path) -> PlanDocument:
    """A plan from its file. Raises DataError for a file that is none, or one of another version,
    and names the field that is missing, unknown or out of range."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Name a plan's file.") from None
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}.", _MAKE) from None
    except RecursionError:
        raise DataError(f"{path} is nested too deeply.", _MAKE) from None
    return plan_from_json(document, str(path))


def calls_itself_plan(path: Path) -> bool:
    """Whether a file says that it is a plan: of any version, damaged, or cut off while it was
    written."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return re.match(rf'\s*{{\s*"kind"\s*:\s*"{KIND}"', text) is not None
    return isinstance(document, Mapping) and document.get("kind") == KIND


_MAKE = "Make one with `paceline plan … -o plan.json`."


def _no_number(written: str) -> NoReturn:
    raise ValueError(f"{written} is no number")


def plan_from_json(document: object, name: str = "The plan") -> PlanDocument:
    """The same from a document that is read already."""
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        found = document.get("kind") if isinstance(document, Mapping) else None
        what = f"a {found!r}" if found else "something else"
        raise DataError(f"{name} is no plan but {what}.", _MAKE)
    if document.get("version") != VERSION:
        raise DataError(
            f"{name} is a plan of version {document.get('version')}, and this Paceline reads "
            f"version {VERSION}.",
            "Make it again with this Paceline, or use the Paceline that made it.",
        )
    body = {key: value for key, value in document.items() if key not in ("kind", "version")}
    try:
        plan = _made(PlanDocument, body, "")
        _check(plan)
    except _Fault as fault:
        raise DataError(f"{name} can't be used: {fault}.", _MAKE) from None
    except RecursionError:
        raise DataError(f"{name} is nested too deeply.", _MAKE) from None
    return plan


# Types, read from the classes above.


class _Fault(Exception):
    """What is wrong with a document, without its name."""


_Made = TypeVar("_Made")
_Read = Callable[[Any, str], Any]


def _made(made: type[_Made], values: object, where: str) -> _Made:
    """An object of a class from its fields. `where` is its own name."""
    if not isinstance(values, Mapping):
        raise _Fault(f"{where} is {values!r}, not an object")
    inside = f"{where}." if where else ""
    known = {one.name: one for one in fields(made)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise _Fault(f"{inside}{key} is not a field of version {VERSION}")
    found = {}
    for name, one in known.items():
        if name in values:
            found[name] = _READ[str(one.type)](values[name], f"{inside}{name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise _Fault(f"{inside}{name} is missing")
    return made(**found)


def _baseline(holds: Callable[[Any], bool], wanted: str) -> _Read:
    def read(value: Any, where: str) -> Any:
        if not holds(value):
            raise _Fault(f"{where} is {value!r}, not {wanted}")
        return value

    return read


def _or_none(read: _Read) -> _Read:
    return lambda value, where: None if value is None else read(value, where)


def _list_of(read: _Read) -> _Read:
    def read_all(values: Any, where: str) -> Any:
        if not isinstance(values, list | tuple):
            raise _Fault(f"{where} is {values!r}, not a list")
        return tuple(read(value, f"{where}[{at}]") for at, value in enumerate(values))

    return read_all


def _mapping_of(read: _Read) -> _Read:
    def read_all(values: Any, where: str) -> Any:
        if not isinstance(values, Mapping):
            raise _Fault(f"{where} is {values!r}, not an object")
        return {str(key): read(value, f"{where}.{key}") for key, value in values.items()}

    return read_all


def _object(made: type) -> _Read:
    return lambda values, where: _made(made, values, where)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # of a whole number that no float holds
        return False


_TEXT = _baseline(lambda value: isinstance(value, str), "a text")
_WHOLE = _baseline(_is_whole, "a whole number")
_NUMBER = _baseline(_is_number, "a number")
_READ: Mapping[str, _Read] = {
    "str": _TEXT,
    "str | None": _or_none(_TEXT),
    "int": _WHOLE,
    "int | None": _or_none(_WHOLE),
    "float": _NUMBER,
    "float | None": _or_none(_NUMBER),
    "bool": _baseline(lambda value: isinstance(value, bool), "true or false"),
    "tuple[float, ...]": _list_of(_NUMBER),
    "tuple[str, ...]": _list_of(_TEXT),
    "Mapping[str, Any]": _mapping_of(lambda value, _: value),
    "Target": _object(Target),
    "PlannedDraft | None": _or_none(_object(PlannedDraft)),
    "tuple[Step, ...]": _list_of(_object(Step)),
    "Expected": _object(Expected),
    "Measurement": _object(Measurement),
    "Gain | None": _or_none(_object(Gain)),
    "Mapping[str, Gain]": _mapping_of(_object(Gain)),
}
"""How a field is read, by its type as it is written above."""


# Ranges, and what must fit together.


def _check(plan: PlanDocument) -> None:
    draft, measured = plan.draft, plan.measured
    _named(plan.target, "target", "name", "engine", "path", "vocabulary_hash")
    _at_least(1, "target.vocabulary_size", plan.target.vocabulary_size)
    if draft is not None:
        _named(draft, "draft", "kind", "name", "model", "vocabulary_hash")
        _at_least(1, "draft.vocabulary_size", draft.vocabulary_size)
        _one_of("draft.kind", draft.kind, DRAFT_KINDS)
    elif plan.max_draft_tokens != 0 or any(step.max_draft_tokens for step in plan.schedule):
        raise _Fault("there is no draft, and limit is not 0")
    _at_least(0 if draft is None else 1, "max_draft_tokens", plan.max_draft_tokens)
    _at_least(0, "mean_draft_tokens", plan.mean_draft_tokens)
    _one_of("measured.source", measured.source, SOURCES)
    for name in ("prompts", "tokens"):
        _at_least(0, f"measured.{name}", getattr(measured, name))
    _at_least(1, "measured.batch", measured.batch)
    _check_schedule(plan.schedule, plan.max_draft_tokens)
    _check_expected(plan.expected)


def _check_expected(expected: Expected) -> None:
    rates = {f"acceptance_at[{at}]": share for at, share in enumerate(expected.acceptance_at)}
    for name, rate in {**rates, "acceptance_rate": expected.acceptance_rate}.items():
        if rate is not None and not 0 <= rate <= 1:
            raise _Fault(f"expected.{name} is {rate!r}, not from 0 to 1")
    for name in ("tokens_per_round", "tokens_per_drafted_round", "break_even_tokens"):
        _at_least(0, f"expected.{name}", getattr(expected, name))
    gains = {f"gain_by_category.{name}": one for name, one in expected.gain_by_category.items()}
    for name, gain in {"gain": expected.gain, **gains}.items():
        if gain is not None:
            _check_gain(gain, f"expected.{name}")


def _check_gain(gain: Gain, where: str) -> None:
    if gain.value <= 0:
        raise _Fault(f"{where}.value is {gain.value!r}, not above 0")
    if (gain.low is None) != (gain.high is None):
        raise _Fault(f"{where} has one end of an interval")
    if gain.low is not None and gain.high is not None and not gain.low <= gain.high:
        raise _Fault(f"{where} has an interval from {gain.low!r} to {gain.high!r}")


def _check_schedule(steps: Sequence[Step], max_draft_tokens: int | None) -> None:
    if steps and steps[0].from_batch != 1:
        raise _Fault(f"schedule begins at a batch of {steps[0].from_batch}, not 1")
    for step in steps:
        _at_least(0, "schedule.max_draft_tokens", step.max_draft_tokens)
        if max_draft_tokens is not None and step.max_draft_tokens > max_draft_tokens:
            raise _Fault(
                f"schedule.max_draft_tokens is {step.max_draft_tokens}, above max_draft_tokens "
                f"{max_draft_tokens}"
            )
        if step.to_batch is not None and step.to_batch < step.from_batch:
            raise _Fault(f"schedule goes from {step.from_batch} to {step.to_batch}")
    for before, after in pairwise(steps):
        if before.to_batch is None or after.from_batch != before.to_batch + 1:
            raise _Fault(f"schedule doesn't go on from {before.to_batch} to {after.from_batch}")


def _named(part: Any, where: str, *names: str) -> None:
    for name in names:
        if getattr(part, name) == "":
            raise _Fault(f"{where}.{name} is empty")


def _one_of(where: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise _Fault(f"{where} is {value!r}, not one of {', '.join(known)}")


def _at_least(least: int, where: str, value: float | None) -> None:
    if value is not None and value < least:
        raise _Fault(f"{where} is {value!r}, below {least}")
