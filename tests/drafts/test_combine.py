"""Drafts made of drafts: who is asked, what is offered, exactness by enumeration, shared fates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from paceline.drafts.base import Context, Draft, NoDraft, draw_on
from paceline.drafts.combine import CascadeDraft, FirstDraft, MixtureDraft
from paceline.drafts.create import create_draft
from paceline.drafts.lookup import LookupDraft, Store
from paceline.drafts.model import ModelDraft
from paceline.drafts.recycle import RecycleDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import DraftError, SettingError
from paceline.sampling.distribution import Distribution
from paceline.sampling.history import History
from paceline.sampling.rng import NumpyRng, Rng
from paceline.testing import baseline_distribution, rational_distribution, verified_distribution
from paceline.types import Preview, Proposal, Sampling
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier
from paceline.verify.tree import TreeVerifier

SAMPLED = Sampling(temperature=1.0)
VERIFIERS = [ChainVerifier(), BlockVerifier(), TreeVerifier()]


def random_distributions(
    seed: int, support: int, *, gaps: bool = False
) -> Callable[..., Distribution | None]:
    """A rational distribution of 3 tokens behind each drafted prefix; none behind some, with
    gaps."""

    @cache
    def distribution(drafted: tuple[int, ...]) -> Distribution | None:
        source = random.Random(f"{seed} {drafted}")
        if gaps and source.random() < 0.4:
            return None
        tokens = source.sample(range(3), support)
        return rational_distribution({token: source.randint(1, 5) for token in tokens})

    return distribution


class Rational(Draft):
    """Draws from rational distributions, so that nothing is rounded."""

    name = summary = "rational"
    can_continue = True

    def __init__(self, distributions: Callable[..., Distribution | None], most: int = 9) -> None:
        self.distributions, self.most = distributions, most
        self.asked: list[int] = []

    def next_distributions(self, contexts, drafted):
        return [self.distributions(tuple(tokens)) for tokens in drafted]

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Proposal]:
        self.asked.append(len(contexts))
        return draw_on(
            self, contexts, [min(max_draft_tokens, self.most) for max_draft_tokens in limits]
        )


def context(rng: Rng | None = None, sampling: Sampling = SAMPLED, tokens=(0,)) -> Context:
    return Context(History(tokens), sampling, rng or NumpyRng(3))


def combinations(seed: int) -> dict[str, Draft]:
    full, gaps = random_distributions(seed, 3), random_distributions(seed, 2, gaps=True)
    one_hot, other = (
        random_distributions(seed + 1, 1, gaps=True),
        random_distributions(seed + 2, 3, gaps=True),
    )
    return {
        "first": FirstDraft([Rational(gaps), Rational(full)]),
        "cascade": CascadeDraft([Rational(one_hot, 2), Rational(full)]),
        "cascade of drawn": CascadeDraft([Rational(gaps, 1), Rational(other, 9), Rational(full)]),
        "mixture": MixtureDraft([Rational(one_hot), Rational(full)], Fraction(1, 3)),
        "mixture of one-hots": MixtureDraft(
            [Rational(one_hot), Rational(random_distributions(seed + 3, 1))], Fraction(3, 4)
        ),
        "mixture of sparse": MixtureDraft([Rational(gaps), Rational(other)], Fraction(1, 5)),
        "cascade into a mixture": CascadeDraft(
            [Rational(one_hot, 1), MixtureDraft([Rational(gaps), Rational(other)], Fraction(1, 2))]
        ),
    }


def variation(draft: Draft, verifier, seed: int, support: int, max_draft_tokens: int) -> Fraction:
    """Total variation between what is emitted and the target's own texts."""
    distributions = random_distributions(seed + 90, support)

    def proposal(rng: Rng) -> Proposal:
        return draft.propose([context(rng)], [max_draft_tokens])[0]

    ours = verified_distribution(verifier, distributions, proposal, max_draft_tokens + 1)
    baseline = baseline_distribution(distributions, max_draft_tokens + 1)
    return sum(abs(ours.get(k, 0) - baseline.get(k, 0)) for k in ours.keys() | baseline.keys())


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
@pytest.mark.parametrize("kind", combinations(0))
def test_every_combination_is_exact_in_rational_arithmetic(kind: str, verifier) -> None:
    offered = 0
    for max_draft_tokens, seed in ((1, 1), (2, 2), (3, 3), (4, 4)):
        for support in (1, 3):
            draft = combinations(seed)[kind]
            assert variation(draft, verifier, seed, support, max_draft_tokens) == 0
            offered += len(draft.propose([context()], [max_draft_tokens])[0].tokens)
    assert offered > 5, "nothing was offered, nothing was proved"


