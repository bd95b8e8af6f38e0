"""Decode prompts to their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

from paceline.decode.round import Policy, fixed
from paceline.decode.stats import DivergenceStats, Stats, one_line, pool_divergences, stats
from paceline.decode.step import Decoder
from paceline.decode.stream import Stream
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.engines.tokenizer import Message
from paceline.errors import PacelineError, PromptError
from paceline.types import Divergence, FinishReason, Request, Round, Sampling, StopConditions
from paceline.verify.base import Verifier
from paceline.verify.chain import ChainVerifier
from paceline.verify.tree import TreeVerifier

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A raw text, a chat (messages with `role` and `content`), or tokens."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What came of one request.

    text             the answer, cut before a stop string, without end and stop tokens
    tokens           its ids; an end or stop token and the token that completed a stop string count
    log_probs        the target's, one per token, natural logarithm of its raw distribution; empty
                     if not asked for
    margins          per token, its processed logit less the best other; empty if not asked for
    error            what ended the request badly; then there is no finish reason, and the rest is
                     what had come of it so far
    lossy            name of the verifier, if it was a lossy one; None says that the tokens are
                     distributed as the target's
    gives_up         what that verifier gives up
    divergences       per token, how far its distribution was from the target's; empty of an exact
                      verifier,
                     and of a lossy one that can't tell
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    rounds: tuple[Round, ...]
    log_probs: tuple[float, ...]
    margins: tuple[float, ...]
    prompt_tokens: int
    error: PacelineError | None = None
    lossy: str | None = None
    gives_up: str = ""
    divergences: tuple[Divergence, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the verifier keeps the target's distribution."""
        return self.lossy is None

    @property
    def divergence(self) -> DivergenceStats | None:
        """How far a lossy verifier went, pooled; None where it can't tell, or was exact."""
        return (
            pool_divergences(self.divergences)
            if len(self.divergences) == len(self.tokens)
            else None
        )

    @property
    def stats(self) -> Stats:
        """Pooled over the rounds after the prompt was read."""
        return stats(self.rounds)

    @property
    def summary(self) -> str:
        """The figures in one line."""
        line = one_line(self.stats)
        if self.exact:
            return line
        far = self.divergence
        told = "how far from the target is not measured" if far is None else far.sentence()
        return f"{line} · LOSSY ({self.lossy}): {told}"


def encode_prompt(engine: Engine, prompt: Prompt) -> tuple[int, ...]:
    """Tokens of a prompt in any of its forms. Raises PromptError for one that is of no form."""
    if isinstance(prompt, str):
        return tuple(engine.tokenizer.encode(prompt))
    parts: list[Any] = list(prompt)
    if parts and all(isinstance(part, Mapping) for part in parts):
        if not all({"role", "content"} <= part.keys() for part in parts):
            raise PromptError(
                "A message of the prompt has no role or no content.", "Give each message both."
            )
        return tuple(engine.tokenizer.encode_chat(parts))
    try:
        return tuple(index(part) for part in parts)
    except TypeError:
        raise PromptError(
            "The prompt is neither a text, nor messages, nor tokens.",
            "Give a string, a list of messages, or a list of whole numbers.",
        ) from None


def by_name(draft: Draft | Mapping[str, Draft] | None) -> dict[str, Draft]:
    """Drafts on offer, by the names that a policy calls them."""
    if draft is None:
        return {}
    return {draft.name: draft} if isinstance(draft, Draft) else dict(draft)


def fitting_verifier(drafts: Mapping[str, Draft]) -> Verifier:
    """The exact verifier to take where none is named: one for trees if a draft may offer them."""
    return TreeVerifier() if any(d.branches for d in drafts.values()) else ChainVerifier()


def generate(
    engine: Engine,
    prompt: Prompt,
    *,
    draft: Draft | Mapping[str, Draft] | None = None,
    policy: Policy | None = None,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    stop: StopConditions | None = None,
    logprobs: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Decode one prompt: exactly, unless the verifier is lossy.

    draft       the drafts on offer, one or several by name
    policy      chooses among them; None is ordinary decoding
    verifier    unless given `ChainVerifier`, or `TreeVerifier` if a draft may offer trees
    on_text     called with each new piece of text as it is certain

    Raises PromptError, SettingError, NumericError or ModelError.
    """
    request = Request(
        prompt=encode_prompt(engine, prompt),
        sampling=sampling or Sampling(),
        stop=stop or StopConditions(),
        logprobs=logprobs,
    )
    chosen = policy or fixed(None, 0)
    drafts = by_name(draft)
    decoder = Decoder(engine, drafts, verifier or fitting_verifier(drafts), chosen)
    say = None if on_text is None else lambda _, text: on_text(text)
    [generation] = decode(decoder, [request], on_text=say)
    if generation.error is not None:
        raise generation.error
    return generation


def decode(
    decoder: Decoder,
    requests: Iterable[Request],
    *,
    on_text: Callable[[int, str], None] | None = None,
) -> list[Generation]:
    """Decode requests together, as many at once as the engine has sequences: exactly, unless the
    verifier is lossy. The answers are in their order.

    on_text    called with a request's number and each new piece of its text

    A request that is refused or fails has its `error`; the others are not touched by it.
    """
    waiting = list(enumerate(requests))[::-1]
    done: dict[int, Generation] = {}
    running: dict[int, Stream] = {}
    texts: dict[int, list[str]] = {number: [] for number, _ in waiting}
    try:
        while waiting or running:
            while waiting and len(running) < decoder.engine.capabilities.max_sequences:
                number, request = waiting.pop()
                try:
                    running[number] = decoder.open(request)
                except PacelineError as error:
                    done[number] = _refused(request, error, decoder.verifier)
            decoder.step(running.values())
            for number, stream in list(running.items()):
                text = stream.stopper.take_text()
                texts[number].append(text)
                if text and on_text is not None:
                    on_text(number, text)
                if stream.finished:
                    text = "".join(texts[number])
                    done[number] = _generation(running.pop(number), text, decoder.verifier)
    finally:
        for stream in running.values():
            decoder.close(stream)
    return [done[number] for number in sorted(done)]


def _generation(stream: Stream, text: str, verifier: Verifier) -> Generation:
    return Generation(
        text=text,
        tokens=tuple(stream.history.output),
        finish_reason=stream.finish_reason,
        rounds=tuple(stream.rounds),
        log_probs=tuple(stream.log_probs),
        margins=tuple(stream.margins),
        prompt_tokens=stream.history.prompt_length,
        error=stream.error,
        lossy=verifier.name if verifier.lossy else None,
        gives_up=verifier.gives_up,
        divergences=tuple(stream.divergences),
    )


def _refused(request: Request, error: PacelineError, verifier: Verifier) -> Generation:
    lossy = verifier.name if verifier.lossy else None
    prompt_tokens = len(request.prompt)
    return Generation("", (), None, (), (), (), prompt_tokens, error, lossy, verifier.gives_up)
