"""Sampled text with our drafts inside transformers follows the distribution of plain sampling."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models as tiny  # noqa: E402

from paceline.integrations.transformers import paceline_drafts  # noqa: E402

PROMPT = torch.tensor([[0, 1, 0, 0, 1, 1, 0, 1]])
SAMPLED: dict[str, Any] = {
    "max_new_tokens": 4,
    "do_sample": True,
    "top_k": 0,
    "pad_token_id": 0,
    "eos_token_id": None,
}


@pytest.fixture(scope="module")
def model() -> Any:
    """Of two tokens, none of them unlikely."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    found = tiny.llama(2).double().eval()
    with torch.no_grad():
        found.lm_head.weight *= 0.4
    return found


class Script:
    """Stands in for `torch.multinomial`, and draws in every possible way, one run after another:
    each run follows `ahead`, then takes first tokens; `next` is what the next run follows."""

    def __init__(self, ahead: list[int]) -> None:
        self.ahead, self.drawn, self.sizes = ahead, list[int](), list[int]()
        self.probability = 1.0

    def __call__(self, probs: Any, num_samples: int) -> Any:
        assert num_samples == 1
        found = []
        for row in probs:
            possible = torch.nonzero(row).flatten().tolist()
            at = len(self.drawn)
            index = self.ahead[at] if at < len(self.ahead) else 0
            self.drawn.append(index)
            self.sizes.append(len(possible))
            self.probability *= float(row[possible[index]])
            found.append([possible[index]])
        return torch.tensor(found)

    @property
    def next(self) -> list[int] | None:
        drawn = list(self.drawn)
        while drawn and drawn[-1] == self.sizes[len(drawn) - 1] - 1:
            drawn.pop()
        if not drawn:
            return None
        drawn[-1] += 1
        return drawn


def distribution(monkeypatch: Any, generate: Callable[[], Any]) -> dict[tuple[int, ...], float]:
    """The chance of each text, from all ways in which its draws can come out."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    ahead: list[int] | None = []
    while ahead is not None:
        script = Script(ahead)
        monkeypatch.setattr(torch, "multinomial", script)
        text = tuple(generate()[0, PROMPT.shape[1] :].tolist())
        found[text] += script.probability
        ahead = script.next
    monkeypatch.undo()
    assert math.isclose(sum(found.values()), 1.0, abs_tol=1e-5)
    return found


SETTINGS: dict[str, Any] = {
    "baseline": {},
    "warm": {"temperature": 1.7},
    "penalty": {"repetition_penalty": 1.5, "temperature": 0.8},
    "bias": {"sequence_bias": [[[0, 1], -1.0], [[1, 1, 0], 2.0]]},
    "top-p": {"top_p": 0.6},
    "end": {"eos_token_id": 0, "min_new_tokens": 2},
}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_every_text_has_the_rng_it_has_in_baseline_sampling(
    model: Any, options: Any, monkeypatch: Any
) -> None:
    settings = SAMPLED | options
    drafts = paceline_drafts(["lookup:min_match=1", "recycle"], max_draft_tokens=2)
    proposed = accepted = 0

    def drafted() -> Any:
        nonlocal proposed, accepted
        text = model.generate(PROMPT, custom_generate=drafts, **settings)
        proposed += drafts.stats.proposed
        accepted += drafts.stats.accepted
        return text

    theirs = distribution(monkeypatch, lambda: model.generate(PROMPT, **settings))
    ours = distribution(monkeypatch, drafted)
    assert 0 < accepted < proposed
    assert set(ours) == set(theirs)
    assert all(math.isclose(ours[text], theirs[text], abs_tol=1e-5) for text in theirs)


def test_the_enumeration_finds_a_draft_that_is_taken_too_often(
    model: Any, monkeypatch: Any
) -> None:
    """Else the test above shows nothing."""
    from paceline.integrations.assisted import DraftCandidates

    real = DraftCandidates.get_candidates

    def sure(self: Any, input_ids: Any, **options: Any) -> Any:
        """Logits that call every drafted token half as likely as it is (transformers then accepts
        by them)."""
        candidates, _ = real(self, input_ids, **options)
        drafted = candidates[0, input_ids.shape[1] :]
        if not len(drafted):
            return candidates, None
        return candidates, torch.zeros((1, len(drafted), 2), dtype=torch.float32)

    monkeypatch.setattr(DraftCandidates, "get_candidates", sure)
    monkeypatch.setattr(torch, "rand_like", lambda rows, **_: torch.full_like(rows, 0.5))
    drafts = paceline_drafts(["lookup:min_match=1"], max_draft_tokens=2)
    patches = pytest.MonkeyPatch()
    theirs = distribution(patches, lambda: model.generate(PROMPT, **SAMPLED))
    ours = distribution(patches, lambda: model.generate(PROMPT, custom_generate=drafts, **SAMPLED))
    assert max(abs(ours[text] - theirs[text]) for text in theirs) > 0.01


def test_the_policy_doesn_t_bend_the_distribution(model: Any) -> None:
    """Under a shared policy its limits depend on earlier texts, so draws are counted: 250 texts,
    chi-square over the four pairs of last tokens. With another seed it would fail at random in 1 of
    10,000 runs; the seed is fixed, and so are the seconds."""
    settings = SAMPLED | {"max_new_tokens": 4, "temperature": 0.9}
    drafts = paceline_drafts(share=True)
    from paceline.policy.live import LearnedCosts

    table = [math.inf, *(1.0 + 0.02 * row for row in range(34))]
    count, proposed = 250, 0
    probabilities: dict[tuple[int, ...], float] = {}
    with pytest.MonkeyPatch.context() as patches:
        probabilities = distribution(patches, lambda: model.generate(PROMPT, **settings))
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(LearnedCosts, "round_s", lambda self, sequences=1, context=0: table)
        patches.setattr(LearnedCosts, "needs_baseline", lambda self, sequences: False)
        torch.manual_seed(11)
        for _ in range(count):
            text = model.generate(PROMPT, custom_generate=drafts, **settings)
            seen[tuple(text[0, PROMPT.shape[1] :].tolist()[2:])] += 1
            proposed += drafts.stats.proposed
    assert proposed > count / 2
    pairs: dict[tuple[int, ...], float] = defaultdict(float)
    for text, probability in probabilities.items():
        pairs[text[2:]] += probability
    square = sum((seen[p] - count * c) ** 2 / (count * c) for p, c in pairs.items())
    assert len(pairs) == 4
    assert square < 21.1  # the 0.9999 quantile for 3 degrees of freedom
