"""Text that the target wrote, to fit something to it: what it decodes is what a draft will see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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


def samplings_for(answers: int, seed: int = 0) -> list[Sampling]:
    """How several answers to each prompt are drawn: the first is greedy."""
    return [
        Sampling(temperature=TEMPERATURE if number else 0.0, seed=seed + 1000 * number)
        for number in range(answers)
    ]


def write_texts(
    engine: Engine, workload: Workload, samplings: Sequence[Sampling], *, max_tokens: int
) -> Iterator[tuple[float, list[Text]]]:
    """An answer to each prompt with each sampling (a seed is moved on by prompt), as many at once
    as the engine has sequences: each time the share that is done, and the new texts. Samples, by
    exact ordinary decoding; the same seeds give the same texts on one machine. A prompt that fails
    is left out.

    Raises DataError at the end if none is left.
    """
    asked: list[tuple[str, Request]] = []
    fault: PacelineError | None = None
    for sampling in samplings:
        for at, prompt in enumerate(workload.prompts):
            seed = None if sampling.seed is None else sampling.seed + at
            try:
                request = Request(
                    prompt=prompt.tokens(engine),
                    sampling=replace(sampling, seed=seed),
                    stop=StopConditions(max_tokens=max_tokens),
                )
                asked.append((prompt.id, request))
            except PacelineError as error:
                fault = error
    decoder = Decoder(engine, {}, ChainVerifier(), fixed(None, 0))
    together = engine.capabilities.max_sequences
    some = False
    for begin in range(0, len(asked), together):
        batch = asked[begin : begin + together]
        texts = []
        for (name, request), done in zip(
            batch, decode(decoder, [r for _, r in batch]), strict=True
        ):
            fault = done.error or fault
            if done.error is None and done.tokens:
                texts.append(Text(name, request.prompt, done.tokens))
        some = some or bool(texts)
        yield (begin + len(batch)) / len(asked), texts
    if not some:
        raise DataError(
            f"The target answered none of the {len(workload.prompts)} prompts of {workload.name}. "
            f"{fault or ''}".rstrip(),
            "Shorten them, or load it with a larger context.",
        )
