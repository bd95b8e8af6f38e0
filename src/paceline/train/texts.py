"""Texts to make a draft by: those that the target writes, as a draft will see them, and those of a
corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.bench.prompts.formats import find_workload
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


def corpus_texts(
    names: Sequence[str], on_workload: Callable[[Workload], None] = lambda _: None
) -> Iterator[str]:
    """The texts of a corpus: a file whole, or each message of its prompts. `on_workload` gets the
    prompts of each file. Raises DataError for a file that can't be read."""
    for name in names:
        if name.endswith(".jsonl"):
            workload = find_workload(name)
            on_workload(workload)
            for prompt in workload.prompts:
                new = prompt.messages[-1:] if prompt.follows else prompt.messages
                yield from (message["content"] for message in new)
                if prompt.answer is not None:
                    yield prompt.answer
            continue
        try:
            yield Path(name).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{name} can't be read: {error}.", "Give a UTF-8 text or a .jsonl file of prompts."
            ) from error
