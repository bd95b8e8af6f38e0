"""Counters that have to add up, each broken alone in a run that is otherwise whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.bench.local.run import Run, check_run
from paceline.errors import DataError
from paceline.types import Divergence, Round


def one(context: int, proposed: int, accepted: int, **more) -> Round:
    given = {
        "emitted": accepted + 1,
        "source": "lookup" if proposed else None,
        "max_draft_tokens": proposed,
        "width": proposed + 1,
        "batch": 1,
        "prefill": False,
        "draft_s": 0.0,
        "verify_s": 1.0,
        "other_s": 0.0,
        **more,
    }
    return Round(proposed=proposed, accepted=accepted, context=context, **given)


ROUNDS = (
    one(5, 0, 0, prefill=True),
    one(6, 3, 2),
    one(9, 0, 0),
    one(10, 4, 1, path=(2,)),
    one(
        12, 2, 2, emitted=2, width=4, max_draft_tokens=3
    ),  # a stop within: no bonus, one token not judged
)


def run(rounds=ROUNDS, **changes) -> Run:
    tokens = tuple(range(sum(round.emitted for round in rounds)))
    given = {"tokens": tokens, "rounds": tuple(rounds), **changes}
    return Run(
        **{
            "configuration": "lookup -n 4",
            "id": "p",
            "category": "all",
            "prompt_tokens": 5,
            "text": "",
            "finish_reason": "end_token",
            **given,
        }
    )


def test_a_whole_run_adds_up() -> None:
    check_run(run())
    check_run(run(ROUNDS[:1]))
    check_run(run(divergences=(Divergence(0.0, 0.0),) * 9))


def changed(place: int, **changes) -> tuple[Round, ...]:
    """With what follows moved along, so that nothing else is broken."""
    rounds = list(ROUNDS)
    rounds[place] = replace(rounds[place], **changes)
    context = 5
    for at, round in enumerate(rounds):
        rounds[at] = replace(round, context=context)
        context += round.emitted
    return tuple(rounds)


@pytest.mark.parametrize(
    ("place", "changes", "said"),
    [
        (1, {"emitted": 2}, "accepted 2 tokens and emitted 2"),
        (4, {"emitted": 1}, "accepted 2 tokens and emitted 1"),
        (2, {"emitted": 0}, "emitted nothing"),
        (1, {"accepted": 4, "emitted": 5}, "accepted 4 of 3 drafted tokens"),
        (1, {"proposed": 2}, "judged 2 drafted tokens in a pass of 4 rows"),
        (4, {"proposed": 4, "max_draft_tokens": 4}, "judged 4 drafted tokens in a pass of 4 rows"),
        (1, {"max_draft_tokens": 2}, "drafted 3 tokens where 2 were the limit"),
        (1, {"source": None}, "drafted without a draft"),
        (3, {"path": (0, 1)}, "accepted 1 tokens along a path of 2"),
        (2, {"draft_s": -0.1}, "less than no time"),
        (1, {"prefill": True}, "exactly one round"),
        (0, {"prefill": False}, "exactly one round"),
    ],
)
def test_each_is_looked_at_alone(place: int, changes: dict, said: str) -> None:
    with pytest.raises(DataError, match=f"The run, p in lookup -n 4, doesn't add up: .*{said}"):
        check_run(run(changed(place, **changes)))


def test_lists_by_token_have_an_entry_a_token() -> None:
    for name, entries in (("ends", (1, 2)), ("divergences", (Divergence(0.0, 0.0),))):
        with pytest.raises(DataError, match=f"{len(entries)} tokens have"):
            check_run(run(**{name: entries}))


def test_rounds_follow_one_another() -> None:
    moved = (*ROUNDS[:2], replace(ROUNDS[2], context=8), *ROUNDS[3:])
    with pytest.raises(DataError, match="round 2 began at 8 tokens, not 9"):
        check_run(run(moved))
    with pytest.raises(DataError, match="emitted 9 tokens, and it has 8"):
        check_run(run(tokens=tuple(range(8))))
