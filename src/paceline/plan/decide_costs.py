"""From costs alone to a plan: of one draft, at an acceptance that the user assumes; or of none,
where no draft could pay however often it is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import SettingError
from paceline.plan.break_even import BreakEven, DraftPlan
from paceline.plan.break_even_text import no_speedup_words
from paceline.plan.decide_parts import batch_words, draft_of, target_of, unplaced
from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
)
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
    target    its facts, or the key of its costs
    drafts    facts by the names that the plan has
    file      of the costs, if they were read from one

    Raises SettingError where the decision hangs on an acceptance, and not exactly one was given,
    for exactly one draft that could pay: what is assumed is for the user to say.
    """
    hopeless = [f"{no_speedup_words(draft)}." for draft in plan.drafts if not draft.can_pay]
    if len(hopeless) == len(plan.drafts):
        return _document(plan, target, None, 0, Expected(), ["Ordinary decoding.", *hopeless], file)
    draft, acceptance = _assumed(plan)
    best = draft.best[acceptance]
    why = [
        f"It rests on an acceptance of {acceptance:g} at every position, which was assumed, not "
        "measured.",
        *hopeless,
    ]
    if best.speedup < LEAST_GAIN:
        little = (
            f"Ordinary decoding: {draft.name} would come to a speedup of {best.speedup:.2f} at its "
            "best limit, and less than 5 % is more than prices can tell."
        )
        return _document(plan, target, None, 0, Expected(), [little, *why], file)
    if draft.free:
        why.append(
            f"{draft.name} offers something where the text repeats itself only: in rounds with a "
            f"draft it is a speedup of {best.speedup:.2f}, and how many those are no costs tell."
        )
    why += [batch_words(1), *unplaced({draft.name: drafts[draft.name]})]
    expected = _expected(draft, acceptance, best.max_draft_tokens, best.speedup)
    chosen = draft_of(draft.name, drafts[draft.name])
    return _document(plan, target, chosen, best.max_draft_tokens, expected, why, file)


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


def _expected(draft: DraftPlan, acceptance: float, max_draft_tokens: int, gain: float) -> Expected:
    """Of a draft without a price the rounds that offer something are known, the whole isn't."""
    tokens, priced = expected_tokens(acceptance, max_draft_tokens), draft.priced
    seconds = (
        priced.r(max_draft_tokens + 1) + max_draft_tokens * priced.draft_cost + priced.overhead
    )
    return Expected(
        acceptance_at=tuple(acceptance**at for at in range(1, max_draft_tokens + 1)),
        tokens_per_round=None if draft.free else tokens,
        tokens_per_drafted_round=tokens,
        acceptance_rate=(tokens - 1) / max_draft_tokens,
        break_even_tokens=seconds / (1 + priced.overhead),
        gain=None if draft.free else Gain(value=gain),
    )


def _document(
    plan: BreakEven,
    target: Mapping[str, Any],
    draft: PlannedDraft | None,
    max_draft_tokens: int,
    expected: Expected,
    why: list[str],
    file: str | None,
) -> PlanDocument:
    costs = plan.costs
    notes = ["Predicted from costs alone, nothing was decoded.", *why]
    if not costs.complete:
        notes.append("Measuring the costs was interrupted: wider forwards may be missing.")
    return PlanDocument(
        target=target_of(target),
        draft=draft,
        max_draft_tokens=max_draft_tokens,
        mean_draft_tokens=None
        if draft is None or expected.gain is None
        else float(max_draft_tokens),
        expected=expected,
        measured=Measurement(
            source="costs", file=file, machine={"source": costs.source, **_key(costs.key)}
        ),
        notes=tuple(notes),
    )


def _key(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in key.items() if name != "model"}
