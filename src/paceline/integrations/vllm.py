"""Our drafts and our policy inside a stock vLLM.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "paceline.integrations.vllm.Proposer", "num_speculative_tokens": 15}'

vLLM verifies as it always does. What is proposed is deterministic, so the output distribution
stays the target's; how far to draft is decided anew at each step, and where it doesn't pay nothing
is. Written against vLLM 0.32 (`v1/spec_decode/custom_class_proposer.py`), whose V1 runner it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from time import perf_counter
from typing import Any

import numpy as np

from paceline.drafts.base import Draft
from paceline.errors import SettingError, unknown_name
from paceline.integrations.served import DraftServer, ServedStream, free_drafts

_ABSENT_STEPS = 64  # after which a sequence that isn't in the batch is forgotten
_FED_TOKENS = 2048  # of new text a step: a millisecond's work, so that no prompt holds up others
_ROWS_SEEN = 2  # sequences whose rows are looked at in a step: one may take 0.1 ms
_WINDOW = 48  # steps that are judged together
_NOTHING = 0.005  # of the time may always go into looking
_PAUSE, _LONGEST_PAUSE = 128, 4096  # steps; twice as many each time that nothing came of looking
_FEW = 8  # with so few sequences, each new one is looked at


@dataclass(eq=False, slots=True)
class _Row:
    """A sequence of vLLM's batch.

    tokens     its text, in a buffer that may be longer
    length     how many tokens that is
    served     what drafts and policy know of it
    fed        how many tokens they have read
    emitted    how many the last step brought
    seen       the step in which it was last in the batch, and
    asked      the one in which it was last given something to try, be it nothing
    """

    tokens: np.ndarray
    length: int
    served: ServedStream
    fed: int = 0
    emitted: int = 0
    seen: int = 0
    asked: int = -1

    def holds(self, tokens: np.ndarray) -> bool:
        """Whether these are its tokens, all of them."""
        return len(tokens) == self.length and bool((self.tokens[: self.length] == tokens).all())

    def take(self, tokens: np.ndarray) -> None:
        """The text has grown to these tokens."""
        if len(tokens) > len(self.tokens):
            self.tokens = np.concatenate((tokens, np.zeros(len(tokens), self.tokens.dtype)))
        else:
            self.tokens[self.length : len(tokens)] = tokens[self.length :]
        self.length = len(tokens)


class Proposer:
    """What vLLM's `custom_class` hook asks for: made with its configuration, asked once a step.

    Rows of vLLM's batch carry no request ids, and are moved and used again between steps. A row is
    recognised by its tokens, all of them: what is kept of a sequence came from these very tokens,
    so that no text passes from one request to another. Counts do: what steps take, and how often
    matches of a length were right.

    Options stand in vLLM's `--additional-config` under "paceline":
        drafts    a list of lookup and recycle, with options as `-d` takes them; ["lookup"] unless
                  given. Beside it recycled tokens, as chains, brought nothing more (docs/log.md),
                  and looking at rows takes its time
    """

    def __init__(self, vllm_config: Any) -> None:
        drafts = _drafts(getattr(vllm_config, "additional_config", None))
        self._longest = int(vllm_config.model_config.max_model_len)
        self._server = DraftServer(
            drafts, max_draft_tokens=int(vllm_config.speculative_config.num_speculative_tokens)
        )
        self._rows: dict[int, list[_Row]] = {}  # all that are known, by length
        self._last: list[_Row | None] = []
        self._step = 0
        self._ended = 0.0
        self._draft_s = 0.0
        self._logits: list[Any] = []  # of all calls since the last step
        self._backoff = Backoff()
        self._lengths = np.zeros(0, np.int32)
        self._learners = [d for d in drafts.values() if d.observes_logits]

    def load_model(self, target_model: Any) -> None:
        """Called with the loaded target. Drafts that learn from its rows see them on their way."""
        if not self._learners:
            return
        compute = target_model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            self._logits.append(logits)
            return logits

        target_model.compute_logits = compute_logits

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,  # noqa: ARG002
    ) -> list[list[int]]:
        """Drafted tokens by row; none is a legal answer.

        sampled_token_ids     by row, what the last step emitted; empty while a prompt is read
        num_tokens_no_spec    by row, how many tokens it has; shape (rows,)
        token_ids_cpu         by row, its tokens; shape (rows, context size)
        """
        started = perf_counter()
        self._step += 1
        if self._backs_off(sampled_token_ids, num_tokens_no_spec):
            return [[] for _ in sampled_token_ids]
        rows = [
            self._row(index, len(sampled), token_ids_cpu[index, : int(num_tokens_no_spec[index])])
            for index, sampled in enumerate(sampled_token_ids)
        ]
        self._learn(rows, started - self._ended)
        ready = self._feed([row for row in rows if row is not None])
        proposals = self._server.propose([row.served for row in ready])
        self._remember(rows)
        if self._backoff.left:
            self._lengths = num_tokens_no_spec[: len(rows)].copy()
        offered = {id(row): tokens for row, tokens in zip(ready, proposals, strict=True)}
        answer = [list(offered.get(id(row), ())) for row in rows]
        self._ended = perf_counter()
        self._draft_s = self._ended - started
        return answer

    def _backs_off(self, sampled: Sequence[Sequence[int]], lengths: np.ndarray) -> bool:
        """Whether to leave this step alone; then all that is known of sequences is let go."""
        if not self._backoff.left:
            return False
        rows, known = len(sampled), self._lengths
        begun = rows > len(known) or bool((lengths[:rows] < known[:rows]).any())
        self._lengths = lengths[:rows].copy()
        if not self._backoff.backs_off(sequences=rows, begun=begun):
            return False
        self._last = []
        for row in chain.from_iterable(self._rows.values()):
            self._server.close(row.served)
        self._rows = {}
        return True

    # Which sequence is which.

    def _row(self, index: int, emitted: int, tokens: np.ndarray) -> _Row | None:
        """The sequence that has come to these tokens; None while its prompt is read."""
        if not emitted:
            return None
        before = tokens[: len(tokens) - emitted]
        row = self._known(index, before)
        if row is None:
            row = _Row(before.copy(), len(before), self._server.open())
        row.take(tokens)
        row.emitted, row.seen = emitted, self._step
        return row

    def _known(self, index: int, before: np.ndarray) -> _Row | None:
        """A sequence that had exactly these tokens, most likely where it last stood. Two requests
        may have the same ones: then it is all one which is which."""
        row: _Row | None
        for row in (*self._last[index : index + 1], *self._rows.get(len(before), ())):
            if row is not None and row.seen < self._step and row.holds(before):
                return row
        return None

    def _remember(self, rows: Sequence[_Row | None]) -> None:
        """What there is to look for at the next step."""
        present = {id(row): row for row in rows if row is not None}
        known = {id(row): row for row in chain.from_iterable(self._rows.values())}
        kept: dict[int, list[_Row]] = {}
        for row in (present | known).values():
            if self._step - row.seen > _ABSENT_STEPS:  # it has ended, or waits
                self._server.close(row.served)
            else:
                kept.setdefault(row.length, []).append(row)
        self._rows, self._last = kept, list(rows)

    # What the last step taught.

    def _learn(self, rows: Sequence[_Row | None], step_s: float) -> None:
        # Only a step of the same sequences as now tells what rows cost: not one in which a prompt
        # was read or a request ended, nor one before which there was nothing to do.
        same = None not in rows and {*rows} == {*self._last}
        # A batch of more than will be recorded tells the policy not to.
        batch = len(rows) if same else len(rows) + len(self._last) + 1
        asked = [row for row in rows if row is not None and row.asked == self._step - 1]
        for row in asked:
            new = row.tokens[row.length - row.emitted : row.length].tolist()
            shares = {"step_s": step_s / batch, "draft_s": self._draft_s / batch}
            self._server.record(row.served, new, batch=batch, **shares)
        if same and asked:
            self._backoff.count(
                step_s=step_s,
                draft_s=self._draft_s,
                emitted=sum(row.emitted for row in asked),
                accepted=sum(row.emitted - 1 for row in asked),
            )
        if self._learners:
            self._observe_logits(rows, asked)
            self._logits.clear()

    def _observe_logits(self, rows: Sequence[_Row | None], asked: Sequence[_Row]) -> None:
        """Show the drafts a few of the target's rows: where it chose anew, and behind what it
        rejected. The others say what the text says by now."""
        calls = self._logits
        widths = [1 + len(row.served.proposed) if row and row in asked else 1 for row in rows]
        # There must be no doubt which row is whose. Rows of prompts are scored too where their log
        # probabilities are asked for; not all that was proposed need have been; and of two
        # sequences with one text either may be the other.
        if len(calls) != 1 or calls[0] is None or calls[0].shape[0] != sum(widths) or _alike(asked):
            return
        logits = calls[0]
        begins = dict(zip(map(id, rows), accumulate([0, *widths]), strict=False))
        for row in asked[self._step % len(asked) :][:_ROWS_SEEN] if asked else ():
            accepted = row.emitted - 1
            self._commit(row, row.length - 1)  # row `accepted` stands behind these
            left = row.served.proposed[accepted : accepted + 1]
            begin = begins[id(row)] + accepted
            best = logits[begin : begin + 1 + len(left)].argmax(-1).tolist()
            for draft in self._learners:
                draft.observe_best(row.served.context, left, best)

    def _feed(self, rows: Sequence[_Row]) -> list[_Row]:
        """Let the drafts read what is new; those sequences of which they have read everything."""
        left = _FED_TOKENS
        for row in sorted(rows, key=lambda row: row.length - row.fed):
            if left <= 0:
                break
            left -= self._commit(row, min(row.length, row.fed + left))
        ready = [row for row in rows if row.fed == row.length]
        for row in ready:
            row.asked = self._step
            row.served.remaining_tokens = self._longest - row.length
        return ready

    def _commit(self, row: _Row, end: int) -> int:
        """Let the drafts read so far; how many tokens that was."""
        new = row.tokens[row.fed : end].tolist()
        self._server.commit(row.served, new)
        row.fed = max(row.fed, end)
        return len(new)


def _alike(rows: Sequence[_Row]) -> bool:
    """Whether two of them had the same text before the last step."""
    before = [row.length - row.emitted for row in rows]
    if len({*before}) == len(before):
        return False
    texts = [row.tokens[:length].tobytes() for row, length in zip(rows, before, strict=True)]
    return len({*texts}) < len(texts)


def _drafts(additional: Any) -> dict[str, Draft]:
    """By what stands in vLLM's additional configuration."""
    options = additional.get("paceline", {}) if isinstance(additional, Mapping) else {}
    for name in options:
        if name != "drafts":
            raise unknown_name("option of Paceline's proposer", name, ["drafts"])
    specs = options.get("drafts", ["lookup"])
    if isinstance(specs, str) or not isinstance(specs, Sequence) or not specs:
        raise SettingError(f"drafts is {specs!r}.", 'Write a list, such as ["lookup", "recycle"].')
    return free_drafts(list(map(str, specs)))


