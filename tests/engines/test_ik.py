"""What holds of ik_llama.cpp alone: its interface, its widths, its cache, and the same text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ik_llama_cpp")
pytest.importorskip("gguf")

import tiny_gguf

from paceline import StopConditions, create_draft, generate, plugins
from paceline.engines import load as loading
from paceline.engines.base import Engine, Job
from paceline.engines.gguf import ik, widths
from paceline.engines.gguf.ik import IkEngine
from paceline.engines.gguf.widths import NARROW, WIDE, Widths
from paceline.errors import ModelError, SettingError, UnknownModelError


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 264, length).tolist()


def score(engine: Engine, sequence: Any, tokens: list[int], rows: int = 1) -> np.ndarray:
    return np.array(engine.score([Job(sequence, tokens, rows)])[0])


# -- the interface


def test_a_library_laid_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ik._CONTEXT_DEFAULTS, "n_batch", 4096)
    with pytest.raises(ImportError, match="says 2048 of n_batch, not 4096"):
        ik._declare()


def test_a_library_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ik._FUNCTIONS, "llama_gone", ("", [], None))  # type: ignore[index]
    with pytest.raises(ImportError, match=r"ik-llama-cpp-python [\d.]+ has no llama_gone"):
        ik._declare()


def test_a_processor_without_avx2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ik, "cpu_field", lambda _: "fpu sse2 avx")
    with pytest.raises(ImportError, match="need AVX2"):
        ik._declare()
    monkeypatch.setattr(loading, "cpu_field", lambda _: "fpu sse2 avx")
    assert loading.engine_of(tiny_gguf.model("llama")) == "llamacpp"


# -- which of the two reads a file


def test_a_gguf_file_is_read_by_ik_where_it_is_installed() -> None:
    assert loading.engine_of(tiny_gguf.model("llama")) == "ik"


def test_what_ik_does_not_know_is_read_by_llama_cpp(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("llama_cpp")
    with caplog.at_level(logging.WARNING, "paceline"), loading.load(gemma_of_no_size()) as engine:
        assert engine.name == "llamacpp"
    [record] = caplog.records
    assert record.getMessage() == (
        "ik_llama.cpp runs gemma2 in the sizes that it knows only. "
        "The engine llamacpp is used instead."
    )


def gemma_of_no_size() -> str:
    return tiny_gguf.model("gemma2")


def test_a_forced_engine_is_not_replaced() -> None:
    with pytest.raises(UnknownModelError, match="runs gemma2 in the sizes"):
        loading.load(gemma_of_no_size(), engine="ik")


def test_without_llama_cpp_the_refusal_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: name == "ik_llama_cpp" or None)
    with pytest.raises(UnknownModelError, match="runs gemma2 in the sizes"):
        loading.load(gemma_of_no_size())


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    data = Path(tiny_gguf.model("llama")).read_bytes()
    path = tmp_path / "new.gguf"
    path.write_bytes(
        data.replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05" + b"\0" * 7 + b"lamma", 1)
    )
    with pytest.raises(UnknownModelError, match="unknown model architecture: 'lamma'"):
        IkEngine.load(str(path))


@pytest.mark.parametrize("architecture", ["deepseek4", "gemma4-assistant"])
def test_models_of_more_than_keys_and_values_are_refused(architecture: str) -> None:
    assert architecture in IkEngine.library.gap(None, architecture)


def test_both_libraries_work_in_one_process() -> None:
    if len(tiny_gguf.ENGINES) < 2:
        pytest.skip("one of them is not installed")
    engines = [tiny_gguf.load("llama", 64, 1, kind) for kind in tiny_gguf.ENGINES.values()]
    alone = [score(engine, engine.open(), text(9), 9) for engine in engines]
    for engine in engines:
        engine.close()
    engines = [tiny_gguf.load("llama", 64, 1, kind) for kind in tiny_gguf.ENGINES.values()]
    sequences = [engine.open() for engine in engines]
    for start in (0, 3, 6):
        for engine, sequence, expected in zip(engines, sequences, alone, strict=True):
            rows = score(engine, sequence, text(9)[start : start + 3], 3)
            np.testing.assert_allclose(rows, expected[start : start + 3], rtol=0, atol=5e-3)
    for engine in engines:
        engine.close()


# -- the widths of forwards

Rows = Callable[[Any, int, int], np.ndarray]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Rows], None]:
    """Lets the logits of a text be what a function of the widths says."""
    monkeypatch.setattr(widths, "cache_dir", lambda: tmp_path)
    return lambda rows: monkeypatch.setattr(widths._Trial, "rows", rows)


def rows(value: float) -> np.ndarray:
    return np.tile(np.array([value, -1, 2], np.float32), (2, 1))


def load(**options: Any) -> Engine:
    return IkEngine.load(tiny_gguf.model("llama"), context_size=64, threads=1, **options)


@pytest.mark.parametrize(("wide", "most"), [(0.0, WIDE), (0.1, WIDE), (3.0, NARROW)])
def test_wide_forwards_are_left_where_they_are_wrong(
    tried: Callable[[Rows], None], wide: float, most: int
) -> None:
    tried(lambda _, head, tail: rows(wide if head > 8 else 0))
    with load() as engine:
        assert engine.metadata()["forward_tokens"] == most


def test_threads_are_refused_before_anything_is_tried(tried: Callable[[Rows], None]) -> None:
    tried(lambda *_: pytest.fail("it was tried out"))
    with pytest.raises(SettingError, match="threads is 0"):
        IkEngine.load(tiny_gguf.model("llama"), threads=0)


def test_widths_are_tried_out_once(tried: Callable[[Rows], None]) -> None:
    asked: list[int] = []

    def counting(_: Any, head: int, tail: int) -> np.ndarray:
        asked.append(tail)
        return rows(0)

    tried(counting)
    load().close()
    before = len(asked)
    load().close()
    assert len(asked) == before > 0


def test_a_cache_that_cannot_be_written_is_no_error(
    tried: Callable[[Rows], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(lambda *_: rows(0))
    monkeypatch.setattr(widths, "cache_dir", lambda: Path("/dev/null/nowhere"))
    load().close()


def test_logits_that_are_not_finite_are_refused(tried: Callable[[Rows], None]) -> None:
    tried(lambda *_: rows(np.nan))
    with pytest.raises(UnknownModelError, match="not finite"):
        load()


@pytest.mark.parametrize(
    ("other", "expected"),
    [(0, Widths(WIDE, 1)), (1, Widths(WIDE, 2)), (64, Widths(NARROW, 1))],
)
def test_widths_of_the_same_bits_are_found(
    tried: Callable[[Rows], None], other: int, expected: Widths
) -> None:
    tried(lambda _, head, tail: rows(1e-6 if tail == other else 0))
    library, path = IkEngine.library, Path(tiny_gguf.model("llama"))
    model = library.load_model(bytes(path), library.model_parameters(vocabulary_only=False))
    found = widths.find_widths(library, model, path, 1, same_text=True)
    library.functions.llama_model_free(model)
    assert found == expected


def test_a_model_whose_rows_depend_on_the_width_is_refused_the_same_text(
    tried: Callable[[Rows], None],
) -> None:
    tried(lambda _, head, tail: rows(1e-6 if tail == 3 else 0))
    with pytest.raises(SettingError, match=r"Rows of llama\.gguf depend on the width"):
        load(same_text=True)


# -- the same text


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The same text by never feeding a token alone; the numbers of tokens that are fed."""
    monkeypatch.setattr(
        "paceline.engines.gguf.engine.find_widths", lambda *_, **__: Widths(NARROW, 2)
    )
    counts: list[int] = []
    functions = IkEngine.library.functions
    decode = functions.llama_decode

    def counting(context: Any, batch: Any) -> int:
        counts.append(batch.n_tokens)
        return int(decode(context, batch))

    monkeypatch.setattr(functions, "llama_decode", counting)
    return counts


