"""What no export does, whichever the engine: the refusals that all share, and the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import DataError, PacelineError, PairError, SettingError
from paceline.export.options import Options
from paceline.export.versions import Table
from paceline.plan.document import Draft, PlanDocument, Step

if TYPE_CHECKING:
    from paceline.inspect.loaders import Loads

GGUF = ".gguf"

SHORTEST_MATCH = 2

LONGEST_PLACE = 4096  # bytes of a path, on Linux


def shortest_match(draft: Draft) -> int:
    """Of a lookup, in tokens: the plan's, or Paceline's own under a fixed limit. Raises DataError
    for one that is no number of tokens."""
    found = draft.settings.get("min_match")
    if found is None:
        return SHORTEST_MATCH
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataError(
            f"The plan's draft {draft.name!r} has a min_match of {found!r}.",
            "It must be 1 or more tokens.",
        )
    return found


def match_lengths(draft: Draft, how: str) -> tuple[str, ...]:
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


def check_evidence(plan: PlanDocument) -> None:
    """Raises DataError for a plan that was measured under a lossy verifier."""
    if not plan.measured.exact:
        raise DataError(
            "The plan was measured with a lossy verifier, and an export never relaxes a rule.",
            "Make the plan from a run with an exact one (`--verifier chain`).",
        )


def fixed_draft_tokens(plan: PlanDocument, options: Options) -> tuple[int, tuple[str, ...]]:
    """Most drafted tokens in a round as one number of 1 or more, and what must be said of it.

    Raises SettingError where our policy chose and the plan doesn't say how much on average.
    """
    if options.max_draft_tokens is not None:
        given = f"The limit of {options.max_draft_tokens} was given with --max-draft-tokens."
        return options.max_draft_tokens, (given, *_schedule_gone(plan))
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
    max_draft_tokens = max(1, round(plan.mean_draft_tokens))
    return max_draft_tokens, (
        f"Paceline's policy chose each round how far to draft, {plan.mean_draft_tokens:.1f} "
        f"tokens on "
        f"average. The engine takes one number and drafts up to {max_draft_tokens} whether "
        f"that pays or not: "
        "expect less than the plan's gain.",
    )


def _schedule_gone(plan: PlanDocument) -> tuple[str, ...]:
    """What must be said where --max-draft-tokens is in the place of the plan's schedule."""
    if not plan.schedule:
        return ()
    plain = [_batches(step) for step in plan.schedule if not step.max_draft_tokens]
    lost = f", also at {' and '.join(plain)}, where the plan doesn't draft" if plain else ""
    return (
        f"With --max-draft-tokens the plan's schedule by batch size is gone: drafts go on{lost}.",
    )


def _batches(step: Step) -> str:
    if step.to_batch is None:
        return f"batches of {step.from_batch} and more"
    if step.to_batch == step.from_batch:
        return f"a batch of {step.from_batch}"
    return f"batches of {step.from_batch} to {step.to_batch}"


def beyond_schedule(plan: PlanDocument, name: str) -> tuple[str, ...]:
    """What must be said of an engine that goes on with a schedule's last entry."""
    last = plan.schedule[-1]
    if last.to_batch is None:
        return ()
    return (
        f"Nothing is known of batches above {last.to_batch}: there {name} goes on with the last "
        f"entry, {last.max_draft_tokens}.",
    )


def check_sampling(
    sampling: Mapping[str, Any], refused: Sequence[str], name: str, why: str
) -> None:
    """Raises SettingError where the plan's sampling has what the engine can't honour with drafts.

    why    what the engine does with it
    """
    asked = [f"{key} {sampling[key]}" for key in refused if _asks(key, sampling.get(key))]
    if asked:
        raise SettingError(
            f"The plan was measured with {', '.join(asked)}, and {name} {why}.",
            "Serve such requests without drafts, or plan with other sampling.",
        )


def _asks(key: str, value: object) -> bool:
    neutral = {"repetition_penalty": 1}
    return bool(value) and value != neutral.get(key)


PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def check_vocabulary(
    plan: PlanDocument, options: Options, draft: Draft, place: str, name: str, most_extra: int = 0
) -> tuple[str, ...]:
    """Raises PairError for a draft model whose vocabulary the engine refuses; what of that was not
    checked otherwise. The plan knows the models it was made with, and files that lie here tell of
    themselves; of others nothing is known.

    most_extra    tokens by which the sizes may differ there
    """
    target = plan.target
    target_own = options.target in (None, target.path, target.name)
    draft_own = options.draft_model in (None, draft.model)
    here = options.target or target.path or target.name
    ours = _vocabulary_here(place) or (draft.vocabulary_size if draft_own else None)
    theirs = (target.vocabulary_size if target_own else None) or _vocabulary_here(here)
    if ours is None or theirs is None:
        sizes = {f"the draft {place}": ours, f"the target {here}": theirs}
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


def is_here(place: str) -> bool:
    """Whether a model's name is that of a file or directory here."""
    try:
        return Path(place).exists()
    except (OSError, ValueError):  # a name that no file may have
        return False


def check_place(place: str | None) -> None:
    """A name goes into commands and files: it may need quoting, but must be a name."""
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


def check_draft_parallel(options: Options, name: str) -> None:
    """Raises SettingError where an engine has no tensor parallelism of the draft's own."""
    wanted, target = options.draft_tensor_parallel, options.tensor_parallel or 1
    if wanted is not None and wanted != target:
        raise SettingError(
            f"--draft-tensor-parallel is {wanted} and the target's is {target}; {name} splits a "
            "draft as it splits its target.",
            "Leave --draft-tensor-parallel out.",
        )


def target_place(plan: PlanDocument, options: Options, name: str) -> str:
    """The target as engines of Hugging Face's format want it: a repository or a directory.

    Raises SettingError for one that was measured on a GGUF file, unless --target names another.
    """
    place = options.target or plan.target.path or plan.target.name
    if is_gguf(place):
        raise SettingError(
            f"The target {place} is a GGUF file, and {name} is given a repository or a directory.",
            "Name the same model there with --target.",
        )
    return place


def draft_place(draft: Draft, options: Options, name: str) -> str:
    """The same for the draft's model."""
    place = options.draft_model or draft.model
    if place is None:
        raise SettingError(
            f"The plan doesn't say where the draft {draft.name!r} lies.",
            "Name its model with --draft-model.",
        )
    if is_gguf(place):
        raise SettingError(
            f"The draft {place} is a GGUF file, and {name} is given a repository or a directory.",
            "Name the same model there with --draft-model.",
        )
    return place


def is_gguf(place: str) -> bool:
    return Path(place).suffix.lower() == GGUF


def check_no_model(options: Options, name: str) -> None:
    """Raises SettingError where a draft's model is named and nothing would read it."""
    if options.draft_model is not None:
        raise SettingError(
            f"--draft-model is {options.draft_model}, and the plan's draft needs no model on "
            f"{name}.",
            "Leave it out.",
        )


def check_checkpoint(place: str, table: Table, method: str | None) -> Loads | None:
    """How the engine loads a local draft's files; None for one that isn't here.

    method    that the plan is exported to; None: whichever the files are for

    Raises DataError for files that can't be read, PairError for a draft that this version doesn't
    load, or not by that method.
    """
    if not is_here(place):
        return None
    from paceline.inspect.loaders import loads
    from paceline.inspect.read import read

    version = None if table.engine == "llama-server" else table.version
    found = loads(read(place), table.engine, version)
    hint = f"See `paceline inspect {place}`."
    if not found.yes:
        raise PairError(f"{table.name} can't load {place}. {found.reason}", hint)
    if method is not None and found.method != method:
        raise PairError(
            f"The plan's draft is one of method {method} to {table.name}, and {place} is one of "
            f"{found.method}.",
            hint,
        )
    return found
