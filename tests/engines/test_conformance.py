"""What every engine promises, run over every engine. A case is a name and a function that loads a
small model: `load(context_size, max_sequences) -> Engine`. Tolerances are per case, because a
real engine's kernels differ with the width of a forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from paceline.engines.base import Engine, Job
from paceline.engines.toy import ToyEngine
from paceline.errors import ModelError, PromptError, SettingError
from paceline.types import path_of


@dataclass(frozen=True)
class Case:
    name: str
    load: Callable[[int, int], Engine]
    tolerance: float


def toy(context_size: int, max_sequences: int) -> Engine:
    return ToyEngine(16, order=6, context_size=context_size, max_sequences=max_sequences)


CASES = [Case("toy", toy, 0.0)]

if find_spec("torch") and find_spec("transformers"):
    import tiny_transformers

    CASES += [
        Case(f"transformers-{name}", partial(tiny_transformers.load, name), 2e-4)
        for name in ("llama", "mistral", "gemma2", "gemma3")
    ]

if (find_spec("llama_cpp") or find_spec("ik_llama_cpp")) and find_spec("gguf"):
    import tiny_gguf

    CASES += [
        Case(f"{engine}-{name}", partial(tiny_gguf.load, name, engine=kind), 5e-3)
        for engine, kind in tiny_gguf.ENGINES.items()
        for name in tiny_gguf.MODELS
    ]

    if find_spec("openvino") and find_spec("openvino_genai"):
        import tiny_openvino

        CASES += [
            Case("openvino-strict", tiny_openvino.load, 1e-3),
            # A cache of sixteen bits, and whatever arithmetic this processor prefers.
            Case("openvino-auto", tiny_openvino.load_auto, 0.1),
        ]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def engine(case: Case) -> Iterator[Engine]:
    with case.load(64, 4) as engine:
        yield engine


def text(engine: Engine, length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, engine.vocabulary_size, length).tolist()


def fresh(engine: Engine, tokens: list[int], rows: int = 1) -> np.ndarray:
    """The logits after tokens, from a sequence that never held anything else."""
    sequence = engine.open()
    try:
        return to_numpy(engine.score([Job(sequence, tokens, rows)])[0])
    finally:
        sequence.close()


def to_numpy(array: object) -> np.ndarray:
    return np.array(np.asarray(array), dtype=np.float32)


def close(case: Case, ours: object, theirs: object) -> None:
    np.testing.assert_allclose(to_numpy(ours), to_numpy(theirs), rtol=0, atol=case.tolerance)


def test_rows_are_float32_of_the_vocabulary(engine: Engine) -> None:
    [rows] = engine.score([Job(engine.open(), text(engine, 5), 3)])
    assert tuple(rows.shape) == (3, engine.vocabulary_size)
    assert "float32" in str(rows.dtype)


def test_rewind_then_score_equals_a_fresh_sequence(case: Case, engine: Engine) -> None:
    tokens, other = text(engine, 20), text(engine, 9, seed=1)
    for keep in (0, 1, 7, 15, 19):
        sequence = engine.open()
        engine.score([Job(sequence, tokens)])
        engine.score([Job(sequence, other, 9)])
        sequence.rewind(keep)
        assert sequence.tokens == tokens[:keep]
        [rows] = engine.score([Job(sequence, other[:4], 4)])
        close(case, to_numpy(rows), fresh(engine, tokens[:keep] + other[:4], 4))
        sequence.close()


def test_many_rounds_of_drafting_leave_no_trace(case: Case, engine: Engine) -> None:
    """Several windows of text, each round feeding tokens that are then half rejected."""
    random = np.random.default_rng(5)
    sequence, held = engine.open(), text(engine, 6)
    engine.score([Job(sequence, held)])
    while len(held) < 50:
        block = random.integers(0, engine.vocabulary_size, int(random.integers(1, 9))).tolist()
        kept = int(random.integers(0, len(block) + 1))
        [rows] = engine.score([Job(sequence, block, len(block))])
        close(case, to_numpy(rows), fresh(engine, held + block, len(block)))
        held += block[:kept]
        sequence.rewind(len(held))


def test_a_batch_of_uneven_rows_equals_each_alone(case: Case, engine: Engine) -> None:
    prompts = [text(engine, length, seed=length) for length in (3, 17, 1, 8)]
    more = [text(engine, length, seed=length + 50) for length in (5, 1, 2, 9)]
    sequences = [engine.open() for _ in prompts]
    batch = engine.score([Job(s, p) for s, p in zip(sequences, prompts, strict=True)])
    batch = [to_numpy(rows) for rows in batch]
    for rows, prompt in zip(batch, prompts, strict=True):
        close(case, rows, fresh_elsewhere(case, prompt, 1))
    order = [2, 0, 3]  # some sequences pause, and the order is another
    rows = engine.score([Job(sequences[i], more[i], len(more[i])) for i in order])
    for i, got in zip(order, [to_numpy(r) for r in rows], strict=True):
        close(case, got, fresh_elsewhere(case, prompts[i] + more[i], len(more[i])))
    [rows] = engine.score([Job(sequences[1], more[1])])
    close(case, rows, fresh_elsewhere(case, prompts[1] + more[1], 1))


def fresh_elsewhere(case: Case, tokens: list[int], rows: int) -> np.ndarray:
    with case.load(64, 1) as engine:
        return fresh(engine, tokens, rows)


def test_fork_goes_its_own_way(case: Case, engine: Engine) -> None:
    tokens, left, right = (text(engine, 6, seed) for seed in (1, 2, 3))
    trunk = engine.open()
    engine.score([Job(trunk, tokens)])
    branch = trunk.fork()
    assert branch.tokens == tokens
    engine.score([Job(trunk, left), Job(branch, right)])
    ours, theirs = engine.score([Job(trunk, right), Job(branch, left)])
    ours, theirs = to_numpy(ours), to_numpy(theirs)
    trunk.close(), branch.close()
    close(case, ours, fresh(engine, tokens + left + right))
    close(case, theirs, fresh(engine, tokens + right + left))


def test_the_context_can_be_filled_to_its_end_and_no_further(case: Case, engine: Engine) -> None:
    sequence, tokens = engine.open(), text(engine, 64)
    engine.score([Job(sequence, tokens[:60])])
    [rows] = engine.score([Job(sequence, tokens[60:], 4)])
    rows = to_numpy(rows)
    with pytest.raises(PromptError, match="65 tokens are more than the context of 64"):
        engine.score([Job(sequence, [1])])
    assert sequence.length == 64
    sequence.rewind(63)
    [again] = engine.score([Job(sequence, tokens[63:])])
    close(case, again, rows[-1:])


def test_closed_sequences_give_their_room_back(engine: Engine) -> None:
    for _ in range(3):
        sequences = [engine.open() for _ in range(engine.capabilities.max_sequences)]
        with pytest.raises(ModelError, match="are open"):
            engine.open()
        engine.score([Job(sequence, [1, 2, 3]) for sequence in sequences])
        for sequence in sequences:
            sequence.close()
            sequence.close()
    close_room = engine.open()
    assert close_room.length == 0


def test_tokens_outside_the_vocabulary_are_refused(engine: Engine) -> None:
    with pytest.raises(PromptError, match="outside the vocabulary"):
        engine.score([Job(engine.open(), [engine.vocabulary_size])])


def test_one_sequence_twice_in_a_forward_is_refused(engine: Engine) -> None:
    sequence = engine.open()
    with pytest.raises(ValueError, match="once in a forward"):
        engine.score([Job(sequence, [1]), Job(sequence, [2])])


def test_rewinding_past_what_is_held_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="0 tokens are held"):
        engine.open().rewind(1)


def test_text_goes_to_tokens_and_back(engine: Engine) -> None:
    written = "abba cab" if engine.vocabulary_size > 26 else "abbacab"
    tokens = engine.tokenizer.encode(written)
    assert engine.tokenizer.decode(tokens).strip() == written
    assert engine.tokenizer.text_bytes(tokens).decode().strip() == written
    assert all(engine.tokenizer.token_bytes(t) == b"" for t in engine.tokenizer.end_tokens)


def test_metadata_name_engine_and_model(engine: Engine) -> None:
    metadata = engine.metadata()
    assert metadata["engine"] == engine.name
    assert metadata["model"] == engine.model
    if "weights_bytes" in metadata:  # what a pass reads is told by these
        size = engine.capabilities.context_size
        assert metadata["context_size"] == size
        assert metadata["max_sequences"] == engine.capabilities.max_sequences
        assert metadata["cache_bytes"] > 0
        assert metadata["device"]


TREE = (-1, 0, 0, -1, 3, 2, 3)
"""Two branches at the root, two more in each; a token of one stands between those of another."""


def tree_rows(case: Case, engine: Engine, trunk: list[int], nodes: list[int]) -> list[np.ndarray]:
    """What each row of a tree must be: that of its path alone, from a fresh sequence."""
    paths = [path_of(TREE, index) for index in range(-1, len(TREE))]
    return [fresh_elsewhere(case, trunk + [nodes[i] for i in path], 1) for path in paths]


def needs_trees(engine: Engine) -> None:
    if not engine.capabilities.trees:
        with pytest.raises(SettingError, match="can't score a tree"):
            engine.score([Job(engine.open(), [1, 2, 3], parents=(-1, -1))])
        pytest.skip("this model can't: it says so")


@pytest.mark.parametrize("held", [0, 1, 11])
def test_each_row_of_a_tree_sees_its_path_only(case: Case, engine: Engine, held: int) -> None:
    needs_trees(engine)
    trunk, nodes = text(engine, 13), text(engine, len(TREE), seed=1)
    wanted = tree_rows(case, engine, trunk, nodes)
    sequence = engine.open()
    if held:
        engine.score([Job(sequence, trunk[:held])])
    job = Job(sequence, trunk[held:] + nodes, len(TREE) + 1, TREE)
    [rows] = engine.score([job])
    for row, want in zip(to_numpy(rows), wanted, strict=True):
        close(case, row, want[0])


@pytest.mark.parametrize("path", [(), (0,), (3,), (0, 2), (0, 2, 5), (3, 4), (3, 6)], ids=str)
def test_of_a_tree_only_the_accepted_path_stays(
    case: Case, engine: Engine, path: tuple[int, ...]
) -> None:
    needs_trees(engine)
    trunk, nodes, more = text(engine, 9), text(engine, len(TREE), seed=1), text(engine, 4, seed=2)
    sequence = engine.open()
    engine.score([Job(sequence, trunk[:8])])
    for _ in range(2):  # the second tree finds the first one's places free
        engine.score([Job(sequence, trunk[8:] + nodes, len(TREE) + 1, TREE)])
        with pytest.raises(ValueError, match="holds a tree"):
            engine.score([Job(sequence, [1])])
        with pytest.raises(ValueError, match="holds a tree"):
            sequence.fork()
        sequence.rewind(9, path)
        held = trunk + [nodes[index] for index in path]
        assert sequence.tokens == held
        [rows] = engine.score([Job(sequence, more, 4)])
        close(case, rows, fresh(engine, held + more, 4))
        sequence.rewind(8)


def test_trees_and_chains_share_a_forward(case: Case, engine: Engine) -> None:
    needs_trees(engine)
    prompts = [text(engine, length, seed=length) for length in (5, 9, 3)]
    nodes, chain = text(engine, len(TREE), seed=1), text(engine, 4, seed=2)
    wanted = [tree_rows(case, engine, prompts[at], nodes) for at in (0, 2)]
    sequences = [engine.open() for _ in prompts]
    engine.score([Job(s, p[:-1]) for s, p in zip(sequences, prompts, strict=True)])
    first, second, third = sequences
    rows = engine.score(
        [
            Job(first, prompts[0][-1:] + nodes, 8, TREE),
            Job(second, prompts[1][-1:] + chain, 5),
            Job(third, prompts[2][-1:] + nodes, 8, TREE),
        ]
    )
    ours = [to_numpy(found) for found in rows]
    close(case, ours[1], fresh_elsewhere(case, prompts[1] + chain, 5))
    for found, want in zip((ours[0], ours[2]), wanted, strict=True):
        close(case, found, np.concatenate(want))
    first.rewind(5, (3, 6))
    third.close()
    second.rewind(10)
    again = engine.score([Job(first, chain), Job(second, chain)])
    ours = [to_numpy(found) for found in again]
    close(case, ours[0], fresh_elsewhere(case, [*prompts[0], nodes[3], nodes[6], *chain], 1))
    close(case, ours[1], fresh_elsewhere(case, [*prompts[1], chain[0], *chain], 1))


def test_a_chain_written_as_a_tree_is_a_chain(engine: Engine) -> None:
    assert Job(engine.open(), [1, 2, 3], parents=(-1, 0)).parents is None


def test_a_path_without_a_tree_is_refused(engine: Engine) -> None:
    sequence = engine.open()
    engine.score([Job(sequence, [1, 2, 3])])
    with pytest.raises(ValueError, match="none is held"):
        sequence.rewind(1, (0,))


def test_a_tree_of_a_closed_engine_is_not_rewound(engine: Engine) -> None:
    """Its memory is freed."""
    if not engine.capabilities.trees:
        pytest.skip("has no trees")
    sequence = engine.open()
    engine.score([Job(sequence, [1, 2, 3], parents=(-1, -1))])
    engine.close()
    with pytest.raises(ValueError, match="closed"):
        sequence.rewind(2)
