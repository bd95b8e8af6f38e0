"""The rules of a round are written once: whoever changes one there changes it for the loop, the
simulator and the integrations alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from paceline import Request, StopConditions, fixed
from paceline.decode import round as rules
from paceline.decode.generate import decode
from paceline.decode.round import Turn
from paceline.decode.step import Decoder
from paceline.drafts.lookup import LookupDraft
from paceline.integrations.served import DraftServer
from paceline.policy.costs import Costs, Point
from paceline.simulate.server import SimulatedServer, stream_of
from paceline.simulate.trace import SourceTrace, Trace
from paceline.testing import ToyEngine
from paceline.types import Choice, Round
from paceline.verify.chain import ChainVerifier

PROMPT = (1, 2, 3, 1, 2, 3, 1)
WANTED = 3


def decoded() -> list[Round]:
    """Rounds of the loop."""
    engine = ToyEngine(6, order=1, seed=2)
    decoder = Decoder(engine, {"lookup": LookupDraft()}, ChainVerifier(), fixed("lookup", WANTED))
    request = Request(prompt=PROMPT, stop=StopConditions(max_tokens=24))
    [generation] = decode(decoder, [request])
    return list(generation.rounds)


def simulated() -> list[Round]:
    """Rounds of the simulator, on an answer of which every drafted token was right."""
    known = (WANTED,) * 24
    source = SourceTrace(match_length=known, right=known, offered=known, unwatched=known)
    trace = Trace(
        id="a",
        category="kind",
        prompt_tokens=len(PROMPT),
        output_tokens=24,
        most_tokens=24,
        sources={"lookup": source},
    )
    stream = stream_of(trace, 0.0, 0.0)
    points = tuple(Point(rows=r, sequences=1, context=64, seconds=0.01) for r in (1, 2, 4, 8))
    costs = Costs(key={}, points=points)
    SimulatedServer(costs, fixed("lookup", WANTED), free=["lookup"]).run([stream])
    return stream.rounds


def served() -> list[Round]:
    """Rounds of another engine that takes whatever it is offered."""
    server = DraftServer({"lookup": LookupDraft()}, max_draft_tokens=8)
    one = server.open()
    server.commit(one, list(PROMPT))
    for _ in range(4):
        tokens = server.offer(one, Choice("lookup", WANTED))
        emitted = [*tokens, 1 + len(one.history) % 3]
        server.record(one, emitted, batch=1, step_s=0.01, draft_s=0.0)
        server.commit(one, emitted)
    return one.rounds


THREE = pytest.mark.parametrize("rounds", [decoded, simulated, served])


@THREE
def test_the_limit_is_the_same_rule(rounds, monkeypatch) -> None:
    assert max(one.max_draft_tokens for one in rounds()) == WANTED
    assert max(one.width for one in rounds()) == WANTED + 1
    limit = rules.limit

    def at_most_one(stream, choice):
        return limit(stream, replace(choice, max_draft_tokens=min(1, choice.max_draft_tokens)))

    monkeypatch.setattr(rules, "limit", at_most_one)
    assert max(one.max_draft_tokens for one in rounds()) == 1
    assert max(one.width for one in rounds()) == 2


@THREE
def test_the_record_is_the_same_rule(rounds, monkeypatch) -> None:
    assert {one.context for one in rounds()} != {77}
    record = rules.record
    monkeypatch.setattr(
        rules, "record", lambda turn, **shares: replace(record(turn, **shares), context=77)
    )
    assert {one.context for one in rounds()} == {77}


@pytest.mark.parametrize(
    ("rounds", "reads"), [(decoded, False), (simulated, False), (served, True)]
)
def test_the_prefill_is_the_same_rule(rounds, reads, monkeypatch) -> None:
    """The round that reads the prompt drafts nothing; another engine reads prompts by itself."""
    first = rounds()[0]
    assert first.prefill is not reads
    assert (first.width == 1) is first.prefill
    monkeypatch.setattr(rules, "reads_prompt", lambda stream: reads)
    first = rounds()[0]
    assert first.prefill is reads
    assert (first.width == 1) is first.prefill


@pytest.mark.parametrize("rounds", [decoded, simulated])
def test_the_cut_is_the_same_rule(rounds, monkeypatch) -> None:
    """Another engine cuts by itself and tells what it emitted."""
    assert max(one.emitted for one in rounds()) == WANTED + 1

    def first_only(tokens, ended):
        yield next(iter(tokens))

    monkeypatch.setattr(rules, "cut", first_only)
    assert max(one.emitted for one in rounds()) == 1


def test_a_stop_inside_the_block_leaves_the_tokens_behind_it_unverified() -> None:
    engine = ToyEngine(6, order=1, seed=2)
    decoder = Decoder(engine, {}, ChainVerifier(), fixed(None, 0))
    stream = decoder.open(Request(prompt=PROMPT))
    turn = Turn(stream, "lookup", 5, drafted=5, accepted=4, emitted=2)
    going = rules.record(turn, batch=1, verify_s=0.0, other_s=0.0)
    assert (going.proposed, going.accepted, going.width) == (5, 2, 6)
    decoder.close(stream)
    stream.error = RuntimeError()
    ended = rules.record(turn, batch=1, verify_s=0.0, other_s=0.0)
    assert (ended.proposed, ended.accepted, ended.width) == (2, 2, 6)


@THREE
def test_what_is_recorded_is_what_was_committed(rounds) -> None:
    """Each round emits its accepted tokens and one more, and scores a row for each drafted one."""
    drafted = [one for one in rounds() if one.width > 1]
    assert drafted
    for one in drafted:
        assert one.accepted <= one.proposed == one.width - 1
        assert one.emitted == one.accepted + 1
    everything = rounds()
    for before, after in pairwise(everything):
        assert after.context == before.context + before.emitted


def test_the_drafts_a_policy_looks_at_are_opened_as_drafting() -> None:
    """Opening and reading take time, which is the draft's; the preview itself changes nothing."""

    class Slow(LookupDraft):
        def prefill(self, contexts) -> None:
            super().prefill(contexts)
            for _ in range(200_000):
                pass

    def looking(streams):
        previews = [stream.preview("lookup", 3) for stream in streams]
        assert previews == [stream.preview("lookup", 3) for stream in streams]
        return [Choice(None, 0)] * len(streams)

    looking.looks_at = ("lookup",)
    decoder = Decoder(ToyEngine(6), {"lookup": Slow()}, ChainVerifier(), looking)
    [generation] = decode(decoder, [Request(prompt=PROMPT, stop=StopConditions(max_tokens=3))])
    first = generation.rounds[0]
    assert first.prefill
    assert first.draft_s > first.other_s


def test_a_policy_that_previews_what_it_does_not_name_is_told() -> None:
    def looking(streams):
        return [Choice(None, len(stream.preview("lookup", 3).tokens)) for stream in streams]

    decoder = Decoder(ToyEngine(6), {"lookup": LookupDraft()}, ChainVerifier(), looking)
    with pytest.raises(Exception, match="Name it in the policy's `looks_at`"):
        decoder.step([decoder.open(Request(prompt=PROMPT))])
