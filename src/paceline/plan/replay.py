"""A replay's document as evidence: predicted gains by batch size, of drafts that are always asked
for the same number of tokens, as serving engines ask them."""

from __future__ import annotations

import math
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
    skipped_words,
    workload_of,
)
from paceline.plan.document import Expected, Gain, Measurement, PlanDocument, PlannedDraft
from paceline.plan.drafts import draft_of, several, target_of, unknown_kind, unplaced
from paceline.policy.adaptive import LEAST_GAIN

KIND = "paceline replay"
_HINT = "`paceline replay … --costs FILE --json` prints such a document."


def decide_replay(
    document: Mapping[str, Any], *, configuration: str | None = None, file: str | None = None
) -> PlanDocument:
    """Of the drafts and limits that pay at the smallest batch where any does, the one with the
    largest predicted gain. One pays that gains 5 % or more, with an interval above 1. The schedule
    has by the same rule the limit of that draft at each batch size, none larger than the first.

    document         as `paceline replay --json` prints it
    configuration    decides for the user: DRAFT:LIMIT, or `measured`, our policy

    Raises DataError for a document that can't be read, or predicts nothing, SettingError for a
    configuration that isn't there.
    """
    name = file or "The replay"
    try:
        if not document["predicted"]:
            raise DataError(
                f"{name} predicts no times, and acceptance alone says nothing of speed.", _HINT
            )
        return decide(_evidence(document, name), configuration=configuration, file=file)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{name} can't be read: {said}.", _HINT) from None


def _evidence(document: Mapping[str, Any], name: str) -> Evidence:
    """Candidates are DRAFT:LIMIT; `measured`, our policy, is taken only by name."""
    gains = {
        int(batch): {name: _gains(one) for name, one in predicted["policies"].items()}
        for batch, predicted in document["predicted"].items()
    }
    gains = dict(sorted(gains.items()))
    measured = {batch: _measurement(document, batch) for batch in gains}
    notes = _notes(document)
    limits = {
        f"{draft}:{limit}": (draft, int(limit), found)
        for draft, one in document["drafts"].items()
        for limit, found in one["limits"].items()
    }
    metadata = {draft: one["metadata"] for draft, one in document["drafts"].items()}
    notes_of_drafts = tuple(unplaced(metadata))

    def candidate(name: str) -> Alternative:
        draft, limit, found = limits.get(name, ("", None, None))
        outcome = found and found["all"]
        return Alternative(
            name=name,
            draft=partial(_draft, draft, metadata),
            family=draft,
            max_draft_tokens=limit,
            unfit=unknown_kind(metadata[draft]) if draft else "",
            offer="" if draft else "Paceline's own policy, with all drafts of the replay",
            points={
                batch: Figures(
                    title=f"{name} at a batch of {batch}",
                    gain=by_name[name][None],
                    expected=_expected(by_name[name], outcome),
                    measured=replace(measured[batch], configuration=name),
                    mean_draft_tokens=_mean(outcome),
                    notes=(*notes_of_drafts, *notes),
                )
                for batch, by_name in gains.items()
                if name in by_name
            },
        )

    return Evidence(
        target=target_of(document["target"]),
        ordinary=Alternative(
            name="",
            family="",
            points={batch: Figures(measured=one, notes=notes) for batch, one in measured.items()},
        ),
        candidates=tuple(candidate(name) for name in next(iter(gains.values()))),
        nothing=DataError(
            f"{name} has no figure of any draft.",
            "Replay with costs of wider forwards, or of more sequences.",
        ),
        least_gain=LEAST_GAIN,
        single="answer",
        about=("Times are predicted from costs, none was measured.",),
    )


def _draft(draft: str, metadata: Mapping[str, Mapping[str, Any]]) -> PlannedDraft:
    return draft_of(draft, metadata[draft]) if draft else several(metadata)


def _expected(
    gains: Mapping[str | None, Gain | None], outcome: Mapping[str, Any] | None
) -> Expected:
    """What the rounds came to is None of our policy: a replay has no counts of it."""
    gain = gains[None]
    categories = {key: one for key, one in gains.items() if key is not None and one is not None}
    if outcome is None:
        return Expected(gain=gain, gain_by_category=categories)
    rounds, drafted = outcome["rounds"], outcome["drafted_rounds"]
    per_round = outcome["tokens_per_round"]
    return Expected(
        acceptance_at=tuple(
            share * offered / drafted
            for share, offered in zip(outcome["acceptance"], outcome["offered"], strict=True)
        ),
        tokens_per_round=per_round,
        tokens_per_drafted_round=1 + outcome["accepted"] / drafted if drafted else None,
        acceptance_rate=outcome["acceptance_rate"],
        break_even_tokens=(
            break_even_of(per_round, drafted / rounds, gain.value) if rounds and gain else None
        ),
        gain=gain,
        gain_by_category=categories,
    )


def _mean(outcome: Mapping[str, Any] | None) -> float | None:
    if outcome is None or not outcome["drafted_rounds"]:
        return None
    return float(outcome["proposed"] / outcome["drafted_rounds"])


def _measurement(document: Mapping[str, Any], batch: int) -> Measurement:
    answers = document["answers"]
    return Measurement(
        source="replay",
        machine={"costs": document["costs"]},
        workload=workload_of(document["workload"]),
        sampling={"temperature": document["temperature"]},
        prompts=answers["replayed"],
        tokens=answers["tokens"] - answers["replayed"],
        batch=batch,
    )


def _notes(document: Mapping[str, Any]) -> tuple[str, ...]:
    answers = document["answers"]
    said = [*few_words(answers["replayed"], "answers"), *map(str, document["notes"])]
    if not document["complete"]:
        said.append("The replay was interrupted: these are the answers replayed so far.")
    if answers["unanswered"]:
        said.append(f"Prompts without an answer, left out: {answers['unanswered']}.")
    if answers["failed"]:
        said.append(f"Answers that couldn't be replayed: {len(answers['failed'])}.")
    return (*said, *skipped_words(document["workload"]))


def _gains(policy: Mapping[str, Any]) -> dict[str | None, Gain | None]:
    def gain(price: Mapping[str, Any]) -> Gain | None:
        found = price["speedup"]
        return None if found is None else Gain(**{key: _number(x) for key, x in found.items()})

    found: dict[str | None, Gain | None] = {None: gain(policy["all"])}
    return found | {str(name): gain(price) for name, price in policy["categories"].items()}


def _number(value: Any) -> Any:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"a gain is {value!r}")
    return value
