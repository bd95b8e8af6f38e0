"""What a run's counters must add up to, whatever was measured. A run that breaks one of these says
nothing about speed: it is refused."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.local.run import Run
from paceline.errors import DataError
from paceline.types import Round


def check_run(run: Run, where: str = "") -> None:
    """Raises DataError for the first identity that doesn't hold.

    where    what is said of the run's place: a line of a file
    """
    for broken in _broken(run):
        place = where or "The run"
        raise DataError(
            f"{place}, {run.id} in {run.configuration}, doesn't add up: {broken}.",
            "It was not measured rightly, or changed since: measure it again.",
        )


def _broken(run: Run) -> Iterator[str]:
    emitted = sum(round.emitted for round in run.rounds)
    if emitted != len(run.tokens):
        yield f"its rounds emitted {emitted} tokens, and it has {len(run.tokens)}"
    if run.ends and len(run.ends) != len(run.tokens):
        yield f"{len(run.ends)} tokens have an end in its text, of {len(run.tokens)}"
    if run.divergences and len(run.divergences) != len(run.tokens):
        yield f"{len(run.divergences)} tokens have a divergence, of {len(run.tokens)}"
    if sum(round.prefill for round in run.rounds) != min(1, len(run.rounds)):
        yield "it didn't read its prompt in exactly one round"
    context = run.prompt_tokens
    for number, round in enumerate(run.rounds):
        if round.context != context:
            yield f"round {number} began at {round.context} tokens, not {context}"
        context += round.emitted
        for broken in _broken_round(round, last=number == len(run.rounds) - 1):
            yield f"round {number} {broken}"


def _broken_round(round: Round, *, last: bool) -> Iterator[str]:
    if round.emitted < 1:
        yield "emitted nothing"
    if not 0 <= round.accepted <= round.proposed:
        yield f"accepted {round.accepted} of {round.proposed} drafted tokens"
    # A stop inside the drafted tokens leaves no bonus, and judges no token behind it.
    wanted = {round.accepted + 1} | ({round.accepted} if last else set())
    if round.emitted not in wanted:
        yield f"accepted {round.accepted} tokens and emitted {round.emitted}"
    if round.proposed > round.width - 1 or (not last and round.proposed != round.width - 1):
        yield f"judged {round.proposed} drafted tokens in a pass of {round.width} rows"
    if round.width - 1 > round.max_draft_tokens:
        yield f"drafted {round.width - 1} tokens where {round.max_draft_tokens} were the limit"
    if round.source is None and round.width > 1:
        yield "drafted without a draft"
    if round.path is not None and len(round.path) != round.accepted:
        yield f"accepted {round.accepted} tokens along a path of {len(round.path)}"
    if min(round.draft_s, round.verify_s, round.other_s) < 0:
        yield "took less than no time"
