"""The target's own layers as the draft: exact whatever they say, never behind, refused by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from paceline import Request, Sampling, StopConditions, create_draft, fixed, generate
from paceline.decode.generate import decode
from paceline.decode.step import Decoder
from paceline.drafts.base import Context
from paceline.drafts.early_exit import EarlyExitDraft, Setting, read_setting, write_setting
from paceline.engines.toy import ToyEngine, ToySequence
from paceline.errors import DataError, PairError, SettingError
from paceline.sampling.history import History
from paceline.testing import enumerate_outcomes
from paceline.types import Choice
from paceline.verify.block import BlockVerifier
from paceline.verify.chain import ChainVerifier


class ToyPart(ToyEngine):
    """Stands for a part of a toy target: other rows, over the target's own sequences."""

    def open(self, trunk=None) -> ToySequence:
        return ToyView(self, self.free_slots.pop(), trunk)


class ToyView(ToySequence):
    def __init__(self, engine: ToyPart, slot: int, trunk: ToySequence) -> None:
        super().__init__(engine, slot)
        self.trunk, self.followed = trunk, 0

    @property
    def base(self) -> int:
        return self.trunk.length

    def follow(self) -> None:
        self.tokens = list(self.trunk.tokens)
        self.followed = len(self.tokens)


def draft_of(seed: int, size: int = 10, **options) -> EarlyExitDraft:
    return EarlyExitDraft(ToyPart(size, seed=seed, max_sequences=8, **options))


@pytest.mark.parametrize("verifier", [ChainVerifier, BlockVerifier])
def test_the_whole_loop_is_exact_by_enumeration(verifier) -> None:
    sampling = Sampling(temperature=0.9, repetition_penalty=1.2)

    def outcome(max_draft_tokens: int, rng) -> tuple[int, ...]:
        engine = ToyEngine(3, seed=2, order=2, end_tokens=(2,))
        drafts = {"early-exit": draft_of(9, 3, end_tokens=(2,))}
        decoder = Decoder(engine, drafts, verifier(), fixed("early-exit", max_draft_tokens))
        request = Request(prompt=(0, 1, 0), sampling=sampling, stop=StopConditions(max_tokens=4))
        stream = decoder.open(request)
        stream.rng = stream.context.rng = rng
        while not stream.finished:
            decoder.step([stream])
        return tuple(stream.history.output)

    baseline = enumerate_outcomes(lambda rng: outcome(0, rng))
    drafted = enumerate_outcomes(lambda rng: outcome(2, rng))
    keys = baseline.keys() | drafted.keys()
    assert sum(baseline.values()) == pytest.approx(1, abs=1e-6)
    assert sum(abs(baseline.get(k, 0) - drafted.get(k, 0)) for k in keys) / 2 < 1e-6


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.8}, {"banned_tokens": (0, 5)}])
@pytest.mark.parametrize("seed", [34, 8])
def test_greedy_text_is_plain_text(settings, seed: int) -> None:
    """With a part that is the target itself, and with one that isn't."""
    engine = ToyEngine(10, seed=34, order=3)
    options = {"sampling": Sampling(**settings), "stop": StopConditions(max_tokens=40)}
    baseline = generate(engine, [1, 2, 3], **options)
    draft = draft_of(seed, order=3)
    drafted = generate(engine, [1, 2, 3], draft=draft, max_draft_tokens=4, **options)
    assert drafted.tokens == baseline.tokens
    assert drafted.stats.acceptance_rate == (1.0 if seed == 34 else pytest.approx(0.1, abs=0.3))
    assert draft.engine.sequences_open == 0


def test_it_is_never_behind_whoever_drafts_between() -> None:
    """Each drafted round feeds the last committed token and the drafted ones but the last."""
    engine, draft = ToyEngine(10, seed=34, order=3), draft_of(34, order=3)
    limits = [0, 3, 0, 0, 2, 1]

    def now_and_then(streams) -> list[Choice]:
        fed.append(draft.engine.rows_fed)
        return [Choice("early-exit", limits[len(s.rounds) % 6]) for s in streams]

    fed: list[int] = []
    stop = StopConditions(max_tokens=30)
    done = generate(engine, [1, 2, 3], draft=draft, policy=now_and_then, stop=stop)
    fed.append(draft.engine.rows_fed)
    for index, turn in enumerate(done.rounds):
        assert fed[index + 1] - fed[index] == turn.proposed
    assert draft.pending_tokens(Context(History([1, 2, 3]))) == 1


def test_a_draft_without_the_target_s_sequence_is_refused() -> None:
    with pytest.raises(SettingError, match="needs the target's own sequence"):
        draft_of(1).open(Context(History([1, 2])))


def test_another_engine_s_target_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="the engine toy only runs all of them"):
        create_draft("early-exit:layers=2", ToyEngine(8))


