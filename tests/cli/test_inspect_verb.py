"""`paceline inspect`: the card, the document, and the exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "inspect"))
import tiny_drafts as tiny


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "draft", tiny.eagle3_config(), tiny.eagle3_tensors())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "target", tiny.model_config(), tiny.model_tensors())


def test_the_card(draft: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(draft), "--target", str(target)]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == f"{draft}: EAGLE-3, Hugging Face directory"
    assert "16 of 40 tokens; map d2t of offsets to ids 1 to 31, rising, agrees" in " ".join(
        text.split()
    )
    assert "  vLLM 0.31.0 to 0.33.0    as eagle3\n" in text
    assert "  TensorRT-LLM 1.2.1       as Eagle\n" in text
    assert "  transformers 5.23.0      no." in text
    assert lines[-1] == "Nothing is wrong."
    assert all(len(line) <= 80 for line in lines if str(draft) not in line and "Beside" not in line)


def test_versions_that_differ_have_lines_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tiny.write(tmp_path, tiny.medusa_config(), tiny.medusa_tensors())
    assert main(["inspect", str(place)]) == 0
    text = capsys.readouterr().out
    assert "  vLLM 0.31.0 to 0.32.0 " in text
    assert "  vLLM 0.33.0 " in text


def test_something_fatal_exits_with_1(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = tiny.eagle3_tensors()
    del tensors["d2t"]
    tiny.write(draft, None, tensors)
    assert main(["inspect", str(draft)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "Wrong: It has 16 tokens of the target's 40 and no map (d2t)" in text
    assert "Nothing is wrong" not in text
    assert "Loads in no engine as it is" in text


def test_what_stops_one_engine_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny.eagle3_config(tie_word_embeddings=True)
    place = tiny.write(tmp_path, config, tiny.eagle3_tensors())
    assert main(["inspect", str(place)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "SGLang 0.5.21 to 0.5.23 no, see below" in text
    assert text.count("SGLang then takes the draft's embedding as its head") == 1


def test_no_draft_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "nowhere")]) == 2
    assert main(["inspect", str(tmp_path)]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith("paceline inspect: There is no directory")
    assert error[1] == (
        f"paceline inspect: {tmp_path} holds no config.json but nothing. A draft's directory needs "
        "config.json beside its weights."
    )


def test_the_document(draft: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(draft), "--target", str(target), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["problems"]) == ("eagle3", [])
    assert document["map"]["size"] == tiny.OWN
    assert document["loads"]["vllm"]["0.32.0"] == {
        "yes": True,
        "reason": "",
        "method": "eagle3",
        "settings": {},
    }
    assert document["loads"]["paceline"]["any"]["yes"] is False
    assert document["target"]["layers"] == 4
    main(["inspect", str(draft), "--json"])
    assert json.loads(capsys.readouterr().out)["target"] is None


@pytest.mark.model
def test_a_derived_draft(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    place = tmp_path / "draft"
    assert main(["derive", "smollm2-135m", "-o", str(place), "--keep", "2"]) == 0
    assert main(["inspect", str(place), "--target", "smollm2-135m"]) == 0
    text = capsys.readouterr().out
    assert "draft model, Hugging Face directory" in text
    assert "2 layers, hidden size 576" in text
