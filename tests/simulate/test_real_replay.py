"""Replay against the one real model: the rounds that it decoded come out of its texts alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import StopConditions, create_draft, generate, load
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.engines.load import load_tokenizer
from paceline.simulate.fixed_limits import Answers
from paceline.simulate.replay import read_log, replay

pytestmark = pytest.mark.model

QUESTIONS = (
    "Say the days of the week in order, twice.",
    "Repeat this line three times: the cat sat on the mat.",
)
TOKENS = 40


def test_tokens_per_round_are_those_that_were_decoded(smollm2_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    prompts, rounds, tokens = [], [], []
    with load(str(smollm2_path), context_size=512, threads=1) as engine:
        draft = create_draft("lookup", engine)
        for text in QUESTIONS:
            message = {"role": "user", "content": text}
            stop = StopConditions(max_tokens=TOKENS)
            run = generate(engine, [message], stop=stop, draft=draft, max_draft_tokens=3)
            prompts.append(WorkloadPrompt(text, "all", (message,), answer=run.text))
            rounds += [one for one in run.rounds if not one.prefill]
            tokens.append(run.tokens)
    with load_tokenizer(str(smollm2_path)) as target:
        log = read_log(Workload("log", tuple(prompts)), target, max_tokens=TOKENS)
        ends = target.tokenizer.end_tokens
    assert [answer.output for answer in log.answers] == tokens
    traces = list(replay(log, {"lookup": create_draft("lookup", target)}, ends))
    found = Answers(traces, "lookup").outcomes(3)[None]
    assert (found.rounds, found.accepted) == (len(rounds), sum(one.accepted for one in rounds))
    assert found.proposed == sum(one.proposed for one in rounds)
    assert found.accepted > 5
