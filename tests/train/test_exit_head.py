"""Fitting an exit head: it learns, it goes on after a kill to the same bits, it fits one target."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "engines"))

import tiny_transformers as tiny  # noqa: E402

from paceline.bench.prompts.workload import Workload, WorkloadPrompt  # noqa: E402
from paceline.engines.base import Job  # noqa: E402
from paceline.engines.transformers.head import load_head, save_head  # noqa: E402
from paceline.engines.transformers.layers import PartialEngine, identity  # noqa: E402
from paceline.errors import DataError, SettingError  # noqa: E402
from paceline.train.exit_head import FitSettings, HeadFit, _split  # noqa: E402
from paceline.train.texts import Text, samplings_for, write_texts  # noqa: E402

SETTINGS = FitSettings(layers=2, rank=8, steps=30, rows=64, rate=1e-2, every=10)


@pytest.fixture
def llama():
    engine = tiny.load("llama", 96, 3)
    yield engine
    engine.close()


def workload(count: int, text: str = "the cab") -> Workload:
    return Workload(
        "here",
        tuple(
            WorkloadPrompt(f"p{at}", "all", ({"role": "user", "content": f"{text} {at}"},), True)
            for at in range(count)
        ),
    )


def written(llama) -> list[Text]:
    found = write_texts(llama, workload(6), samplings_for(3), max_tokens=40)
    return [text for _, some in found for text in some]


@pytest.fixture
def texts(llama) -> list[Text]:
    return written(llama)


def fit(engine, texts, path: Path, settings: FitSettings = SETTINGS) -> HeadFit:
    return HeadFit(engine, settings, lambda: texts, path)


def test_texts_are_the_target_s_and_the_same_each_time(llama, texts) -> None:
    assert len(texts) == 18
    assert [text.prompt_id for text in texts[:7]] == ["p0", "p1", "p2", "p3", "p4", "p5", "p0"]
    assert texts == written(llama)
    assert texts[0].output != texts[6].output, "other answers are drawn"
    assert len(llama.free_slots) == 3


def test_a_workload_without_an_answer_is_refused(llama) -> None:
    with pytest.raises(DataError, match="answered none of the 2 prompts"):
        list(write_texts(llama, workload(2, "cab " * 100), samplings_for(1), max_tokens=4))


def test_it_learns_and_tells_how_much_on_text_held_out(llama, texts, tmp_path: Path) -> None:
    found = fit(llama, texts, tmp_path / "h.part")
    found.run()
    kept = found.finish()
    before = kept.report["held_out_acceptance_before"]
    after = kept.report["held_out_acceptance_after"]
    assert after["sampled"] > before["sampled"] + 0.01
    assert kept.report["rows"] > kept.report["held_out_rows"] > 0
    # The figures are those of the draft that the head is for, on the rows held out.
    part, whole = PartialEngine(llama, (0, 1), kept.head), []
    away = [text for text in texts if text.prompt_id == "p4"]
    for text in away:
        distributions = []
        for engine in (llama, part):
            sequence = engine.open()
            rows = len(text.output)
            [logits] = engine.score([Job(sequence, [*text.prompt, *text.output[:-1]], rows)])
            distributions.append(logits.softmax(-1))
            sequence.close()
        whole.append(torch.minimum(*distributions).sum(-1))
    assert float(torch.cat(whole).mean()) == pytest.approx(after["sampled"], abs=1e-3)


def test_a_killed_fit_goes_on_and_ends_in_the_same_bits(llama, texts, tmp_path: Path) -> None:
    whole = fit(llama, texts, tmp_path / "whole.part")
    whole.run()

    class Killed(Exception):
        pass

    def kill_at(step: int):
        def on_step(done: int, total: int) -> None:
            assert total == 45
            if done == step:
                raise Killed

        return on_step

    path = tmp_path / "killed.part"
    for number, step in enumerate((4, 17, 38)):
        killed = fit(llama, texts, path)
        assert killed.resumed == (number > 0)
        with pytest.raises(Killed):
            killed.run(kill_at(step))
    steps: list[int] = []
    again = HeadFit(llama, SETTINGS, lambda: pytest.fail("the texts are kept"), path)
    again.run(lambda done, _: steps.append(done))
    assert steps == list(range(31, 46)), "from the last checkpoint on"
    one, two = whole.finish(), again.finish()
    assert one.report == two.report
    for name, value in one.head.state_dict().items():
        assert torch.equal(value, two.head.state_dict()[name]), name


def test_a_checkpoint_of_another_fit_is_refused(llama, texts, tmp_path: Path) -> None:
    path = tmp_path / "h.part"
    fit(llama, texts, path)
    with pytest.raises(DataError, match="whose rank is 8, and this one's is 4"):
        fit(llama, texts, path, FitSettings(layers=2, rank=4, steps=30, rows=64, every=10))
    with pytest.raises(DataError, match="whose text is given, and this one's is other prompts"):
        HeadFit(llama, SETTINGS, lambda: texts, path, "other prompts")
    other = tiny.load("qwen2", 96, 1)
    with pytest.raises(DataError, match="target's architecture is LlamaForCausalLM"):
        fit(other, texts, path, SETTINGS)
    other.close()
    path.write_bytes(b"half a file")
    with pytest.raises(DataError, match="not a fit.s checkpoint"):
        fit(llama, texts, path)


def test_a_fit_that_only_harms_ends_as_no_change(llama, texts, tmp_path: Path) -> None:
    """A rate that throws the head away: what is kept is what it began with."""
    wild = FitSettings(layers=2, rank=8, steps=4, rows=16, rate=1e4, every=2)
    found = fit(llama, texts, tmp_path / "h.part", wild)
    found.run()
    kept = found.finish()
    assert kept.report["chosen_at"] == "start"
    assert kept.report["held_out_acceptance_after"] == kept.report["held_out_acceptance_before"]
    states = torch.randn(3, 48)
    assert torch.equal(kept.head(states), states)


def test_layers_that_leave_nothing_out_are_refused(llama, texts, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="stand behind 3 layers, and .* has 3"):
        fit(llama, texts, tmp_path / "h.part", FitSettings(layers=3))


def test_a_head_is_kept_with_what_it_belongs_to(llama, texts, tmp_path: Path) -> None:
    found = fit(llama, texts, tmp_path / "h.part")
    kept = found.finish()
    save_head(tmp_path / "h.safetensors", kept)
    read = load_head(tmp_path / "h.safetensors", identity(llama))
    assert (read.layers, read.head.rank, read.report) == (2, 8, kept.report)
    with pytest.raises(DataError, match="can't be written"):
        save_head(tmp_path / "none" / "h.safetensors", kept)


def test_whole_prompts_are_held_out_where_there_are_enough() -> None:
    def text(name: str) -> Text:
        return Text(name, (1,), (2, 3))

    def states(number: int):
        return torch.full((10, 2), float(number)), torch.full((10, 2), float(number))

    names = ["a", "b", "c", "d", "e", "a", "e"]
    rows, held, fitted = _split([states(i) for i in range(7)], [text(name) for name in names])
    assert fitted == ["a", "b", "c", "d"]
    assert sorted({*held[0][:, 0].tolist()}) == [4, 6]
    assert sorted({*rows[0][:, 0].tolist()}) == [0, 1, 2, 3, 5]
    rows, held, fitted = _split([states(i) for i in range(6)], [text("a")] * 6)
    assert fitted == ["a"]
    assert sorted({*held[0][:, 0].tolist()}) == [4]
    rows, held, _ = _split([states(0)], [text("a")])
    assert (len(rows[0]), len(held[0])) == (8, 2)
    with pytest.raises(DataError, match="too few to hold any out"):
        _split([(torch.zeros(3, 2), torch.zeros(3, 2))], [text("a")])
