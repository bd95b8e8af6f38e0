"""A replay as evidence: predicted gains by batch size, of drafts that are always asked for the same
number of tokens, as serving engines ask them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from paceline.errors import DataError
from paceline.plan.decide import (
    Alternative,
    Evidence,
    Figures,
    break_even_of,
    decide,
    few_words,
    gain_of,
    skipped_words,
    workload_of,
)
from paceline.plan.document import Expected, Measurement, PlanDocument, PlannedDraft
from paceline.plan.drafts import draft_of, several, target_of, unknown_kind, unplaced
from paceline.policy.adaptive import LEAST_GAIN
from paceline.simulate.result import HINT, ByCategory, Outcome, Price, ReplayDocument


def decide_replay(
    replay: ReplayDocument, *, configuration: str | None = None, file: str | None = None
) -> PlanDocument:
    """Of the drafts and limits that pay at the smallest batch where any does, the one with the
    largest predicted gain. One pays that gains 5 % or more, with an interval above 1. The schedule
    has by the same rule the limit of that draft at each batch size, none larger than the first.

    configuration    decides for the user: DRAFT:LIMIT, or `measured`, our policy

    Raises DataError for a replay that predicts nothing, SettingError for a configuration that isn't
    there.
    """
    name = file or "The replay"
    if not replay.predicted:
        raise DataError(
            f"{name} predicts no times, and acceptance alone says nothing of speed.", HINT
        )
    return decide(_evidence(replay, name), configuration=configuration, file=file)


def _evidence(replay: ReplayDocument, name: str) -> Evidence:
    batches, notes = sorted(replay.predicted), _notes(replay)
    measured = {batch: _measurement(replay, batch) for batch in batches}
    return Evidence(
        target=target_of(replay.target),
        ordinary=Alternative(
            name="",
            family="",
            points={batch: Figures(measured=one, notes=notes) for batch, one in measured.items()},
        ),
        candidates=tuple(
            _candidate(replay, policy, measured, notes)
            for policy in replay.predicted[batches[0]].policies
        ),
        nothing=DataError(
            f"{name} has no figure of any draft.",
            "Replay with costs of wider forwards, or of more sequences.",
        ),
        least_gain=LEAST_GAIN,
        single="answer",
        about=("Times are predicted from costs, none was measured.",),
    )


def _candidate(
    replay: ReplayDocument,
    policy: str,
    measured: dict[int, Measurement],
    notes: tuple[str, ...],
) -> Alternative:
    """DRAFT:LIMIT, or `measured`, our policy, of whose rounds a replay has no counts."""
    draft, limit = next(
        (
            (name, limit)
            for name, one in replay.drafts.items()
            for limit in one.limits
            if policy == f"{name}:{limit}"
        ),
        ("", None),
    )
    outcome = None if limit is None else replay.drafts[draft].limits[limit].all
    drafted = outcome is not None and outcome.drafted_rounds
    return Alternative(
        name=policy,
        draft=partial(_draft, replay, draft),
        family=draft,
        max_draft_tokens=limit,
        unfit=unknown_kind(replay.drafts[draft].metadata) if draft else "",
        offer="" if draft else "Paceline's own policy, with all drafts of the replay",
        points={
            batch: Figures(
                title=f"{policy} at a batch of {batch}",
                gain=gain_of(prices.all.speedup),
                expected=_expected(prices, outcome),
                measured=replace(measured[batch], configuration=policy),
                mean_draft_tokens=outcome.proposed / drafted if outcome and drafted else None,
                notes=(*unplaced(_metadata(replay)), *notes),
            )
            for batch in measured
            if (prices := replay.predicted[batch].policies.get(policy)) is not None
        },
    )


def _metadata(replay: ReplayDocument) -> dict[str, Mapping[str, Any]]:
    return {name: one.metadata for name, one in replay.drafts.items()}


def _draft(replay: ReplayDocument, draft: str) -> PlannedDraft:
    metadata = _metadata(replay)
    return draft_of(draft, metadata[draft]) if draft else several(metadata)


def _expected(prices: ByCategory[Price], outcome: Outcome | None) -> Expected:
    gain = gain_of(prices.all.speedup)
    found = {name: gain_of(price.speedup) for name, price in prices.categories.items()}
    categories = {name: one for name, one in found.items() if one is not None}
    if outcome is None:
        return Expected(gain=gain, gain_by_category=categories)
    rounds, drafted, per_round = outcome.rounds, outcome.drafted_rounds, outcome.tokens_per_round
    needed = break_even_of(per_round, drafted / rounds, gain.value) if per_round and gain else None
    return Expected(
        acceptance_at=tuple(
            share * offered / drafted
            for share, offered in zip(outcome.acceptance, outcome.offered, strict=True)
        ),
        tokens_per_round=per_round,
        tokens_per_drafted_round=1 + outcome.accepted / drafted if drafted else None,
        acceptance_rate=outcome.acceptance_rate,
        break_even_tokens=needed,
        gain=gain,
        gain_by_category=categories,
    )


def _measurement(replay: ReplayDocument, batch: int) -> Measurement:
    answers = replay.answers
    return Measurement(
        source="replay",
        machine={"costs": replay.costs},
        workload=workload_of(replay.workload),
        sampling={"temperature": replay.temperature},
        prompts=answers.replayed,
        tokens=answers.tokens - answers.replayed,
        batch=batch,
    )


def _notes(replay: ReplayDocument) -> tuple[str, ...]:
    answers = replay.answers
    said = [*few_words(answers.replayed, "answers"), *replay.notes]
    if not replay.complete:
        said.append("The replay was interrupted: these are the answers replayed so far.")
    if answers.unanswered:
        said.append(f"Prompts without an answer, left out: {answers.unanswered}.")
    if answers.failed:
        said.append(f"Answers that couldn't be replayed: {len(answers.failed)}.")
    return (*said, *skipped_words(replay.workload))
