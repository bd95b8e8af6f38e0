"""The command line on the one real model, short: what a stranger would type first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import StopConditions, create_draft, generate, load
from paceline.cli.main import main

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "Say the days of the week in order, twice."}]


@pytest.fixture(scope="module")
def target(smollm2_path: Path):
    pytest.importorskip("llama_cpp")
    with load(str(smollm2_path), context_size=512, threads=1) as engine:
        yield engine


def test_lookup_decodes_the_target_s_own_words(target) -> None:
    """Greedy text may part from plain only where rounding flips a near-tie; the distribution is
    the same."""
    stop = StopConditions(max_tokens=40)
    baseline = generate(target, QUESTION, stop=stop, logprobs=True)
    draft = create_draft("lookup:min_match=1", target)
    drafted = generate(target, QUESTION, stop=stop, logprobs=True, draft=draft, max_draft_tokens=3)
    assert baseline.text.split()[0] == drafted.text.split()[0]
    assert drafted.stats.accepted > 0
    assert len(drafted.rounds) < len(drafted.tokens)
    assert all(log_prob <= 0 for log_prob in drafted.log_probs)


def test_check_finds_the_engine_sound(smollm2_path: Path, capsys) -> None:
    pytest.importorskip("llama_cpp")
    code = main(["check", str(smollm2_path), "--context", "512", "--threads", "1", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["sound"] is True
    assert document["bookkeeping"]["rewinds"] > 5
    assert document["bookkeeping"]["accepted"] > 20