class ToldAsOnePart(MixtureDraft):
    """Draws from the mixture and tells one part's distribution."""

    def propose(self, contexts, limits):
        told = super().propose(contexts, limits)
        distributions = self.parts[1].distributions
        return [
            Proposal(
                p.tokens, p.source, tuple(distributions(p.tokens[:i]) for i in range(len(p.tokens)))
            )
            for p in told
        ]


class WeightAfterDrawing(MixtureDraft):
    """Chooses the weight by the token that it drew, and tells the distribution with that weight."""

    def propose(self, contexts, limits):
        [proposal] = super().propose(contexts, [1])
        [token] = proposal.tokens
        first, second = (part.distributions(()) for part in self.parts)
        distribution = max((first, second), key=lambda one: one.prob(token))
        return [Proposal((token,), self.name, (distribution,))]


class UnlikelyLeftOut(CascadeDraft):
    """Goes on behind the first part's token only where that was likely, and else takes it back."""

    def propose(self, contexts, limits):
        return [
            p if p.distribution(0).prob(p.tokens[0]) > 0.3 else Proposal((), self.name)
            for p in super().propose(contexts, limits)
        ]


@pytest.mark.parametrize("kind", [ToldAsOnePart, WeightAfterDrawing, UnlikelyLeftOut])
def test_wrong_combinations_fail_the_proof(kind: type[Draft]) -> None:
    parts = [Rational(random_distributions(5, 3), 1), Rational(random_distributions(6, 3))]
    assert variation(kind(parts), ChainVerifier(), 7, 3, 2) > 0


def test_the_first_that_has_something_answers_and_only_the_rest_are_asked_on() -> None:
    some = random_distributions(1, 3)
    empty, sure, last = Rational(lambda _: None), Rational(some), Rational(some)
    draft = FirstDraft([empty, sure, last])
    proposals = draft.propose([context(), context()], [2, 2])
    assert [len(p.tokens) for p in proposals] == [2, 2]
    assert (empty.asked, sure.asked, last.asked) == ([2], [2], [])

    text, blank = context(tokens=[1, 2, 3, 1, 2]), context(tokens=[1, 2, 3])
    draft = FirstDraft([LookupDraft(), Rational(some), last])
    draft.open(text)
    draft.open(blank)
    draft.prefill([text, blank])
    mine, others = draft.propose([text, blank], [1, 3])
    assert (mine.tokens, mine.distributions, mine.source) == ((3,), None, "lookup")
    assert (len(others.tokens), others.source) == (3, "rational")
    assert draft.parts[1].asked == [1]
    assert FirstDraft([NoDraft(), NoDraft()]).propose([text], [3])[0].tokens == ()


def test_a_cascade_goes_on_behind_the_first_part_up_to_the_limit() -> None:
    engine = ToyEngine(8, seed=3, order=30)
    model = ModelDraft(engine, engine)
    draft = CascadeDraft([LookupDraft(min_match=1, reach=1.0), model])
    one, blank = (context(sampling=Sampling(), tokens=t) for t in ([1, 2, 3, 1, 2], [4, 5, 6]))
    for each in (one, blank):
        draft.open(each)
    draft.prefill([one, blank])
    before = engine.forwards
    mine, others = draft.propose([one, blank], [5, 2])
    assert engine.forwards - before == 3, "one feed of both, with the lookup's tokens in it"
    assert mine.tokens[:2] == (3, 1), "a match of two, followed for two"
    expected = [1, 2, 3, 1, 2, 3, 1]
    while len(expected) < 10:
        expected.append(int(engine.logits(expected).argmax()))
    assert [1, 2, 3, 1, 2, *mine.tokens] == expected
    assert len(others.tokens) == 2
    [short] = draft.propose([one], [2])
    assert short.tokens == (3, 1)