def test_no_token_goes_through_the_layers_alone(
    paired: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.engines.gguf.engine.BATCH_TOKENS", 31)
    with IkEngine.load(tiny_gguf.model("llama"), context_size=256, threads=1) as engine:
        sequence = engine.open()
        for count in (1, 2, 15, 16, 17, 31, 32, 47):
            score(engine, sequence, text(count))
    assert paired
    assert all(count % NARROW != 1 for count in paired)


def test_the_token_beside_leaves_no_trace(paired: list[int]) -> None:
    with load() as engine:
        sequence = engine.open()
        for token in text(64):
            last = score(engine, sequence, [token])
        assert sequence.length == engine.capabilities.context_size
        sequence.rewind(0)
        np.testing.assert_array_equal(score(engine, sequence, text(64)), last)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 15])
def test_rows_are_the_same_in_every_width(width: int) -> None:
    with IkEngine.load(tiny_gguf.model("llama"), context_size=256, same_text=True) as engine:
        sequence = engine.open()
        expected = score(engine, sequence, text(60), 60)
        sequence.rewind(0)
        found = [
            score(engine, sequence, text(60)[at : at + width], width) for at in range(0, 60, width)
        ]
        np.testing.assert_array_equal(np.concatenate(found), expected)
        sequence.rewind(31)
        np.testing.assert_array_equal(score(engine, sequence, text(60)[31:], 29), expected[31:])