@dataclass(slots=True)
class Backoff:
    """Whether to look at all: where drafting brings less than deciding on it takes, the proposer
    looks away for a while. A decision of 0.1 ms is nothing to steps of 100 ms; with steps of 3 ms,
    or hundreds of sequences, it can be more than "never slower" allows."""

    steps: int = 0
    step_s: float = 0.0
    draft_s: float = 0.0
    emitted: int = 0
    accepted: int = 0
    left: int = 0  # steps of the present pause
    pause: int = _PAUSE

    def count(self, *, step_s: float, draft_s: float, emitted: int, accepted: int) -> None:
        """One step was watched; tokens are those of all its sequences."""
        self.steps += 1
        self.step_s += step_s
        self.draft_s += draft_s
        self.emitted += emitted
        self.accepted += accepted
        if self.steps >= _WINDOW:
            self._judge()

    def backs_off(self, *, sequences: int, begun: bool) -> bool:
        """Whether to leave this step alone.

        begun    a sequence has just begun
        """
        if self.left and begun and sequences <= _FEW:
            self.left, self.pause = 0, _PAUSE
        if not self.left:
            return False
        self.left -= 1
        return True

    def _judge(self) -> None:
        share = self.draft_s / (self.step_s + self.draft_s or 1.0)
        brought = self.accepted / max(1, self.emitted)
        if share > _NOTHING and brought < 2 * share:
            self.left, self.pause = self.pause, min(2 * self.pause, _LONGEST_PAUSE)
        else:
            self.pause = _PAUSE
        self.steps = self.emitted = self.accepted = 0
        self.step_s = self.draft_s = 0.0
