"""What a vLLM runner shows to a proposer, over a toy target: rows without ids that are moved and
used again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

Target = Callable[[Sequence[int]], int]
"""The target's next token after a text."""


def configuration(*, longest: int = 512, most: int = 15, **options: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        model_config=SimpleNamespace(max_model_len=longest),
        additional_config={"paceline": options} if options else {},
    )


@dataclass
class Asked:
    prompt: list[int]
    count: int  # tokens to decode
    text: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    read: int = 0  # of the prompt
    proposals: list[list[int]] = field(default_factory=list)
    accepted: int = 0
    steps: int = 0

    @property
    def output(self) -> list[int]:
        return self.text[len(self.prompt) :]


class Runner:
    """Decodes with a proposer the way vLLM's V1 runner does, one step at a time.

    rows       most requests at a time; the others wait
    chunk      most tokens of a prompt that are read in one step
    shuffle    rows change places between steps
    """

    def __init__(
        self,
        proposer: Any,
        target: Target,
        *,
        rows: int = 8,
        longest: int = 512,
        chunk: int = 64,
        shuffle: random.Random | None = None,
    ) -> None:
        self.proposer, self.target, self.chunk, self.shuffle = proposer, target, chunk, shuffle
        self.rows = rows
        self.ids = np.full((rows, longest), -7, dtype=np.int32)  # stale text stays in it
        self.lengths = np.zeros(rows, dtype=np.int32)
        self.batch: list[Asked] = []

    def run(self, requests: Sequence[Asked]) -> None:
        waiting = list(requests)
        for asked in requests:
            asked.text = list(asked.prompt)
        while waiting or self.batch:
            while waiting and len(self.batch) < self.rows:
                self.batch.append(waiting.pop(0))
            self.step()

    def before_step(self) -> None:
        """Where a test lets time pass."""

    def step(self) -> None:
        if self.shuffle is not None:
            self.shuffle.shuffle(self.batch)
        self.before_step()
        sampled = [self._decode(asked) for asked in self.batch]
        for index, asked in enumerate(self.batch):
            self.ids[index, : len(asked.text)] = asked.text
            self.lengths[index] = len(asked.text)
        found = self.proposer.propose(sampled, self.lengths, self.ids, slot_mappings=None)
        assert len(found) == len(self.batch)
        self._check_rows()
        for asked, drafted in zip(self.batch, found, strict=True):
            assert len(asked.text) + len(drafted) < self.ids.shape[1] or not drafted
            asked.drafted = drafted
            asked.proposals.append(drafted)
        self.batch = [asked for asked in self.batch if len(asked.output) < asked.count]

    def _check_rows(self) -> None:
        """What the proposer knows of each row is that row's text, and no two share it."""
        known = self.proposer._last
        rows = [row for row in known if row is not None]
        assert len({id(row.served) for row in rows}) == len(rows)
        for asked, row in zip(self.batch, known, strict=False):
            if row is not None:
                assert row.tokens[: row.length].tolist() == asked.text
                assert row.served.history.tokens == asked.text[: row.fed]

    def _decode(self, asked: Asked) -> list[int]:
        if asked.read < len(asked.prompt):
            asked.read += self.chunk
            if asked.read < len(asked.prompt):
                return []
        new: list[int] = []
        for drafted in [*asked.drafted, None]:
            token = self.target([*asked.text, *new])
            new.append(token)
            if token != drafted:
                break
        asked.text += new
        asked.accepted += len(new) - 1
        asked.steps += 1
        return new
