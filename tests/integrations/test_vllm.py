"""Our proposer under what vLLM's runner does to its rows. `engine_checks` runs it in a real one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fake_vllm import Asked, Runner, configuration

from paceline.drafts.recycle import RecycleDraft
from paceline.errors import SettingError
from paceline.integrations import vllm
from paceline.integrations.served import DraftServer
from paceline.integrations.vllm import Proposer

OWN = 1000
"""Request i writes tokens from i·OWN on, so that a token says whose it is."""


class Clock:
    """Steps take what a test says, and nothing takes longer on a busy machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(vllm, "perf_counter", made)
    monkeypatch.setattr(Runner, "before_step", lambda runner: setattr(made, "now", made.now + 0.1))
    return made


def repeating(text: Sequence[int]) -> int:
    """A target that comes back to what it said, in the range of its prompt's first token."""
    return int(text[0] // OWN * OWN + random.Random(hash(tuple(text[-3:]))).randrange(9))


def asked(number: int, *, prompt: int = 60, count: int = 120) -> Asked:
    rng = random.Random(number)
    return Asked([OWN * number + rng.randrange(9) for _ in range(prompt)], count)


def plainly(request: Asked) -> list[int]:
    text = list(request.prompt)
    while len(text) < len(request.prompt) + request.count:
        text.append(repeating(text))
    return text[len(request.prompt) :]


def test_texts_are_the_targets_and_drafts_are_accepted() -> None:
    requests = [asked(number) for number in range(6)]
    Runner(Proposer(configuration()), repeating).run(requests)
    for request in requests:
        assert request.output[: request.count] == plainly(request)
        assert request.accepted > 0
        assert request.steps < request.count


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_move_and_are_used_again_leak_nothing(seed: int) -> None:
    """Twenty requests over four rows that change places at every step, their prompts read in
    parts: whatever is proposed is of the request's own text."""
    rng = random.Random(seed)
    requests = [
        asked(number, prompt=rng.randrange(5, 150), count=rng.randrange(5, 90))
        for number in range(20)
    ]
    proposer = Proposer(configuration())
    Runner(proposer, repeating, rows=4, chunk=32, shuffle=rng).run(requests)
    for number, request in enumerate(requests):
        assert request.output[: request.count] == plainly(request)
        for proposal in request.proposals:
            assert all(token // OWN == number for token in proposal)
            assert set(proposal) <= {*request.prompt, *request.output}
    assert sum(request.accepted for request in requests) > 100


def test_a_row_is_recognised_by_all_of_its_tokens() -> None:
    """Two requests that differ in one early token only, and change places."""
    first = asked(1, prompt=80)
    second = Asked([*first.prompt[:3], first.prompt[3] + 500, *first.prompt[4:]], 60)
    proposer = Proposer(configuration())
    Runner(proposer, repeating, rows=2, shuffle=random.Random(3)).run([first, second])
    marked = first.prompt[3] + 500
    assert not any(marked in proposal for proposal in first.proposals)
    assert first.output[: first.count] == plainly(first)
    assert second.output[: second.count] == plainly(second)


def test_the_same_prompt_twice_is_two_sequences() -> None:
    requests = [asked(1), asked(1), asked(1)]
    Runner(Proposer(configuration()), repeating, shuffle=random.Random(4)).run(requests)
    assert all(request.output[: request.count] == plainly(request) for request in requests)
    assert all(request.accepted > 0 for request in requests)


def test_a_request_that_was_set_aside_goes_on_where_it_was() -> None:
    """vLLM takes a request out of the batch when memory is short, and reads it all again."""
    request, other = asked(1), asked(2, count=400)
    proposer = Proposer(configuration(longest=1024))
    runner = Runner(proposer, repeating, longest=1024)
    request.text, other.text = list(request.prompt), list(other.prompt)
    runner.batch = [request, other]
    for _ in range(20):
        runner.step()
    opened = count_opened(proposer)
    runner.batch.remove(request)
    for _ in range(10):
        runner.step()
    request.drafted = []
    runner.batch.insert(0, request)
    while len(request.output) < request.count:
        runner.step()
    assert request.output[: request.count] == plainly(request)
    assert opened == []


def test_what_ended_is_forgotten() -> None:
    proposer = Proposer(configuration(longest=4096))
    runner = Runner(proposer, repeating, rows=2, longest=4096)
    runner.run([asked(number, count=12) for number in range(30)])
    known = [row for same in proposer._rows.values() for row in same]
    assert len(known) > 2  # they may come back …
    runner.run([asked(40, count=3000, prompt=5)])
    known = [row for same in proposer._rows.values() for row in same]
    assert len(known) == 1  # … for a while


def test_a_long_prompt_is_read_over_several_steps() -> None:
    request = asked(1, prompt=3 * vllm._FED_TOKENS, count=40)
    longest = 4 * vllm._FED_TOKENS
    proposer = Proposer(configuration(longest=longest))
    runner = Runner(proposer, repeating, longest=longest, chunk=longest)
    runner.run([request])
    assert request.proposals[:2] == [[], []]
    assert request.accepted > 0
    assert request.output[: request.count] == plainly(request)


def test_no_more_is_proposed_than_asked_for_and_than_fits() -> None:
    request = asked(1, prompt=40, count=60)
    proposer = Proposer(configuration(longest=100, most=4))
    Runner(proposer, repeating, longest=100).run([request])
    assert max(map(len, request.proposals)) <= 4
    assert request.accepted > 0  # and the runner has looked that none goes beyond the context


def test_rows_of_one_length_change_places() -> None:
    """Nothing but the tokens says which is which."""
    first, second = Asked([7, *range(10, 40)], 60), Asked([8, *range(10, 40)], 60)

    def counting(text: Sequence[int]) -> int:
        return int(text[0]) * OWN + len(text)

    Runner(Proposer(configuration()), counting, shuffle=random.Random(2)).run([first, second])
    assert first.output[:3] == [7031, 7032, 7033]


def test_what_is_recorded_is_what_happened() -> None:
    requests = [asked(number) for number in range(3)]
    proposer = Proposer(configuration())
    opened = count_opened(proposer)
    Runner(proposer, repeating).run(requests)
    for served, request in zip(opened, requests, strict=True):
        rounds = served.rounds
        assert len(rounds) == request.steps - 1  # the first step reads the prompt
        assert sum(round.accepted for round in rounds) == request.accepted
        assert sum(round.emitted for round in rounds) == len(request.output) - 1
        assert sum(round.proposed for round in rounds) == sum(map(len, request.proposals[:-1]))


def test_the_first_step_of_so_many_sequences_is_baseline() -> None:
    """Else there would be nothing to compare drafted ones with."""
    request = Asked([1, 2, 3, 4] * 20, 40)
    Runner(Proposer(configuration()), lambda text: text[-4]).run([request])
    assert request.proposals[0] == []
    assert any(request.proposals)


def test_a_step_without_an_answer_in_between_is_survived() -> None:
    """vLLM doesn't ask near the end of its context, and may not have scored what was proposed."""
    request = asked(1)
    proposer = Proposer(configuration())
    runner = Runner(proposer, repeating)
    request.text = list(request.prompt)
    runner.batch = [request]
    runner.step()
    for _ in range(5):  # tokens come without the proposer being asked
        request.text += [repeating(request.text)]
    request.drafted = []
    while len(request.output) < request.count:
        runner.step()
    assert request.accepted > 0
    assert request.output[: request.count] == plainly(request)


def test_where_nothing_repeats_nothing_is_proposed() -> None:
    def counting(text: Sequence[int]) -> int:
        return len(text) + 10_000

    request = Asked(list(range(50)), 80)
    Runner(Proposer(configuration()), counting).run([request])
    assert not any(request.proposals)


def test_an_empty_batch_is_answered() -> None:
    proposer = Proposer(configuration())
    assert proposer.propose([], np.zeros(4, np.int32), np.zeros((4, 16), np.int32)) == []
    assert proposer.propose([[]], np.ones(4, np.int32), np.zeros((4, 16), np.int32)) == [[]]


# Costs.


class SlowRunner(Runner):
    """A drafted row takes `share` of a plain step."""

    def __init__(self, *args: Any, clock: Clock, share: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock, self.share = clock, share
        self.busy_s = 0.0

    def before_step(self) -> None:
        drafted = sum(len(a.drafted) for a in self.batch)
        seconds = 0.1 * (1 + self.share * drafted)
        self.clock.now += seconds
        self.busy_s += seconds


def decode_at(
    share: float, clock: Clock, target: Any = repeating
) -> tuple[SlowRunner, list[Asked]]:
    requests = [asked(number, count=300) for number in range(4)]
    runner = SlowRunner(
        Proposer(configuration(longest=1024)),
        target,
        rows=1,
        longest=1024,
        clock=clock,
        share=share,
    )
    runner.run(requests)
    return runner, requests


def test_where_rows_are_cheap_it_drafts_far_and_where_they_are_dear_hardly(clock: Clock) -> None:
    cheap, _ = decode_at(0.01, clock)
    dear, requests = decode_at(1.3, clock)
    tokens = sum(request.count for request in requests)
    assert cheap.busy_s < 0.45 * 0.1 * tokens
    # Even a draft that is always right loses there; what is lost is what finding that out takes.
    assert dear.busy_s < 1.02 * 0.1 * tokens


def test_a_draft_that_is_never_right_costs_little(clock: Clock) -> None:
    def misleading(text: Sequence[int]) -> int:
        """Says the same pairs again and again, and goes on otherwise each time."""
        at = len(text)
        return at % 2 + 5 if at % 3 else at + 1000

    runner, requests = decode_at(0.5, clock, misleading)
    tokens = sum(request.count for request in requests)
    assert runner.busy_s < 1.02 * 0.1 * tokens


def test_costs_are_learned_from_steps_of_known_sequences_only(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is taken for a step of n sequences and r rows was one; not one with a prompt in it,
    nor one in which another request ended."""
    proposer = Proposer(configuration(longest=1024))
    learned: list[tuple[int, int, float]] = []
    monkeypatch.setattr(
        proposer._server.costs,
        "observe",
        lambda rows, sequences, context, seconds: learned.append((rows, sequences, seconds)),
    )
    monkeypatch.setattr(proposer._server.costs, "needs_baseline", lambda sequences: False)

    class Telling(Runner):
        def before_step(self) -> None:
            reading = any(a.read < len(a.prompt) for a in self.batch)
            rows = sum(1 + len(a.drafted) for a in self.batch)
            clock.now += 50 * reading + rows / 100 + len(self.batch)

    requests = [
        asked(number, count=40 + 9 * number, prompt=30 + 40 * number) for number in range(9)
    ]
    Telling(proposer, repeating, rows=3, longest=1024, chunk=32).run(requests)
    assert len(learned) > 50
    for rows, sequences, seconds in learned:
        assert seconds == pytest.approx(rows / 100 + sequences)


# The target's rows.


class Model:
    """Of a target, what the proposer asks of it."""

    def compute_logits(self, hidden: Any) -> Any:
        return hidden


class Scoring(Runner):
    """Shows the proposer the target's rows, as vLLM's forward does on its way."""

    model: Model

    def before_step(self) -> None:
        super().before_step()
        rows = []
        for a in self.batch:
            for done in range(len(a.drafted) + 1):
                row = np.full(64, -9.0, np.float32)
                row[self.target([*a.text, *a.drafted[:done]])] = 9.0
                rows.append(row)
        scored = torch.from_numpy(np.array(rows)).to(torch.bfloat16)
        assert self.model.compute_logits(scored) is scored


def after_two(text: Sequence[int]) -> int:
    """A target that goes by the last two tokens, as recycled ones are kept."""
    return random.Random(64 * text[-2] + text[-1]).randrange(24)


@pytest.mark.parametrize("drafts", [["recycle"], ["lookup", "recycle"]])
def test_the_targets_rows_are_seen_and_each_at_its_place(drafts: list[str]) -> None:
    proposer = Proposer(configuration(drafts=drafts))
    scoring = Scoring(proposer, after_two, shuffle=random.Random(1))
    scoring.model = Model()
    proposer.load_model(scoring.model)
    rng = random.Random(3)
    requests = [Asked([rng.randrange(24) for _ in range(20)], 150) for _ in range(4)]
    tables: list[Any] = []
    learner = proposer._server.drafts["recycle"]
    closing = learner.close
    learner.close = lambda context: (tables.append(learner._tables[context]), closing(context))  # type: ignore[method-assign]
    scoring.run(requests)
    tables += learner._tables.values()
    pairs = {
        key: found[0][0] for table in tables for key, found in table._after.items() if len(key) == 2
    }
    assert len(pairs) > 15
    for key, token in pairs.items():
        assert token == after_two(key)
    assert sum(request.accepted for request in requests) > 20


def test_rows_of_prompts_are_not_taken_for_others() -> None:
    """With prompt_logprobs vLLM scores a prompt's rows in a second call, in the same step: here as
    many as the batch has."""
    proposer = Proposer(configuration(drafts=["recycle"]))

    class Twice(Scoring):
        def before_step(self) -> None:
            super().before_step()
            prompt_rows = torch.zeros(sum(1 + len(a.drafted) for a in self.batch), 64)
            prompt_rows[:, 63] = 9
            self.model.compute_logits(prompt_rows)

    scoring = Twice(proposer, after_two)
    scoring.model = Model()
    proposer.load_model(scoring.model)
    request = Asked(list(range(20)), 80)
    scoring.run([request])
    assert not any(63 in proposal for proposal in request.proposals)


def test_of_two_sequences_with_one_text_no_rows_are_looked_at() -> None:
    proposer = Proposer(configuration(drafts=["recycle"]))
    scoring = Scoring(proposer, after_two)
    scoring.model = Model()
    proposer.load_model(scoring.model)
    seen: list[int] = []
    proposer._learners[0].observe_best = lambda context, *_: seen.append(len(context.history))  # type: ignore[method-assign]
    scoring.run([Asked(list(range(20)), 10), Asked(list(range(20)), 10)])
    assert not seen
    scoring.run([Asked(list(range(20)), 10), Asked(list(range(21)), 10)])
    assert seen


def test_where_prompts_are_always_being_read_it_drafts_all_the_same() -> None:
    """Then no step tells what rows cost; what is assumed has to do."""
    request = Asked([1, 2, 3, 4] * 20, 120)
    readers = [Asked([n, *range(50, 250)], 1) for n in range(5, 60)]
    Runner(Proposer(configuration()), lambda text: text[-4], rows=2, chunk=20).run(
        [request, *readers]
    )
    assert request.accepted > 60


def test_rows_that_were_not_all_scored_are_left_alone() -> None:
    """vLLM may leave drafted tokens out; then nothing says which row is whose."""
    proposer = Proposer(configuration(drafts=["recycle"]))

    class Short(Runner):
        def before_step(self) -> None:
            super().before_step()
            model.compute_logits(torch.zeros(1 + 7 * len(self.batch), 64))

    model, request = Model(), asked(0)
    proposer.load_model(model)
    Short(proposer, repeating).run([request])
    assert not any(request.proposals)


# Settings.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft": ["lookup"]}, "Did you mean 'drafts'"),
        ({"drafts": ["lokup"]}, "Did you mean 'lookup'"),
        ({"drafts": []}, "drafts is []"),
        ({"drafts": "lookup"}, "drafts is 'lookup'"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        Proposer(configuration(**options))
    assert words in str(caught.value)


def test_drafts_that_need_forwards_or_trees_are_refused() -> None:
    with pytest.raises(SettingError, match="recycle:branches=1"):
        DraftServer({"recycle": RecycleDraft()}, max_draft_tokens=4)


def test_lookup_alone_needs_nothing_of_the_target() -> None:
    model = Model()
    before = model.compute_logits
    Proposer(configuration(drafts=["lookup"])).load_model(model)
    assert model.compute_logits == before


def count_opened(proposer: Proposer) -> list[Any]:
    """What is opened from now on."""
    opened: list[Any] = []
    inner = proposer._server.open

    def watching() -> Any:
        opened.append(inner())
        return opened[-1]

    proposer._server.open = watching  # type: ignore[method-assign]
    return opened


def test_on_a_fast_engine_looking_in_vain_is_left(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 2 ms, and 0.1 ms of looking at text that never repeats."""
    looking_s = 0.0

    class Fast(Runner):
        def before_step(self) -> None:
            clock.now += 0.002

    def ticking() -> float:
        nonlocal looking_s
        looking_s += 0.00005
        clock.now += 0.00005
        return clock.now

    monkeypatch.setattr(vllm, "perf_counter", ticking)

    def counting(text: Sequence[int]) -> int:
        return len(text) + 10_000

    request = Asked(list(range(50)), 3000)
    proposer = Proposer(configuration(longest=4096))
    Fast(proposer, counting, longest=4096).run([request])
    assert looking_s < 0.01 * 0.002 * 3000 + 0.00005 * 3000  # one look at the clock a step is left
    assert not proposer._rows
    again = asked(1, count=800)
    Fast(proposer, repeating, longest=4096).run([again])
    assert again.accepted > 100  # a new request is looked at
