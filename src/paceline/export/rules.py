"""What all exports share, whichever the engine: which draft it is there, how far it drafts, where
models lie, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import DataError, PacelineError, PairError, SettingError
from paceline.export.setup import EngineSetup, EngineTable, ExportOptions
from paceline.plan.document import PlanDocument, PlannedDraft, Step

if TYPE_CHECKING:
    from paceline.inspect.loaders import Loads

SHORTEST_MATCH = 2

LONGEST_PLACE = 4096  # bytes of a path, on Linux

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")

DIRECT = {
    "model": "model",
    "lookup": "ngram",
    "recycle": "ngram",
    "ngram": "ngram",
    "suffix": "suffix",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "mtp": "mtp",
    "dflash": "dflash",
    "speculators": "speculators",
}
"""Kinds of drafts that are a family of engines."""

NEAREST = {
    "suffix": ("ngram",),
    "tree": ("model",),
    "early-exit": ("model", "ngram"),
    "first": ("ngram+model", "model", "ngram"),
    "cascade": ("ngram+model", "model", "ngram"),
    "mixture": ("model", "ngram"),
    "several": ("ngram+model", "model", "ngram"),
    "shared": ("other-vocabulary", "ngram"),
    "text": ("other-vocabulary", "ngram"),
}
"""What stands in, best first."""

DESCRIBED = {
    "model": "chains of a draft model",
    "ngram": "n-grams of prompt and output",
    "ngram+model": "n-grams where they match, and a draft model elsewhere",
    "other-vocabulary": "a draft model over the tokens that both vocabularies have",
}

NEEDS_MODEL = ("model", "ngram+model", "other-vocabulary")


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A plan that is to be exported, how, for which version, and its target as that wants it."""

    plan: PlanDocument
    options: ExportOptions
    table: EngineTable
    target: str

    @property
    def name(self) -> str:
        """Engine and version, for messages."""
        return self.table.name

    @property
    def schedule(self) -> Sequence[Step]:
        """The plan's schedule by batch size, unless a limit was given in its place."""
        return () if self.options.max_draft_tokens is not None else self.plan.schedule

    def made(self, *notes: str, **settings: Any) -> EngineSetup:
        """The setup with these settings; without any the engine decodes without a draft."""
        return EngineSetup(
            engine=self.table.engine,
            version=self.table.version,
            target=self.target,
            metrics=self.table.profile.counters,
            tensor_parallel=self.options.tensor_parallel or 1,
            notes=notes,
            **settings,
        )


# Which draft it is there.


def family_of(
    ask: ExportRequest, draft: PlannedDraft, offered: Container[str]
) -> tuple[str, tuple[str, ...]]:
    """The family of a draft on an engine that offers these, and what must be said where it stands
    in for the draft.

    Raises SettingError for a draft that the engine can't express, with what comes nearest; not
    where `options.nearest` takes that.
    """
    direct = DIRECT.get(draft.kind)
    if direct in offered:
        return str(direct), _same_in_name_only(ask, draft.kind)
    found = _stand_in(ask.options, draft, offered)
    what = f"can't express the draft {draft.name!r} ({draft.kind})"
    if found is None:
        raise SettingError(f"{ask.name} {what}, and has nothing near it.", _elsewhere(draft))
    if not ask.options.nearest:
        derive = (
            "Or make a draft model of the same layers with `paceline derive`: --draft-model DIR."
        )
        raise SettingError(
            f"{ask.name} {what}.",
            f"Nearest to it: {DESCRIBED[found]}; --nearest exports that. "
            f"{derive if draft.kind == 'early-exit' else ''}",
        )
    return found, (
        f"The engine {what}. In its place: {DESCRIBED[found]}. The measurements don't hold for "
        "that: measure it anew.",
    )


def _stand_in(options: ExportOptions, draft: PlannedDraft, offered: Container[str]) -> str | None:
    # The model of an early exit is the target itself, so only one that is named here can stand in.
    own = None if draft.kind == "early-exit" else draft.model
    model = options.draft_model or own
    for name in NEAREST.get(draft.kind, ()):
        if name in offered and (model is not None or name not in NEEDS_MODEL):
            return name
    return None


def _elsewhere(draft: PlannedDraft) -> str:
    if draft.kind == "medusa":
        return "vLLM up to 0.32.0 loads Medusa heads."
    if draft.kind in NEAREST:
        return "Name a draft model with --draft-model and use --nearest."
    return "Plan with another draft, or export to another engine."


def _same_in_name_only(ask: ExportRequest, kind: str) -> tuple[str, ...]:
    ours = " With --ours Paceline's own run there." if ask.table.engine == "vllm" else ""
    if kind == "lookup":
        return (
            f"{ask.name}'s own n-grams stand in for Paceline's lookup, which matches texts of "
            f"any length and weighs how far to go.{ours}",
        )
    if kind == "recycle":
        return (
            f"{ask.name} has no recycling of the target's likeliest tokens. Its n-grams stand "
            f"in, and the measurements don't hold for them: measure them anew.{ours}",
        )
    return ()


