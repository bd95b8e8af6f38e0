"""A part of the layers over the target's own cache: what it computes, and what it leaves alone."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_transformers as tiny  # noqa: E402

from paceline.engines.base import Job  # noqa: E402
from paceline.engines.transformers import layers as transformers_layers  # noqa: E402
from paceline.engines.transformers.head import ExitHead  # noqa: E402
from paceline.engines.transformers.layers import (  # noqa: E402
    HandOn,
    LayerStack,
    PartialEngine,
    identity,
    ranges,
)
from paceline.errors import ModelError, SettingError  # noqa: E402

TEXT = [5, 9, 5, 40, 41, 200, 3, 77, 5, 9, 8, 6]
PARTS = [(0,), (0, 1), (0, 2), (1,), (1, 2)]


@pytest.fixture(params=tiny.CONFIGS)
def target(request):
    engine = tiny.load(request.param, 64, 4)
    yield engine
    engine.close()


@pytest.fixture
def llama():
    engine = tiny.load("llama", 64, 4)
    yield engine
    engine.close()


def rows(engine, tokens: list[int]):
    """The rows of a text in a fresh sequence."""
    sequence = engine.open()
    [logits] = engine.score([Job(sequence, tokens, len(tokens))])
    sequence.close()
    return logits


def without(engine, kept: tuple[int, ...], tokens: list[int]):
    """The rows of the library's own forward, with the other layers told to do nothing."""
    stack = LayerStack("it", engine.module)
    hooks = [
        layer.register_forward_hook(lambda _, given, __: given[0])
        for at, layer in enumerate(stack.layers)
        if at not in kept
    ]
    engine.module.set_attn_implementation("eager")
    with torch.no_grad():
        logits = engine.module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    engine.module.set_attn_implementation("paceline")
    for hook in hooks:
        hook.remove()
    return logits.float()


@pytest.mark.parametrize("kept", PARTS)
def test_a_part_gives_what_the_library_gives_without_the_other_layers(target, kept) -> None:
    found = rows(PartialEngine(target, kept), TEXT)
    torch.testing.assert_close(found, without(target, kept, TEXT), rtol=1e-3, atol=1e-3)
    assert (found - rows(target, TEXT)).abs().max() > 1e-3, (
        "another distribution than the whole model's"
    )


def test_all_layers_by_the_same_way_are_the_whole_model(target) -> None:
    stack = LayerStack("it", target.module)
    whole = rows(target, TEXT)
    with stack.running(stack.part(range(len(stack.layers)))):
        again = rows(target, TEXT)
    assert torch.equal(whole, again)
    assert torch.equal(whole, rows(target, TEXT)), "and the model is as it was"


