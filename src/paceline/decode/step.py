"""One round for many sequences. docs/architecture.md walks through it with a picture."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from paceline.decode.policy import Policy
from paceline.decode.stop import Stopper
from paceline.decode.stream import Stream
from paceline.drafts.base import Context, Draft, VerifiedRound
from paceline.engines.base import Engine, Job
from paceline.errors import DraftError, PacelineError, PromptError, SettingError, unknown_name
from paceline.sampling.history import History
from paceline.sampling.processors import check_tokens
from paceline.sampling.rng import NumpyRng
from paceline.sampling.rows import RowDistributions
from paceline.types import Array, Choice, Proposal, Request, Round, Verdict
from paceline.verify.base import Verifier

log = logging.getLogger("paceline")

_NOTHING = Proposal((), "none")


@dataclass(slots=True)
class _Turn:
    """What one stream does in one round."""

    stream: Stream
    source: str | None
    max_draft_tokens: int
    proposal: Proposal = _NOTHING
    job: Job | None = None
    prefill: bool = False
    context_length: int = 0
    emitted: tuple[int, ...] = ()
    accepted: int = 0
    path: tuple[int, ...] | None = None
    draft_s: float = 0.0
    commit_s: float = 0.0


class Decoder:
    """Decodes requests with a target, drafts, a verifier and a policy.

    drafts              by name; the policy and the requests choose among them
    chains_for_trees    where engine or verifier can't take a draft's trees, take the first branch
                        of each instead of refusing; that is logged once

    The caller closes engine and drafts; `close` ends streams.
    """

    def __init__(
        self,
        engine: Engine,
        drafts: Mapping[str, Draft],
        verifier: Verifier,
        policy: Policy,
        *,
        chains_for_trees: bool = False,
    ) -> None:
        self.engine, self.drafts, self.verifier, self.policy = engine, drafts, verifier, policy
        self.chains_for_trees, self._said_chains = chains_for_trees, False
        if not chains_for_trees:
            check_trees(engine, drafts, verifier)

    def open(self, request: Request) -> Stream:
        """Begin a request. Raises PromptError or SettingError for what can't be honoured."""
        self._check(request)
        sampling, size = request.sampling, self.engine.capabilities.context_size
        stopper = Stopper(
            request.stop, self.engine.tokenizer, size - len(request.prompt), sampling.min_tokens
        )
        history, rng = History(request.prompt), NumpyRng(sampling.seed)
        sequence = self.engine.open()
        context = Context(history, sampling, rng.spawn(), stopper.stop_tokens, sequence)
        return Stream(request, history, sequence, rng, context, stopper, self.drafts)

    def close(self, stream: Stream) -> None:
        """End a stream, finished or not: its room goes back. Closing twice does nothing."""
        try:
            stream.sequence.close()
        finally:
            while stream.drafts_open:
                self.drafts[stream.drafts_open.pop()].close(stream.context)

    def step(self, streams: Iterable[Stream]) -> None:
        """One round of every unfinished stream: each emits at least one token or finishes.

        A stream whose own row or settings are at fault ends with its `error`; the others go on.
        """
        started = perf_counter()
        turns = self._turns([stream for stream in streams if not stream.finished])
        if not turns:
            return
        chosen = perf_counter()
        self._propose(turns)
        proposed = perf_counter()
        jobs = [self._job(turn) for turn in turns]
        ready = perf_counter()
        logits = self.engine.score(jobs)
        scored = perf_counter()
        for turn, rows in zip(turns, logits, strict=True):
            self._verify_and_commit(turn, rows)
        self._observe(turns)
        other_s = chosen - started + ready - proposed
        self._record(turns, verify_s=scored - ready, other_s=other_s)
        for turn in turns:
            if turn.stream.finished:
                self.close(turn.stream)

    def _check(self, request: Request) -> None:
        size = self.engine.capabilities.context_size
        if not request.prompt:
            raise PromptError("The prompt has no tokens.", "Write something to continue.")
        if len(request.prompt) >= size:
            raise PromptError(
                f"The prompt has {len(request.prompt)} tokens; the context of {size} leaves no "
                "room for an answer.",
                "Shorten it, or load the model with a larger context.",
            )
        if request.draft is not None:
            self._check_draft(request.draft)
        last = self.engine.vocabulary_size - 1
        for token in (*request.prompt, *request.stop.tokens):
            if not 0 <= token <= last:
                raise PromptError(
                    f"Token {token} of the prompt or the stop tokens is not this model's.",
                    f"Its tokens run from 0 to {last}.",
                )
        check_tokens(request.sampling, self.engine.vocabulary_size)

    def _check_draft(self, name: str) -> None:
        if name not in self.drafts:
            raise unknown_name("draft", name, self.drafts)

    def _turns(self, streams: list[Stream]) -> list[_Turn]:
        choices = self.policy(streams)
        return [self._turn(s, choice) for s, choice in zip(streams, choices, strict=True)]

    def _turn(self, stream: Stream, choice: Choice) -> _Turn:
        """The policy's choice within what the request, the answer's end and the context allow."""
        request = stream.request
        source = choice.source if request.draft is None else request.draft
        if source is not None:
            self._check_draft(source)
        max_draft_tokens = choice.max_draft_tokens
        if request.max_draft_tokens is not None:
            max_draft_tokens = min(max_draft_tokens, request.max_draft_tokens)
        # The round emits one token more than it accepts, so the last one needs no draft.
        max_draft_tokens = min(max_draft_tokens, stream.stopper.remaining_tokens - 1)
        prefill = not stream.prompt_is_read
        return _Turn(
            stream,
            source if max_draft_tokens > 0 else None,
            max(0, max_draft_tokens) if source is not None else 0,
            prefill=prefill,
            context_length=len(stream.history),
        )

    def _propose(self, turns: list[_Turn]) -> None:
        """Ask each draft once for all streams that chose it; its time is theirs."""
        for name in dict.fromkeys(turn.source for turn in turns if turn.source is not None):
            draft, mine = self.drafts[name], [turn for turn in turns if turn.source == name]
            self._open_draft(draft, name, mine)
            asked = [turn for turn in mine if not turn.prefill]
            if not asked:
                continue
            started = perf_counter()
            contexts = [turn.stream.context for turn in asked]
            limits = [turn.max_draft_tokens for turn in asked]
            proposals = draft.propose(contexts, limits)
            for turn, proposal in zip(asked, proposals, strict=True):
                turn.proposal = self._checked(proposal, turn.max_draft_tokens)
            _share(started, asked)

    def _open_draft(self, draft: Draft, name: str, turns: list[_Turn]) -> None:
        started = perf_counter()
        new = [turn for turn in turns if turn.stream.open_draft(name)]
        if new:
            draft.prefill([turn.stream.context for turn in new])
            _share(started, new)

    def _checked(self, proposal: Proposal, max_draft_tokens: int) -> Proposal:
        """A proposal that this target can judge. Raises DraftError or SettingError."""
        name, tokens = proposal.source, proposal.tokens
        if len(tokens) > max_draft_tokens:
            raise DraftError(
                f"The draft {name!r} offered {len(tokens)} tokens where {max_draft_tokens} "
                f"were the limit.",
                "Tell its author.",
            )
        for token in tokens:
            if not 0 <= token < self.engine.vocabulary_size:
                raise DraftError(
                    f"The draft {name!r} offered token {token}; the target's run from 0 to "
                    f"{self.engine.vocabulary_size - 1}.",
                    "Tell its author.",
                )
        return proposal if proposal.parents is None else self._judgeable(proposal)

    def _judgeable(self, tree: Proposal) -> Proposal:
        """A tree that engine and verifier can take, or its first branch where that is allowed."""
        unable = _unable(self.engine, self.verifier)
        if not unable:
            return tree
        if not self.chains_for_trees:
            raise _no_trees(tree.source, unable)
        if not self._said_chains:
            self._said_chains = True
            log.warning(
                "The draft %s offers trees, and the %s takes chains: the first branch of each goes "
                "instead.",
                tree.source,
                unable,
            )
        return first_branch(tree)

    def _job(self, turn: _Turn) -> Job:
        proposal = turn.proposal
        tokens = [*turn.stream.missing, *proposal.tokens]
        turn.job = Job(
            turn.stream.sequence, tokens, len(proposal.tokens) + 1, parents=proposal.parents
        )
        return turn.job

    def _verify_and_commit(self, turn: _Turn, rows: Array) -> None:
        """Verify, commit, rewind: what is left is as if plain decoding had got here."""
        started = perf_counter()
        stream, proposal = turn.stream, turn.proposal
        try:
            distributions = RowDistributions(
                rows,
                stream.request.sampling,
                stream.history,
                proposal.tokens,
                stream.context.stop_tokens,
                parents=proposal.parents,
            )
            verdict = self.verifier.verify(proposal, distributions, stream.rng)
        except PacelineError as error:
            stream.error = error
        else:
            self._observe_logits(turn, distributions, verdict)
            self._commit(turn, distributions, verdict)
            if not stream.finished:
                self._rewind(turn, verdict)
        turn.commit_s = perf_counter() - started

    def _commit(self, turn: _Turn, distributions: RowDistributions, verdict: Verdict) -> None:
        stream = turn.stream
        drafted = [turn.proposal.tokens[index] for index in verdict.accepted]
        rows = [0, *(index + 1 for index in verdict.accepted)]
        emitted: list[int] = []
        divergences = iter(verdict.divergences)
        for row, token in zip(rows, [*drafted, verdict.next_token], strict=True):
            stream.divergences += islice(divergences, 1)
            if stream.request.logprobs:
                stream.log_probs.append(distributions.log_prob(row, token))
            if stream.request.margins:
                stream.margins.append(distributions.margin(row, token))
            stream.history.commit(token)
            emitted.append(token)
            stream.finish_reason = stream.stopper.push(token)
            if stream.finish_reason is not None:
                break
        turn.emitted = tuple(emitted)
        turn.accepted = min(len(drafted), len(emitted))
        if turn.proposal.parents is not None:
            turn.path = verdict.accepted[: turn.accepted]

    def _rewind(self, turn: _Turn, verdict: Verdict) -> None:
        sequence = turn.stream.sequence
        if turn.proposal.parents is None:
            sequence.rewind(len(turn.stream.history) - 1)
        else:
            sequence.rewind(turn.context_length, verdict.accepted)

    def _observe_logits(
        self, turn: _Turn, distributions: RowDistributions, verdict: Verdict
    ) -> None:
        """Show the rows to the drafts that learn from them. Before anything is committed: a
        distribution that is worked out now looks back on what its row stands after."""
        names = [name for name in turn.stream.drafts_open if self.drafts[name].observes_logits]
        if not names:
            return
        started = perf_counter()
        last = turn.stream.history.tokens[-1]
        verified = VerifiedRound(turn.proposal, verdict.accepted, last, distributions)
        for name in names:
            self.drafts[name].observe_logits(turn.stream.context, verified)
        _share(started, [turn])

    def _observe(self, turns: list[_Turn]) -> None:
        for turn in turns:
            started = perf_counter()
            for name in turn.stream.drafts_open:
                self.drafts[name].observe(turn.stream.context, turn.emitted)
            _share(started, [turn])

    def _record(self, turns: list[_Turn], *, verify_s: float, other_s: float) -> None:
        fed = sum(len(turn.job.tokens) for turn in turns if turn.job)
        for turn in turns:
            assert turn.job is not None
            width = len(turn.proposal.tokens) + 1
            # A stop inside the block leaves the tokens behind it unjudged.
            cut = turn.stream.finished and len(turn.emitted) < turn.accepted + 1
            turn.stream.rounds.append(
                Round(
                    proposed=turn.accepted if cut else len(turn.proposal.tokens),
                    accepted=turn.accepted,
                    emitted=len(turn.emitted),
                    source=None if turn.prefill else turn.source,
                    max_draft_tokens=0 if turn.prefill else turn.max_draft_tokens,
                    width=width,
                    batch=len(turns),
                    context=turn.context_length,
                    prefill=turn.prefill,
                    draft_s=turn.draft_s,
                    verify_s=verify_s * len(turn.job.tokens) / fed,
                    other_s=turn.commit_s + other_s / len(turns),
                    path=turn.path,
                )
            )