# How far it drafts.


def shortest_match(draft: PlannedDraft) -> int:
    """Of a lookup, in tokens: the plan's, or Paceline's own under a fixed limit. Raises DataError
    for one that is not a number of tokens."""
    found = draft.settings.get("min_match")
    if found is None:
        return SHORTEST_MATCH
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataError(
            f"The plan's draft {draft.name!r} has a min_match of {found!r}.",
            "It must be 1 or more tokens.",
        )
    return found


def match_lengths(draft: PlannedDraft, how: str) -> tuple[str, ...]:
    """What must be said where an engine's n-grams match other lengths than were measured. That a
    lookup without a length of its own is another draft is said anyway.

    how    which lengths the engine matches
    """
    least = draft.settings.get("min_match")
    if least is not None:
        return (f"The plan was measured with matches of {least} tokens or more; {how}.",)
    if draft.kind == "ngram":
        return (f"Which lengths the plan's n-grams matched isn't in it; {how}. Compare the two.",)
    return ()


def fixed_draft_tokens(ask: ExportRequest) -> tuple[int, tuple[str, ...]]:
    """Most drafted tokens in a round as one number of 1 or more, and what must be said of it.

    Raises SettingError where our policy chose and the plan doesn't say how much on average.
    """
    plan, given = ask.plan, ask.options.max_draft_tokens
    if given is not None:
        said = f"The limit of {given} was given with --max-draft-tokens."
        return given, (said, *_schedule_gone(plan))
    if plan.schedule and (most := max(step.max_draft_tokens for step in plan.schedule)):
        return most, ()
    if plan.max_draft_tokens:
        return plan.max_draft_tokens, ()
    if plan.mean_draft_tokens is None:
        raise SettingError(
            "The plan has no limit: a policy chose it every round, and how much it offered on "
            "average isn't in the plan.",
            "Give one with --max-draft-tokens N, or make the plan from a run with a fixed limit "
            "(-n N).",
        )
    limit = max(1, round(plan.mean_draft_tokens))
    return limit, (
        f"Paceline's policy chose each round how far to draft, {plan.mean_draft_tokens:.1f} tokens "
        f"on average. The engine takes one number and drafts up to {limit} whether that pays or "
        "not: expect less than the plan's gain.",
    )


def _schedule_gone(plan: PlanDocument) -> tuple[str, ...]:
    """What must be said where --max-draft-tokens is in the place of the plan's schedule."""
    if not plan.schedule:
        return ()
    idle = [_batches(step) for step in plan.schedule if not step.max_draft_tokens]
    lost = f", also at {' and '.join(idle)}, where the plan doesn't draft" if idle else ""
    return (
        f"With --max-draft-tokens the plan's schedule by batch size is gone: drafts go on{lost}.",
    )


def _batches(step: Step) -> str:
    if step.to_batch is None:
        return f"batches of {step.from_batch} and more"
    if step.to_batch == step.from_batch:
        return f"a batch of {step.from_batch}"
    return f"batches of {step.from_batch} to {step.to_batch}"


def no_schedule(ask: ExportRequest, method: str = "") -> tuple[str, ...]:
    """What must be said of an engine, or its method, that has no schedule by batch size."""
    if not ask.schedule:
        return ()
    name = f"{ask.name} has no schedule by batch size{f' for {method}' if method else ''}"
    return (f"{name}: it drafts at every load, also where the plan would not.",)


def beyond_schedule(ask: ExportRequest) -> tuple[str, ...]:
    """What must be said of an engine that goes on with a schedule's last entry."""
    last = ask.plan.schedule[-1]
    if last.to_batch is None:
        return ()
    return (
        f"Nothing is known of batches above {last.to_batch}: there {ask.table.profile.title} goes "
        f"on with the last entry, {last.max_draft_tokens}.",
    )


# Where models lie.


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Where a draft's model lies, if it needs one; how the engine loads it, if it lies here; and
    what was not checked of it."""

    place: str | None = None
    loads: Loads | None = None
    notes: tuple[str, ...] = ()


def find_model(
    ask: ExportRequest, draft: PlannedDraft, family: str, method: str | None
) -> FoundModel:
    """The model of a draft of this family, which the engine calls by this method (None: whichever
    its files are for).

    Raises SettingError for a model that is missing, superfluous or of another format; DataError for
    files that can't be read; PairError for a draft that this version doesn't load, or not by that
    method, and for vocabularies that it refuses.
    """
    options = ask.options
    if family in ("ngram", "suffix"):
        check_no_model(options, ask.name)
        return FoundModel()
    place = options.draft_model or draft.model
    if place is None:
        if family == "mtp":  # its layers are in the target's files
            return FoundModel()
        raise SettingError(
            f"The plan doesn't say where the draft {draft.name!r} lies.",
            f"Name its model with --draft-model{_example(ask.table)}.",
        )
    _check_format(place, "draft", ask.table, given=options.draft_model is not None)
    loads = _check_files(place, ask.table, method)
    notes = _check_vocabulary(ask, draft, place) if family in ("model", "ngram+model") else ()
    return FoundModel(place, loads, notes)


def target_place(plan: PlanDocument, options: ExportOptions, table: EngineTable) -> str:
    """The target as the engine wants it: a GGUF file, or a repository or directory of Hugging
    Face's format. Raises SettingError for one of the other format, unless --target names another.
    """
    place = options.target or plan.target.path or plan.target.name
    _check_format(place, "target", table, given=options.target is not None)
    return place


def _example(table: EngineTable) -> str:
    return " FILE.gguf" if table.engine == "llama-server" else ""


def _check_format(place: str, what: str, table: EngineTable, *, given: bool) -> None:
    """llama-server opens GGUF files, or fetches a repository of some that was named for it: the
    plan's own may be one of another format. The others load all but GGUF."""
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
    return named is not None and not is_path(place) and not is_here(place)