@pytest.mark.parametrize(
    ("spec", "fact"),
    [
        ("early-exit", "given no setting"),
        ("early-exit:layers=2,skip=1", "given layers and skip"),
        ("early-exit:depth=2", "no option 'depth'"),
    ],
)
def test_no_setting_two_settings_and_unknown_ones_are_refused(spec: str, fact: str) -> None:
    with pytest.raises(SettingError, match=fact):
        create_draft(spec, ToyEngine(8))


HERE = {"architecture": "ToyForCausalLM", "layers": 4, "digest": "ab"}


def test_a_setting_is_written_and_read_back(tmp_path: Path) -> None:
    path, head = tmp_path / "setting.json", tmp_path / "head.safetensors"
    written = Setting((0, 1), head, HERE, {"speedup": 1.1})
    write_setting(path, written)
    assert read_setting(path, HERE) == written
    moved = tmp_path / "moved"
    moved.mkdir()
    path.rename(moved / "setting.json")
    assert read_setting(moved / "setting.json", HERE).head == moved / "head.safetensors"


def test_a_setting_of_another_target_or_none_at_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "setting.json"
    write_setting(path, Setting((0, 1), None, HERE, {}))
    with pytest.raises(PairError, match="whose layers is 4; this one's is 5"):
        read_setting(path, HERE | {"layers": 5})
    path.write_text(json.dumps({"kind": "paceline costs"}))
    with pytest.raises(DataError, match="is not a paceline early-exit setting file"):
        read_setting(path, HERE)
    with pytest.raises(DataError, match="can't be read"):
        read_setting(tmp_path / "none.json", HERE)


# With the transformers engine.

CHANGES = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.3},
    "masks": {"banned_tokens": (3, 4, 5), "min_tokens": 6, "logit_bias": {9: 2.0}},
}


@pytest.fixture(scope="module")
def tiny():
    pytest.importorskip("transformers")
    sys.path.append(str(Path(__file__).parents[1] / "engines"))
    import tiny_transformers

    return tiny_transformers


@pytest.fixture
def llama(tiny):
    engine = tiny.load("llama", 96, 3)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("spec", "kept"),
    [("layers=1", (0,)), ("layers=2", (0, 1)), ("skip=1", (0, 2)), ("skip=0-1", (2,)),
     ("skip=0.2", (1,))],
)  # fmt: skip
def test_a_specification_says_which_layers_run(llama, spec: str, kept) -> None:
    draft = create_draft(f"early-exit:{spec}", llama)
    assert isinstance(draft, EarlyExitDraft)
    assert draft.engine.kept == kept


@pytest.mark.parametrize(
    ("spec", "fact"),
    [
        ("layers=3", "layers is 3, and the target has 3"),
        ("layers=0", "layers is 0"),
        ("layers=two", "layers is two"),
        ("skip=0-2", "all 3 layers"),
        ("skip=2-5", "names layers 2-5"),
        ("skip=2-1", "names layers 2-1"),
        ("skip=1.x", "'x' is no layer"),
    ],
)
def test_layers_outside_the_model_are_refused_by_name(llama, spec: str, fact: str) -> None:
    with pytest.raises(SettingError, match=fact):
        create_draft(f"early-exit:{spec}", llama)


