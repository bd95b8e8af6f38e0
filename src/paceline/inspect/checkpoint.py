"""What a draft's files turn out to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_table(name: str, type: type[T]) -> T:
    """One of this package's tables."""
    text = (files("paceline.inspect") / f"tables/{name}.json").read_bytes()
    return msgspec.json.decode(text, type=type)


class KindTable(msgspec.Struct, frozen=True):
    """The kinds of drafts.

    titles           how a checkpoint drafts, and what that is called
    formats          how its files are laid out, likewise
    speculators      kinds by `speculators_model_type`
    architectures    kinds by a part of an architecture's name, the most specific first
    """

    titles: Mapping[str, str]
    formats: Mapping[str, str]
    speculators: Mapping[str, str]
    architectures: Mapping[str, str]


KIND_TABLE = read_table("kinds", KindTable)
KINDS, FORMATS = KIND_TABLE.titles, KIND_TABLE.formats


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: one sentence of fact, one of hint.

    fatal    no engine can draft with it as it is, or all would draft wrongly
    stops    engines that can't, where others can
    """

    fact: str
    hint: str
    fatal: bool = False
    stops: tuple[str, ...] = ()


class ProblemRule(msgspec.Struct, frozen=True):
    """A problem before it is found: its sentences leave room for values. Fatal unless it says
    otherwise or stops some engines only."""

    fact: str
    hint: str
    fatal: bool = True
    stops: tuple[str, ...] = ()

    def problem(self, fatal: bool | None, values: Mapping[str, object]) -> Problem:
        """It, with its values; `fatal` overrides the rule's own."""
        stopping = (self.fatal if fatal is None else fatal) and not self.stops
        fact, hint = self.fact.format(**values), self.hint.format(**values)
        return Problem(fact, hint, stopping, self.stops)


PROBLEMS = read_table("problems", dict[str, ProblemRule])


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """Which token of the target each token of a smaller vocabulary is.

    name        of the tensor, or the file, that holds it
    size        draft tokens that it maps
    form        `offset`: target_id = draft_id + map[draft_id] (d2t); `ids`: the ids themselves
    lowest, highest    target ids
    distinct    no two draft tokens are the same target token
    rising      ids rise with the draft's
    agrees      with t2d, which marks the target's tokens that the draft has; None without one
    """

    name: str
    size: int
    form: str
    lowest: int
    highest: int
    distinct: bool
    rising: bool
    agrees: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A draft as it lies on disk; None where the files don't say.

    path                    a directory, or a file of GGUF or of an exit head
    kind                    one of `KINDS`
    format                  one of `FORMATS`
    architecture            as its config (or GGUF metadata) names it
    model_type              of its layers, likewise
    hidden_size             entries of its own states
    target_hidden_size      of the target's states that it reads; None if it reads none
    vocabulary_size         ids that it takes in: rows of the target's embedding
    draft_vocabulary_size   ids that it gives out; smaller with a map
    layers                  transformer layers; heads of Medusa
    parameters              of its weights, without maps; None where they can't be read
    bytes                   of its files of weights
    dtype                   of most of its weights
    map                     None: its ids are the target's
    aux_layers              whose states of the target it reads, as its config numbers them
    proposal_tokens         in a round, as its config suggests; None if it suggests nothing
    verifier                the target that it was made for, if it says so
    embedding, head         `own`, `target` (it has none and shares the target's), `tied` (a head
                            that is the embedding), or `none` of what has no such part
    aux_count               how many of the target's states its first projection takes; None if
                            it takes none
    compared_vocabulary_size    tokens of the target that it was compared with; None without one
    problems                fatal ones first
    """

    path: Path
    kind: str
    format: str
    architecture: str | None = None
    model_type: str | None = None
    hidden_size: int | None = None
    target_hidden_size: int | None = None
    vocabulary_size: int | None = None
    draft_vocabulary_size: int | None = None
    layers: int | None = None
    parameters: int | None = None
    bytes: int = 0
    dtype: str | None = None
    map: VocabularyMap | None = None
    aux_layers: tuple[int, ...] = ()
    aux_count: int | None = None
    proposal_tokens: int | None = None
    verifier: str | None = None
    embedding: str = "none"
    head: str = "none"
    compared_vocabulary_size: int | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def fatal(self) -> Problem | None:
        """The first problem that stops every engine."""
        return next((problem for problem in self.problems if problem.fatal), None)

    def stops(self, engine: str) -> Problem | None:
        """The first problem that stops this engine."""
        stopping = (p for p in self.problems if p.fatal or engine in p.stops)
        return next(stopping, None)
