"""What the engine of GGUF files promises on each library, beyond `test_conformance`."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")

import tiny_gguf

from paceline.engines.base import Job
from paceline.engines.gguf import load as gguf_load
from paceline.engines.gguf.engine import GgufEngine
from paceline.errors import ModelError, SettingError

CLOSE: dict[str, float] = {"rtol": 0, "atol": 5e-3}

Kind = type[GgufEngine]


@pytest.fixture(params=tiny_gguf.ENGINES.values(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def functions(kind: Kind) -> Any:
    """The library's C functions."""
    return kind.library.functions


@pytest.fixture
def engine(kind: Kind) -> Iterator[GgufEngine]:
    with tiny_gguf.load("llama", 64, 4, kind) as engine:
        yield engine


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch, functions: Any) -> list[int]:
    """The number of tokens of every llama_decode."""
    counts: list[int] = []
    decode = functions.llama_decode

    def counting(context: Any, batch: Any) -> int:
        counts.append(batch.n_tokens)
        return decode(context, batch)

    monkeypatch.setattr(functions, "llama_decode", counting)
    return counts


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 264, length).tolist()


def fresh(kind: Kind, architecture: str, tokens: list[int], rows: int) -> np.ndarray:
    with tiny_gguf.load(architecture, tiny_gguf.CONTEXT, 1, kind) as engine:
        return np.array(engine.score([Job(engine.open(), tokens, rows)])[0])


# -- scoring


def test_a_ragged_batch_is_one_decode(engine: GgufEngine, decodes: list[int]) -> None:
    sequences = [engine.open() for _ in range(4)]
    engine.score([Job(s, text(n)) for s, n in zip(sequences, (1, 9, 3, 5), strict=True)])
    engine.score([Job(s, text(n), n) for s, n in zip(sequences, (4, 1, 9, 2), strict=True)])
    assert decodes == [18, 16]


def test_a_ragged_batch_is_one_forward(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, functions: Any
) -> None:
    """It would not be with a cache for each sequence: this counts the times logits are computed."""
    forwards: list[int] = []

    @EVAL_CALLBACK
    def watch(tensor: Any, ask: bool, _: Any) -> bool:
        if ask and name_of(kind, tensor) == "result_output":
            forwards.append(1)
        return False

    defaults = functions.llama_context_default_params

    def watched() -> Any:
        parameters = defaults()
        callback = dict(parameters._fields_)["cb_eval"] if kind.name == "llamacpp" else binding()
        parameters.cb_eval = ctypes.cast(watch, callback)
        return parameters

    monkeypatch.setattr(functions, "llama_context_default_params", watched)
    with tiny_gguf.load("llama", 64, 3, kind) as engine:
        sequences = [engine.open() for _ in range(3)]
        forwards.clear()
        engine.score([Job(s, text(n), n) for s, n in zip(sequences, (1, 3, 9), strict=True)])
        assert len(forwards) == 1


EVAL_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


def binding() -> Any:
    from ik_llama_cpp._ctypes_api import ggml_backend_sched_eval_callback

    return ggml_backend_sched_eval_callback


def name_of(kind: Kind, tensor: int) -> str:
    """The name of a ggml_tensor, by ggml's own accessor."""
    if kind.name == "ik":
        from ik_llama_cpp._ctypes_api import _lib as library
    else:
        from llama_cpp._ggml import libggml as library
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    library.ggml_get_name.restype = ctypes.c_char_p
    return str(library.ggml_get_name(tensor).decode())


def test_only_rows_that_are_asked_for_get_logits(
    engine: GgufEngine, monkeypatch: pytest.MonkeyPatch, functions: Any
) -> None:
    flags: list[list[int]] = []
    decode = functions.llama_decode

    def looking(context: Any, batch: Any) -> int:
        flags.append([batch.logits[i] for i in range(batch.n_tokens)])
        return decode(context, batch)

    monkeypatch.setattr(functions, "llama_decode", looking)
    engine.score([Job(engine.open(), text(7), 2), Job(engine.open(), text(3), 1)])
    assert [sum(row) for row in flags] == [3]


def test_rows_are_views_into_the_librarys_own_buffer(engine: GgufEngine, functions: Any) -> None:
    [first, second] = engine.score([Job(engine.open(), text(4), 2), Job(engine.open(), text(3), 3)])
    assert not first.flags.owndata
    assert second.ctypes.data == first.ctypes.data + first.nbytes
    got = functions.llama_get_logits(engine._context)
    assert got[0] == first[0, 0]