def test_states_behind_a_layer_are_read_out_as_the_part_does(target) -> None:
    stack = LayerStack("it", target.module)
    with stack.noting() as noted:
        whole = rows(target, TEXT)
    assert sorted(noted) == [0, 1, 2, 3]
    with torch.inference_mode():
        for exit_at in (1, 2):
            found = stack.read_out(torch.cat(noted[exit_at]))
            part = rows(PartialEngine(target, range(exit_at)), TEXT)
            torch.testing.assert_close(found, part, rtol=1e-4, atol=1e-4)
        last = stack.read_out(torch.cat(noted[3]))
    torch.testing.assert_close(last, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kept", [(0,), (0, 2)])
def test_a_part_sees_the_target_s_entries_and_its_own_behind_them(target, kept) -> None:
    """Its rows are those of the whole text whose committed part the target has read."""
    part, trunk = PartialEngine(target, kept), target.open()
    target.score([Job(trunk, TEXT[:7])])
    view = part.open(trunk)
    assert view.tokens == TEXT[:7]
    one_by_one = [part.score([Job(view, [token])])[0] for token in TEXT[7:]]
    view.rewind(7)
    [together] = part.score([Job(view, TEXT[7:], len(TEXT) - 7)])
    torch.testing.assert_close(torch.cat(one_by_one), together, rtol=1e-3, atol=1e-3)
    if kept == (0,):  # the first layers' entries are the same in the whole model
        torch.testing.assert_close(together, rows(part, TEXT)[7:], rtol=1e-3, atol=1e-3)
    assert trunk.tokens == TEXT[:7]
    view.close()
    assert not trunk.closed


def test_the_target_s_rows_are_the_same_to_the_bit_after_any_drafting(target) -> None:
    """Rounds of drafting, scoring chains and trees, rejecting, forking and rewinding, in two
    sequences; a control that never saw a draft scores the same jobs."""
    chosen = random.Random(4)
    part = PartialEngine(target, (0, 2))
    seen, unseen = [target.open(), target.open()], [target.open(), target.open()]
    views = [part.open(sequence) for sequence in seen]
    for both in (seen, unseen):
        target.score([Job(sequence, TEXT[: 3 + at]) for at, sequence in enumerate(both)])
    for turn in range(8):
        for view in views:
            view.follow()
        part.score([Job(view, [chosen.randrange(300)]) for view in views])
        for _ in range(chosen.randrange(4)):
            part.score([Job(views[turn % 2], [chosen.randrange(300)])])
        tokens = [chosen.randrange(300) for _ in range(4)]
        parents = (-1, 0, 0) if turn % 3 == 0 else None

        def jobs(sequences, tokens=tokens, parents=parents):
            return [Job(sequence, tokens, 4, parents=parents) for sequence in sequences]

        found, wanted = target.score(jobs(seen)), target.score(jobs(unseen))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), turn
        for sequence in (*seen, *unseen):
            if parents:
                sequence.rewind(sequence.length - 3, [0, 2] if turn % 2 else [])
            else:
                sequence.rewind(sequence.length - turn % 4)


def test_several_sequences_are_drafted_in_one_forward(llama) -> None:
    part = PartialEngine(llama, (0, 1))
    trunks = [llama.open() for _ in range(3)]
    llama.score([Job(trunk, TEXT[: 2 + at]) for at, trunk in enumerate(trunks)])
    views = [part.open(trunk) for trunk in trunks]
    together = part.score([Job(view, [7, 8], 2) for view in views])
    for trunk, found in zip(trunks, together, strict=True):
        view = part.open(trunk)
        [alone] = part.score([Job(view, [7, 8], 2)])
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)


def test_a_sequence_of_its_own_can_be_forked_rewound_and_given_back(llama) -> None:
    part = PartialEngine(llama, (0, 1))
    view = part.open()
    part.score([Job(view, TEXT[:6])])
    fork = view.fork()
    [one], [two] = part.score([Job(view, [9])]), part.score([Job(fork, [9])])
    assert torch.equal(one, two)
    view.rewind(6)
    [tree] = part.score([Job(view, [9, 9, 10], 3, parents=(-1, -1, 1))])
    torch.testing.assert_close(tree[0], tree[1], rtol=1e-4, atol=1e-4)
    view.rewind(6, [1, 2])
    assert view.tokens == [*TEXT[:6], 9, 10]
    torch.testing.assert_close(
        part.score([Job(view, [11])])[0][0],
        rows(part, [*TEXT[:6], 9, 10, 11])[-1],
        rtol=1e-3,
        atol=1e-3,
    )
    view.close()
    fork.close()
    assert len(llama.free_slots) == 4


def test_entries_of_the_target_are_never_written_over(llama) -> None:
    part, trunk = PartialEngine(llama, (0,)), llama.open()
    llama.score([Job(trunk, TEXT[:5])])
    view = part.open(trunk)
    view.rewind(3)
    with pytest.raises(ValueError, match="written over"):
        part.score([Job(view, [1])])
    trunk.close()
    view.follow()
    with pytest.raises(ValueError, match="closed"):
        part.score([Job(view, [1])])


def test_only_sequences_of_the_same_loaded_target_are_followed(llama) -> None:
    other = tiny.load("llama", 64, 1)
    with pytest.raises(SettingError, match="not one of"):
        PartialEngine(llama, (0,)).open(other.open())
    other.close()


