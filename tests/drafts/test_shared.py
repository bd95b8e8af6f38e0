"""Drafting among the tokens that two vocabularies share: exact, and read right."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import pytest
from pieces import model

from paceline import Request, Sampling, StopConditions, fixed, generate
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.base import Context, Draft, NoDraft
from paceline.drafts.combine import CascadeDraft
from paceline.drafts.create import create_draft
from paceline.drafts.cross_tokenizer.shared import SharedDraft
from paceline.drafts.lookup import LookupDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import PairError, SettingError
from paceline.sampling.distribution import Distribution
from paceline.sampling.history import History
from paceline.sampling.rng import NumpyRng
from paceline.testing import enumerate_outcomes
from paceline.types import Proposal
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier

# Both have a, b, d and an end; c is the target's alone, x and y the draft's.
OURS, THEIRS = [b"a", b"b", b"c", b"d", "<end>"], [b"x", b"d", b"b", "<end>", b"y", b"a"]
SHARED = {0: 5, 1: 2, 3: 1, 4: 3}
SETTINGS = {
    "greedy": {},
    "repetition": {"repetition_penalty": 1.8},
    "presence": {"presence_penalty": 1.5, "frequency_penalty": 0.4},
    "bias": {"logit_bias": {2: 3.0, 3: 1.0}},
    "banned": {"banned_tokens": (1,)},
    "allowed": {"allowed_tokens": (0, 2, 3, 4)},
    "only unshared": {"allowed_tokens": (2,)},
    "sequences": {"banned_sequences": ((0, 3), (3, 1), (2,))},
    "minimum": {"min_tokens": 12},
}


def target(**options) -> ToyEngine:
    return model(OURS, seed=34, order=3, **options)


def draft_model(**options) -> ToyEngine:
    return model(THEIRS, **({"seed": 3, "order": 40} | options))


def context(tokens: Sequence[int], sampling: Sampling | None = None) -> Context:
    return Context(History(tokens), sampling or Sampling(), NumpyRng(5), frozenset({4}))


def opened(draft: Draft, *contexts: Context) -> None:
    for one in contexts:
        draft.open(one)
    draft.prefill(contexts)


def commit(draft: Draft, one: Context, tokens: Sequence[int]) -> None:
    for token in tokens:
        one.history.commit(token)
    draft.observe(one, tokens)


def distribution(
    make, max_draft_tokens: int, verifier, sampling: Sampling, *, ignore_end: bool = False
) -> dict:
    """The distribution of the first three tokens, by every path of every random choice."""
    stop = StopConditions(max_tokens=3, ignore_end=ignore_end)

    def outcome(rng) -> tuple[int, ...]:
        engine = model(OURS, seed=2, order=2)
        decoder = Decoder(engine, {"d": make(engine)}, verifier(), fixed("d", max_draft_tokens))
        stream = decoder.open(Request(prompt=(0, 2, 1), sampling=sampling, stop=stop))
        stream.rng = stream.context.rng = rng
        while not stream.finished:
            decoder.step([stream])
        return tuple(stream.history.output)

    return enumerate_outcomes(outcome)


def variation(ours: dict, theirs: dict) -> float:
    return sum(abs(ours.get(k, 0) - theirs.get(k, 0)) for k in ours.keys() | theirs.keys()) / 2


EXACT = {
    "sampled": {"temperature": 1.0},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.4, "presence_penalty": 0.5},
    "filters": {"temperature": 1.3, "top_k": 3, "top_p": 0.9},
    "masks": {"temperature": 1.0, "banned_sequences": ((0, 1), (2, 3)), "min_tokens": 2},
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.4},
}


@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
@pytest.mark.parametrize("settings", EXACT)
def test_the_whole_loop_is_exact_by_enumeration(settings: str, verifier) -> None:
    sampling = Sampling(**EXACT[settings])
    baseline = distribution(lambda _: NoDraft(), 0, verifier, sampling)
    drafted = distribution(lambda t: SharedDraft(model(THEIRS, seed=9), t), 2, verifier, sampling)
    assert sum(baseline.values()) == pytest.approx(1, abs=1e-6)
    assert len(baseline) > 8 or settings == "greedy"
    assert variation(baseline, drafted) < 1e-6


class Unrestricted(SharedDraft):
    """Draws as it should, and tells the distribution before restricting: the shared part of it,
    which is also what is left of a restricted distribution that is not renormalised."""

    def _distribution(self, context, row, drafted):
        weights = np.exp((row - row.max()) / context.sampling.temperature)
        distribution = super()._distribution(context, row, drafted)
        told = Distribution((weights / weights.sum())[self._common.draft], self._common.target)
        self.told = {**getattr(self, "told", {}), id(distribution): (distribution, told)}
        return distribution

    def propose(self, contexts, limits):
        return [
            Proposal(
                p.tokens,
                p.source,
                tuple(self.told[id(distribution)][1] for distribution in p.distributions),
            )
            for p in super().propose(contexts, limits)
        ]


class Dropping(Unrestricted):
    """Draws from the whole distribution and leaves a token out that isn't shared."""

    def propose(self, contexts, limits):
        proposals = []
        for one in contexts:
            [distribution] = self.next_distributions([one], [()])
            told = self.told[id(distribution)][1]
            unshared = 1 - float(told.probs.sum())
            tokens = np.append(told.tokens, len(OURS))
            drawn = one.rng.sample(Distribution(np.append(told.probs, unshared), tokens))
            kept = drawn < len(OURS)
            proposals.append(Proposal((drawn,) if kept else (), self.name, (told,) if kept else ()))
        return proposals