@pytest.mark.parametrize("architecture", tiny_gguf.MODELS)
def test_long_prompts_go_in_several_decodes(
    architecture: str, decodes: list[int], monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr("paceline.engines.gguf.engine.BATCH_TOKENS", 16)
    wanted = [(text(40, 1), 1), (text(25, 2), 3), (text(50, 3), 50)]
    with tiny_gguf.load(architecture, 64, 3, kind) as engine:
        decodes.clear()
        rows = engine.score([Job(engine.open(), *job) for job in wanted])
        assert max(decodes) == 16
        assert sum(decodes) == 115
        for (tokens, count), got in zip(wanted, rows, strict=True):
            np.testing.assert_allclose(got, fresh(kind, architecture, tokens, count), **CLOSE)


def test_prompts_longer_than_a_batch_leave_their_last_rows_in_place(
    decodes: list[int], monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr("paceline.engines.gguf.engine.BATCH_TOKENS", 16)
    with tiny_gguf.load("llama", 64, 2, kind) as engine:
        decodes.clear()
        first, second = engine.score([Job(engine.open(), text(33)), Job(engine.open(), text(30))])
        assert decodes == [16, 16, 16, 15]
        assert not first.flags.owndata
        assert not second.flags.owndata


def test_a_failed_decode_leaves_sequences_as_they_were(
    engine: GgufEngine, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    one, other = engine.open(), engine.open()
    engine.score([Job(one, text(5, 1)), Job(other, text(8, 2))])
    monkeypatch.setattr("paceline.engines.gguf.engine.Batch.fill", half_then_fail(engine))
    with pytest.raises(ModelError, match=r"llama_decode returned -1 \(.*\)"):
        engine.score([Job(one, text(6)), Job(other, text(3))])
    monkeypatch.undo()
    assert (one.length, other.length) == (5, 8)
    tokens = text(4, 9)
    for rows, held in zip(
        engine.score([Job(one, tokens, 4), Job(other, tokens, 4)]), ((5, 1), (8, 2)), strict=True
    ):
        np.testing.assert_allclose(rows, fresh(kind, "llama", text(*held) + tokens, 4), **CLOSE)


def half_then_fail(engine: GgufEngine) -> Any:
    fill = type(engine._batch).fill

    def filling(self: Any, segments: Any) -> Iterator[int]:
        yield from fill(self, segments[:1])  # this decode succeeds
        self.struct.n_tokens = 0  # and this one llama.cpp refuses
        yield 1

    return filling


def test_an_interrupt_leaves_sequences_as_they_were(
    engine: GgufEngine, monkeypatch: pytest.MonkeyPatch, kind: Kind, functions: Any
) -> None:
    sequence, decode = engine.open(), functions.llama_decode
    engine.score([Job(sequence, text(5))])

    def interrupted(context: Any, batch: Any) -> int:
        decode(context, batch)
        raise KeyboardInterrupt

    monkeypatch.setattr(functions, "llama_decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.score([Job(sequence, text(6, 1))])
    monkeypatch.undo()
    [rows] = engine.score([Job(sequence, text(3, 2), 3)])
    np.testing.assert_allclose(rows, fresh(kind, "llama", text(5) + text(3, 2), 3), **CLOSE)


# -- rewinding


def test_a_refused_rewind_is_an_error(
    engine: GgufEngine, monkeypatch: pytest.MonkeyPatch, functions: Any
) -> None:
    sequence = engine.open()
    engine.score([Job(sequence, text(5))])
    monkeypatch.setattr(functions, "llama_memory_seq_rm", lambda *_: False)
    with pytest.raises(ModelError, match=r"could not rewind llama\.gguf to 3 tokens"):
        sequence.rewind(3)
    assert sequence.length == 5


def test_a_copy_that_does_not_happen_is_an_error(
    engine: GgufEngine, monkeypatch: pytest.MonkeyPatch, functions: Any
) -> None:
    sequence = engine.open()
    engine.score([Job(sequence, text(5))])
    monkeypatch.setattr(functions, "llama_memory_seq_cp", lambda *_: None)
    with pytest.raises(ModelError, match="tokens -1 to -1 of a sequence of 5"):
        sequence.fork()
    monkeypatch.undo()
    assert len([engine.open() for _ in range(3)]) == 3


@pytest.mark.parametrize("architecture", tiny_gguf.MODELS)
def test_many_sequences_rewind_exactly(architecture: str, kind: Kind) -> None:
    """Several windows of text, in a cache where sequences fill the holes that others leave."""
    random = np.random.default_rng(3)
    with (
        tiny_gguf.load(architecture, 128, 3, kind) as engine,
        tiny_gguf.load(architecture, 128, 1, kind) as plain,
    ):
        sequences = [engine.open() for _ in range(3)]
        for _ in range(60):
            jobs = []
            for sequence in random.permutation(sequences)[: int(random.integers(1, 4))]:
                deep = random.random() < 0.2
                back = int(random.integers(0, sequence.length + 1 if deep else 9))
                sequence.rewind(max(0, sequence.length - back))
                count = min(int(random.integers(1, 24)), 128 - sequence.length)
                if not count:
                    sequence.rewind(9)
                jobs.append(Job(sequence, text(count or 5, int(random.integers(99))), 1))
            rows = engine.score(jobs)
            checked = plain.open()
            [expected] = plain.score([Job(checked, list(jobs[-1].sequence.tokens))])
            np.testing.assert_allclose(rows[-1], expected, rtol=0, atol=1e-2)
            checked.close()


def test_a_sliding_window_says_what_it_costs(kind: Kind) -> None:
    if kind.name == "ik":
        pytest.skip("it always keeps the whole cache")
    with tiny_gguf.load("gemma2", 256, 4, kind) as engine:
        metadata = engine.metadata()
    # two of three layers have a window of 8; kept whole they hold 1024 cells instead of 256
    layer = 1024 * 2 * tiny_gguf.TINY.key_heads * tiny_gguf.TINY.head * 2
    assert metadata["sliding_window_tokens"] == 8
    assert metadata["cache_bytes"] == pytest.approx(3 * layer, rel=0.05)
    assert metadata["sliding_window_kept_whole_bytes"] == pytest.approx(2 * layer * 3 / 4, rel=0.1)


def test_metadata_are_the_librarys_own(engine: GgufEngine) -> None:
    metadata = engine.metadata()
    assert engine.library.versions().items() <= metadata.items()
    assert engine.library.versions()
    assert metadata["sliding_window_tokens"] is None
    assert metadata["weights_bytes"] > 200_000
    assert metadata["threads"] == 1
    assert "AVX" in metadata["build"] or "NEON" in metadata["build"]


# -- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_size": 0}, "context_size is 0"),
        ({"context_size": 257}, "context_size is 257. The model takes 1 to 256"),
        ({"max_sequences": 0}, "max_sequences is 0"),
        ({"max_sequences": 100_000}, "max_sequences is 100000. This LIBRARY takes"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 5000}, "threads is 5000. LIBRARY takes"),
        ({"dtype": "float16"}, "no option of the ENGINE engine named 'dtype'"),
    ],
)
def test_settings_out_of_range_are_refused(
    options: dict[str, Any], message: str, kind: Kind
) -> None:
    message = message.replace("LIBRARY", kind.library.name).replace("ENGINE", kind.name)
    with pytest.raises(SettingError, match=message):
        kind.load(tiny_gguf.model_for(kind, "llama"), **options)


def test_recurrent_models_are_refused_by_name(kind: Kind) -> None:
    with pytest.raises(ModelError, match=r"mamba.gguf \(mamba\) is recurrent"):
        kind.load(tiny_gguf.model_for(kind, "mamba"))


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("llama_model_is_hybrid", "is hybrid"),
        ("llama_model_is_diffusion", "is a diffusion model"),
        ("llama_model_has_encoder", "has an encoder"),
    ],
)
def test_models_without_a_rewindable_text_are_refused(
    question: str, message: str, monkeypatch: pytest.MonkeyPatch, kind: Kind, functions: Any
) -> None:
    if not hasattr(functions, question):
        pytest.skip("it has no such models")
    monkeypatch.setattr(functions, question, lambda _: True)
    with pytest.raises(ModelError, match=message):
        kind.load(tiny_gguf.model_for(kind, "llama"))


