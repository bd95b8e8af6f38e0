"""A plan as vLLM's `speculative_config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.errors import DataError, PairError, SettingError
from paceline.export.request import ExportRequest
from paceline.export.setup import EngineSetup, ExportOptions
from paceline.plan.document import PlannedDraft

PROPOSER = "paceline.integrations.vllm.Proposer"
MOST_OF_OURS = 15
"""Tokens that our proposer may offer where the plan has no limit: it weighs each round itself."""

OURS = {"lookup": "lookup", "ngram": "lookup", "recycle": "recycle"}
"""What our proposer runs in place of a kind."""

LONGEST_MATCH = 5  # vLLM's own default


def setup(ask: ExportRequest) -> EngineSetup:
    """vLLM told to draft."""
    table = ask.table
    ask.check_sampling(table.read["refused_sampling"], "refuses requests with that while it drafts")
    more: tuple[str, ...] = ()
    if ask.options.ours:
        config, more = _ours(ask)
    else:
        config = _own(ask)
    table.admit(config)
    most, limit = table.read.get("most_tokens"), config.get("num_speculative_tokens", 0)
    if most is not None and limit > most:
        raise SettingError(
            f"The limit is {limit}, and {table.name} verifies at most {most} drafted tokens.",
            f"Give a smaller one with --max-draft-tokens, up to {most}.",
        )
    if config["method"] in table.read["old_runner"]:
        ask.say("vLLM runs this method on its older model runner (V1), and says so.")
    return ask.made(
        None if ask.options.ours else config.get("model"),
        arguments=("--speculative-config", json.dumps(config), *more),
        config=config,
    )


def _own(ask: ExportRequest) -> dict[str, Any]:
    """One of vLLM's own methods."""
    methods: dict[str, str | None] = {**ask.table.families(), "speculators": None}
    if "use_heterogeneous_vocab" not in ask.table.keys:
        del methods["other-vocabulary"]
    family = ask.family(methods)
    limit: int | None = None
    if family == "suffix" and ask.plan.max_draft_tokens is ask.options.max_draft_tokens is None:
        ask.say("Suffix drafts choose each time how far to go; vLLM's own limit holds.")
    else:
        limit = ask.fixed_limit()
    config = _method(ask, family, methods[family])
    if limit is not None:
        config["num_speculative_tokens"] = limit
    if family == "ngram":
        least = ask.shortest_match()
        most = max(least, LONGEST_MATCH)
        config |= {"prompt_lookup_min": least, "prompt_lookup_max": most}
        ask.say_matches(f"vLLM is told to match from {least} to {most} tokens")
    if family == "suffix":
        ask.say("vLLM needs the package arctic-inference for suffix drafts.")
    return config | _parallel(ask.options, config["method"]) | _schedule(ask, config["method"])


def _method(ask: ExportRequest, family: str, method: str | None) -> dict[str, Any]:
    """The method and where its model lies. The files of one that lies here say more."""
    model = ask.find_model(family, method)
    if model.place is None:
        return {"method": method}
    if model.loads is None and method is None:
        raise SettingError(
            f"By which method the speculators draft {model.place} drafts can't be seen from here.",
            "Name its directory with --draft-model, so that it can be read.",
        )
    config: dict[str, Any] = {"method": method, "model": model.place}
    if family == "other-vocabulary":
        config["use_heterogeneous_vocab"] = True
    if model.loads is not None:
        config |= {"method": model.loads.method, **model.loads.settings}
    return config


def _ours(ask: ExportRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Our proposer: its settings, and further arguments."""
    ask.check_no_model(" with --ours")
    _parallel(ask.options, "custom_class")
    names = _names_of_ours(ask.draft)
    limit = ask.options.max_draft_tokens or ask.plan.max_draft_tokens or MOST_OF_OURS
    ask.say(
        "Paceline must be installed beside vLLM: its proposer drafts, and its policy chooses each "
        "round how far to go, up to num_speculative_tokens."
    )
    if ask.plan.schedule:
        ask.say("The plan's schedule by batch size is not written: that policy is in its place.")
    if ask.draft.kind == "ngram":
        ask.say("An engine's own n-grams were measured: for Paceline's lookup, measure it anew.")
    if lost := _settings_of(ask.draft):
        ask.say(f"The proposer has settings of its own, in place of the plan's {lost}.")
    more: tuple[str, ...] = ()
    if names != ["lookup"]:  # its default
        more = ("--additional-config", json.dumps({"paceline": {"drafts": names}}))
        ask.say(
            f"{more[0]} names the proposer's drafts, and is no part of the speculative config: in "
            "Python or with the JSON form, give it beside."
        )
    config = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": limit}
    return config, more


def _names_of_ours(draft: PlannedDraft) -> list[str]:
    """As the proposer is told of a draft, or of those that it is made of."""
    kinds = [str(part.get("kind")) for part in _parts(draft)] or [draft.kind]
    if any(kind not in OURS for kind in kinds):
        raise SettingError(
            f"The plan's draft is {draft.name!r} ({draft.kind}), and Paceline's proposer in vLLM "
            "runs lookup and recycle.",
            "Leave --ours out, or plan with -d lookup.",
        )
    return list(dict.fromkeys(OURS[kind] for kind in kinds))


def _parts(draft: PlannedDraft) -> list[Mapping[str, Any]]:
    """Of a draft that our policy or the first match chooses between. Raises DataError for what is
    not a list."""
    key = {"several": "drafts", "first": "parts", "cascade": "parts"}.get(draft.kind)
    parts = draft.settings.get(key, []) if key else []
    if not isinstance(parts, list | tuple) or not all(isinstance(one, Mapping) for one in parts):
        raise DataError(
            f"The plan's draft {draft.name!r} has {key} that are not a list of drafts.",
            "Make the plan again.",
        )
    return list(parts)


def _settings_of(draft: PlannedDraft) -> str:
    """Settings that were set, as text."""
    found = [draft.settings, *(part.get("settings") or {} for part in _parts(draft))]
    return ", ".join(
        f"{name} {value}"
        for settings in found
        if isinstance(settings, Mapping)
        for name, value in settings.items()
        if name not in ("drafts", "parts")
    )


def _parallel(options: ExportOptions, method: str) -> dict[str, Any]:
    wanted, target = options.draft_tensor_parallel, options.tensor_parallel or 1
    if wanted is None:
        return {}
    allowed = {target} if method == "draft_model" else {1, target}
    without = method in ("ngram", "suffix", "custom_class")
    if without or wanted not in allowed:
        either = " or ".join(map(str, sorted(allowed)))
        what = "has no model" if without else f"may have {either}"
        raise PairError(
            f"--draft-tensor-parallel is {wanted} with a target of {target}, and in vLLM a draft "
            f"of method {method} {what}.",
            "Leave --draft-tensor-parallel out.",
        )
    return {"draft_tensor_parallel_size": wanted}


def _schedule(ask: ExportRequest, method: str) -> dict[str, Any]:
    if not ask.schedule or method not in ask.table.read["scheduled"]:
        ask.say_no_schedule(method)
        return {}
    ask.say_schedule(
        "vLLM drops the schedule by batch size, with a warning, under data parallelism."
    )
    # The last entry holds for larger batches too, so an open end can stop anywhere.
    entries = [
        [step.from_batch, step.to_batch or step.from_batch, step.max_draft_tokens]
        for step in ask.schedule
    ]
    return {"num_speculative_tokens_per_batch_size": entries}
