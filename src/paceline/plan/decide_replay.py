"""From a replay's document to a plan: predicted gains by batch size, of drafts that are always
asked for the same number of tokens, as serving engines ask them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import DataError, unknown_name
from paceline.plan.decide_parts import (
    asked_for,
    batch_words,
    break_even_of,
    draft_of,
    few_words,
    listed,
    pays,
    schedule_of,
    several,
    skipped_words,
    strange_kinds,
    target_of,
    times,
    unplaced,
    why_baseline,
    workload_of,
    worst_category,
)
from paceline.plan.document import (
    Expected,
    Gain,
    Measurement,
    PlanDocument,
    PlannedDraft,
)
from paceline.policy.adaptive import LEAST_GAIN
from paceline.simulate.replay_costs import AUTO

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
        replay = _Replay.read(document)
        if configuration is not None and configuration not in replay.configurations:
            raise unknown_name("configuration", configuration, replay.configurations)
        return _decide(replay, configuration, file)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{name} can't be read: {said}.", _HINT) from None


@dataclass(frozen=True, slots=True)
class _Replay:
    """
    gains    by batch size, configuration and category (None is all answers)
    limits   by configuration, its draft and limit; `measured` has none
    """

    document: Mapping[str, Any]
    gains: Mapping[int, Mapping[str, Mapping[str | None, Gain | None]]]
    limits: Mapping[str, tuple[str, int]]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> _Replay:
        gains = {
            int(batch): {name: _gains(one) for name, one in predicted["policies"].items()}
            for batch, predicted in document["predicted"].items()
        }
        limits = {
            f"{draft}:{max_draft_tokens}": (draft, int(max_draft_tokens))
            for draft, found in document["drafts"].items()
            for max_draft_tokens in found["limits"]
        }
        return cls(document, dict(sorted(gains.items())), limits)

    @property
    def configurations(self) -> list[str]:
        return list(next(iter(self.gains.values())))

    def gain(self, batch: int, name: str) -> Gain | None:
        return self.gains[batch].get(name, {}).get(None)

    def pays(self, batch: int, name: str) -> bool:
        gain = self.gain(batch, name)
        return gain is not None and pays(gain) and gain.value >= LEAST_GAIN

    def best(self, batch: int, names: list[str]) -> str | None:
        """Of those that pay, or of all if none does, the one with the largest gain; None if none
        could be priced."""
        rated = {name: gain.value for name in names if (gain := self.gain(batch, name))}
        paying = [name for name in rated if self.pays(batch, name)]
        return max(paying or rated, key=rated.__getitem__, default=None)

    def alike(self, name: str) -> list[str]:
        """Those of the same draft, with limits up to its own."""
        draft, most = self.limits[name]
        return [
            key
            for key, (d, max_draft_tokens) in self.limits.items()
            if d == draft and max_draft_tokens <= most
        ]

    def strange(self, name: str) -> bool:
        """Whether a plan can't name its draft, such as a plug-in's."""
        return bool(strange_kinds(self.document["drafts"][self.limits[name][0]]["metadata"]))

    def outcome(self, name: str) -> Mapping[str, Any] | None:
        """What its rounds came to; None of our policy, of which a replay has no counts."""
        if name not in self.limits:
            return None
        draft, max_draft_tokens = self.limits[name]
        found: Mapping[str, Any] = self.document["drafts"][draft]["limits"][str(max_draft_tokens)][
            "all"
        ]
        return found


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


def _decide(replay: _Replay, named: str | None, file: str | None) -> PlanDocument:
    fixed = [name for name in replay.configurations if name in replay.limits]
    strange = [name for name in fixed if replay.strange(name)]
    fixed = [name for name in fixed if name not in strange]
    names = fixed if named is None else [named]
    batches = {batch: best for batch in replay.gains if (best := replay.best(batch, names))}
    if not batches:
        raise DataError(
            f"{file or 'The replay'} has no figure of {named or 'any draft'}.",
            "Replay with costs of wider forwards, or of more sequences.",
        )
    paying = [batch for batch, best in batches.items() if replay.pays(batch, best)]
    batch = min(paying or batches)
    name = batches[batch]
    drafted = bool(paying) or named is not None
    alike = [named] if named is not None else replay.alike(name)
    limits = _limits(replay, alike) if drafted else {}
    why = _why(replay, named, batch, name)
    if drafted and named is None:
        why += _passed_over(replay, batch, name, fixed)
    if strange and named is None:
        why.append(f"Left out, because no engine but Paceline knows its draft: {listed(strange)}.")
    return _document(replay, name if drafted else None, batch, limits, why, file)


def _why(replay: _Replay, named: str | None, batch: int, name: str) -> list[str]:
    gain = replay.gain(batch, name)
    assert gain is not None
    if replay.pays(batch, name):
        return _policy_words(replay, batch, gain) if named is None else []
    told = f"{name} at a batch of {batch}"
    if named is not None:
        return [asked_for(named, gain, single="answer")]
    if pays(gain):
        return [
            f"Ordinary decoding, because less than 5 % is more than predictions can tell: "
            f"the best, "
            f"{told}, came to {times(gain, single='answer')}."
        ]
    return [why_baseline(told, gain, single="answer")]


def _passed_over(replay: _Replay, batch: int, name: str, names: list[str]) -> list[str]:
    """Those that seemed better than the one that pays."""
    chosen = replay.gain(batch, name)
    found = {
        other: gain
        for other in names
        if (gain := replay.gain(batch, other)) and chosen and gain.value > chosen.value
    }
    return [
        f"Not chosen: {other}, {times(gain, single='answer')}: its interval reaches 1."
        for other, gain in sorted(found.items(), key=lambda pair: -pair[1].value)
    ]


def _policy_words(replay: _Replay, batch: int, gain: Gain) -> list[str]:
    """What our own policy would gain beyond a fixed limit."""
    auto = replay.gain(batch, AUTO)
    if auto is None or auto.value <= gain.value:
        return []
    return [
        f"Paceline's own policy, with all drafts of the replay, has the predicted speedup "
        f"{auto.value:.2f}; name it with --configuration {AUTO}."
    ]


def _document(
    replay: _Replay,
    name: str | None,
    batch: int,
    limits: Mapping[int, int],
    why: list[str],
    file: str | None,
) -> PlanDocument:
    document = replay.document
    metadata = {draft: one["metadata"] for draft, one in document["drafts"].items()}
    expected = Expected() if name is None else _expected(replay, name, batch)
    outcome = None if name is None else replay.outcome(name)
    answers = document["answers"]
    return PlanDocument(
        target=target_of(document["target"]),
        draft=None if name is None else _draft(replay, name, metadata),
        max_draft_tokens=0 if name is None else replay.limits.get(name, (None, None))[1],
        mean_draft_tokens=_share(outcome, "proposed", "drafted_rounds"),
        schedule=schedule_of(limits) if any(limits.values()) else (),
        expected=expected,
        measured=Measurement(
            source="replay",
            file=file,
            machine={"costs": document["costs"]},
            workload=workload_of(document["workload"]),
            sampling={"temperature": document["temperature"]},
            prompts=answers["replayed"],
            tokens=answers["tokens"] - answers["replayed"],
            batch=batch,
            configuration=name,
        ),
        notes=(
            "Times are predicted from costs, none was measured.",
            *why,
            *worst_category(expected.gain_by_category),
            *_of_the_batches(replay, limits),
            *([] if name is None or len(limits) > 1 else [batch_words(batch)]),
            *([] if name is None else unplaced(metadata)),
            *few_words(answers["replayed"], "answers"),
            *_of_the_replay(document),
        ),
    )


def _draft(replay: _Replay, name: str, metadata: Mapping[str, Mapping[str, Any]]) -> PlannedDraft:
    if name not in replay.limits:
        return several(metadata)
    draft, _ = replay.limits[name]
    return draft_of(draft, metadata[draft])


def _limits(replay: _Replay, names: list[str]) -> dict[int, int]:
    """By batch size the best limit of these, and 0 where none pays; without sizes that couldn't be
    priced. None of our policy, which chooses by itself."""
    found = {}
    for batch in replay.gains:
        best = replay.best(batch, [name for name in names if name in replay.limits])
        if best is not None:
            found[batch] = replay.limits[best][1] if replay.pays(batch, best) else 0
    return found


def _expected(replay: _Replay, name: str, batch: int) -> Expected:
    gains = replay.gains[batch][name]
    categories = {key: gain for key, gain in gains.items() if key is not None and gain is not None}
    gain, outcome = gains[None], replay.outcome(name)
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


def _share(outcome: Mapping[str, Any] | None, above: str, below: str) -> float | None:
    if outcome is None or not outcome[below]:
        return None
    return float(outcome[above] / outcome[below])


def _of_the_batches(replay: _Replay, limits: Mapping[int, int]) -> list[str]:
    unpriced = [str(batch) for batch in replay.gains if limits and batch not in limits]
    if unpriced:
        return [f"Not priced, so not in the schedule: batches of {', '.join(unpriced)}."]
    return []


def _of_the_replay(document: Mapping[str, Any]) -> list[str]:
    said = [str(note) for note in document["notes"]]
    if not document["complete"]:
        said.append("The replay was interrupted: these are the answers replayed so far.")
    answers = document["answers"]
    if answers["unanswered"]:
        said.append(f"Prompts without an answer, left out: {answers['unanswered']}.")
    if answers["failed"]:
        said.append(f"Answers that couldn't be replayed: {len(answers['failed'])}.")
    return said + skipped_words(document["workload"])
