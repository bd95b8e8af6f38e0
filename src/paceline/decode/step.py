"""One round for many sequences. docs/architecture.md walks through it with a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from paceline.decode import round as rules
from paceline.decode.round import Policy, Turn
from paceline.decode.stop import Stopper
from paceline.decode.stream import Stream
from paceline.drafts.base import Context, Draft, VerifiedRound
from paceline.drafts.combine import FirstBranch
from paceline.engines.base import Engine, Job
from paceline.errors import DraftError, PacelineError, PromptError, SettingError, unknown_name
from paceline.sampling.history import History
from paceline.sampling.processors import check_tokens
from paceline.sampling.rng import NumpyRng
from paceline.sampling.rows import RowDistributions
from paceline.types import Array, Proposal, Request, Verdict
from paceline.verify.base import Verifier

_NOTHING = Proposal((), "none")


@dataclass(slots=True)
class _DecoderTurn(Turn[Stream]):
    """What one stream does in one round, with what goes to the target and comes back.

    fed    tokens of its job
    """

    proposal: Proposal = _NOTHING
    fed: int = 0
    commit_s: float = 0.0


class Decoder:
    """Decodes requests with a target, drafts, a verifier and a policy. What it emits is distributed
    as the target alone would emit it (exact), unless the verifier is lossy.

    drafts    by name; the policy and the requests choose among them

    Raises SettingError for a draft that may offer trees where engine or verifier takes none. The
    caller closes engine and drafts; `close` ends streams.
    """

    def __init__(
        self,
        engine: Engine,
        drafts: Mapping[str, Draft],
        verifier: Verifier,
        policy: Policy,
    ) -> None:
        check_trees(engine, drafts, verifier)
        self.engine, self.drafts, self.verifier, self.policy = engine, drafts, verifier, policy

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
        turns = [_DecoderTurn(stream) for stream in streams if not stream.finished]
        if not turns:
            return
        self._open(turns)
        opened = perf_counter()
        for turn, choice in zip(turns, self.policy([t.stream for t in turns]), strict=True):
            if choice.source is not None:
                self._check_draft(choice.source)
            turn.begin(choice)
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
        other_s = (chosen - opened + ready - proposed) / len(turns)
        row_s = (scored - ready) / sum(turn.fed for turn in turns)
        for turn in turns:
            done = rules.record(
                turn,
                batch=len(turns),
                verify_s=row_s * turn.fed,
                other_s=turn.commit_s + other_s,
            )
            turn.stream.rounds.append(done)
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

    def _open(self, turns: list[_DecoderTurn]) -> None:
        """Let the drafts that the policy previews read the prompts. It is drafting."""
        for name in rules.looks_at(self.policy):
            self._check_draft(name)
            asked = [turn for turn in turns if turn.stream.request.draft in (None, name)]
            self._open_draft(self.drafts[name], name, asked)

    def _propose(self, turns: list[_DecoderTurn]) -> None:
        """Ask each draft once for all streams that chose it; its time is theirs."""
        for name in dict.fromkeys(turn.source for turn in turns if turn.source is not None):
            draft, mine = self.drafts[name], [turn for turn in turns if turn.source == name]
            self._open_draft(draft, name, mine)
            asked = [turn for turn in mine if turn.asks]
            if not asked:
                continue
            started = perf_counter()
            contexts = [turn.stream.context for turn in asked]
            limits = [turn.max_draft_tokens for turn in asked]
            for turn, proposal in zip(asked, draft.propose(contexts, limits), strict=True):
                turn.proposal = self._checked(proposal, turn.max_draft_tokens)
                turn.drafted = len(proposal.tokens)
            _share(started, asked)

    def _open_draft(self, draft: Draft, name: str, turns: list[_DecoderTurn]) -> None:
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
        unable = "" if proposal.parents is None else _unable(self.engine, self.verifier)
        if unable:
            raise _no_trees(name, unable)
        return proposal

    def _job(self, turn: _DecoderTurn) -> Job:
        proposal = turn.proposal
        tokens = [*turn.stream.missing, *proposal.tokens]
        turn.fed = len(tokens)
        return Job(turn.stream.sequence, tokens, len(proposal.tokens) + 1, parents=proposal.parents)

    def _verify_and_commit(self, turn: _DecoderTurn, rows: Array) -> None:
        """Verify, commit, rewind: what is left is as if ordinary decoding had got here."""
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

    def _commit(
        self, turn: _DecoderTurn, distributions: RowDistributions, verdict: Verdict
    ) -> None:
        stream = turn.stream
        accepted = verdict.accepted
        tokens = [*(turn.proposal.tokens[index] for index in accepted), verdict.next_token]
        rows = [0, *(index + 1 for index in accepted)]
        divergences = iter(verdict.divergences)
        for row, token in rules.cut(zip(rows, tokens, strict=True), lambda: stream.finished):
            stream.divergences += islice(divergences, 1)
            if stream.request.logprobs:
                stream.log_probs.append(distributions.log_prob(row, token))
            if stream.request.margins:
                stream.margins.append(distributions.margin(row, token))
            stream.history.commit(token)
            stream.finish_reason = stream.stopper.push(token)
            turn.emitted += 1
        turn.accepted = len(accepted)
        if turn.proposal.parents is not None:
            turn.path = accepted

    def _rewind(self, turn: _DecoderTurn, verdict: Verdict) -> None:
        sequence = turn.stream.sequence
        if turn.proposal.parents is None:
            sequence.rewind(len(turn.stream.history) - 1)
        else:
            sequence.rewind(turn.context, verdict.accepted)

    def _observe_logits(
        self, turn: _DecoderTurn, distributions: RowDistributions, verdict: Verdict
    ) -> None:
        """Show the rows to the drafts that learn from them. Before anything is committed: a
        distribution that is worked out now depends on what its row stands after."""
        names = [name for name in turn.stream.drafts_open if self.drafts[name].observes_logits]
        if not names:
            return
        started = perf_counter()
        last = turn.stream.history.tokens[-1]
        verified = VerifiedRound(
            turn.proposal, verdict.accepted, last, distributions.logits, distributions
        )
        for name in names:
            self.drafts[name].observe_logits(turn.stream.context, verified)
        _share(started, [turn])

    def _observe(self, turns: list[_DecoderTurn]) -> None:
        for turn in turns:
            started = perf_counter()
            emitted = turn.stream.history.tokens[turn.context :]
            for name in turn.stream.drafts_open:
                self.drafts[name].observe(turn.stream.context, emitted)
            _share(started, [turn])


def check_trees(engine: Engine, drafts: Mapping[str, Draft], verifier: Verifier) -> None:
    """Raises SettingError for a draft that may offer trees where engine or verifier takes none."""
    unable = _unable(engine, verifier)
    for name, draft in drafts.items() if unable else ():
        if draft.branches:
            raise _no_trees(name, unable)


def with_chains(
    engine: Engine, drafts: Mapping[str, Draft], verifier: Verifier
) -> dict[str, Draft]:
    """The drafts; where engine or verifier takes no trees, one that may offer them offers the first
    branch of each."""
    unable = _unable(engine, verifier)
    return {
        name: FirstBranch(draft, unable) if unable and draft.branches else draft
        for name, draft in drafts.items()
    }


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


def _share(started: float, turns: list[_DecoderTurn]) -> None:
    """Count the time since then as drafting, in equal parts."""
    each_s = (perf_counter() - started) / len(turns)
    for turn in turns:
        turn.draft_s += each_s
