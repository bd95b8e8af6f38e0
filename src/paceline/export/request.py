"""A plan on its way to an engine: which draft it is there, how far it drafts, where models lie, and
what is refused."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import DataError, PacelineError, PairError, SettingError
from paceline.export.setup import EngineSetup, EngineTable, ExportOptions, is_path
from paceline.export.text import as_yaml
from paceline.plan.document import PlanDocument, PlannedDraft, Step

if TYPE_CHECKING:
    from paceline.inspect.loaders import Loads

SHORTEST_MATCH = 2

LONGEST_PLACE = 4096  # bytes of a path, on Linux

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")

NEAREST = {
    "suffix": ("ngram",),
    "tree": ("model",),
    **dict.fromkeys(("early-exit", "mixture"), ("model", "ngram")),
    **dict.fromkeys(("first", "cascade", "several"), ("ngram+model", "model", "ngram")),
    **dict.fromkeys(("shared", "text"), ("other-vocabulary", "ngram")),
}
"""What stands in for a kind of draft, best first."""

DESCRIBED = {
    "model": "chains of a draft model",
    "ngram": "n-grams of prompt and output",
    "ngram+model": "n-grams where they match, and a draft model elsewhere",
    "other-vocabulary": "a draft model over the tokens that both vocabularies have",
}

NEEDS_MODEL = ("model", "ngram+model", "other-vocabulary")


@dataclass(slots=True)
class ExportRequest:
    """A plan that is to be exported, how, for which version, and its target as that wants it.

    draft    the plan's
    notes    what must be said of the setup, in the order in which it turns up
    """

    plan: PlanDocument
    options: ExportOptions
    table: EngineTable
    target: str
    draft: PlannedDraft
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Engine and version, for messages."""
        return self.table.name

    @property
    def schedule(self) -> Sequence[Step]:
        """The plan's schedule by batch size, unless a limit was given in its place."""
        return () if self.options.max_draft_tokens is not None else self.plan.schedule

    def say(self, *notes: str) -> None:
        """Add to the notes."""
        self.notes += notes

    # Which draft it is there.

    def family(self, offered: Container[str]) -> str:
        """The family of the draft on an engine that offers these.

        Raises SettingError for a draft that the engine can't express, with what comes nearest; not
        where `options.nearest` takes that.
        """
        draft, what = self.draft, f"can't express the draft {self.draft.name!r} ({self.draft.kind})"
        direct = "ngram" if draft.kind in ("lookup", "recycle") else draft.kind
        if direct in offered:
            self._say_stand_in()
            return direct
        found = self._nearest(offered)
        if found is None:
            raise SettingError(f"{self.name} {what}, and has nothing near it.", _elsewhere(draft))
        if not self.options.nearest:
            derive = (
                " Or make a draft model of the same layers with `paceline derive`: --draft-model "
                "DIR."
            )
            raise SettingError(
                f"{self.name} {what}.",
                f"Nearest to it: {DESCRIBED[found]}; --nearest exports that."
                f"{derive if draft.kind == 'early-exit' else ''}",
            )
        self.say(
            f"The engine {what}. In its place: {DESCRIBED[found]}. The measurements don't hold "
            "for that: measure it anew."
        )
        return found

    def _nearest(self, offered: Container[str]) -> str | None:
        # The model of an early exit is the target: only one that is named here can stand in.
        own = None if self.draft.kind == "early-exit" else self.draft.model
        model = self.options.draft_model or own
        for name in NEAREST.get(self.draft.kind, ()):
            if name in offered and (model is not None or name not in NEEDS_MODEL):
                return name
        return None

    def _say_stand_in(self) -> None:
        ours = " With --ours Paceline's own run there." if self.table.engine == "vllm" else ""
        if self.draft.kind == "lookup":
            self.say(
                f"{self.name}'s own n-grams stand in for Paceline's lookup, which matches texts of "
                f"any length and weighs how far to go.{ours}"
            )
        if self.draft.kind == "recycle":
            self.say(
                f"{self.name} has no recycling of the target's likeliest tokens. Its n-grams stand "
                f"in, and the measurements don't hold for them: measure them anew.{ours}"
            )

    # How far it drafts.

    def shortest_match(self) -> int:
        """Of a lookup, in tokens: the plan's, or Paceline's own under a fixed limit. Raises
        DataError for one that is not a number of tokens."""
        found = self.draft.settings.get("min_match")
        if found is None:
            return SHORTEST_MATCH
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise DataError(
                f"The plan's draft {self.draft.name!r} has a min_match of {found!r}.",
                "It must be 1 or more tokens.",
            )
        return found

    def say_matches(self, how: str) -> bool:
        """Say where an engine's n-grams match other lengths (`how`) than were measured, and whether
        it was said. That a lookup without a length of its own is another draft is said anyway."""
        least = self.draft.settings.get("min_match")
        if least is not None:
            self.say(f"The plan was measured with matches of {least} tokens or more; {how}.")
        elif self.draft.kind == "ngram":
            self.say(
                f"Which lengths the plan's n-grams matched isn't in it; {how}. Compare the two."
            )
        return least is not None or self.draft.kind == "ngram"

    def fixed_limit(self) -> int:
        """Most drafted tokens in a round as one number of 1 or more. Raises SettingError where
        our policy chose and the plan doesn't say how much on average."""
        plan, given = self.plan, self.options.max_draft_tokens
        if given is not None:
            self.say(f"The limit of {given} was given with --max-draft-tokens.")
            self._say_schedule_gone()
            return given
        if plan.schedule and (most := max(step.max_draft_tokens for step in plan.schedule)):
            return most
        if plan.max_draft_tokens:
            return plan.max_draft_tokens
        if plan.mean_draft_tokens is None:
            raise SettingError(
                "The plan has no limit: a policy chose it every round, and how much it offered on "
                "average isn't in the plan.",
                "Give one with --max-draft-tokens N, or make the plan from a run with a fixed "
                "limit (-n N).",
            )
        limit = max(1, round(plan.mean_draft_tokens))
        self.say(
            "Paceline's policy chose each round how far to draft, "
            f"{plan.mean_draft_tokens:.1f} tokens on average. The engine takes one number and "
            f"drafts up to {limit} whether that pays or not: expect less than the plan's gain."
        )
        return limit

    def _say_schedule_gone(self) -> None:
        if self.plan.schedule:
            idle = [_batches(step) for step in self.plan.schedule if not step.max_draft_tokens]
            lost = f", also at {' and '.join(idle)}, where the plan doesn't draft" if idle else ""
            self.say(
                "With --max-draft-tokens the plan's schedule by batch size is gone: drafts go on"
                f"{lost}."
            )

    def say_no_schedule(self, method: str = "") -> None:
        """Of an engine, or its method, that has no schedule by batch size."""
        if self.schedule:
            of = f" for {method}" if method else ""
            self.say(
                f"{self.name} has no schedule by batch size{of}: it drafts at every load, also "
                "where the plan would not."
            )

    def say_schedule(self, note: str) -> None:
        """Of an engine that has one, and goes on with its last entry."""
        self.say(note)
        last = self.plan.schedule[-1]
        if last.to_batch is not None:
            self.say(
                f"Nothing is known of batches above {last.to_batch}: there "
                f"{self.table.profile.title} goes on with the last entry, {last.max_draft_tokens}."
            )

    # Where models lie.

    def find_model(self, family: str, method: str | None) -> FoundModel:
        """The model of a draft of this family, which the engine calls by this method (None:
        whichever its files are for).

        Raises SettingError for a model that is missing, superfluous or of another format; DataError
        for files that can't be read; PairError for a draft that this version doesn't load, or not
        by that method, and for vocabularies that it refuses.
        """
        if family in ("ngram", "suffix"):
            self.check_no_model()
            return FoundModel()
        given = self.options.draft_model
        place = given or self.draft.model
        if place is None:
            if family == "mtp":  # its layers are in the target's files
                return FoundModel()
            example = " FILE.gguf" if self.table.engine == "llama-server" else ""
            raise SettingError(
                f"The plan doesn't say where the draft {self.draft.name!r} lies.",
                f"Name its model with --draft-model{example}.",
            )
        check_format(place, "draft", self.table, given=given is not None)
        loads = _check_files(place, self.table, method)
        if family in ("model", "ngram+model"):
            self._check_vocabulary(place)
        return FoundModel(place, loads)

    def check_no_model(self, runs: str = "") -> None:
        """Raises SettingError where a draft's model is named and nothing would read it."""
        if self.options.draft_model is not None:
            raise SettingError(
                f"--draft-model is {self.options.draft_model}, and the plan's draft needs no model "
                f"on {self.name}{runs}.",
                "Leave it out.",
            )

    def _check_vocabulary(self, place: str) -> None:
        """Raises PairError for a draft model whose vocabulary the engine refuses. The plan knows
        the models it was made with, and files that lie here are read; of others nothing is known,
        and that is said."""
        target, draft, options = self.plan.target, self.draft, self.options
        most_extra = self.table.read.get("most_extra_tokens", 0)
        target_own = options.target in (None, target.path, target.name)
        draft_own = options.draft_model in (None, draft.model)
        ours = _vocabulary_here(place) or (draft.vocabulary_size if draft_own else None)
        theirs = (target.vocabulary_size if target_own else None) or _vocabulary_here(self.target)
        if ours is None or theirs is None:
            sizes = {f"the draft {place}": ours, f"the target {self.target}": theirs}
            whose = " and ".join(one for one, size in sizes.items() if size is None)
            self.say(f"Whether the vocabularies fit was not checked: nothing is known of {whose}.")
            return
        if abs(ours - theirs) > most_extra:
            allowed = f"at most {most_extra} tokens apart" if most_extra else "equal"
            raise PairError(
                f"The draft has {ours:,} tokens and the target {theirs:,}, and {self.name} wants "
                f"them {allowed}.",
                "Use a draft with the target's whole vocabulary, such as `paceline derive` makes "
                "without --vocabulary.",
            )
        hashes = (draft.vocabulary_hash, target.vocabulary_hash)
        if not (target_own and draft_own) or None in hashes:
            self.say(
                "The vocabularies have sizes that fit. Whether their tokens do was not checked."
            )
        elif ours == theirs and hashes[0] != hashes[1]:
            raise PairError(
                f"Draft and target have {ours:,} tokens each, but not the same ones; {self.name} "
                "would draft with the wrong meaning.",
                "Use a draft with the target's own tokenizer.",
            )

    # What is refused, and what comes of it.

    def check_sampling(self, refused: Sequence[str], why: str) -> None:
        """Raises SettingError where the plan's sampling has what the engine can't honour with
        drafts, and says why."""
        sampling: Mapping[str, Any] = self.plan.measured.sampling
        neutral = {"repetition_penalty": 1}
        asked = [
            f"{key} {sampling[key]}"
            for key in refused
            if sampling.get(key) and sampling[key] != neutral.get(key)
        ]
        if asked:
            raise SettingError(
                f"The plan was measured with {', '.join(asked)}, and {self.name} {why}.",
                "Serve such requests without drafts, or plan with other sampling.",
            )

    def check_draft_parallel(self) -> None:
        """Raises SettingError where an engine has no tensor parallelism of the draft's own."""
        wanted, target = self.options.draft_tensor_parallel, self.options.tensor_parallel or 1
        if wanted is not None and wanted != target:
            raise SettingError(
                f"--draft-tensor-parallel is {wanted} and the target's is {target}; {self.name} "
                "splits a draft as it splits its target.",
                "Leave --draft-tensor-parallel out.",
            )

    def made(self, model: str | None = None, **settings: Any) -> EngineSetup:
        """The setup of these settings, with the notes."""
        return made_setup(
            self.table, self.options, self.target, draft=model, notes=tuple(self.notes), **settings
        )


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Where a draft's model lies, if it needs one, and how the engine loads it, if it lies here."""

    place: str | None = None
    loads: Loads | None = None


