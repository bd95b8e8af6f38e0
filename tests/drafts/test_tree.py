"""Trees of a model: how they grow, and that they change nothing."""

from __future__ import annotations

import pytest

from paceline import Request, Sampling, StopConditions, fixed, generate
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.base import Context
from paceline.drafts.create import create_draft
from paceline.drafts.model import ModelDraft
from paceline.drafts.tree import TreeDraft
from paceline.engines.toy import ToyEngine
from paceline.errors import SettingError
from paceline.sampling.history import History
from paceline.testing import enumerate_outcomes
from paceline.types import Proposal
from paceline.verify.tree import TreeVerifier


def target(**options) -> ToyEngine:
    return ToyEngine(10, seed=34, order=2, context_size=90, **options)


def sibling(**options) -> ToyEngine:
    """Another model that often agrees with the target on what comes first or second."""
    ours, other = target(), ToyEngine(10, seed=35, order=2)
    return ToyEngine(
        10,
        table=lambda context: ours.logits(context) + 0.7 * other.logits(context),
        context_size=90,
        **options,
    )


def proposed(draft: TreeDraft, max_draft_tokens: int, sampling: Sampling | None = None) -> Proposal:
    context = Context(History([1, 2, 3]), sampling or Sampling())
    draft.open(context)
    draft.prefill([context])
    [proposal] = draft.propose([context], [max_draft_tokens])
    draft.close(context)
    return proposal


def test_a_greedy_tree_is_chosen_and_begins_with_the_greedy_chain() -> None:
    engine = sibling()
    tree = proposed(TreeDraft(engine, target(), depth=3), 9)
    assert tree.distributions is None or set(tree.distributions) == {None}
    assert len(tree.tokens) == 9
    chain = ModelDraft(engine, target())
    context = Context(History([1, 2, 3]))
    chain.open(context)
    [first] = chain.propose([context], [2])
    deepest = [tree.tokens[0], tree.tokens[tree.parents.index(0)]]
    assert tuple(deepest) == first.tokens


def test_siblings_differ_and_levels_share_the_limit() -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        tree = proposed(TreeDraft(sibling(), target(), depth=3), 9, sampling)
        assert tree.parents is not None
        places = set(zip(tree.parents, tree.tokens, strict=True))
        assert len(places) == 9
        assert max(len(tree.path(index)) for index in range(9)) <= 3
        assert tree.parents[:3] == (-1, -1, -1)


def test_a_tree_takes_as_many_forwards_as_levels() -> None:
    engine = sibling()
    draft = TreeDraft(engine, target(), depth=3)
    proposed(draft, 9)
    assert engine.forwards == 1 + 3  # one has read the prompt
    assert draft.forwards == 3


def test_a_limit_of_one_is_one_token() -> None:
    assert len(proposed(TreeDraft(sibling(), target()), 1).tokens) == 1


def test_depth_beyond_the_tree_costs_nothing() -> None:
    engine = sibling()
    proposed(TreeDraft(engine, target(), depth=10**9), 3)
    assert engine.forwards <= 1 + 3


def test_filters_don_t_narrow_a_greedy_tree() -> None:
    tree = proposed(TreeDraft(sibling(), target(), depth=2), 6, Sampling(temperature=1, top_k=1))
    assert tree.parents is not None
    assert tree.parents.count(-1) == 3


def test_what_was_drawn_is_told_with_the_distribution_it_was_drawn_from() -> None:
    tree = proposed(TreeDraft(sibling(), target(), depth=2), 6, Sampling(temperature=1.0))
    assert tree.parents is not None
    for index, token in enumerate(tree.tokens):
        distribution = tree.distribution(index)
        assert distribution is not None
        assert distribution.prob(token) > 0
        earlier = [i for i in range(index) if tree.parents[i] == tree.parents[index]]
        assert all(distribution.prob(tree.tokens[i]) == 0 for i in earlier)
        assert sum(prob for _, prob in distribution.items()) == pytest.approx(1)


SETTINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.3, presence_penalty=0.4),
    Sampling(banned_tokens=(3,), min_tokens=5),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("depth", [1, 3])
def test_greedy_text_is_that_of_baseline_decoding(depth: int, sampling: Sampling) -> None:
    stop = StopConditions(max_tokens=60)
    baseline = generate(target(), [1, 2, 3], sampling=sampling, stop=stop)
    engine = target()
    draft = TreeDraft(sibling(), engine, depth=depth)
    got = generate(
        engine,
        [1, 2, 3],
        draft=draft,
        max_draft_tokens=6,
        verifier=TreeVerifier(),
        sampling=sampling,
        stop=stop,
    )
    assert got.tokens == baseline.tokens
    assert got.stats.accepted > 15
    assert any(round.path not in (None, (), (0,), (0, 1)) for round in got.rounds)


def test_a_batch_gives_what_each_gives_alone() -> None:
    requests = [
        Request(
            prompt=(n, n + 1, n),
            sampling=Sampling(temperature=0.9, seed=n),
            stop=StopConditions(max_tokens=25),
        )
        for n in range(1, 7)
    ]

    def texts(max_sequences: int) -> list[tuple[int, ...]]:
        engine = target(max_sequences=max_sequences)
        drafts = {"tree": TreeDraft(sibling(max_sequences=max_sequences), engine)}
        decoder = Decoder(engine, drafts, TreeVerifier(), fixed("tree", 5))
        done = decode(decoder, requests)
        assert not any(generation.error for generation in done)
        return [generation.tokens for generation in done]

    assert texts(4) == texts(1)


@pytest.mark.parametrize("max_draft_tokens", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_distribution_of_the_whole_loop_is_the_targets(
    seed: int, max_draft_tokens: int
) -> None:
    """Enumerated over everything the draft and the verifier may draw. The tree's shape depends on
    what was drawn, which is what could go wrong."""

    def distribution_of(drafted: bool) -> dict[tuple[int, ...], float]:
        def experiment(rng) -> tuple[int, ...]:
            engine = ToyEngine(3, seed=seed, order=1, sharpness=1.0)
            other = ToyEngine(3, seed=seed + 50, order=1, sharpness=1.0)
            drafts = {"tree": TreeDraft(other, engine, depth=2)} if drafted else {}
            policy = fixed("tree", max_draft_tokens) if drafted else fixed(None, 0)
            decoder = Decoder(engine, drafts, TreeVerifier(), policy)
            stop = StopConditions(max_tokens=1 + max_draft_tokens)
            stream = decoder.open(Request(prompt=(1,), sampling=Sampling(temperature=1), stop=stop))
            stream.rng = stream.context.rng = rng
            # The first round reads the prompt; of the following ones two are enough.
            while not stream.finished:
                decoder.step([stream])
            return tuple(stream.history.output)

        return enumerate_outcomes(experiment)

    baseline, ours = distribution_of(False), distribution_of(True)
    assert baseline.keys() == ours.keys()
    assert sum(abs(baseline[key] - ours[key]) for key in baseline) / 2 < 1e-6


def test_engines_without_trees_and_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SettingError, match="the target toy:34 can't"):
        TreeDraft(sibling(), target(trees=False))
    with pytest.raises(SettingError, match="the draft toy:0 can't"):
        TreeDraft(ToyEngine(10, trees=False), target())
    for spec, message in {
        "tree:depth=0,toy:35": "depth is 0",
        "tree:branches=x,toy:35": "branches is 'x'",
        "tree:depth=2": "made of a model, and none is named",
    }.items():
        with pytest.raises(SettingError, match=message):
            create_draft(spec, ToyEngine.load("toy:1"))


def test_it_is_created_from_its_specification() -> None:
    draft = create_draft("tree:depth=2,branches=3,toy:35", ToyEngine.load("toy:34"))
    assert isinstance(draft, TreeDraft)
    assert (draft.forwards, draft.most_branches, draft.branches) == (2, 3, True)
    draft.release()
