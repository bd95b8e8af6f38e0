"""What a recording holds: written and read back, drafts replayed, unknown moments drawn."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from paceline import Request, StopConditions, fixed
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft, Store
from paceline.drafts.model import ModelDraft
from paceline.errors import DataError, SettingError
from paceline.policy.acceptance import MOST
from paceline.simulate.impute import imputed
from paceline.simulate.record import sources_of, trace_of
from paceline.simulate.trace import (
    Recording,
    RecordingHeader,
    SourceTrace,
    Trace,
    read_recording,
    write,
)
from paceline.testing import ToyEngine, sample_round
from paceline.types import Round
from paceline.verify.chain import ChainVerifier

HEADER = RecordingHeader(
    target={"model": "toy"}, temperature=0.5, sources={"lookup": True, "model": False}
)


def round_of(
    context: int, accepted: int, max_draft_tokens: int, width: int, source="model"
) -> Round:
    return sample_round(
        max_draft_tokens=max_draft_tokens,
        proposed=width - 1,
        accepted=accepted,
        source=source,
        context=context,
        draft_s=0.5,
        verify_s=1.0,
        other_s=0.25,
    )


def test_a_replayed_lookup_says_what_it_would_have_offered() -> None:
    """Prompt 1 2 3 1 2, answer 3 1 7 3 1: worked out by hand."""
    trace = trace_of(
        id="a",
        category="all",
        configuration="baseline",
        prompt=[1, 2, 3, 1, 2],
        output=[3, 1, 7, 3, 1],
        rounds=[],
        drafts={"lookup": LookupDraft()},
        most_tokens=9,
    )
    found = trace.sources["lookup"]
    assert found.match_length == (2, 3, 4, 0, 1)  # 12; 123; 1231; none for 7; 3
    assert found.offered == (MOST, MOST, MOST, 0, MOST)  # a lookup goes round: 3 1 2 3 1 2 …
    assert found.right == (2, 1, 0, 0, 1)
    # A fixed limit follows no match of one token, and goes twice as far as a match is long.
    assert found.unwatched == (4, 6, 8, 0, 0)
    assert (trace.prompt_tokens, trace.output_tokens, trace.most_tokens) == (5, 5, 9)


def test_a_model_is_known_only_where_it_was_asked_and_never_run() -> None:
    engine = ToyEngine(8, seed=1)
    draft = ModelDraft(ToyEngine(8, seed=2), engine)
    [done] = decode(
        Decoder(engine, {"model": draft}, ChainVerifier(), fixed("model", 3)),
        [Request(prompt=(1, 2, 3), stop=StopConditions(max_tokens=20))],
    )
    forwards = draft.engine.forwards
    trace = trace_of(
        id="a",
        category="all",
        configuration="model -n 3",
        prompt=[1, 2, 3],
        output=done.tokens,
        rounds=done.rounds,
        drafts={"model": draft},
    )
    assert draft.engine.forwards == forwards
    known = trace.sources["model"]
    asked = {r.context - 3: r for r in done.rounds if r.source == "model"}
    assert len(asked) >= 5
    for t in range(20):
        right = asked[t].accepted if t in asked else None
        assert (known.right[t], known.match_length[t]) == (right, 0 if t in asked else None)


def test_a_draft_with_a_store_is_not_replayed() -> None:
    store = Store()
    draft = LookupDraft(store=store)
    assert sources_of({"a": draft, "b": LookupDraft()}) == {"a": False, "b": True}
    trace_of(
        id="a",
        category="all",
        configuration="baseline",
        prompt=[1, 2],
        output=[1, 2],
        rounds=[],
        drafts={"a": draft},
    )
    assert store.automaton.text == []


def known(count: int, **lists) -> SourceTrace:
    nothing = (0,) * count
    return SourceTrace(**{"match_length": nothing, "unwatched": nothing, **lists})


def trace(**changes) -> Trace:
    unknown = (None,) * 6
    made = Trace(
        id="a",
        category="chat",
        prompt_tokens=4,
        output_tokens=6,
        most_tokens=8,
        sources={
            "lookup": known(6, right=(1, 0, 0, 0, 0, 0), offered=(2, 0, 0, 0, 0, 0)),
            "model": SourceTrace(unknown, unknown, unknown, unknown),
        },
        rounds=(round_of(5, 1, 3, 4), round_of(7, 2, 2, 3)),
    )
    return replace(made, **changes)


def written(path: Path, *what) -> str:
    stream = io.StringIO()
    for part in what:
        write(part, stream)
    path.write_text(stream.getvalue(), encoding="utf-8")
    return str(path)


def test_what_is_written_is_read_back(tmp_path) -> None:
    traces = trace(), trace(id="b", category="é", configuration="model -n 3")
    path = written(tmp_path / "rounds.jsonl", HEADER, *traces)
    recording = read_recording(path)
    assert recording == Recording(HEADER, traces)
    assert len(Path(path).read_text().splitlines()) == 3
    assert recording.configurations == ["baseline", "model -n 3"]
    assert recording.of(configuration="model -n 3").traces == (traces[1],)
    assert recording.of(category="chat").traces == (traces[0],)
    with pytest.raises(SettingError, match="Did you mean 'model -n 3'"):
        recording.of(configuration="model -n 4")


def changed(**changes) -> str:
    return json.dumps({**asdict(trace()), **changes})


LOOKUP = asdict(trace())["sources"]["lookup"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "holds a header and no request"),
        ("{", "Line 2 of .* is not JSON"),
        ("[]", "Line 2 of .* can't be read: Expected `object`, got `array`"),
        ("{}", "Line 2 of .* can't be read: Object missing required field `id`"),
        (changed(output_tokens=0), "output_tokens is 0: expected `int` >= 1"),
        (changed(prompt_tokens="4"), "prompt_tokens is '4': expected `int`"),
        (changed(most_tokens=5), "most_tokens is 5, not 6 or more"),
        (changed(sources={"lokup": LOOKUP}), "the header names no draft 'lokup'"),
        (changed(sources={"lookup": {**LOOKUP, "right": [1]}}), "right of 'lookup' has 1 entries"),
        (changed(sources={"lookup": {**LOOKUP, "right": [-1] * 6}}), "right.* >= 0"),
        (changed(sources={"lookup": {**LOOKUP, "right": [3, *[0] * 5]}}), "3 right of 2 offered"),
        (
            changed(sources={"lookup": {**LOOKUP, "right": [0] * 5 + [2], "offered": [2] * 6}}),
            "entry 5 of 'lookup' has 2 right of 2 offered",
        ),
        (changed(rounds=[{"max_draft_tokens": 3}]), "missing required field"),
        (changed(rounds=[asdict(round_of(5, -1, 3, 4))]), "accepted of a round is -1"),
    ],
)
def test_a_broken_recording_is_refused_by_name(tmp_path, line, message) -> None:
    path = written(tmp_path / "rounds.jsonl", HEADER)
    if line is not None:
        Path(path).write_text(Path(path).read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        read_recording(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("no json\n", "rounds.jsonl is not JSON"),
        ('{"kind":"paceline costs"}\n', "its kind is 'paceline costs'"),
        ("[1]\n", "is not a paceline rounds file: it has no kind"),
        ('{"kind":"paceline rounds","version":3}\n', "missing required field `target`"),
        (
            '{"kind":"paceline rounds","version":2}\n',
            "has version 2 of the format.*reads version 3",
        ),
    ],
)
def test_what_is_no_recording_is_refused_by_name(tmp_path, text, message) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_recording(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(DataError, match="none.jsonl can't be read"):
        read_recording(str(tmp_path / "none.jsonl"))


def test_what_is_known_of_a_model_is_kept_and_the_rest_drawn() -> None:
    recording = imputed(Recording(HEADER, (trace(),)))
    [one] = recording.traces
    found = one.sources["model"]
    assert found.right[1] == 1  # one of three was accepted: exact
    assert found.right[3] >= 2  # both were: at least that
    assert found.offered[1] == found.offered[2] == MOST
    assert found.offered[0] == 0
    assert None not in found.right
    assert all(right <= 6 - t for t, right in enumerate(found.right))
    assert one.sources["lookup"] == trace().sources["lookup"]
    assert imputed(recording) == recording == imputed(Recording(HEADER, (trace(),)))


def test_a_proposal_shorter_than_its_limit_was_all_there_was() -> None:
    one = trace(rounds=(round_of(5, 1, 3, 2), round_of(7, 0, 3, 1)))
    found = imputed(Recording(HEADER, (one,))).traces[0].sources["model"]
    assert (found.offered[1], found.right[1]) == (1, 1)
    assert (found.offered[3], found.right[3]) == (0, 0)


def test_draws_follow_the_acceptance_of_their_category() -> None:
    """Half of all single tokens accepted in one category, none in the other."""
    size, unknown = 400, (None,) * 400
    traces = [
        trace(
            id=category,
            category=category,
            output_tokens=size,
            most_tokens=size,
            sources={"model": SourceTrace(unknown, unknown, unknown, unknown)},
            rounds=tuple(round_of(5 + 4 * i, right(i), 1, 2) for i in range(60)),
        )
        for category, right in (("half", lambda i: i % 2), ("never", lambda i: 0))
    ]
    half, never = imputed(Recording(HEADER, tuple(traces))).traces
    drawn = [entry > 0 for entry in half.sources["model"].right[241:]]
    assert 0.4 < sum(drawn) / len(drawn) < 0.6
    assert set(never.sources["model"].right) == {0}


def test_a_draft_that_was_never_asked_stays_unknown() -> None:
    recording = imputed(Recording(HEADER, (trace(rounds=()),)))
    assert recording.known_sources == {"lookup": True}
    assert recording.traces[0].sources["model"].right == (None,) * 6
