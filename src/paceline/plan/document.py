"""The draft to run, how far, and on what evidence, as one small file.

`paceline plan -o` writes it, `paceline export` turns it into an engine's settings, and `paceline
watch` holds a live server against it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field, to_builtins

from paceline.errors import DataError
from paceline.storage import decode_struct

KIND: Final = "paceline plan"
VERSION: Final = 2

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


Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a plan: what a file must not have otherwise is checked when it is read."""


class Target(_Part, frozen=True, kw_only=True):
    """The model that is decoded.

    name              as the user named it
    path              where its files lie on the machine that measured; None of a server's
    engine            what decoded it: `llamacpp`, `transformers`, or a server's name
    vocabulary_size   rows of its logits
    vocabulary_hash   of its tokens' names, trailing padding left out: equal hashes are equal
                      vocabularies
    """

    name: Text
    engine: Text
    path: Text | None = None
    vocabulary_size: Size | None = None
    vocabulary_hash: Text | None = None


class PlannedDraft(_Part, frozen=True, kw_only=True):
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
    name: Text
    model: Text | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    vocabulary_size: Size | None = None
    vocabulary_hash: Text | None = None

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, DRAFT_KINDS)


class Step(_Part, frozen=True, kw_only=True):
    """Of a schedule: `max_draft_tokens` from a batch of so many sequences up to so many (None: and
    more). 0 is ordinary decoding."""

    from_batch: Size
    to_batch: int | None
    max_draft_tokens: Count

    def __post_init__(self) -> None:
        if self.to_batch is not None and self.to_batch < self.from_batch:
            raise ValueError(f"a step goes from {self.from_batch} to {self.to_batch}")


class Gain(_Part, frozen=True, kw_only=True):
    """Speedup: time per token without the draft over that with it, with its 95 % interval where
    there is one. Predicted, not measured, where the evidence is costs or a replay."""

    value: Annotated[float, Meta(gt=0)]
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError("it has one end of an interval")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"it has an interval from {self.low!r} to {self.high!r}")


class Expected(_Part, frozen=True, kw_only=True):
    """What a server that runs the plan should show under the conditions that were measured.

    acceptance_at         by position, the share of all drafted rounds whose token there was
                          accepted, so that they add up to tokens per drafted round less 1; empty
                          if unknown. Acceptance has the same counts over the rounds that offered so
                          many tokens, which are fewer where a draft offers less than its limit
    tokens_per_round      emitted over all rounds, bonus included
    tokens_per_drafted_round   mean accepted length τ, 1 + accepted / drafted rounds: what vLLM's
                          and llama.cpp's counters show
    acceptance_rate       accepted / proposed, pooled
    break_even_tokens     tokens per drafted round from which drafting pays at this limit and
                          `measured.batch`: seconds of a drafted round over those of another
    gain                  overall, and by category
    """

    acceptance_at: tuple[Share, ...] = ()
    tokens_per_round: Amount | None = None
    tokens_per_drafted_round: Amount | None = None
    acceptance_rate: Share | None = None
    break_even_tokens: Amount | None = None
    gain: Gain | None = None
    gain_by_category: dict[str, Gain] = field(default_factory=dict)


class Measurement(_Part, frozen=True, kw_only=True):
    """The conditions that the evidence holds for.

    source        one of `SOURCES`
    file          its name
    when          ISO 8601, with offset; empty if unknown
    machine       metadata of the machine (or of the costs) that were measured
    workload      metadata of the prompts
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
    machine: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    prompts: Count = 0
    tokens: Count = 0
    batch: Size = 1
    exact: bool = True
    configuration: str | None = None
    verifier: str | None = None

    def __post_init__(self) -> None:
        _one_of("source", self.source, SOURCES)


class PlanDocument(_Part, frozen=True, kw_only=True):
    """A decision about a draft that can travel.

    draft      None: ordinary decoding
    max_draft_tokens      most drafted tokens in a round; None: our policy chose per round. 0
                          without a draft
    mean_draft_tokens     proposed per drafted round, for engines that want one fixed number where
                          our policy chose
    schedule   by batch size, where it is known; steps are in order, begin at 1, leave no gap, and
               none is above `max_draft_tokens`. The last one ends where evidence ends, or at None:
               and more
    notes      what a reader must know, a sentence each
    """

    kind: Literal["paceline plan"] = KIND
    version: Literal[2] = VERSION
    target: Target
    draft: PlannedDraft | None
    max_draft_tokens: Count | None
    mean_draft_tokens: Amount | None = None
    schedule: tuple[Step, ...] = ()
    expected: Expected = field(default_factory=Expected)
    measured: Measurement
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.draft is None:
            if self.max_draft_tokens != 0 or any(step.max_draft_tokens for step in self.schedule):
                raise ValueError("there is no draft, and max_draft_tokens is not 0")
        elif self.max_draft_tokens == 0:
            raise ValueError("max_draft_tokens is 0, below 1, and there is a draft")
        if self.schedule and self.schedule[0].from_batch != 1:
            raise ValueError(f"schedule begins at a batch of {self.schedule[0].from_batch}, not 1")
        most = self.max_draft_tokens
        for step in self.schedule:
            if most is not None and step.max_draft_tokens > most:
                raise ValueError(
                    f"schedule.max_draft_tokens is {step.max_draft_tokens}, above "
                    f"max_draft_tokens {most}"
                )
        for before, after in pairwise(self.schedule):
            if before.to_batch is None or after.from_batch != before.to_batch + 1:
                raise ValueError(
                    f"schedule doesn't go on from {before.to_batch} to {after.from_batch}"
                )

    def as_json(self) -> dict[str, Any]:
        """What `decode_plan` reads."""
        document: dict[str, Any] = to_builtins(self)
        return document

    def write(self, path: Path) -> None:
        """Raises DataError where it can't be written."""
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"{path} can't be written: {error.strerror}.", "Choose another."
            ) from None


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(known)}")


def read_plan(path: Path) -> PlanDocument:
    """A plan from its file. Raises DataError for a file that is none, or one of another version,
    and names the field that is missing, unknown or out of range."""
    try:
        return decode_plan(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", "Name a plan's file.") from None


def decode_plan(text: str | bytes, name: str = "The plan") -> PlanDocument:
    """The same from a file's text."""
    hint = "Make one with `paceline plan … -o plan.json`."
    return decode_struct(text, PlanDocument, name, hint, kind=KIND, version=VERSION)


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