def made_setup(
    table: EngineTable,
    options: ExportOptions,
    target: str,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> EngineSetup:
    """A setup of these settings; without any the engine decodes without a draft."""
    config, profile = config or {}, table.profile
    if profile.settings_file is not None:
        config = {**config, **profile.always}
        table.admit(config)
        settings["arguments"] = (table.read["file_flag"], profile.settings_file)
        settings["files"] = {profile.settings_file: as_yaml(config)}
    return EngineSetup(
        engine=table.engine,
        version=table.version,
        target=target,
        config=config,
        metrics=profile.counters,
        tensor_parallel=options.tensor_parallel or 1,
        **settings,
    )


def _elsewhere(draft: PlannedDraft) -> str:
    if draft.kind == "medusa":
        return "vLLM up to 0.32.0 loads Medusa heads."
    if draft.kind in NEAREST:
        return "Name a draft model with --draft-model and use --nearest."
    return "Plan with another draft, or export to another engine."


def _batches(step: Step) -> str:
    if step.to_batch is None:
        return f"batches of {step.from_batch} and more"
    if step.to_batch == step.from_batch:
        return f"a batch of {step.from_batch}"
    return f"batches of {step.from_batch} to {step.to_batch}"


def check_format(place: str, what: str, table: EngineTable, *, given: bool) -> None:
    """Raises SettingError for a target or a draft of another format than the engine loads.
    llama-server opens GGUF files, or fetches a repository of some that was named for it: the plan's
    own may be one of another format. The others load all but GGUF."""
    option = f"--{'target' if what == 'target' else 'draft-model'}"
    gguf = Path(place).suffix.lower() == ".gguf"
    if table.engine != "llama-server":
        if gguf:
            raise SettingError(
                f"The {what} {place} is a GGUF file, and {table.name} is given a repository or a "
                "directory.",
                f"Name the same model there with {option}.",
            )
    elif not gguf and not (given and _is_repository(place)):
        raise SettingError(
            f"The {what} {place} is not a GGUF file, and {table.name} loads nothing else.",
            f"Name the same model's with {option} FILE.gguf or owner/name of a repository of them.",
        )


def _is_repository(place: str) -> bool:
    """`owner/name` or `owner/name:quantisation`, where no directory here has that name."""
    named = re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", place, re.ASCII)
    return named is not None and not is_path(place) and not _is_here(place)


def _is_here(place: str) -> bool:
    try:
        return Path(place).exists()
    except (OSError, ValueError):  # a name that no file may have
        return False


def _check_files(place: str, table: EngineTable, method: str | None) -> Loads | None:
    """How the engine loads a local draft's files; None for one that isn't here."""
    if not _is_here(place):
        return None
    from paceline.inspect.loaders import loads
    from paceline.inspect.read import read

    version = None if table.engine == "llama-server" else table.version
    found = loads(read(place), table.engine, version)
    hint = f"See `paceline inspect {place}`."
    if not found.yes:
        raise PairError(f"{table.name} can't load {place}. {found.reason}", hint)
    if method is not None and found.method != method.rsplit(",", 1)[-1]:
        raise PairError(
            f"The plan's draft is one of method {method} to {table.name}, and {place} is one of "
            f"{found.method}.",
            hint,
        )
    return found


def _vocabulary_here(place: str) -> int | None:
    """Tokens of a model whose files lie here and can be read as one."""
    if not _is_here(place):
        return None
    from paceline.inspect.read import read

    try:
        return read(place).vocabulary_size
    except PacelineError:
        return None


def check_place(place: str | None) -> None:
    """A name goes into commands and files: it may need quoting, but must be a name. Raises
    SettingError."""
    if place is None:
        return
    if not place.strip() or not place.isprintable():
        raise SettingError(
            f"The model's name {place[:80]!r} is empty or has characters that can't be printed.",
            "Rename it.",
        )
    if len(place.encode()) > LONGEST_PLACE:
        raise SettingError(
            f"The model's name {place[:40]!r}… has {len(place):,} characters.",
            f"No path has more than {LONGEST_PLACE:,} bytes: name it by a shorter one.",
        )
    if place.startswith("-"):
        raise SettingError(
            f"The model's name {place!r} begins with a dash, which engines take for an option.",
            f"Name it as ./{place}, or by its whole path.",
        )