@pytest.mark.parametrize("wrong", [Unrestricted, Dropping])
def test_a_distribution_that_was_not_drawn_from_fails_the_enumeration(wrong, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "SharedDraft", wrong)
    with pytest.raises(AssertionError):
        test_the_whole_loop_is_exact_by_enumeration("sampled", ChainVerifier)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("max_draft_tokens", [1, 4])
def test_greedy_text_is_plain_text(settings: str, max_draft_tokens: int) -> None:
    def run(draft: Draft | None) -> tuple:
        sampling, stop = Sampling(**SETTINGS[settings]), StopConditions(max_tokens=40)
        generation = generate(
            target(),
            [1, 2, 3, 0],
            draft=draft or NoDraft(),
            max_draft_tokens=max_draft_tokens,
            sampling=sampling,
            stop=stop,
        )
        return generation.tokens, generation.stats.accepted

    engine = draft_model()
    drafted, accepted = run(SharedDraft(engine, target()))
    assert drafted == run(None)[0]
    assert engine.sequences_open == 0
    assert accepted > 0 or settings == "only unshared"


def restricted(engine: ToyEngine, read: list[int], sampling: Sampling) -> dict[int, float]:
    row = engine.logits(read)
    weights = {
        ours: math.exp(float(row[theirs]) / sampling.temperature) for ours, theirs in SHARED.items()
    }
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def test_its_distribution_is_the_draft_s_restricted_to_shared_tokens_and_renormalised() -> None:
    engine, sampling = draft_model(), Sampling(temperature=0.8)
    draft, one = SharedDraft(engine, target()), context([3, 1, 0], sampling)
    opened(draft, one)
    [proposal] = draft.propose([one], [4])
    for index, distribution in enumerate(proposal.distributions):
        read = [SHARED[token] for token in (3, 1, 0, *proposal.tokens[:index])]
        assert dict(distribution.items()) == pytest.approx(restricted(engine, read, sampling))
        assert distribution.tokens.tolist() == sorted(SHARED)
    assert len(proposal.tokens) > 1


def test_settings_speak_of_the_target_s_tokens() -> None:
    """Row by row the distribution is that of a draft with the target's own ids, unshared tokens
    apart."""
    settings = Sampling(
        temperature=0.7,
        top_k=3,
        repetition_penalty=1.7,
        frequency_penalty=0.3,
        logit_bias={3: 1.5, 2: 9.0},
        banned_sequences=((1, 1),),
        min_tokens=2,
    )
    engine = draft_model()
    draft, one = SharedDraft(engine, target()), context([3, 2, 1], settings)
    opened(draft, one)
    drafted = [1, 0]
    for count in range(3):
        read = [SHARED[token] for token in (3, 1, *drafted[:count])]
        row = engine.logits(read).astype(np.float64)
        logits = {ours: float(row[theirs]) for ours, theirs in SHARED.items()}
        for token in {3, 2, 1, *drafted[:count]} & SHARED.keys():
            logits[token] *= 1 / 1.7 if logits[token] > 0 else 1.7
        for token in drafted[:count]:
            logits[token] -= 0.3
        logits[3] += 1.5
        last = [3, 2, 1, *drafted[:count]][-1]
        if last == 1:
            del logits[1]
        if count < 2:
            del logits[4]
        kept = sorted(logits, key=lambda token: -logits[token])[:3]
        weights = {token: math.exp(logits[token] / 0.7) for token in kept}
        expected = {token: weight / sum(weights.values()) for token, weight in weights.items()}
        [distribution] = draft.next_distributions([one], [drafted[:count]])
        assert dict(distribution.items()) == pytest.approx(expected, rel=1e-4)