def test_nothing_is_drafted_behind_a_stop_token() -> None:
    engine = ToyEngine(8, seed=3)
    draft = CascadeDraft([LookupDraft(reach=0.4), ModelDraft(engine, engine)])
    one = Context(History([1, 2, 3, 7, 1, 2, 3]), Sampling(), stop_tokens=frozenset({7}))
    draft.open(one)
    draft.prefill([one])
    [proposal] = draft.propose([one], [6])
    assert proposal.tokens == (7,)


def test_a_part_that_cannot_go_on_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="'none' can't go on behind drafted tokens"):
        CascadeDraft([LookupDraft(), NoDraft()])
    with pytest.raises(SettingError, match="'none' can't go on"):
        MixtureDraft([NoDraft(), LookupDraft()])
    with pytest.raises(SettingError, match="'recycle' offers trees"):
        CascadeDraft([RecycleDraft(), LookupDraft()])
    with pytest.raises(SettingError, match="made of 1 part"):
        FirstDraft([LookupDraft()])


class Unexpected(NoDraft):
    def propose(self, contexts, limits):
        return [Proposal((1, 2), self.name, parents=(-1, -1)) for _ in contexts]


def test_a_tree_that_was_not_announced_is_refused() -> None:
    draft = CascadeDraft([Unexpected(), Rational(random_distributions(1, 3))])
    with pytest.raises(DraftError, match="'none' offered a tree"):
        draft.propose([context()], [3])


def test_only_what_is_previewable_in_every_part_is_previewable() -> None:
    engine = ToyEngine(8)
    two = FirstDraft([LookupDraft(min_match=3), LookupDraft()])
    assert (two.previewable, two.has_confidence, two.branches, two.engine) == (
        True,
        True,
        False,
        None,
    )
    one = context(tokens=[1, 2, 3, 1, 2])
    two.open(one)
    two.prefill([one])
    assert two.preview(one, 2) == Preview([3, 1], 2)
    assert two.propose([one], [2])[0].tokens == (3, 1), "what was told is what is offered"

    unlike = FirstDraft([LookupDraft(), RecycleDraft()])
    assert (unlike.previewable, unlike.has_confidence, unlike.branches) == (False, False, True)

    model = FirstDraft([LookupDraft(), ModelDraft(engine, engine)])
    assert (model.previewable, model.has_confidence, model.engine) == (False, False, engine)
    several = FirstDraft([ModelDraft(engine, engine), ModelDraft(engine, engine)])
    assert several.engine is None, "one model's costs are not the price of two"


def test_what_one_part_remembers_or_has_to_read_the_whole_does() -> None:
    engine = ToyEngine(8)
    draft = FirstDraft([LookupDraft(), ModelDraft(engine, engine)])
    one = context(tokens=[1, 2, 3])
    assert (draft.remembers, draft.observes_logits, draft.pending_tokens(one)) == (False, False, 3)
    assert FirstDraft([LookupDraft(store=Store()), LookupDraft()]).remembers
    assert FirstDraft([LookupDraft(), RecycleDraft()]).observes_logits
    assert [part["draft"] for part in draft.metadata()["parts"]] == ["lookup", "model"]


class Noted(NoDraft):
    """Notes what it is told; some of it fails."""

    observes_logits = True

    def __init__(self, *failing: str) -> None:
        self.notes: list[str] = []
        self.failing = failing

    def _note(self, what: str) -> None:
        self.notes.append(what)
        if what in self.failing:
            raise RuntimeError(what)

    def open(self, context):
        self._note("open")

    def prefill(self, contexts):
        self._note("prefill")

    def observe(self, context, committed):
        self._note("observe")

    def observe_logits(self, context, verified):
        self._note("observe logits")

    def close(self, context):
        self._note("close")

    def release(self):
        self._note("release")


def test_every_part_is_told_everything_once() -> None:
    parts = [Noted(), Noted()]
    draft, one = FirstDraft(parts), context()
    draft.open(one)
    draft.prefill([one])
    draft.observe_logits(one, None)
    draft.observe(one, [1])
    draft.close(one)
    draft.release()
    told = ["open", "prefill", "observe logits", "observe", "close", "release"]
    assert [part.notes for part in parts] == [told, told]


