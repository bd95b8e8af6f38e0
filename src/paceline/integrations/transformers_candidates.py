"""Our drafts as what transformers' assisted decoding takes candidates from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
)

from paceline.errors import SettingError
from paceline.integrations.served import DraftServer, Served
from paceline.types import Choice, Round, Sampling

# Those that a drafted token can't meet: drafts end before the length and before an end token, by
# these too. Time is looked at once a round, as it is once a token in plain decoding.
_MET_OTHERWISE = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)


class DraftCandidates(CandidateGenerator):  # type: ignore[misc]
    """Candidates for one sequence, of one call of `generate`.

    server               drafts and policy
    max_length           of the whole sequence, prompt included (`GenerationConfig.max_length`)
    max_draft_tokens                always offer so many; None leaves it to the policy
    end_tokens           behind which nothing is drafted
    vocabulary_size      what the model can embed; a prompt may hold placeholders beyond it
    stopping_criteria    transformers asks them once a round. A draft ends before the token that
                         would meet one, so that decoding ends where it would without drafts
    sampling             as the call's, as far as acceptance depends on it: its temperature
    lock                 of a server that several threads use
    """

    requires_model_outputs = False

    def __init__(
        self,
        server: DraftServer,
        *,
        max_length: int,
        max_draft_tokens: int | None = None,
        end_tokens: Iterable[int] = (),
        vocabulary_size: int | None = None,
        stopping_criteria: Iterable[Any] = (),
        sampling: Sampling | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        criteria = list(stopping_criteria)
        lengths = [c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)]
        ends = [c.eos_token_id.flatten() for c in criteria if isinstance(c, EosTokenCriteria)]
        self._server, self._limit = server, max_draft_tokens
        self._max_length = min([max_length, *lengths])
        self._ends = frozenset(end_tokens).union(*(each.tolist() for each in ends))
        self._vocabulary_size = vocabulary_size
        self._criteria = [c for c in criteria if not isinstance(c, _MET_OTHERWISE)]
        self._sampling = Sampling() if sampling is None else sampling
        self._lock = nullcontext() if lock is None else lock
        self._served: Served | None = None
        self._prompt_is_read = False
        self._draft_s = self._handed = 0.0

    @property
    def rounds(self) -> list[Round]:
        """So far; the reading of the prompt is none."""
        return [] if self._served is None else self._served.rounds

    def get_candidates(
        self, input_ids: torch.LongTensor, **_: Any
    ) -> tuple[torch.LongTensor, torch.Tensor | None]:
        """The sequence, of shape (1, length), with drafted tokens behind it: shape (1, length + k),
        k of 0 or more; and no logits, because all were deterministic."""
        started = perf_counter()
        drafted: tuple[int, ...] = ()
        with self._lock:
            if self._served is None:
                self._open(input_ids)
            else:
                drafted = self._propose(self._served, input_ids)
        if drafted:
            pending_tokens = torch.tensor([drafted], dtype=input_ids.dtype, device=input_ids.device)
            input_ids = torch.cat((input_ids, pending_tokens), dim=1)
        self._handed = perf_counter()
        self._draft_s = self._handed - started
        return input_ids, None

    def update_candidate_strategy(
        self,
        input_ids: torch.LongTensor,
        scores: torch.FloatTensor,
        num_matches: int,  # noqa: ARG002
    ) -> None:
        """A round was judged.

        input_ids      shape (1, length): the sequence with what the round emitted
        scores         shape (1, k + 1, vocabulary): the model's rows, processed
        num_matches    not needed: what was emitted says it
        """
        verified = perf_counter()
        served = self._served
        assert served is not None
        emitted = input_ids[0, len(served.history) :].tolist()
        with self._lock:
            if len(served.history):
                self._server.observe_logits(served, served.proposed, scores[0])
            if self._prompt_is_read:
                draft_s = self._draft_s + perf_counter() - verified
                self._server.record(
                    served, emitted, batch=1, step_s=verified - self._handed, draft_s=draft_s
                )
            self._server.commit(served, emitted)
        self._prompt_is_read = True

    def close(self) -> None:
        """Forget the sequence."""
        if self._served is not None and not self._served.finished:
            with self._lock:
                self._server.close(self._served)

    def _open(self, input_ids: torch.LongTensor) -> None:
        served = self._served = self._server.open()
        served.request = replace(served.request, sampling=self._sampling)
        served.context.sampling, served.context.stop_tokens = self._sampling, self._ends
        self._server.commit(served, input_ids[0].tolist())

    def _propose(self, served: Served, input_ids: torch.LongTensor) -> tuple[int, ...]:
        # A round emits one token more than it accepts.
        served.remaining_tokens = self._max_length - len(served.history)
        if self._limit is None:
            [drafted] = self._server.propose([served])
        else:
            drafted = self._offer(served, self._limit)
        count = self._count(input_ids, drafted)
        if count < len(drafted):
            drafted = served.proposed = drafted[:count]
        return drafted

    def _offer(self, served: Served, limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens of the first draft that has any."""
        offers = (self._server.offer(served, Choice(name, limit)) for name in self._server.drafts)
        return next((tokens for tokens in offers if tokens), ())

    def _count(self, input_ids: torch.LongTensor, drafted: Sequence[int]) -> int:
        """How many drafted tokens come before one that ends decoding, or that is none."""
        for count, token in enumerate(drafted):
            outside = self._vocabulary_size is not None and not 0 <= token < self._vocabulary_size
            if token in self._ends or outside:
                return count
        if self._criteria and drafted:
            pending_tokens = torch.tensor([drafted], dtype=input_ids.dtype, device=input_ids.device)
            whole = torch.cat((input_ids, pending_tokens), dim=1)
            for count in range(1, len(drafted) + 1):
                if self._ends_at(whole[:, : input_ids.shape[1] + count]):
                    return count - 1
        return len(drafted)

    def _ends_at(self, sequence: torch.Tensor) -> bool:
        for criterion in self._criteria:
            try:
                met = criterion(sequence, None)
            except Exception as error:
                name = type(criterion).__name__
                raise SettingError(
                    f"The stopping criterion {name} can't judge a drafted token, which has no "
                    f"scores yet: {error!r}.",
                    "Make it depend on the tokens alone, or leave it out.",
                ) from error
            if bool(met.any() if isinstance(met, torch.Tensor) else met):
                return True
        return False
