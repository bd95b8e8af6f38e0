"""Recycling rows: what is remembered, what is offered, and that it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Request, Sampling, StopConditions, fixed, generate
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts import recycle
from paceline.drafts.base import Context, VerifiedRound
from paceline.drafts.create import create_draft
from paceline.drafts.recycle import RecycleDraft, SuccessorTable, level, likeliest
from paceline.engines.toy import ToyEngine
from paceline.errors import SettingError
from paceline.sampling.history import History
from paceline.testing import enumerate_outcomes
from paceline.types import Proposal
from paceline.verify.tree import TreeVerifier


def taught(draft: RecycleDraft, tokens: list[int], rows: list[dict[int, float]]) -> Context:
    """A context whose draft has seen a row (of log-probabilities) after each of its tokens."""
    context = Context(History(tokens[:1]))
    draft.open(context)
    for token, row in zip(tokens[1:], rows, strict=False):
        see(draft, context, Proposal((), "none"), [row])
        context.history.commit(token)
    return context


def see(draft: RecycleDraft, context: Context, proposal: Proposal, rows: list[dict]) -> None:
    logits = np.full((len(rows), 10), -30.0, np.float32)
    for at, row in enumerate(rows):
        for token, prob in row.items():
            logits[at, token] = np.log(prob)
    draft.observe_logits(context, VerifiedRound(proposal, (), context.history.tokens[-1], logits))


def test_a_tree_grows_by_the_likeliest_token_that_is_left(monkeypatch) -> None:
    monkeypatch.setattr(recycle, "AFTER_ONE", 1.0)
    monkeypatch.setattr(recycle, "AFTER_TWO", 1.0)
    draft = RecycleDraft()
    rows = [{2: 0.7, 3: 0.3}, {4: 0.9, 5: 0.1}, {1: 0.6, 6: 0.4}, {7: 1.0}]
    context = taught(draft, [1, 2, 3, 1], rows)
    [proposal] = draft.propose([context], [5])
    assert proposal.tokens == (2, 4, 3, 1, 2)
    assert proposal.parents == (-1, 0, -1, 2, 3)
    assert proposal.distributions is None
    for most in range(1, 5):  # a smaller tree is the beginning of a larger one
        [smaller] = draft.propose([context], [most])
        assert smaller.tokens == proposal.tokens[:most]


def test_two_tokens_say_more_than_one() -> None:
    draft = RecycleDraft(branches=1)
    rows = [{2: 1.0}, {3: 1.0}, {2: 1.0}, {5: 1.0}, {1: 1.0}, {2: 1.0}]
    context = taught(draft, [1, 2, 3, 2, 5, 1, 2], rows)
    # After 2 came 5 last; after 1 and 2 came 3.
    assert draft.propose([context], [1])[0].tokens == (3,)


def test_rejected_tokens_teach_too() -> None:
    draft = RecycleDraft(branches=1)
    context = taught(draft, [1, 2], [{2: 1.0}])
    rejected = Proposal((7, 8, 9), "x", parents=(-1, -1, 1))
    see(draft, context, rejected, [{3: 1.0}, {4: 1.0}, {5: 1.0}, {6: 1.0}])
    table = draft._tables[context]

    def first(before: int | None, token: int) -> tuple[int, float]:
        found, kept = table.successors(before, token)
        return found[0][0], kept

    assert [first(2, 7), first(2, 8), first(8, 9)] == [(4, 0.6), (5, 0.6), (6, 0.6)]
    assert first(5, 9) == (6, 0.25)  # after another token: by the last one alone
    assert first(None, 2) == (3, 0.25)


def test_nothing_is_drafted_behind_an_end() -> None:
    draft = RecycleDraft()
    context = taught(draft, [1, 2, 1], [{2: 1.0}, {1: 1.0}])
    context.stop_tokens = frozenset((2,))
    assert draft.propose([context], [4])[0].tokens == (2,)


def test_the_table_forgets_what_is_oldest() -> None:
    table = SuccessorTable(most_keys=2)
    table.learn(None, 1, [(5, 1.0)])
    table.learn(None, 2, [(6, 1.0)])
    table.learn(None, 1, [(7, 1.0)])
    table.learn(None, 3, [(8, 1.0)])
    assert table.successors(None, 1)[0] == [(7, 1.0)]
    assert table.successors(None, 2)[0] == []


@pytest.mark.parametrize("size", [3, 63, 64, 200, 5000, 5003])
def test_likeliest_is_what_sorting_finds(size: int) -> None:
    rows = np.random.default_rng(size).standard_normal((4, size)).astype(np.float32)
    for row, found in zip(rows, likeliest(rows, 5), strict=True):
        assert [token for token, _ in found] == np.argsort(-row)[:5].tolist()
        probs = [prob for _, prob in found]
        assert probs == sorted(probs, reverse=True)
        assert 0 < sum(probs) <= 1 + 1e-6


def test_rows_that_are_no_distribution_teach_nothing() -> None:
    rows = np.zeros((2, 300), np.float32)
    rows[0, 7] = np.nan
    rows[1] = -np.inf
    assert likeliest(rows, 3) == [[], []]


def test_torch_rows_are_read_the_same() -> None:
    torch = pytest.importorskip("torch")
    rows = np.random.default_rng(1).standard_normal((3, 1000)).astype(np.float32)
    assert likeliest(torch.from_numpy(rows), 4) == likeliest(rows, 4)


def test_evidence_rises_with_likelihood() -> None:
    levels = [level(rng / 50) for rng in range(51)]
    assert levels == sorted(levels)
    assert levels[0] == 0


def target(**options) -> ToyEngine:
    return ToyEngine(10, seed=34, order=1, sharpness=3.0, context_size=80, **options)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("branches", [1, 3])
def test_text_is_that_of_baseline_decoding(branches: int, temperature: float) -> None:
    """Chosen tokens take one draw each, so that even sampled text is the same to the token."""
    settings = {
        "sampling": Sampling(temperature=temperature, seed=3, repetition_penalty=1.1),
        "stop": StopConditions(max_tokens=60),
    }
    baseline = generate(target(), [1, 2], **settings)
    drafted = generate(
        target(),
        [1, 2],
        draft=RecycleDraft(branches=branches),
        max_draft_tokens=6,
        verifier=TreeVerifier(),
        **settings,
    )
    assert drafted.tokens == baseline.tokens
    assert drafted.stats.accepted > 10


def test_many_sequences_each_remember_their_own() -> None:
    engine = target(max_sequences=4)
    requests = [Request(prompt=(n, n + 1), stop=StopConditions(max_tokens=30)) for n in range(1, 8)]
    drafts = {"recycle": RecycleDraft()}
    decoder = Decoder(engine, drafts, TreeVerifier(), fixed("recycle", 5))
    for request, got in zip(requests, decode(decoder, requests), strict=True):
        assert got.tokens == generate(target(), request.prompt, stop=request.stop).tokens
    assert engine.sequences_open == 0


def test_the_distribution_of_the_whole_loop_is_the_targets() -> None:
    """Enumerated: two rounds of trees after a first token, sampled; compared with plain."""

    def distribution_of(max_draft_tokens: int) -> dict[tuple[int, ...], float]:
        def experiment(rng) -> tuple[int, ...]:
            engine = ToyEngine(3, seed=5, order=1, sharpness=1.0)
            drafts = {"recycle": RecycleDraft()} if max_draft_tokens else {}
            policy = fixed("recycle", max_draft_tokens) if max_draft_tokens else fixed(None, 0)
            decoder = Decoder(engine, drafts, TreeVerifier(), policy)
            stop = StopConditions(max_tokens=4)
            stream = decoder.open(Request(prompt=(1,), sampling=Sampling(temperature=1), stop=stop))
            stream.rng = rng
            while not stream.finished:
                decoder.step([stream])
            return tuple(stream.history.output)

        return enumerate_outcomes(experiment)

    baseline, drafted = distribution_of(0), distribution_of(3)
    assert baseline.keys() == drafted.keys()
    assert sum(abs(baseline[key] - drafted[key]) for key in baseline) / 2 < 1e-6


def test_a_lasting_table_serves_the_next_request() -> None:
    engine, draft = target(), RecycleDraft(lasting=True)
    assert draft.remembers
    stop = StopConditions(max_tokens=30)
    first, second = (
        generate(
            engine, [1, 2], draft=draft, max_draft_tokens=4, verifier=TreeVerifier(), stop=stop
        )
        for _ in range(2)
    )
    assert second.tokens == first.tokens
    assert second.stats.accepted > first.stats.accepted


def test_settings_are_checked() -> None:
    engine = ToyEngine(8)
    assert create_draft("recycle", engine).branches
    assert not create_draft("recycle", ToyEngine(8, trees=False)).branches
    made = create_draft("recycle:branches=2,kept=5,lasting=yes", engine)
    assert made.metadata() == {"draft": "recycle", "branches": 2, "kept": 5, "lasting": True}
    for spec, message in {
        "recycle:branches=0": "branches is 0",
        "recycle:kept=many": "kept is 'many'",
        "recycle:lasting=1": "lasting is '1'",
        "recycle:widht=2": "no option of the draft 'recycle' 'widht'|unknown|There is no",
    }.items():
        with pytest.raises(SettingError, match=message):
            create_draft(spec, engine)