def test_missing_files_and_directories_are_refused(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(ModelError, match=r"There is no file .*gone.gguf"):
        kind.load(str(tmp_path / "gone.gguf"))
    with pytest.raises(ModelError, match="is a directory"):
        kind.load(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 something else"])
def test_other_files_are_refused(content: bytes, tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF file"):
        kind.load(str(path))


@pytest.mark.parametrize("kept", [4, 7, 20, 100, 3000, 6000, 12_000, 150_000, -1])
def test_truncated_files_are_refused(
    kept: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: Kind
) -> None:
    whole = Path(tiny_gguf.model("llama")).read_bytes()
    path = tmp_path / "part.gguf"
    path.write_bytes(whole[:kept])
    with pytest.raises(ModelError) as caught:
        kind.load(str(path))
    message = str(caught.value)
    assert f"part.gguf ({len(whole[:kept]):,} bytes) can't be loaded: " in message
    assert "\n" not in message
    assert "no reason" not in message
    assert capfd.readouterr() == ("", "")


def test_the_library_prints_nothing(capfd: pytest.CaptureFixture[str], kind: Kind) -> None:
    with tiny_gguf.load("gemma2", 64, 2, kind) as engine:
        engine.score([Job(engine.open(), text(5))])
    assert capfd.readouterr() == ("", "")


def test_a_cache_larger_than_memory_is_refused(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.setattr(gguf_load, "free_bytes", lambda: 2**20)
    with pytest.raises(ModelError, match=r"The cache for 60 x 256 tokens needs 0.0 GiB; 0.0 GiB"):
        kind.load(tiny_gguf.model_for(kind, "llama"), max_sequences=60)


def test_a_context_that_cannot_be_made_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, functions: Any
) -> None:
    monkeypatch.setattr(functions, "llama_init_from_model", lambda *_: None)
    with pytest.raises(ModelError, match="No context for 1 x 256 tokens"):
        kind.load(tiny_gguf.model_for(kind, "llama"))


# -- life and death


def test_two_engines_work_side_by_side(kind: Kind) -> None:
    prompt = text(12)
    with (
        tiny_gguf.load("llama", 64, 1, kind) as target,
        tiny_gguf.load("gemma2", 64, 1, kind) as draft,
    ):
        pairs = [(engine, engine.open()) for engine in (target, draft)]
        for start in (0, 4, 8):
            for engine, sequence in pairs:
                [rows] = engine.score([Job(sequence, prompt[start : start + 4])])
                name = engine.model.removesuffix(".gguf")
                np.testing.assert_allclose(rows, fresh(kind, name, prompt[: start + 4], 1), **CLOSE)


def test_a_closed_engine_says_so(kind: Kind) -> None:
    engine = tiny_gguf.load("llama", 64, 1, kind)
    sequence = engine.open()
    engine.score([Job(sequence, [1, 2])])
    engine.close()
    engine.close()
    for use in (
        lambda: engine.score([Job(sequence, [3])]),
        engine.open,
        lambda: sequence.rewind(1),
        lambda: engine.tokenizer.encode("a"),
        lambda: engine.tokenizer.piece(7),
    ):
        with pytest.raises(ValueError, match="the engine is closed"):
            use()
    sequence.close()


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch, functions: Any) -> list[int]:
    """Every model and context that llama.cpp has made and not freed."""
    pointers: list[int] = []

    def watch(make: str, free: str) -> None:
        made, freed = getattr(functions, make), getattr(functions, free)

        def making(*arguments: Any) -> Any:
            pointer = made(*arguments)
            pointers.extend([pointer] if pointer else [])
            return pointer

        def freeing(pointer: int) -> None:
            pointers.remove(pointer)  # fails on what was freed before
            freed(pointer)

        monkeypatch.setattr(functions, make, making)
        monkeypatch.setattr(functions, free, freeing)

    watch("llama_model_load_from_file", "llama_model_free")
    watch("llama_init_from_model", "llama_free")
    return pointers


def test_what_is_loaded_is_freed_once(alive: list[int], kind: Kind) -> None:
    engine = tiny_gguf.load("llama", 64, 1, kind)
    assert len(alive) == 2
    engine.close()
    engine.close()
    assert not alive
    engine = tiny_gguf.load("llama", 64, 1, kind)
    del engine  # never closed
    gc.collect()
    assert not alive


def test_a_refused_load_frees_what_it_took(
    alive: list[int], monkeypatch: pytest.MonkeyPatch, kind: Kind, functions: Any
) -> None:
    with pytest.raises(ModelError, match="is recurrent"):
        kind.load(tiny_gguf.model_for(kind, "mamba"))
    with pytest.raises(SettingError):
        kind.load(tiny_gguf.model_for(kind, "llama"), context_size=10_000)
    monkeypatch.setattr(functions, "llama_get_memory", lambda _: None)
    with pytest.raises(ModelError, match="keeps no state"):
        kind.load(tiny_gguf.model_for(kind, "llama"))
    assert not alive


# -- a real model


@pytest.fixture
def real(smollm2_path: Path, kind: Kind) -> Iterator[GgufEngine]:
    with kind.load(str(smollm2_path), context_size=512, threads=1) as engine:
        yield engine


@pytest.mark.model
def test_a_real_model_answers(real: GgufEngine) -> None:
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    sequence, tokens = real.open(), real.tokenizer.encode_chat(chat)
    written: list[int] = []
    while len(written) < 12 and not real.tokenizer.end_tokens & set(written):
        [rows] = real.score([Job(sequence, tokens)])
        tokens = [int(rows[-1].argmax())]
        written += tokens
    assert "Paris" in real.tokenizer.decode(written)


@pytest.mark.model
def test_a_real_models_rows_hardly_depend_on_the_width(real: GgufEngine) -> None:
    tokens = real.tokenizer.encode("The quick brown fox jumps over the lazy dog, and then it")
    sequence = real.open()
    [wide] = real.score([Job(sequence, tokens, len(tokens))])
    wide = np.array(wide)
    sequence.rewind(0)
    narrow = [np.array(real.score([Job(sequence, [token])])[0][0]) for token in tokens]
    np.testing.assert_allclose(wide, narrow, rtol=0, atol=3)  # of logits from -25 to 25
    assert (wide.argmax(1) == np.argmax(narrow, axis=1)).mean() > 0.8
