"""A plan as vLLM's `speculative_config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.errors import DataError, PairError, SettingError
from paceline.export.evidence import NO_DRAFT, undo
from paceline.export.nearest import family_of
from paceline.export.options import Options
from paceline.export.rules import (
    beyond_schedule,
    check_checkpoint,
    check_no_model,
    check_sampling,
    check_vocabulary,
    draft_place,
    fixed_draft_tokens,
    match_lengths,
    shortest_match,
    target_place,
)
from paceline.export.setup import Setup
from paceline.export.versions import Table
from paceline.plan.document import Draft, PlanDocument

PROPOSER = "paceline.integrations.vllm.Proposer"
MOST_OF_OURS = 15
"""Tokens that our proposer may offer where the plan has no limit: it weighs each round itself."""

OURS = {"lookup": "lookup", "ngram": "lookup", "recycle": "recycle"}
"""What our proposer runs in place of a kind."""

OURS_BY_DEFAULT = ["lookup"]

LONGEST_MATCH = 5  # vLLM's own default

METHODS = {
    "model": "draft_model",
    "other-vocabulary": "draft_model",
    "ngram": "ngram",
    "suffix": "suffix",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "mtp": "mtp",
    "dflash": "dflash",
}


def setup(plan: PlanDocument, options: Options, table: Table, draft: Draft) -> Setup:
    check_sampling(
        plan.measured.sampling,
        table.read["refused_sampling"],
        table.name,
        "refuses requests with that while it drafts",
    )
    target = target_place(plan, options, table.name)
    more: tuple[str, ...] = ()
    if options.ours:
        config, more, notes = _ours(plan, options, table, draft)
    else:
        config, notes = _own(plan, options, table, draft)
    table.admit(config)
    _check_limit(config, table)
    if config["method"] in table.read["old_runner"]:
        notes += ("vLLM runs this method on its older model runner (V1), and says so.",)
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target,
        draft=None if options.ours else config.get("model"),
        arguments=("--speculative-config", json.dumps(config), *more),
        config=config,
        notes=(*notes, undo("start vLLM without --speculative-config")),
    )


def plain(plan: PlanDocument, options: Options, table: Table) -> Setup:
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target_place(plan, options, table.name),
        notes=(NO_DRAFT,),
    )


def _own(
    plan: PlanDocument, options: Options, table: Table, draft: Draft
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """One of vLLM's own methods."""
    family = family_of(draft, options, table, _offered(table))
    max_draft_tokens, notes = _limit(plan, options, family.name)
    config, unchecked = _method(plan, options, table, draft, family.name)
    notes += unchecked
    if max_draft_tokens is not None:
        config["num_speculative_tokens"] = max_draft_tokens
    if family.name == "ngram":
        least = shortest_match(draft)
        most = max(least, LONGEST_MATCH)
        config |= {"prompt_lookup_min": least, "prompt_lookup_max": most}
        notes += match_lengths(draft, f"vLLM is told to match from {least} to {most} tokens")
    if family.name == "suffix":
        notes += ("vLLM needs the package arctic-inference for suffix drafts.",)
    config |= _parallel(options, config["method"])
    schedule, said = _schedule(plan, options, table, config["method"])
    return config | schedule, (*family.notes, *notes, *said)


