"""What a recording doesn't know of a draft that has to be asked, drawn from what it does know."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np

from paceline.errors import SettingError
from paceline.policy.acceptance import MOST
from paceline.simulate.trace import Recording, SourceTrace, Trace


def imputed(recording: Recording) -> Recording:
    """The recording with every unknown moment of a draft drawn, from a fixed seed, so that all
    policies meet the same draws; what is known is kept. A draft that was never asked stays unknown.

    Where it was asked and a token was rejected, the moment is known. Where all it was asked for
    was accepted, more might have been right: that is drawn on from there. All else is drawn from
    the probability, by position, that a token is right if those before it were: counted over the
    rounds of the request's category in all configurations, and weighed as one judged token of the
    category's mean.

    Raises SettingError for a draft that offered trees: what is drawn are chains.
    """
    traces = recording.traces
    for name, previewable in recording.header.sources.items():
        if previewable or name in recording.known_sources:
            continue
        _refuse_trees(recording, name)
        probabilities = {
            category: _probabilities(name, [t for t in recording.traces if t.category == category])
            for category in recording.categories
        }
        overall = _probabilities(name, recording.traces)
        if overall is None:
            continue
        traces = tuple(
            _filled(trace, name, found if found is not None else overall, number)
            for number, trace in enumerate(traces)
            for found in [probabilities[trace.category]]
        )
    return replace(recording, traces=traces)


def _refuse_trees(recording: Recording, name: str) -> None:
    rounds = (round for trace in recording.traces for round in trace.rounds)
    if any(round.source == name and round.path is not None for round in rounds):
        raise SettingError(
            f"The recorded draft {name!r} offered trees, and only chains can be simulated.",
            "Record a run in which it offers chains (--allow-chains --verifier chain).",
        )


def _probabilities(name: str, traces: tuple[Trace, ...] | list[Trace]) -> np.ndarray | None:
    """Entry i: probability that token i is right if those before it were; None if never asked."""
    right, judged = np.zeros(MOST), np.zeros(MOST)
    for trace in traces:
        for round in trace.rounds:
            if round.source == name:
                accepted = min(round.accepted, MOST)
                right[:accepted] += 1
                judged[: min(round.proposed, accepted + 1)] += 1
    if not judged.sum():
        return None
    return np.asarray((right + right.sum() / judged.sum()) / (judged + 1))


def _filled(trace: Trace, name: str, probabilities: np.ndarray, number: int) -> Trace:
    count = trace.output_tokens
    draws = np.random.default_rng((0, number, crc32(name.encode()))).random((count, MOST))
    wrong = draws >= probabilities
    # A draft is never asked before the prompt was read: at moment 0 it has nothing.
    right, offered = [0] * count, [0, *[MOST] * (count - 1)]
    asked = {r.context - trace.prompt_tokens: r for r in trace.rounds if r.source == name}
    for t in range(1, count):
        least, round = 0, asked.get(t)
        if round is not None:
            if round.width - 1 < round.max_draft_tokens:
                offered[t] = round.width - 1  # it had no more
            if round.accepted < round.width - 1:
                right[t] = round.accepted
                continue
            least = round.accepted
        first = np.flatnonzero(wrong[t, least:])
        drawn = least + int(first[0]) if len(first) else MOST
        right[t] = min(drawn, offered[t], count - t)
    known = SourceTrace((0,) * count, tuple(right), tuple(offered), tuple(offered))
    return replace(trace, sources={**trace.sources, name: known})