def test_a_failing_part_leaves_no_other_open() -> None:
    fine, failing, last = Noted(), Noted("open"), Noted()
    with pytest.raises(RuntimeError, match="open"):
        FirstDraft([fine, failing, last]).open(context())
    assert (fine.notes, failing.notes, last.notes) == (["open", "close"], ["open"], [])

    parts = [Noted("close", "release"), Noted("close", "release"), Noted()]
    draft = FirstDraft(parts)
    for what in ("close", "release"):
        with pytest.raises(RuntimeError, match=what):
            getattr(draft, what)(context()) if what == "close" else draft.release()
    assert [part.notes for part in parts] == [["close", "release"]] * 3


def test_combinations_are_written_on_the_command_line() -> None:
    target = ToyEngine(27, seed=5)
    mixture = create_draft("mixture:weight=0.3,calibrate=yes,lookup:min_match=1+toy:2", target)
    assert isinstance(mixture, MixtureDraft)
    assert (mixture.weight, mixture.calibrate, mixture.observes_logits) == (0.3, True, True)
    assert mixture.parts[0].min_match == 1
    assert mixture.metadata()["weight"] == 0.3
    first = create_draft("first:lookup+model:calibrate=yes,toy:2", target)
    assert first.parts[1].observes_logits
    assert first.observes_logits
    assert isinstance(create_draft("cascade:lookup+toy:2+toy:3", target), CascadeDraft)
    for spec, fault in {
        "mixture:weight=2,lookup+toy:2": "weight is 2",
        "mixture:weight=nan,lookup+toy:2": "weight is nan",
        "mixture:weight=x,lookup+toy:2": "weight is 'x'. It must be a number",
        "mixture:calibrate=maybe,lookup+toy:2": "calibrate is 'maybe'. It must be yes or no",
        "mixture:wieght=1,lookup+toy:2": "no option of the draft 'mixture' named 'wieght'",
        "mixture:lookup+toy:2+toy:3": "mixture of 3 drafts",
        "first:weight=1,lookup+toy:2": "The draft 'first' has no option 'weight'",
        "model:calibrate=1,toy:2": "calibrate is '1'",
        "first:lookup": "made of 1 part",
        "first:": "made of drafts, joined by",
    }.items():
        with pytest.raises(SettingError) as caught:
            create_draft(spec, target)
        assert fault in str(caught.value), spec


def lookup_distribution(text: list[int], drafted: list[int], **options) -> int | None:
    draft, one = LookupDraft(**options), context(tokens=text)
    draft.open(one)
    draft.prefill([one])
    before = draft.propose([one], [4])
    [distribution] = draft.next_distributions([one], [drafted])
    assert draft.propose([one], [4]) == before, "to be asked ahead changes nothing"
    return None if distribution is None else distribution.single


