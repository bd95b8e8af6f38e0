"""How a draft would do on the answers of a log, without the target: a draft is right where it
offers what comes next in them.

A deterministic token is accepted with the target's own probability of it, and an answer is sampled
from just those. So what such a draft gets right in an answer is, but for sampling noise, what
decoding would have accepted at any temperature. Of a greedily decoded answer it is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.drafts.base import Draft
from paceline.drafts.create import kinds_of, models_of
from paceline.drafts.cross_tokenizer.reading import encode_after
from paceline.engines.base import Engine, Job
from paceline.engines.tokenizer import Tokenizer
from paceline.errors import DataError, PacelineError, SettingError
from paceline.policy.acceptance import MOST
from paceline.sampling.processors import greedy_tokens
from paceline.simulate.record import is_replayable, replayed
from paceline.simulate.result import AnswerCounts
from paceline.simulate.trace import SourceTrace, Trace

LOGGED = "logged"
"""The configuration of what is replayed: a log doesn't say how its answers were decoded."""

_LOOK_BEHIND = 16  # tokens of the prompt beside which the answer's beginning is encoded


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """One logged answer in the target's tokens.

    most_tokens    what it had room for, as far as that is known
    cut            it was ended by its room, not by the model: no end token stands behind it
    respelled      its tokens don't spell the logged text
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    most_tokens: int
    cut: bool = False
    respelled: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """The answers of a log, and what was left out.

    unanswered    prompts without an answer, or with an empty one
    failed        one sentence for each prompt that the target's tokenizer or template refuses
    """

    answers: tuple[LoggedAnswer, ...]
    unanswered: int = 0
    failed: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Output tokens of all answers."""
        return sum(len(answer.output) for answer in self.answers)


def read_log(workload: Workload, target: Engine, *, max_tokens: int | None = None) -> Log:
    """The answers of a workload in the target's tokens. One that a model ended gets the end token
    that the model emitted and the log doesn't show.

    target        its tokenizer is enough
    max_tokens    most tokens the answers had room for: one of so many was cut, as are those of
                  which the log says so

    Raises DataError if no answer is left.
    """
    answers: list[LoggedAnswer] = []
    failed: list[str] = []
    for prompt in workload.prompts:
        try:
            if prompt.answer:
                answers.append(_answer(prompt, prompt.answer, target, max_tokens))
        except PacelineError as error:
            failed.append(f"{prompt.id}: {error}")
    unanswered = sum(not prompt.answer for prompt in workload.prompts)
    if not answers:
        first = f" {failed[0]}" if failed else ""
        raise DataError(
            f"{workload.name} holds no answer to replay: {unanswered} of "
            f"{len(workload.prompts)} prompts have none.{first}",
            "Give a log of prompts with answers (docs/replay.md).",
        )
    return Log(tuple(answers), unanswered, tuple(failed))


def counts_of(log: Log, replayed: int) -> AnswerCounts:
    """What a result says of a log of which so many answers were replayed."""
    found = log.answers[:replayed]
    return AnswerCounts(
        replayed=replayed,
        tokens=sum(len(answer.output) for answer in found),
        unanswered=log.unanswered,
        cut=sum(answer.cut for answer in found),
        respelled=tuple(answer.id for answer in found if answer.respelled),
        failed=log.failed,
    )


def _answer(prompt: WorkloadPrompt, text: str, target: Engine, most: int | None) -> LoggedAnswer:
    tokenizer = target.tokenizer
    asked = prompt.tokens(target)
    if not asked:
        raise DataError("the prompt has no tokens.", "Write something to continue.")
    tokens = _encoded(asked, text, tokenizer)
    end = next((i for i, token in enumerate(tokens) if token in tokenizer.end_tokens), None)
    spelled = tokenizer.text_bytes(tokens)
    full = most is not None and len(tokens) >= most
    cut = end is None and (prompt.cut or full)
    if end is not None:
        tokens = tokens[: end + 1]  # decoding would have ended there
    elif not cut and (token := _end_token(asked, tokenizer)) is not None:
        tokens = [*tokens, token]
    if not tokens:
        raise DataError("the answer has no tokens.", "Leave it out.")
    room = max(len(tokens), most) if most is not None else len(tokens) + (0 if cut else MOST)
    return LoggedAnswer(
        prompt.id,
        prompt.category,
        asked,
        tuple(tokens),
        room,
        cut,
        respelled=end is None and spelled != text.encode(),
    )