def is_path(model: str) -> bool:
    """Whether a model is named as a file or folder, not as a repository."""
    return (
        model.startswith(("/", ".", "~"))
        or model.lower().endswith(".gguf")
        or model.count("/") > 1
        or "\\" in model
    )


def is_here(place: str) -> bool:
    """Whether a model's name is that of a file or directory here."""
    try:
        return Path(place).exists()
    except (OSError, ValueError):  # a name that no file may have
        return False


def check_no_model(options: ExportOptions, name: str) -> None:
    """Raises SettingError where a draft's model is named and nothing would read it."""
    if options.draft_model is not None:
        raise SettingError(
            f"--draft-model is {options.draft_model}, and the plan's draft needs no model on "
            f"{name}.",
            "Leave it out.",
        )


def _check_files(place: str, table: EngineTable, method: str | None) -> Loads | None:
    """How the engine loads a local draft's files; None for one that isn't here."""
    if not is_here(place):
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


def _check_vocabulary(ask: ExportRequest, draft: PlannedDraft, place: str) -> tuple[str, ...]:
    """Raises PairError for a draft model whose vocabulary the engine refuses; what of that was not
    checked otherwise. The plan knows the models it was made with, and files that lie here tell of
    themselves; of others nothing is known."""
    target, options, name = ask.plan.target, ask.options, ask.name
    most_extra = ask.table.read.get("most_extra_tokens", 0)
    target_own = options.target in (None, target.path, target.name)
    draft_own = options.draft_model in (None, draft.model)
    ours = _vocabulary_here(place) or (draft.vocabulary_size if draft_own else None)
    theirs = (target.vocabulary_size if target_own else None) or _vocabulary_here(ask.target)
    if ours is None or theirs is None:
        sizes = {f"the draft {place}": ours, f"the target {ask.target}": theirs}
        whose = " and ".join(one for one, size in sizes.items() if size is None)
        return (f"Whether the vocabularies fit was not checked: nothing is known of {whose}.",)
    if abs(ours - theirs) > most_extra:
        allowed = f"at most {most_extra} tokens apart" if most_extra else "equal"
        raise PairError(
            f"The draft has {ours:,} tokens and the target {theirs:,}, and {name} wants them "
            f"{allowed}.",
            "Use a draft with the target's whole vocabulary, such as `paceline derive` makes "
            "without --vocabulary.",
        )
    hashes = (draft.vocabulary_hash, target.vocabulary_hash)
    if not (target_own and draft_own) or None in hashes:
        return ("The vocabularies have sizes that fit. Whether their tokens do was not checked.",)
    if ours == theirs and hashes[0] != hashes[1]:
        raise PairError(
            f"Draft and target have {ours:,} tokens each, but not the same ones; {name} would "
            "draft with the wrong meaning.",
            "Use a draft with the target's own tokenizer.",
        )
    return ()


def _vocabulary_here(place: str) -> int | None:
    """Tokens of a model whose files lie here and can be read as one."""
    if not is_here(place):
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


# What is refused.


def check_sampling(ask: ExportRequest, refused: Sequence[str], why: str) -> None:
    """Raises SettingError where the plan's sampling has what the engine can't honour with drafts.

    why    what the engine does with it
    """
    sampling: Mapping[str, Any] = ask.plan.measured.sampling
    neutral = {"repetition_penalty": 1}
    asked = [
        f"{key} {sampling[key]}"
        for key in refused
        if sampling.get(key) and sampling[key] != neutral.get(key)
    ]
    if asked:
        raise SettingError(
            f"The plan was measured with {', '.join(asked)}, and {ask.name} {why}.",
            "Serve such requests without drafts, or plan with other sampling.",
        )


def check_draft_parallel(ask: ExportRequest) -> None:
    """Raises SettingError where an engine has no tensor parallelism of the draft's own."""
    wanted, target = ask.options.draft_tensor_parallel, ask.options.tensor_parallel or 1
    if wanted is not None and wanted != target:
        raise SettingError(
            f"--draft-tensor-parallel is {wanted} and the target's is {target}; {ask.name} splits "
            "a draft as it splits its target.",
            "Leave --draft-tensor-parallel out.",
        )
