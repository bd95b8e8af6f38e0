"""Decode prompts to their end: the library's front door."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from paceline.decode.figures import Figures, figures, one_line
from paceline.decode.policy import Policy, fixed
from paceline.decode.step import Decoder
from paceline.decode.stream import Stream
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.engines.tokenizer import Message
from paceline.types import FinishReason, Request, Round, Sampling, StopConditions
from paceline.verify.base import Verifier
from paceline.verify.chain import ChainVerifier

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A raw text, a chat (messages with `role` and `content`), or tokens."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What came of one request.

    text             the answer, cut before a stop string, without end and stop tokens
    tokens           its ids; an end or stop token and the token that completed a stop string count
    log_probs        the target's, one per token, natural logarithm of its raw law; empty if not
                     asked for
    margins          per token, its processed logit less the best other; empty if not asked for
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    rounds: tuple[Round, ...]
    log_probs: tuple[float, ...]
    margins: tuple[float, ...]
    prompt_tokens: int

    @property
    def figures(self) -> Figures:
        return figures(self.rounds)

    @property
    def summary(self) -> str:
        """The figures in one line."""
        return one_line(self.figures)


def encode_prompt(engine: Engine, prompt: Prompt) -> tuple[int, ...]:
    """Tokens of a prompt in any of its forms."""
    if isinstance(prompt, str):
        return tuple(engine.tokenizer.encode(prompt))
    parts = list(prompt)
    messages = [part for part in parts if isinstance(part, Mapping)]
    if messages:
        return tuple(engine.tokenizer.encode_chat(messages))
    return tuple(part for part in parts if isinstance(part, int))


def generate(
    engine: Engine,
    prompt: Prompt,
    *,
    draft: Draft | None = None,
    limit: int = 4,
    policy: Policy | None = None,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    stop: StopConditions | None = None,
    logprobs: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Decode one prompt.

    draft       None is plain decoding
    limit       most tokens the draft may offer in a round, unless a policy is given
    verifier    `ChainVerifier` unless given
    on_text     called with each new piece of text as it is certain

    Raises PromptError, SettingError, NumericError or ModelError.
    """
    request = Request(
        prompt=encode_prompt(engine, prompt),
        sampling=sampling or Sampling(),
        stop=stop or StopConditions(),
        logprobs=logprobs,
    )
    drafts = {} if draft is None else {draft.name: draft}
    chosen = policy or fixed(draft.name if draft else None, limit)
    decoder = Decoder(engine, drafts, verifier or ChainVerifier(), chosen)
    [generation] = decode(decoder, [request], on_text=on_text)
    return generation


def decode(
    decoder: Decoder,
    requests: Iterable[Request],
    *,
    on_text: Callable[[str], None] | None = None,
) -> list[Generation]:
    """Decode requests together, as many at once as the engine has sequences; in their order.

    The first request that fails raises its error, after all streams have been closed.
    """
    waiting = list(requests)[::-1]
    running: list[Stream] = []
    everything: list[Stream] = []
    texts: dict[int, list[str]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < decoder.engine.capabilities.max_sequences:
                stream = decoder.open(waiting.pop())
                running.append(stream)
                everything.append(stream)
                texts[id(stream)] = []
            decoder.step(running)
            for stream in running:
                text = stream.stopper.take_text()
                texts[id(stream)].append(text)
                if text and on_text is not None:
                    on_text(text)
            running = [stream for stream in running if not stream.finished]
    finally:
        for stream in everything:
            decoder.close(stream)
    return [_generation(stream, "".join(texts[id(stream)])) for stream in everything]


def _generation(stream: Stream, text: str) -> Generation:
    if stream.error is not None:
        raise stream.error
    assert stream.finish_reason is not None
    return Generation(
        text=text,
        tokens=tuple(stream.history.output),
        finish_reason=stream.finish_reason,
        rounds=tuple(stream.rounds),
        log_probs=tuple(stream.log_probs),
        margins=tuple(stream.margins),
        prompt_tokens=stream.history.prompt_length,
    )