@pytest.mark.parametrize(
    ("kept", "fact"),
    [((), "layers to run are none"), ((0, 3), "0.3, and .* 3, 0 to 2"), ((0, 1, 2), "All 3")],
)
def test_layers_that_are_none_or_all_are_refused(llama, kept, fact) -> None:
    with pytest.raises(SettingError, match=fact):
        PartialEngine(llama, kept)


def test_a_head_that_changes_nothing_changes_no_bit_and_one_that_does_is_used(llama) -> None:
    head = ExitHead(48, 4)
    before = rows(PartialEngine(llama, (0, 1)), TEXT)
    part = PartialEngine(llama, (0, 1), head)
    assert torch.equal(rows(part, TEXT), before)
    with torch.no_grad():
        head.gain += torch.linspace(-0.5, 0.5, 48)
        head.up += 0.1
    changed = rows(part, TEXT)
    assert (changed - before).abs().max() > 1e-3
    stack = LayerStack("it", llama.module)
    with stack.noting() as noted:
        rows(llama, TEXT)
    with torch.inference_mode():
        wanted = stack.read_out(head(noted[2][0]))
    torch.testing.assert_close(changed, wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(SettingError, match="not those"):
        PartialEngine(llama, (0, 2), head)


def test_what_runs_is_told_and_owns_nothing(llama) -> None:
    part = PartialEngine(llama, (0, 2))
    metadata = part.metadata()
    assert metadata["layers"] == "layers 0.2 of 3"
    assert metadata["weights_bytes"] == metadata["cache_bytes"] == 0
    assert metadata["device"] == llama.metadata()["device"]
    assert part.model != PartialEngine(llama, (0,)).model
    headed = PartialEngine(llama, (0,), ExitHead(48, 4))
    assert headed.metadata()["weights_bytes"] == 4 * (48 + 2 * 4 * 48)
    assert headed.model != PartialEngine(llama, (0,)).model
    part.close()
    assert rows(llama, TEXT).shape[0] == len(TEXT), "the target is still there"


def test_a_model_whose_layers_can_t_be_listed_is_refused(llama, monkeypatch) -> None:
    monkeypatch.setattr(transformers_layers, "_is_stack", lambda child, count: False)
    with pytest.raises(ModelError, match="has 0 lists of its 3 layers"):
        PartialEngine(llama, (0,))


def test_layers_that_give_something_else_than_states_are_refused(llama, monkeypatch) -> None:
    layer = llama.module.model.layers[1]
    forward = layer.forward
    monkeypatch.setattr(
        layer, "forward", lambda *given, **others: Pair(forward(*given, **others)), raising=False
    )
    with pytest.raises(ModelError, match="something else than states like those they get: 1"):
        PartialEngine(llama, (0,))


class Pair(torch.Tensor):
    """Stands for what older models give: a tensor that isn't the states alone."""

    def __new__(cls, states):
        return states[..., :1] * 0 + states.mean(-1, keepdim=True)


def test_a_part_that_runs_other_layers_than_asked_for_is_refused(llama, monkeypatch) -> None:
    monkeypatch.setattr(HandOn, "forward", lambda self, *a, **k: self._stands_for[0](*a, **k))
    with pytest.raises(ModelError, match=r"ran layers 0-2 where layers 0 of 3"):
        PartialEngine(llama, (0,))


def test_a_part_that_gives_other_states_than_asked_for_is_refused(llama, monkeypatch) -> None:
    monkeypatch.setattr(HandOn, "forward", lambda self, states, *a, **k: states.roll(1, -1))
    with pytest.raises(ModelError, match="relative error"):
        PartialEngine(llama, (0,))


def test_the_identity_tells_weights_apart_and_not_what_they_are_loaded_as(llama) -> None:
    here = identity(llama)
    assert here == identity(llama)
    llama.module.to(torch.bfloat16)
    assert identity(llama) == here
    with torch.no_grad():
        llama.module.model.layers[2].mlp.up_proj.weight[0, 0] += 1
    assert identity(llama)["digest"] != here["digest"]


def test_ranges_are_short() -> None:
    assert ranges([]) == ""
    assert ranges([3, 1, 2, 9, 12, 11]) == "1-3.9.11-12"
