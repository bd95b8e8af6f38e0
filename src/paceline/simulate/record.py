"""What every draft would have offered at each moment of a finished answer: drafts are replayed over
it, and no model runs. `simulate.trace` says what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.drafts.base import Context, Draft
from paceline.policy.acceptance import MOST
from paceline.sampling.history import History
from paceline.simulate.trace import SourceTrace, Trace
from paceline.types import Round


def is_replayable(draft: Draft) -> bool:
    """Whether replaying a draft tells what it would have offered: it is previewable, and nothing
    passes from one request to another (replaying would feed it the answer twice), and it goes by
    the text alone."""
    return draft.previewable and not draft.remembers and not draft.observes_logits


def sources_of(drafts: Mapping[str, Draft]) -> dict[str, bool]:
    """For the recording's header: by name, whether each draft is known at every moment."""
    return {name: is_replayable(draft) for name, draft in drafts.items()}


def trace_of(
    *,
    id: str,
    category: str,
    configuration: str,
    prompt: Sequence[int],
    output: Sequence[int],
    rounds: Sequence[Round],
    drafts: Mapping[str, Draft],
    most_tokens: int | None = None,
) -> Trace:
    """One finished request, for the recording.

    prompt, output    tokens; at least one of each
    drafts            by the names that policies use
    most_tokens       tokens the answer had room for; its own number unless given
    """
    return Trace(
        id=id,
        category=category,
        prompt_tokens=len(prompt),
        output_tokens=len(output),
        most_tokens=len(output) if most_tokens is None else most_tokens,
        sources={
            name: replayed(draft, prompt, output)
            if is_replayable(draft)
            else _as_asked(name, len(prompt), len(output), rounds)
            for name, draft in drafts.items()
        },
        rounds=tuple(rounds),
        configuration=configuration,
    )


def replayed(draft: Draft, prompt: Sequence[int], output: Sequence[int]) -> SourceTrace:
    """A previewable draft over a finished answer: twice at once, watched and unwatched, because
    a draft may offer more to a policy that looks first."""
    answer_previews = draft.preview_answer(prompt, output, MOST)
    if answer_previews is None:
        return asked_throughout(draft, prompt, output)
    return SourceTrace(
        **{name: tuple(entries) for name, entries in answer_previews._asdict().items()}
    )


def asked_throughout(draft: Draft, prompt: Sequence[int], output: Sequence[int]) -> SourceTrace:
    """The same, by asking the draft before every token."""
    match_length, right, offered, unwatched = [], [], [], []
    watched_by, other = Context(History(prompt)), Context(History(prompt))
    both = [watched_by, other]
    for context in both:
        draft.open(context)
    try:
        draft.prefill(both)
        for t, token in enumerate(output):
            preview = draft.preview(watched_by, MOST)
            tokens = preview.tokens
            [proposal] = draft.propose([other], [MOST])
            match_length.append(preview.match_length)
            offered.append(len(tokens))
            right.append(_right(tokens, output[t : t + MOST]))
            unwatched.append(len(proposal.tokens))
            for context in both:
                context.history.commit(token)
                draft.observe(context, [token])
    finally:
        for context in both:
            draft.close(context)
    return SourceTrace(tuple(match_length), tuple(right), tuple(offered), tuple(unwatched))


def _right(tokens: Sequence[int], emitted: Sequence[int]) -> int:
    count = 0
    for token, true in zip(tokens, emitted, strict=False):
        if token != true:
            break
        count += 1
    return count


def _as_asked(name: str, prompt: int, output: int, rounds: Sequence[Round]) -> SourceTrace:
    """What rounds tell of a draft that has to be asked; other moments are unknown. Where all that
    was offered was accepted, `right` is a lower bound."""
    right: list[int | None] = [None] * output
    offered: list[int | None] = [None] * output
    for round in rounds:
        if round.source == name and round.path is None:  # of a tree, `right` would say too little
            at = round.context - prompt
            right[at], offered[at] = round.accepted, round.width - 1
    match_length = tuple(None if entry is None else 0 for entry in right)
    return SourceTrace(match_length, tuple(right), tuple(offered), tuple(offered))