def test_a_single_token_left_is_deterministic_by_the_target_s_id() -> None:
    for settings in (Sampling(), Sampling(temperature=1.0, top_k=1)):
        draft, one = SharedDraft(draft_model(), target()), context([1, 3], settings)
        opened(draft, one)
        [proposal] = draft.propose([one], [3])
        row = draft.engine.logits([SHARED[1], SHARED[3]])
        assert proposal.tokens[0] == max(SHARED, key=lambda token: row[SHARED[token]])
        assert set(proposal.distributions) == {None}


def test_masks_that_leave_the_draft_nothing_end_its_proposal() -> None:
    draft = SharedDraft(draft_model(), target())
    one = context([1, 3], Sampling(temperature=1.0, allowed_tokens=(2,)))
    opened(draft, one)
    assert draft.propose([one], [3])[0].tokens == ()


def test_the_cache_is_caught_up_after_pauses_and_rejections() -> None:
    """After any history of drafting the next proposal is that of a draft that starts afresh, and
    only what is missing is fed."""
    engine, random = draft_model(), np.random.default_rng(0)
    draft, one = SharedDraft(engine, target()), context([1, 3, 0])
    opened(draft, one)
    for _ in range(60):
        emitted = [int(token) for token in random.choice([0, 1, 3], int(random.integers(1, 3)))]
        if random.random() < 0.6:
            [proposal] = draft.propose([one], [int(random.integers(1, 6))])
            kept = int(random.integers(0, len(proposal.tokens) + 1))
            emitted = [*(t for t in proposal.tokens[:kept] if t != 4), emitted[0]]
        commit(draft, one, emitted)
        wanted = [SHARED[token] for token in one.history.tokens]
        held = draft._states[one].sequence.tokens
        common = 0
        while common < min(len(held), len(wanted) - 1) and held[common] == wanted[common]:
            common += 1
        assert draft.pending_tokens(one) == len(wanted) - common
        before = engine.rows_fed
        [proposal] = draft.propose([one], [1])
        assert engine.rows_fed - before == len(wanted) - common
        assert draft._states[one].sequence.tokens == wanted
        fresh, other = SharedDraft(engine, target()), context(one.history.tokens)
        opened(fresh, other)
        assert fresh.propose([other], [1])[0].tokens == proposal.tokens
        fresh.close(other)
    draft.close(one)
    assert engine.sequences_open == 0


def test_a_token_that_the_draft_lacks_is_read_by_its_bytes() -> None:
    ours = model([b"a", b"b", b"ab", b"abb"], seed=1)
    engine = model([b"b", b"a", b"bb", b"q"], seed=3, order=40)
    draft, one = SharedDraft(engine, ours), context([0, 2, 1, 2])
    opened(draft, one)
    draft.propose([one], [2])
    assert draft._states[one].sequence.tokens[:5] == [1, 1, 2, 1, 0]
    assert draft.pending_tokens(one) == 1
    commit(draft, one, [3])
    assert draft.pending_tokens(one) == 2, "a and bb"


def test_several_sequences_are_drafted_in_one_forward_each_step() -> None:
    engine = draft_model()
    draft, contexts = (
        SharedDraft(engine, target()),
        [context([1]), context([2, 3]), context([0, 2, 1])],
    )
    opened(draft, *contexts)
    before = engine.forwards
    proposals = draft.propose(contexts, [4, 2, 3])
    assert engine.forwards - before == max(len(p.tokens) for p in proposals)
    for one, proposal in zip(contexts, proposals, strict=True):
        alone, other = SharedDraft(draft_model(), target()), context(one.history.tokens)
        opened(alone, other)
        assert alone.propose([other], [len(proposal.tokens)])[0].tokens == proposal.tokens


def test_a_prompt_of_which_the_draft_reads_nothing_is_not_followed() -> None:
    ours, engine = model([b"a", "<user>"], seed=1), model([b"a", b"b"], seed=2)
    generation = generate(
        ours,
        [1],
        draft=SharedDraft(engine, ours),
        max_draft_tokens=2,
        stop=StopConditions(max_tokens=6),
    )
    baseline = generate(ours, [1], stop=StopConditions(max_tokens=6))
    assert generation.tokens == baseline.tokens


