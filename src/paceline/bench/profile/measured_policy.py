"""The default policy for a target and drafts that are loaded: costs from the cache, or measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from paceline.bench.profile.profile import costs_for, costs_key
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.policy.adaptive import MeasuredPolicy, Source
from paceline.policy.costs import Costs, check_key
from paceline.policy.live import LiveCosts

log = logging.getLogger("paceline")


def gather_costs(
    engine: Engine,
    drafts: Mapping[str, Draft],
    *,
    on_measure: Callable[[str], None] = log.warning,
) -> Costs:
    """Costs of a target and of every model that drafts for it."""
    target = costs_for(engine, on_measure=on_measure)
    priced = {
        name: costs_for(draft.engine, drafts=True, on_measure=on_measure)
        for name, draft in drafts.items()
        if draft.engine is not None
    }
    return replace(target, drafts=priced)


def check_costs(costs: Costs, engine: Engine, drafts: Mapping[str, Draft], name: str) -> None:
    """Refuse recorded costs that are not of this target and these drafts on this machine."""
    check_key(costs, costs_key(engine), name)
    for label, draft in drafts.items():
        if draft.previewable or draft.name == "none":
            continue
        if draft.engine is None:
            raise SettingError(
                f"The draft {label!r} has no model: its price can only be learned while decoding.",
                "Leave recorded costs out, or that draft.",
            )
        if label not in costs.drafts:
            known = ", ".join(costs.drafts) or "none"
            raise SettingError(
                f"The costs in {name} have no draft {label!r}; they have: {known}.",
                "Measure the pair with `paceline profile TARGET -d DRAFT -o FILE`.",
            )
        check_key(costs.drafts[label], costs_key(draft.engine), f"{name}, draft {label}")


def sources(costs: Costs, drafts: Mapping[str, Draft]) -> list[Source]:
    """The drafts as a policy sees them."""
    return [
        Source(
            name,
            draft.previewable,
            draft.has_confidence,
            costs.drafts.get(name),
            draft.prior,
            draft.branches,
            draft.forwards,
        )
        for name, draft in drafts.items()
        if draft.name != "none"
    ]


def measured_policy(
    engine: Engine,
    drafts: Mapping[str, Draft],
    *,
    costs: Costs | None = None,
    named: str = "the file",
    on_measure: Callable[[str], None] = log.warning,
) -> MeasuredPolicy:
    """The policy that asks a draft only when it pays.

    costs         recorded ones, kept to as they are; None takes the cached profile, or measures
                  one (some seconds, once), and corrects it while decoding
    named         where recorded costs come from, for errors
    on_measure    told, in a line, that measuring begins

    Raises SettingError for recorded costs of another model or machine.
    """
    if costs is not None:
        check_costs(costs, engine, drafts, named)
        return MeasuredPolicy(LiveCosts(costs, frozen=True), sources(costs, drafts))
    found = gather_costs(engine, drafts, on_measure=on_measure)
    return MeasuredPolicy(LiveCosts(found), sources(found, drafts))