@pytest.mark.parametrize("settings", CHANGES)
@pytest.mark.parametrize("spec", ["layers=2", "skip=1"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_greedy_text_of_a_real_target_is_plain_text(tiny, name, spec, settings) -> None:
    engine = tiny.load(name, 96, 1)
    options = {
        "sampling": Sampling(**CHANGES[settings]),
        "stop": StopConditions(max_tokens=40, ignore_end=True),
        "logprobs": True,
    }
    baseline = generate(engine, [5, 9, 40, 41], **options)
    draft = create_draft(f"early-exit:{spec}", engine)
    drafted = generate(engine, [5, 9, 40, 41], draft=draft, max_draft_tokens=3, **options)
    assert drafted.tokens == baseline.tokens
    assert drafted.log_probs == pytest.approx(baseline.log_probs, abs=1e-3)
    assert drafted.stats.proposed > 20
    engine.close()


def test_a_batch_gives_each_request_what_it_gets_alone(llama) -> None:
    def requests() -> list[Request]:
        return [
            Request(
                prompt=tuple(range(20, 23 + 2 * i)),
                sampling=Sampling(repetition_penalty=1 + 0.2 * (i % 2)),
                stop=StopConditions(max_tokens=6 + 5 * i, ignore_end=True),
                max_draft_tokens=[None, 0, 2][i % 3],
            )
            for i in range(6)
        ]

    draft = create_draft("early-exit:layers=2", llama)
    decoder = Decoder(llama, {"d": draft}, ChainVerifier(), fixed("d", 3))
    together = decode(decoder, requests())
    assert len(llama.free_slots) == 3
    baseline = decode(Decoder(llama, {}, ChainVerifier(), fixed(None, 0)), requests())
    assert [g.tokens for g in together] == [g.tokens for g in baseline]
    assert sum(g.stats.accepted for g in together) > 0


def test_sampled_distributions_are_those_of_the_part_as_drawn(llama) -> None:
    from paceline.sampling.processors import distribution_of

    sampling = Sampling(temperature=0.8, top_k=30, seed=1)
    draft = create_draft("early-exit:layers=2", llama)
    seen: list[tuple[list[int], list]] = []
    propose = draft.propose

    def watched(contexts: Sequence[Context], limits: Sequence[int]):
        proposals = propose(contexts, limits)
        seen.extend((list(c.history.tokens), p) for c, p in zip(contexts, proposals, strict=True))
        return proposals

    draft.propose = watched
    stop = StopConditions(max_tokens=20, ignore_end=True)
    generate(llama, [5, 9, 40], draft=draft, max_draft_tokens=3, sampling=sampling, stop=stop)
    assert len(seen) > 3
    from paceline.engines.base import Job

    for before, proposal in seen:
        for index, distribution in enumerate(proposal.distributions):
            view = draft.engine.open()
            text = [*before, *proposal.tokens[:index]]
            [row] = draft.engine.score([Job(view, text)])
            view.close()
            assert distribution is not None
            wanted = dict(distribution_of(row[0], sampling).items())
            assert dict(distribution.items()) == pytest.approx(wanted, abs=1e-4)


def test_a_context_that_ends_ends_drafting_too(llama) -> None:
    draft = create_draft("early-exit:layers=1", llama)
    stop = StopConditions(ignore_end=True)
    baseline = generate(llama, [5, 9, 40], stop=stop)
    drafted = generate(llama, [5, 9, 40], stop=stop, draft=draft, max_draft_tokens=5)
    assert drafted.tokens == baseline.tokens
    assert len(drafted.tokens) == 93


def test_the_policy_prices_each_setting_by_itself(llama, tmp_path, monkeypatch) -> None:
    from paceline.bench.profile.measured_policy import measured_policy
    from paceline.bench.profile.profile import costs_key

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    drafts = {spec: create_draft(f"early-exit:{spec}", llama) for spec in ("layers=1", "layers=2")}
    keys = {json.dumps(costs_key(d.engine)) for d in drafts.values()}
    assert len(keys | {json.dumps(costs_key(llama))}) == 3
    policy = measured_policy(llama, drafts, on_measure=lambda _: None)
    stop = StopConditions(max_tokens=30, ignore_end=True)
    baseline = generate(llama, [5, 9, 40], stop=stop)
    assert generate(llama, [5, 9, 40], stop=stop, draft=drafts, policy=policy).tokens == (
        baseline.tokens
    )
    assert len(llama.free_slots) == 3
    assert len(list((tmp_path / "costs").iterdir())) == 3


def test_a_setting_file_brings_layers_and_head(llama, tmp_path: Path) -> None:
    from paceline.engines.transformers.head import ExitHead, HeadFile, save_head
    from paceline.engines.transformers.layers import identity

    here = identity(llama)
    write_setting(tmp_path / "plain.json", Setting((0, 2), None, here, {}))
    draft = create_draft(f"early-exit:setting={tmp_path / 'plain.json'}", llama)
    assert (draft.engine.kept, draft.engine.head) == ((0, 2), None)
    save_head(tmp_path / "head.safetensors", HeadFile(ExitHead(48, 4), 2, here, {"a": 1}))
    write_setting(tmp_path / "head.json", Setting((0, 1), tmp_path / "head.safetensors", here, {}))
    for spec in (f"setting={tmp_path / 'head.json'}", f"head={tmp_path / 'head.safetensors'}"):
        draft = create_draft(f"early-exit:{spec}", llama)
        assert (draft.engine.kept, draft.engine.head.rank) == ((0, 1), 4)


def test_a_head_of_another_target_and_a_file_that_is_none_are_refused(tiny, llama, tmp_path):
    from paceline.engines.transformers.head import ExitHead, HeadFile, save_head
    from paceline.engines.transformers.layers import identity

    path = tmp_path / "head.safetensors"
    other = tiny.load("qwen2", 96, 1)
    save_head(path, HeadFile(ExitHead(48, 4), 2, identity(other), {}))
    with pytest.raises(PairError, match="whose architecture is Qwen2ForCausalLM"):
        create_draft(f"early-exit:head={path}", llama)
    assert create_draft(f"early-exit:head={path}", other).engine.kept == (0, 1)
    path.write_bytes(b"no tensors here")
    with pytest.raises(DataError, match="can't be read"):
        create_draft(f"early-exit:head={path}", llama)
    import torch
    from safetensors.torch import save_file

    save_file({"gain": torch.zeros(48)}, str(path), {"kind": "another"})
    with pytest.raises(DataError, match="holds no exit head"):
        create_draft(f"early-exit:head={path}", llama)
    with pytest.raises(DataError, match="can't be read"):
        create_draft(f"early-exit:head={tmp_path / 'none'}", llama)