def check_trees(engine: Engine, drafts: Mapping[str, Draft], verifier: Verifier) -> None:
    """Raises SettingError for a draft that may offer trees where engine or verifier takes none."""
    unable = _unable(engine, verifier)
    for name, draft in drafts.items() if unable else ():
        if draft.branches:
            raise _no_trees(name, unable)


def _unable(engine: Engine, verifier: Verifier) -> str:
    """What takes no trees; empty if both do."""
    if not engine.capabilities.trees:
        return f"engine {engine.name}"
    return "" if verifier.trees else f"verifier {verifier.name}"


def _no_trees(draft: str, unable: str) -> SettingError:
    hint = "take the verifier tree, " if unable.startswith("verifier") else ""
    return SettingError(
        f"The draft {draft} offers trees, and the {unable} takes chains.",
        f"Use a draft that offers chains, {hint}or allow the first branch of each instead "
        "(--allow-chains).",
    )


def first_branch(tree: Proposal) -> Proposal:
    """The chain of first children. Which tokens stay is told by their places, not by what was
    drawn, and a first child's distribution looks at no sibling: so it is a proposal like any
    other."""
    assert tree.parents is not None
    path: list[int] = []
    for index, parent in enumerate(tree.parents):
        if parent == (path[-1] if path else -1):
            path.append(index)
    distributions = (
        None if tree.distributions is None else tuple(tree.distributions[index] for index in path)
    )
    return Proposal(tuple(tree.tokens[index] for index in path), tree.source, distributions)


def _share(started: float, turns: list[_Turn]) -> None:
    """Count the time since then as drafting, in equal parts."""
    each_s = (perf_counter() - started) / len(turns)
    for turn in turns:
        turn.draft_s += each_s
