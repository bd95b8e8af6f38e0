"""What no export does, whichever the engine: the refusals that all share, and the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.economics.plan_document import Draft, PlanDocument
from paceline.errors import DataError, PairError, SettingError
from paceline.export.options import Options
from paceline.export.versions import Table

if TYPE_CHECKING:
    from paceline.checkpoints.loaders import Loads

GGUF = ".gguf"

SHORTEST_MATCH = 2


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


def check_evidence(plan: PlanDocument) -> None:
    """Raises DataError for a plan that was measured under a lossy verifier."""
    if not plan.measured.exact:
        raise DataError(
            "The plan was measured with a lossy verifier, and an export never relaxes a rule.",
            "Make the plan from a run with an exact one (`--verifier chain`).",
        )


def fixed_limit(plan: PlanDocument, options: Options) -> tuple[int, tuple[str, ...]]:
    """Most drafted tokens in a round as one number of 1 or more, and what must be said of it.

    Raises SettingError where our policy chose and the plan doesn't say how much on average.
    """
    if options.limit is not None:
        return options.limit, (f"The limit of {options.limit} was given with --limit.",)
    if plan.schedule and (most := max(step.limit for step in plan.schedule)):
        return most, ()
    if plan.limit:
        return plan.limit, ()
    if plan.mean_limit is None:
        raise SettingError(
            "The plan has no limit: a policy chose it every round, and how much it offered on "
            "average isn't in the plan.",
            "Give one with --limit N, or make the plan from a run with a fixed limit (-n N).",
        )
    limit = max(1, round(plan.mean_limit))
    return limit, (
        f"Paceline's policy chose each round how far to draft, {plan.mean_limit:.1f} tokens on "
        f"average. The engine takes one number and drafts up to {limit} whether that pays or not: "
        "expect less than the plan's gain.",
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
    plan: PlanDocument, draft: Draft, place: str, name: str, most_extra: int = 0
) -> None:
    """Raises PairError for a draft model whose vocabulary the engine refuses. Where its files are
    here, they say how large that is.

    most_extra    tokens by which the sizes may differ there
    """
    target = plan.target
    ours, theirs = _vocabulary_here(place) or draft.vocabulary_size, target.vocabulary_size
    if ours is None or theirs is None:
        return
    if abs(ours - theirs) > most_extra:
        allowed = f"at most {most_extra} tokens apart" if most_extra else "equal"
        raise PairError(
            f"The draft has {ours:,} tokens and the target {theirs:,}, and {name} wants them "
            f"{allowed}.",
            "Use a draft with the target's whole vocabulary, such as `paceline derive` makes "
            "without --vocabulary.",
        )
    hashes = (draft.vocabulary_hash, target.vocabulary_hash)
    if ours == theirs and None not in hashes and hashes[0] != hashes[1]:
        raise PairError(
            f"Draft and target have {ours:,} tokens each, but not the same ones; {name} would "
            "draft with the wrong meaning.",
            "Use a draft with the target's own tokenizer.",
        )


def _vocabulary_here(place: str) -> int | None:
    try:
        here = Path(place).exists()
    except OSError:  # a name that no file may have
        here = False
    if not here:
        return None
    from paceline.checkpoints.read import read

    return read(place).vocabulary_size


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
    if not Path(place).exists():
        return None
    from paceline.checkpoints.loaders import loads
    from paceline.checkpoints.read import read

    version = None if table.engine == "llama-server" else table.version
    found = loads(read(place), table.engine, version)
    cure = f"See `paceline inspect {place}`."
    if not found.yes:
        raise PairError(f"{table.name} can't load {place}. {found.reason}", cure)
    if method is not None and found.method != method:
        raise PairError(
            f"The plan's draft is one of method {method} to {table.name}, and {place} is one of "
            f"{found.method}.",
            cure,
        )
    return found