def _method(
    plan: PlanDocument, options: Options, table: Table, draft: Draft, family: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The method and where its model lies. The files of one that lies here say more."""
    if family in ("ngram", "suffix"):
        check_no_model(options, table.name)
        return {"method": METHODS[family]}, ()
    if family == "mtp" and not (options.draft_model or draft.model):
        return {"method": METHODS[family]}, ()
    place = draft_place(draft, options, table.name)
    loads = check_checkpoint(place, table, METHODS.get(family))
    if loads is None and family == "speculators":
        raise SettingError(
            f"By which method the speculators draft {place} drafts can't be seen from here.",
            "Name its directory with --draft-model, so that it can be read.",
        )
    said: tuple[str, ...] = ()
    if family == "model":
        said = check_vocabulary(plan, options, draft, place, table.name)
    config: dict[str, Any] = {"method": METHODS.get(family), "model": place}
    if family == "other-vocabulary":
        config["use_heterogeneous_vocab"] = True
    if loads is not None:
        config |= {"method": loads.method, **loads.settings}
    return config, said


def _check_limit(config: Mapping[str, Any], table: Table) -> None:
    most, max_draft_tokens = table.read.get("most_tokens"), config.get("num_speculative_tokens", 0)
    if most is not None and max_draft_tokens > most:
        raise SettingError(
            f"The limit is {max_draft_tokens}, and {table.name} verifies at most {most} "
            f"drafted tokens.",
            f"Give a smaller one with --max-draft-tokens, up to {most}.",
        )


def _offered(table: Table) -> set[str]:
    offered = {family for family, method in METHODS.items() if table.offers("method", method)}
    if "use_heterogeneous_vocab" not in table.keys:
        offered.discard("other-vocabulary")
    return offered | {"speculators"}


def _limit(plan: PlanDocument, options: Options, family: str) -> tuple[int | None, tuple[str, ...]]:
    if family == "suffix" and plan.max_draft_tokens is None and options.max_draft_tokens is None:
        return None, ("Suffix drafts choose each time how far to go; vLLM's own limit holds.",)
    return fixed_draft_tokens(plan, options)


def _ours(
    plan: PlanDocument, options: Options, table: Table, draft: Draft
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Our proposer: its settings, further arguments, and what must be said."""
    check_no_model(options, f"{table.name} with --ours")
    _parallel(options, "custom_class")
    names = _names_of_ours(draft)
    config = {
        "method": "custom_class",
        "model": PROPOSER,
        "num_speculative_tokens": options.max_draft_tokens or plan.max_draft_tokens or MOST_OF_OURS,
    }
    said = [
        "Paceline must be installed beside vLLM: its proposer drafts, and its policy chooses each "
        "round how far to go, up to num_speculative_tokens.",
    ]
    if plan.schedule:
        said.append(
            "The plan's schedule by batch size is not written: that policy is in its place."
        )
    if draft.kind == "ngram":
        said.append(
            "What was measured are an engine's own n-grams: for Paceline's lookup, judge it anew."
        )
    if lost := _settings_of(draft):
        said.append(f"The proposer has settings of its own, in place of the plan's {lost}.")
    more: tuple[str, ...] = ()
    if names != OURS_BY_DEFAULT:
        more = ("--additional-config", json.dumps({"paceline": {"drafts": names}}))
        said.append(
            f"{more[0]} names the proposer's drafts, and is no part of the speculative config: in "
            "Python or with the JSON form, give it beside."
        )
    return config, more, tuple(said)


def _names_of_ours(draft: Draft) -> list[str]:
    """As the proposer is told of a draft, or of those that it is made of."""
    kinds = [str(part.get("kind")) for part in _parts(draft)] or [draft.kind]
    strange = [kind for kind in kinds if kind not in OURS]
    if strange:
        raise SettingError(
            f"The plan's draft is {draft.name!r} ({draft.kind}), and Paceline's proposer in vLLM "
            "runs lookup and recycle.",
            "Leave --ours out, or plan with -d lookup.",
        )
    return list(dict.fromkeys(OURS[kind] for kind in kinds))


def _parts(draft: Draft) -> list[Mapping[str, Any]]:
    """Of a draft that our policy or the first match chooses between. Raises DataError for a list
    that is none."""
    key = {"several": "drafts", "first": "parts", "cascade": "parts"}.get(draft.kind)
    parts = draft.settings.get(key, []) if key else []
    if not isinstance(parts, list | tuple) or not all(isinstance(one, Mapping) for one in parts):
        raise DataError(
            f"The plan's draft {draft.name!r} has {key} that are no list of drafts.",
            "Make the plan again.",
        )
    return list(parts)


def _settings_of(draft: Draft) -> str:
    """Settings that were set, as text."""
    found = [draft.settings, *(part.get("settings") or {} for part in _parts(draft))]
    return ", ".join(
        f"{name} {value}"
        for settings in found
        if isinstance(settings, Mapping)
        for name, value in settings.items()
        if name not in ("drafts", "parts")
    )


def _parallel(options: Options, method: str) -> dict[str, Any]:
    wanted, target = options.draft_tensor_parallel, options.tensor_parallel or 1
    if wanted is None:
        return {}
    allowed = {target} if method == "draft_model" else {1, target}
    without = method in ("ngram", "suffix", "custom_class")
    if without or wanted not in allowed:
        what = "has no model" if without else f"may have {_either(allowed)}"
        raise PairError(
            f"--draft-tensor-parallel is {wanted} with a target of {target}, and in vLLM a draft "
            f"of method {method} {what}.",
            "Leave --draft-tensor-parallel out.",
        )
    return {"draft_tensor_parallel_size": wanted}


def _either(numbers: set[int]) -> str:
    return " or ".join(str(number) for number in sorted(numbers))


def _schedule(
    plan: PlanDocument, options: Options, table: Table, method: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    if not plan.schedule or options.max_draft_tokens is not None:
        return {}, ()
    if method not in table.read["scheduled"]:
        return {}, (
            f"{table.name} has no schedule by batch size for {method}: it drafts at every load, "
            "also where the plan would not.",
        )
    # The last entry holds for larger batches too, so an open end can stop anywhere.
    entries = [
        [step.from_batch, step.to_batch or step.from_batch, step.max_draft_tokens]
        for step in plan.schedule
    ]
    said = (
        "vLLM drops the schedule by batch size, with a warning, under data parallelism.",
        *beyond_schedule(plan, "vLLM"),
    )
    return {"num_speculative_tokens_per_batch_size": entries}, said