def _encoded(prompt: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """The answer's tokens behind its prompt; where a token would span the border, which no model
    can emit, those of the answer by itself."""
    before = tokenizer.text_bytes(_text_behind_control(prompt[-_LOOK_BEHIND:], tokenizer))
    for anchor in (before, b"\n"):
        tokens = encode_after(anchor, text.encode(), tokenizer)
        if tokens is not None:
            return tokens
    tokens, begin = tokenizer.encode(text), tokenizer.encode("")
    return tokens[len(begin) :] if begin and tokens[: len(begin)] == begin else tokens


def _text_behind_control(tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    found: list[int] = []
    for token in reversed(tokens):
        if not tokenizer.token_bytes(token):
            break
        found.insert(0, token)
    return found


def _end_token(prompt: Sequence[int], tokenizer: Tokenizer) -> int | None:
    """The end token that the model most likely emitted: the one that ends earlier messages of its
    prompt, or else the usual one. None for a model without any."""
    earlier = (token for token in reversed(prompt) if token in tokenizer.end_tokens)
    usual = tokenizer.end_token
    return next(earlier, min(tokenizer.end_tokens, default=None) if usual is None else usual)


# Judging.


def check_kinds(spec: str) -> None:
    """Refuse what can't be replayed by its specification, before any model is loaded. Raises
    SettingError, naming the draft and why."""
    kinds = kinds_of(spec)
    for kind in kinds:
        reason = _unfit(kind)
        if reason:
            raise _unreplayable(spec, f"{kind.name} {reason}" if len(kinds) > 1 else f"it {reason}")
    if len(kinds) > 1 and models_of(spec):
        raise _unreplayable(spec, "what a combination with a model offers is known by asking only")


def _unfit(kind: type[Draft]) -> str:
    """Why no draft of a kind can be replayed; empty if some can."""
    if kind.name == "none":
        return "offers nothing"
    if kind.teacher_forced or kind.takes == "drafts":
        return ""
    if kind.branches:
        return "offers trees, and a recording holds chains"
    if kind.takes == "model":
        return "has other tokens than the target, and goes by what it drafted last"
    if kind.observes_logits:
        return "learns from the target's rows of logits, which a log doesn't hold"
    return "" if kind.previewable else "needs the target, or has to be asked in every round"


def check_replayable(drafts: Mapping[str, Draft], temperature: float) -> None:
    """Refuse drafts whose options or parts don't let them be judged on text alone. Raises
    SettingError, naming the draft and why."""
    for name, draft in drafts.items():
        if draft.remembers:
            raise _unreplayable(name, "it remembers other requests, and would read each twice")
        if draft.teacher_forced:
            if draft.observes_logits and temperature > 0:
                raise _unreplayable(name, "it calibrates itself by the target's rows")
        elif not is_replayable(draft):
            raise _unreplayable(name, "what it offers is known by asking only")


def _unreplayable(name: str, reason: str) -> SettingError:
    return SettingError(
        f"The draft {name!r} can't be replayed: {reason}.",
        "Replay lookup, or a model with the target's tokenizer; `paceline bench` takes all drafts.",
    )


def replay(log: Log, drafts: Mapping[str, Draft], target: Engine) -> Iterator[Trace]:
    """One trace for each answer, in order, with every draft. They have no rounds: nothing was
    decoded.

    target    its tokenizer is enough
    """
    for answer in log.answers:
        yield Trace(
            id=answer.id,
            category=answer.category,
            prompt_tokens=len(answer.prompt),
            output_tokens=len(answer.output),
            most_tokens=answer.most_tokens,
            sources={name: _judged(draft, answer, target) for name, draft in drafts.items()},
            configuration=LOGGED,
        )


def _judged(draft: Draft, answer: LoggedAnswer, target: Engine) -> SourceTrace:
    if not draft.teacher_forced:
        return replayed(draft, answer.prompt, answer.output)
    assert draft.engine is not None
    usable = min(target.vocabulary_size, draft.engine.vocabulary_size)
    ends = target.tokenizer.end_tokens
    return forced(draft.engine, answer.prompt, answer.output, ends, usable)


# Model drafts, by teacher forcing.

ROWS = 64
"""Rows that are asked for at once: of a vocabulary of 150,000 they take 40 MB."""


def forced(
    engine: Engine,
    prompt: Sequence[int],
    output: Sequence[int],
    ends: Collection[int],
    usable: int | None = None,
) -> SourceTrace:
    """What a model draft would have offered greedily before each token of an answer, from one pass
    over it (teacher forcing): as long as its likeliest tokens are the written ones, they are what
    it would have drafted. In the prompt's round nothing is drafted: the first entry is 0.

    engine    the draft's
    ends      tokens behind which nothing is drafted
    usable    so many of the first entries of its rows may be proposed; None is all

    A proposal that has left the answer is taken to go on to the limit. In decoding it may end
    sooner, by an end token that only the draft came to: then fewer tokens are rejected, and no
    others are accepted.
    """
    choices = likeliest(engine, prompt, output, usable)
    right, offered = [0] * len(output), [0] * len(output)
    agreed = 0
    for t in range(len(output) - 1, 0, -1):
        agreed = agreed + 1 if choices[t] == output[t] else 0
        right[t] = min(agreed, MOST)
        offered[t] = min(_offered(choices, output, t, agreed, ends), MOST)
    known = tuple(offered)
    return SourceTrace((0,) * len(output), tuple(right), known, known)


def _offered(
    choices: Sequence[int | None], output: Sequence[int], t: int, agreed: int, ends: Collection[int]
) -> int:
    """How many tokens a proposal has whose first `agreed` are right, as far as is known."""
    left = t + agreed  # where it leaves the answer
    if agreed and output[left - 1] in ends:
        return agreed
    if left == len(output):
        return MOST
    if choices[left] is None:
        return agreed
    return agreed + 1 if choices[left] in ends else MOST


def likeliest(
    engine: Engine, prompt: Sequence[int], output: Sequence[int], usable: int | None = None
) -> list[int | None]:
    """Entry t: the token with the largest logit after the prompt and t tokens of the output. None
    where the model can't follow: beyond its context, behind a token that it has no row for, and
    from a row on that is no distribution."""
    text = [*prompt, *output[:-1]]
    known = next((i for i, token in enumerate(text) if token >= engine.vocabulary_size), len(text))
    end = min(known, engine.capabilities.context_size)
    found: list[int | None] = []
    sequence = engine.open()
    try:
        if len(prompt) > 1 and end >= len(prompt):
            engine.score([Job(sequence, text[: len(prompt) - 1])])
        for start in range(len(prompt) - 1, end, ROWS):
            part = text[start : min(start + ROWS, end)]
            [rows] = engine.score([Job(sequence, part, rows=len(part))])
            found += greedy_tokens(rows[:, :usable])
            if None in found:
                del found[found.index(None) :]
                break
    finally:
        sequence.close()
    return found + [None] * (len(output) - len(found))
