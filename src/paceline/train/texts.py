"""Text that the target wrote, to fit something to it: what it decodes is what a draft will see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.bench.prompts.workload import Workload
from paceline.decode.generate import decode
from paceline.decode.round import fixed
from paceline.decode.step import Decoder
from paceline.engines.base import Engine
from paceline.errors import DataError, PacelineError
from paceline.types import Request, Sampling, StopConditions
from paceline.verify.chain import ChainVerifier

TEMPERATURE = 0.8
"""Of all answers to a prompt but the first, which is greedy."""


@dataclass(frozen=True, slots=True)
class Text:
    """One answer: whose prompt it follows, both in tokens."""

    prompt_id: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def write_texts(
    engine: Engine,
    workload: Workload,
    *,
    answers: int,
    max_tokens: int,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda _: None,
) -> list[Text]:
    """`answers` answers to each prompt, as many at once as the engine has sequences. A prompt that
    fails is left out; the same seed gives the same texts on one machine.

    Raises DataError if none is left.
    """
    asked: list[tuple[str, Request]] = []
    for number in range(answers):
        for at, prompt in enumerate(workload.prompts):
            sampling = Sampling(
                temperature=TEMPERATURE if number else 0.0, seed=seed + at + 1000 * number
            )
            try:
                tokens = prompt.tokens(engine)
                stop = StopConditions(max_tokens=max_tokens)
                asked.append((prompt.id, Request(prompt=tokens, sampling=sampling, stop=stop)))
            except PacelineError:
                continue
    decoder = Decoder(engine, {}, ChainVerifier(), fixed(None, 0))
    together = engine.capabilities.max_sequences
    texts: list[Text] = []
    for begin in range(0, len(asked), together):
        some = asked[begin : begin + together]
        for (name, request), done in zip(some, decode(decoder, [r for _, r in some]), strict=True):
            if done.error is None and done.tokens:
                texts.append(Text(name, request.prompt, done.tokens))
        on_progress((begin + len(some)) / len(asked))
    if not texts:
        raise DataError(
            f"The target answered none of the {len(workload.prompts)} prompts of {workload.name}.",
            "Shorten them, or load it with a larger context.",
        )
    return texts