def test_a_lookup_goes_on_behind_any_drafted_tokens() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 5, 1, 2]
    assert lookup_distribution(text, []) == 3
    assert lookup_distribution(text, [3]) == 4, "with its own continuation"
    assert lookup_distribution(text, [3, 4]) == 5
    assert lookup_distribution(text, [6, 7]) == 5, "elsewhere: matched anew"
    assert lookup_distribution(text, [9, 5]) is None, "one token is no match"
    assert lookup_distribution(text, [9, 5], min_match=1) == 1
    assert lookup_distribution(text, [9]) is None
    assert lookup_distribution(text, [3], reach=0.5) is None
    assert lookup_distribution([1, 2, 1, 2], [1, 2]) == 1
    assert lookup_distribution([1, 2, 1, 2], [1, 2, 1, 2, 1]) == 2, (
        "a text that repeats itself goes on"
    )
    store = Store()
    store.add([7, 8, 9])
    assert lookup_distribution([5, 6, 7], [8], store=store) == 9
    assert lookup_distribution([5, 6, 7], [8, 9], store=store) is None, (
        "a text of the store ends there"
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_lookup_s_match_behind_drafted_tokens_is_the_longest_there_is(seed: int) -> None:
    source = random.Random(seed)
    text = [source.randrange(3) for _ in range(40)]
    drafted = [source.randrange(3) for _ in range(source.randint(1, 4))]
    draft, one = LookupDraft(min_match=1), context(tokens=text)
    draft.open(one)
    draft.prefill([one])
    _, length = draft._states[one].own.next_behind(drafted)
    whole = text + drafted
    occurs = [
        n
        for n in range(1, len(whole))
        if any(text[i : i + n] == whole[-n:] for i in range(len(text) - n + 1))
    ]
    assert length == max(occurs, default=0)
    [distribution] = draft.next_distributions([one], [drafted])
    if distribution is not None:
        followers = {
            whole[i + length]
            for i in range(len(text) - length + 1)
            if whole[i : i + length] == whole[-length:] and i + length < len(whole)
        }
        assert distribution.single in followers


def test_a_model_s_distributions_behind_drafted_tokens_are_those_of_a_fresh_one() -> None:
    """Whatever it holds from being asked before: its own tokens, others', rejected ones."""
    engine, source = ToyEngine(8, seed=3, order=40), random.Random(2)
    sampling = Sampling(temperature=0.8, repetition_penalty=1.3)
    draft, one = ModelDraft(engine, engine), context(sampling=sampling, tokens=[1, 2, 3])
    draft.open(one)
    drafted: list[int] = []
    for turn in range(80):
        committed = [*one.history.tokens, *drafted]
        fresh = ModelDraft(engine, engine)
        other = context(sampling=sampling, tokens=committed)
        fresh.open(other)
        [distribution], [expected] = (
            draft.next_distributions([one], [drafted]),
            fresh.next_distributions([other], [[]]),
        )
        assert distribution.items() == expected.items()
        fresh.close(other)
        assert draft.pending_tokens(one) <= 1 + turn
        if source.random() < 0.3:
            drafted = [source.randrange(3) for _ in range(source.randint(1, 3))]
        elif source.random() < 0.5:
            drafted = [*drafted[: source.randint(0, len(drafted))], source.randrange(7)]
        else:
            for token in [*drafted[: source.randint(0, len(drafted))], source.randrange(7)]:
                one.history.commit(token)
            drafted = []


def test_a_model_sits_out_what_it_cannot_hold_and_follows_again() -> None:
    engine, target = ToyEngine(8, seed=3, context_size=6), ToyEngine(9, alphabet="abcdefgh")
    draft, one = ModelDraft(engine, target), context(tokens=[1, 2, 3, 4])
    draft.open(one)
    assert draft.next_distributions([one], [[8]]) == [None], "it has no row for that token"
    assert draft.next_distributions([one], [[1, 2, 3]]) == [None], "that is beyond its context"
    assert draft.next_distributions([one], [[1, 2]]) != [None]
    assert not draft._states[one].lost


@pytest.mark.parametrize("greedy", [Sampling(), Sampling(temperature=0.7, top_k=1)])
@pytest.mark.parametrize(("weight", "expected"), [(0.5, 3), (0.7, 3), (0.4, None)])
def test_a_greedy_mixture_takes_the_heavier_part_and_spares_the_other(
    greedy: Sampling, weight: float, expected: int | None
) -> None:
    engine = ToyEngine(8, seed=3)
    draft = MixtureDraft([LookupDraft(), ModelDraft(engine, engine)], weight)
    one = context(sampling=greedy, tokens=[1, 2, 3, 1, 2])
    draft.open(one)
    likeliest = int(engine.logits([1, 2, 3, 1, 2]).argmax())
    assert likeliest != 3
    draft.prefill([one])
    before = engine.forwards
    [proposal] = draft.propose([one], [1])
    assert proposal.tokens == ((likeliest if expected is None else expected),)
    assert proposal.distributions == (None,)
    assert (engine.forwards > before) == (expected is None)


def test_a_mixture_tells_the_mixture() -> None:
    engine = ToyEngine(8, seed=3)
    draft = MixtureDraft([LookupDraft(), ModelDraft(engine, engine)], 0.25)
    one = context(tokens=[1, 2, 3, 1, 2])
    draft.open(one)
    draft.prefill([one])
    [proposal] = draft.propose([one], [3])
    for index, distribution in enumerate(proposal.distributions):
        drafted = proposal.tokens[:index]
        [found], [model] = (part.next_distributions([one], [drafted]) for part in draft.parts)
        if found is None:
            assert distribution.items() == model.items()
            continue
        mixture = 0.75 * model.probs
        mixture[found.single] += 0.25
        assert np.allclose(distribution.probs, mixture)
        assert distribution.probs.sum() == pytest.approx(1, abs=1e-6)
    assert proposal.distributions[0].prob(3) > 0.25
