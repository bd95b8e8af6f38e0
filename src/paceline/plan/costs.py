"""Costs alone as evidence: of one draft, at an acceptance that the user assumes; or of none, where
no draft could pay however often it is right."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from paceline.errors import DataError, SettingError
from paceline.plan.break_even import BreakEven, DraftPlan, no_speedup_words
from paceline.plan.decide import Alternative, Decision, Evidence, Figures, decide, document
from paceline.plan.document import Expected, Gain, Measurement, PlanDocument
from paceline.plan.drafts import draft_of, target_of, unplaced
from paceline.policy.adaptive import LEAST_GAIN
from paceline.policy.break_even import expected_tokens

_MEASURE = "Or measure it: `paceline bench`, then `paceline plan FILE`."


def decide_costs(
    plan: BreakEven,
    target: Mapping[str, Any],
    drafts: Mapping[str, Mapping[str, Any]],
    *,
    file: str | None = None,
) -> PlanDocument:
    """The best limit at the acceptance that was given, if it would gain 5 % or more.

    plan      of at most one acceptance, unless no draft can pay
    target    its metadata, or the key of its costs
    drafts    metadata by the names that the plan has
    file      of the costs, if they were read from one

    Raises SettingError where the decision hangs on an acceptance, and not exactly one was given,
    for exactly one draft that could pay: what is assumed is for the user to say.
    """
    if not any(draft.can_pay for draft in plan.drafts):
        evidence = _evidence(plan, target, None)
        return document(evidence, Decision(evidence.ordinary, notes=("Ordinary decoding.",)), file)
    draft, acceptance = _assumed(plan)
    candidate = _candidate(plan, draft, acceptance, drafts[draft.name])
    return decide(_evidence(plan, target, (candidate, acceptance)), file=file)


def _evidence(
    plan: BreakEven, target: Mapping[str, Any], assumed: tuple[Alternative, float] | None
) -> Evidence:
    """One draft at one assumed acceptance; None where no draft can pay."""
    about = ["Predicted from costs alone, nothing was decoded."]
    if assumed is not None:
        about.append(
            f"It rests on an acceptance of {assumed[1]:g} at every position, which was assumed, "
            "not measured."
        )
    about += [f"{no_speedup_words(one)}." for one in plan.drafts if not one.can_pay]
    if not plan.costs.complete:
        about.append("Measuring the costs was interrupted: wider forwards may be missing.")
    return Evidence(
        target=target_of(target),
        ordinary=Alternative(name="", family="", points={1: Figures(measured=_measurement(plan))}),
        candidates=() if assumed is None else (assumed[0],),
        nothing=DataError("There is nothing to decide.", _MEASURE),
        least_gain=LEAST_GAIN,
        single="",
        about=tuple(about),
    )


def _measurement(plan: BreakEven) -> Measurement:
    key = {name: value for name, value in plan.costs.key.items() if name != "model"}
    return Measurement(source="costs", machine={"source": plan.costs.source, **key})


def _candidate(
    plan: BreakEven, draft: DraftPlan, acceptance: float, metadata: Mapping[str, Any]
) -> Alternative:
    """Of a draft without a price the rounds that offer something are known, the whole isn't."""
    best = draft.best[acceptance]
    limit, gain = best.max_draft_tokens, Gain(value=best.speedup)
    tokens, priced = expected_tokens(acceptance, limit), draft.priced
    seconds = priced.r(limit + 1) + limit * priced.draft_cost + priced.overhead
    rounds_only = (
        f"{draft.name} offers something where the text repeats itself only: in rounds with a draft "
        f"it is a speedup of {best.speedup:.2f}, and how many those are no costs tell."
    )
    expected = Expected(
        acceptance_at=tuple(acceptance**at for at in range(1, limit + 1)),
        tokens_per_round=None if draft.free else tokens,
        tokens_per_drafted_round=tokens,
        acceptance_rate=(tokens - 1) / limit if limit else None,
        break_even_tokens=seconds / (1 + priced.overhead),
        gain=None if draft.free else gain,
    )
    point = Figures(
        title=draft.name,
        gain=gain,
        expected=expected,
        measured=_measurement(plan),
        mean_draft_tokens=None if draft.free else float(limit),
        notes=tuple(unplaced({draft.name: metadata})),
    )
    return Alternative(
        name=draft.name,
        family=draft.name,
        draft=partial(draft_of, draft.name, metadata),
        max_draft_tokens=limit,
        points={1: point},
        cautions=(rounds_only,) if draft.free else (),
    )


def _assumed(plan: BreakEven) -> tuple[DraftPlan, float]:
    """The one draft that can pay, and the one acceptance."""
    able = [draft for draft in plan.drafts if draft.can_pay]
    if len(able) > 1:
        raise SettingError(
            f"There are {len(able)} drafts that could pay ({', '.join(d.name for d in able)}), "
            "each of which is accepted in its own way.",
            f"Plan for one of them, with -d. {_MEASURE}",
        )
    if not plan.given or len(plan.acceptances) != 1:
        given = "none is" if not plan.given else f"{len(plan.acceptances)} are"
        raise SettingError(
            f"Whether {able[0].name} pays hangs on how often it is accepted, and {given} given.",
            f"Assume one with --acceptance. {_MEASURE}",
        )
    return able[0], plan.acceptances[0]