def test_its_own_context_limits_only_the_sequence_that_reaches_it(caplog) -> None:
    ours = model([b"a", b"b", b"ab"], seed=3, context_size=64)
    draft = SharedDraft(model([b"a", b"b"], seed=3, context_size=32), ours)
    requests = [
        Request(prompt=tuple([token] * 14), stop=StopConditions(max_tokens=30)) for token in (2, 0)
    ]
    decoder = Decoder(ours, {"shared": draft}, ChainVerifier(), fixed("shared", 4))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        drafted = decode(decoder, requests)
    baseline = decode(Decoder(ours, {}, ChainVerifier(), fixed(None, 0)), requests)
    assert [g.tokens for g in drafted] == [g.tokens for g in baseline]
    proposed = [sum(r.proposed for r in g.rounds) for g in drafted]
    assert proposed[1] > proposed[0] > 0, "tokens that the draft reads as two fill it sooner"
    assert all("holds 32 tokens" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) == 2


def test_a_prompt_beyond_its_context_is_not_followed_and_that_is_said(caplog) -> None:
    engine = draft_model(context_size=3)
    draft, one = SharedDraft(engine, target()), context([0, 1, 3, 1])
    with caplog.at_level(logging.WARNING, logger="paceline"):
        opened(draft, one)
    assert "holds 3 tokens at most" in caplog.text
    assert draft.propose([one], [2])[0].tokens == ()
    fits = context([0, 1])
    opened(draft, fits)
    assert len(draft.propose([fits], [4])[0].tokens) == 2, "as far as its context goes"


def test_the_draft_s_own_beginning_is_put_before_the_prompt() -> None:
    engine = model([*THEIRS, "<s>"], begin=[6])
    draft, one = SharedDraft(engine, target()), context([1, 3])
    opened(draft, one)
    draft.propose([one], [1])
    assert draft._states[one].sequence.tokens == [6, SHARED[1], SHARED[3]]


def test_a_faulty_row_of_the_draft_sits_the_request_out(caplog) -> None:
    engine = model(THEIRS, table={(): [math.nan] * 6})
    with caplog.at_level(logging.WARNING, logger="paceline"):
        answer = generate(
            target(),
            [1, 2],
            draft=SharedDraft(engine, target()),
            max_draft_tokens=3,
            stop=StopConditions(max_tokens=8, ignore_end=True),
        )
    assert len(answer.tokens) == 8
    assert [r for r in caplog.records if "sits this request out" in r.getMessage()]


def test_it_goes_on_behind_another_draft_s_tokens() -> None:
    """Also behind one that it can't propose itself; and the whole stays plain text."""
    draft, one = SharedDraft(draft_model(), target()), context([1, 3], Sampling(temperature=1.0))
    opened(draft, one)
    [distribution] = draft.next_distributions([one], [[3, 1]])
    read = [SHARED[token] for token in (1, 3, 3, 1)]
    assert dict(distribution.items()) == pytest.approx(restricted(draft.engine, read, one.sampling))
    [behind_unshared] = draft.next_distributions([one], [[2]])
    assert set(dict(behind_unshared.items())) <= SHARED.keys()

    def run(draft: Draft | None):
        stop = StopConditions(max_tokens=40, ignore_end=True)
        return generate(
            target(), [1, 2, 3, 1, 2], draft=draft or NoDraft(), max_draft_tokens=4, stop=stop
        )

    both = CascadeDraft([LookupDraft(), SharedDraft(draft_model(), target())])
    assert run(both).tokens == run(None).tokens


def test_rows_of_torch_give_the_same_distributions() -> None:
    torch = pytest.importorskip("torch")

    class TorchToy(ToyEngine):
        def _score(self, jobs):
            return [torch.from_numpy(rows.copy()) for rows in super()._score(jobs)]

    for settings in (EXACT["sampled"], EXACT["penalties"], EXACT["filters"]):
        distributions = []
        for kind in (ToyEngine, TorchToy):
            engine = draft_model()
            engine.__class__ = kind
            draft, one = SharedDraft(engine, target()), context([1, 3, 0], Sampling(**settings))
            opened(draft, one)
            [distribution] = draft.next_distributions([one], [[1]])
            distributions.append(dict(distribution.items()))
        assert distributions[0] == pytest.approx(distributions[1], rel=1e-5)


def test_the_command_line_s_words_for_it() -> None:
    ours, engine = target(), draft_model()
    draft = create_draft("shared:somewhere", ours, loader=lambda name: engine)
    assert draft.metadata()["fit"].startswith("4 tokens are shared: 80 % of the target's 5")
    assert draft.engine is engine
    with pytest.raises(SettingError, match="The draft 'shared' has no option 'share'"):
        create_draft("shared:share=1,somewhere", ours, loader=lambda name: engine)
    with pytest.raises(PairError, match="text:MODEL"):
        create_draft("shared:somewhere", ours, loader=lambda name: model([b"q", b"r"]))
