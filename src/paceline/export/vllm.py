"""A plan as vLLM's `speculative_config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.economics.plan_document import Draft, PlanDocument
from paceline.errors import PairError, SettingError
from paceline.export.evidence import NO_DRAFT, undo
from paceline.export.nearest import family_of
from paceline.export.options import Options
from paceline.export.rules import (
    check_checkpoint,
    check_no_model,
    check_sampling,
    check_vocabulary,
    draft_place,
    fixed_limit,
    shortest_match,
    target_place,
)
from paceline.export.setup import Setup
from paceline.export.versions import Table

PROPOSER = "paceline.integrations.vllm.Proposer"
MOST_OF_OURS = 15
"""Tokens that our proposer may offer where the plan has no limit: it weighs each round itself."""

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
    if options.ours:
        config, remarks = _ours(plan, options, table, draft)
    else:
        config, remarks = _own(plan, options, table, draft)
    table.admit(config)
    _check_limit(config, table)
    if config["method"] in table.read["old_runner"]:
        remarks += ("vLLM runs this method on its older model runner (V1), and says so.",)
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target,
        draft=None if options.ours else config.get("model"),
        arguments=("--speculative-config", json.dumps(config)),
        config=config,
        remarks=(*remarks, undo("start vLLM without --speculative-config")),
    )


def plain(plan: PlanDocument, options: Options, table: Table) -> Setup:
    return Setup(
        engine=table.engine,
        version=table.version,
        target=target_place(plan, options, table.name),
        remarks=(NO_DRAFT,),
    )


def _own(
    plan: PlanDocument, options: Options, table: Table, draft: Draft
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """One of vLLM's own methods."""
    family = family_of(draft, options, table, _offered(table))
    limit, remarks = _limit(plan, options, family.name)
    config = _method(plan, options, table, draft, family.name)
    if limit is not None:
        config["num_speculative_tokens"] = limit
    if family.name == "ngram":
        least = shortest_match(draft)
        config |= {"prompt_lookup_min": least, "prompt_lookup_max": max(least, LONGEST_MATCH)}
    if family.name == "suffix":
        remarks += ("vLLM needs the package arctic-inference for suffix drafts.",)
    config |= _parallel(options, config["method"])
    schedule, said = _schedule(plan, options, table, config["method"])
    return config | schedule, (*family.remarks, *remarks, *said)


def _method(
    plan: PlanDocument, options: Options, table: Table, draft: Draft, family: str
) -> dict[str, Any]:
    """The method and where its model lies. The files of one that lies here say more."""
    if family in ("ngram", "suffix"):
        check_no_model(options, table.name)
        return {"method": METHODS[family]}
    if family == "mtp" and not (options.draft_model or draft.model):
        return {"method": METHODS[family]}
    place = draft_place(draft, options, table.name)
    loads = check_checkpoint(place, table, METHODS.get(family))
    if loads is None and family == "speculators":
        raise SettingError(
            f"By which method the speculators draft {place} drafts can't be seen from here.",
            "Name its directory with --draft-model, so that it can be read.",
        )
    if family == "model":
        check_vocabulary(plan, draft, place, table.name)
    config: dict[str, Any] = {"method": METHODS.get(family), "model": place}
    if family == "other-vocabulary":
        config["use_heterogeneous_vocab"] = True
    return config if loads is None else config | {"method": loads.method, **loads.settings}


def _check_limit(config: Mapping[str, Any], table: Table) -> None:
    most, limit = table.read.get("most_tokens"), config.get("num_speculative_tokens", 0)
    if most is not None and limit > most:
        raise SettingError(
            f"The limit is {limit}, and {table.name} verifies at most {most} drafted tokens.",
            f"Give a smaller one with --limit, up to {most}.",
        )


def _offered(table: Table) -> set[str]:
    offered = {family for family, method in METHODS.items() if table.offers("method", method)}
    if "use_heterogeneous_vocab" not in table.keys:
        offered.discard("other-vocabulary")
    return offered | {"speculators"}


def _limit(plan: PlanDocument, options: Options, family: str) -> tuple[int | None, tuple[str, ...]]:
    if family == "suffix" and plan.limit is None and options.limit is None:
        return None, ("Suffix drafts choose each time how far to go; vLLM's own limit holds.",)
    return fixed_limit(plan, options)


def _ours(
    plan: PlanDocument, options: Options, table: Table, draft: Draft
) -> tuple[dict[str, Any], tuple[str, ...]]:
    check_no_model(options, f"{table.name} with --ours")
    if draft.kind not in ("lookup", "recycle", "ngram"):
        raise SettingError(
            f"The plan's draft is {draft.name!r} ({draft.kind}), and Paceline's proposer in vLLM "
            "runs lookup and recycle.",
            "Leave --ours out, or plan with -d lookup.",
        )
    config = {
        "method": "custom_class",
        "model": PROPOSER,
        "num_speculative_tokens": options.limit or plan.limit or MOST_OF_OURS,
    }
    return config, (
        "Paceline must be installed beside vLLM: its proposer drafts, and its policy chooses each "
        "round how far to go, up to num_speculative_tokens.",
    )


def _parallel(options: Options, method: str) -> dict[str, Any]:
    wanted, target = options.draft_tensor_parallel, options.tensor_parallel or 1
    if wanted is None:
        return {}
    allowed = {target} if method == "draft_model" else {1, target}
    if method in ("ngram", "suffix") or wanted not in allowed:
        what = "has no model" if method in ("ngram", "suffix") else f"may have {_either(allowed)}"
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
    if not plan.schedule or options.limit is not None:
        return {}, ()
    if method not in table.read["scheduled"]:
        return {}, (
            f"{table.name} has no schedule by batch size for {method}: it drafts at every load, "
            "also where the plan would not.",
        )
    # The last entry holds for larger batches too, so an open end can stop anywhere.
    entries = [
        [step.from_batch, step.to_batch or step.from_batch, step.limit] for step in plan.schedule
    ]
    said = ["vLLM drops the schedule by batch size, with a warning, under data parallelism."]
    last = plan.schedule[-1]
    if last.to_batch is not None:
        said.append(
            f"Nothing is known of batches above {last.to_batch}: there vLLM goes on with the last "
            f"entry, {last.limit}."
        )
    return {"num_speculative_tokens_per_batch_size": entries}, tuple(said)