def test_several_sequences_do_not_see_each_other() -> None:
    texts = [text(20 + seed, seed) for seed in range(3)]
    with load(same_text=True) as engine:
        alone = []
        for tokens in texts:
            sequence = engine.open()
            alone.append(score(engine, sequence, tokens, 5))
            sequence.close()
    with load(same_text=True, max_sequences=3) as engine:
        assert engine.metadata()["max_sequences"] == engine.capabilities.max_sequences == 3
        sequences = [engine.open() for _ in texts]
        jobs = [Job(s, tokens, 5) for s, tokens in zip(sequences, texts, strict=True)]
        for found, expected in zip(engine.score(jobs), alone, strict=True):
            np.testing.assert_array_equal(found, expected)
        with pytest.raises(ModelError, match="All 3 sequences of this engine are open"):
            engine.open()
        sequences[0].close()
        fork = sequences[1].fork()
        assert fork.tokens == sequences[1].tokens
        np.testing.assert_array_equal(
            score(engine, fork, [5]), np.array(score(engine, sequences[1], [5]))
        )


def test_a_forward_that_fails_leaves_every_sequence_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with load(same_text=True, max_sequences=2) as engine:
        one, other = engine.open(), engine.open()
        functions, calls = IkEngine.library.functions, iter([0, -1])
        decode = functions.llama_decode
        monkeypatch.setattr(functions, "llama_decode", lambda *told: next(calls) or decode(*told))
        with pytest.raises(ModelError, match="returned -1"):
            engine.score([Job(one, text(3)), Job(other, text(4))])
        assert (one.length, other.length) == (0, 0)


@pytest.mark.parametrize("name", ["llamacpp", "transformers", "openvino"])
def test_other_engines_refuse_the_same_text_by_name(name: str) -> None:
    try:
        kind = plugins.find("engine", name)
    except SettingError:
        pytest.skip("it is not installed")
    with pytest.raises(SettingError, match=f"With the engine {name} a token's logits depend"):
        kind.load(tiny_gguf.model("llama"), same_text=True)


# -- a cache that sequences share


def test_a_cache_with_holes_is_tidied_before_it_is_read() -> None:
    """To find the last cell that is used the fork looks at every thirty-second one."""
    with tiny_gguf.load("llama", 128, 2, IkEngine) as engine:
        one, other = engine.open(), engine.open()
        score(engine, one, text(30))
        score(engine, other, text(4))
        score(engine, one, text(7, 1))
        other.close()  # which held the thirty-second
        found = score(engine, one, [7])
    with tiny_gguf.load("llama", 128, 1, IkEngine) as engine:
        expected = score(engine, engine.open(), [*text(30), *text(7, 1), 7])
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-3)


def test_a_cache_that_stays_in_pieces_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IkEngine.library.functions, "llama_kv_cache_defrag", lambda _: None)
    with tiny_gguf.load("llama", 128, 2, IkEngine) as engine:
        one, other = engine.open(), engine.open()
        score(engine, one, text(30))
        score(engine, other, text(4))
        score(engine, one, text(7))
        other.close()
        with pytest.raises(ModelError, match="can't tidy its cache: 37 of 256 cells are used"):
            score(engine, one, [7])
        assert one.length == 37


# -- a real model


@pytest.mark.model
def test_drafted_text_is_ordinary_text_to_the_bit(smollm2_path: Path) -> None:
    stop = StopConditions(max_tokens=64)
    with IkEngine.load(str(smollm2_path), context_size=512, same_text=True) as engine:
        draft = create_draft("lookup:min_match=1", engine)
        for prompt in ("Say the days of the week twice.", "Count from 1 to 30.", "What is rain?"):
            chat = [{"role": "user", "content": prompt}]
            ordinary = generate(engine, chat, stop=stop, logprobs=True)
            drafted = generate(
                engine, chat, stop=stop, logprobs=True, draft=draft, max_draft_tokens=5
            )
            assert drafted.tokens == ordinary.tokens
            assert drafted.log_probs == ordinary.log_probs


@pytest.mark.model
def test_its_distributions_are_llama_cpps(smollm2_path: Path) -> None:
    """Of a prompt of more than 31 tokens, whose wide forwards are wrong on some processors."""
    llamacpp = pytest.importorskip("paceline.engines.gguf.llamacpp")
    prompt = " ".join(str(number) for number in range(60))
    logs = []
    for kind in (IkEngine, llamacpp.LlamaCppEngine):
        with kind.load(str(smollm2_path), context_size=512) as engine:
            tokens = engine.tokenizer.encode(prompt)
            logits = score(engine, engine.open(), tokens, 64).astype(np.float64)
            logs.append(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    ours, theirs = logs
    assert (np.exp(theirs) * (theirs - ours)).sum(axis=1).mean() < 0.02
