"""Windows of made-up servers, answer by answer, with a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from paceline.monitor.counters import Counters
from paceline.monitor.window import Window

READINGS = 12


def window(
    seed: int,
    *,
    acceptance: float = 0.6,
    cost: float = 1.6,
    max_draft_tokens: int = 4,
    drafts: bool = True,
    seconds: float = 60.0,
    token_s: float = 0.02,
    spread: float = 0.25,
    undrafted: float = 0.0,
) -> Window:
    """One sequence at a time, as vLLM counts it.

    acceptance   mean chance that a drafted token is accepted after those before it
    cost         seconds of a drafted round over a plain one
    spread       how answers differ: their acceptance (as a deviation), and their speed by a quarter
                 of it (other neighbours, longer contexts)
    undrafted    share of rounds without a draft
    """
    rng = random.Random(seed)
    width = seconds / READINGS
    rows = [[0.0] * (6 + max_draft_tokens) for _ in range(READINGS)]
    now = 0.0
    while now < seconds:
        left = rng.randrange(40, 200)
        share = min(0.98, max(0.02, rng.gauss(acceptance, spread * acceptance)))
        pace = token_s * math.exp(rng.gauss(0, spread / 4))
        now += 0.05
        rows[min(int(now / width), READINGS - 1)][4] += 1
        while left > 0 and now < seconds:
            drafted = drafts and rng.random() >= undrafted
            accepted = 0
            while drafted and accepted < max_draft_tokens and rng.random() < share:
                accepted += 1
            taken = pace * (cost if drafted else 1.0) * (0.9 + 0.2 * rng.random())
            now += taken
            left -= 1 + accepted
            row = rows[min(int(now / width), READINGS - 1)]
            row[0] += taken
            row[1] += 1 + accepted
            row[2] += drafted
            row[3] += accepted
            row[5] += 1
            for place in range(accepted):
                row[6 + place] += 1
    parts = tuple(counters(row, max_draft_tokens, drafts) for row in rows)
    whole = [sum(column) for column in zip(*rows, strict=True)]
    return Window(0.0, seconds, counters(whole, max_draft_tokens, drafts), parts)


def counters(row: Sequence[float], max_draft_tokens: int, drafts: bool) -> Counters:
    timed_s, tokens, drafted, accepted, firsts, rounds = map(float, row[:6])
    return Counters(
        "vLLM",
        drafts=drafted if drafts else None,
        drafted=max_draft_tokens * drafted if drafts else None,
        accepted=accepted if drafts else None,
        generated=tokens + firsts,
        firsts=firsts,
        rounds=rounds,
        timed_s=timed_s,
        timed_tokens=tokens,
        engine_steps=rounds + firsts,
        sequences=rounds + firsts,
        accepted_by_position=tuple(map(float, row[6:])) if drafts else (),
    )
