"""The arrays of a llama_batch, filled by slices instead of token by token."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchSegment:
    """Consecutive tokens of a sequence from `position` on; `output` asks for their logits.

    ids    under which the library shall know them; None are the sequence's own
    """

    slot: int
    position: int
    tokens: AbstractSequence[int]
    output: bool
    ids: tuple[int, ...] | None = None


class Batch:
    """A llama_batch of at most `size` tokens over arrays of its own.

    kind    the library's struct
    ids     how many ids a sequence has; the `slot`-th has those from `slot * ids` on
    most    tokens of a forward, into which the library cuts a batch
    spare   the id of a token that is put beside one that would be in a forward alone; None where it
            may be
    """

    def __init__(
        self, kind: Any, size: int, ids: int, most: int = 0, spare: int | None = None
    ) -> None:
        self.size = size
        self._id_count, self._most, self._spare = ids, most, spare
        size += spare is not None
        # Arrays of ctypes take a slice of a list faster than those of numpy.
        self._tokens = (ctypes.c_int32 * size)()
        self._positions = (ctypes.c_int32 * size)()
        self._counts = (ctypes.c_int32 * size)(*[ids] * size)
        self._ids = (ctypes.c_int32 * (size * ids))()
        self._outputs = (ctypes.c_int8 * size)()
        pointer = ctypes.POINTER(ctypes.c_int32)
        first, step = ctypes.addressof(self._ids), ids * ctypes.sizeof(ctypes.c_int32)
        self._own_rows = [ctypes.cast(first + step * number, pointer) for number in range(size)]
        self._rows = (pointer * size)(*self._own_rows)
        self._other: dict[int, ctypes.Array[ctypes.c_int32]] = {}  # ids that are not the slot's own
        self.struct = kind(
            token=self._tokens,
            pos=self._positions,
            n_seq_id=self._counts,
            seq_id=self._rows,
            logits=self._outputs,
        )

    def fill(self, segments: Iterable[BatchSegment]) -> Iterator[int]:
        """Put the tokens in, in order, as often as it takes: yields, each time `struct` is ready
        for a llama_decode, how many of its tokens ask for logits."""
        used = outputs = 0
        for segment in segments:
            first, total = 0, len(segment.tokens)
            while first < total:
                count = min(total - first, self.size - used)
                self._put(used, segment, first, count)
                used, first = used + count, first + count
                outputs += count if segment.output else 0
                if used == self.size:
                    self._close(used)
                    yield outputs
                    used = outputs = 0
        if used:
            self._close(used)
            yield outputs

    def _close(self, used: int) -> None:
        """Say how many tokens there are, with one more where the last forward would have one."""
        if self._spare is not None and used % self._most == 1:
            token = [self._tokens[used - 1]]
            self._put(used, BatchSegment(0, 0, token, output=False, ids=(self._spare,)), 0, 1)
            used += 1
        self.struct.n_tokens = used

    def _put(self, at: int, segment: BatchSegment, first: int, count: int) -> None:
        end, ids, start = at + count, self._id_count, segment.position + first
        self._tokens[at:end] = [*map(int, segment.tokens[first : first + count])]
        self._positions[at:end] = [*range(start, start + count)]
        self._outputs[at:end] = [segment.output] * count
        if self._other:
            self._restore(at, end)
        if segment.ids is None:
            own = [*range(segment.slot * ids, (segment.slot + 1) * ids)]
            self._ids[at * ids : end * ids] = own * count
            return
        shared = (ctypes.c_int32 * len(segment.ids))(*segment.ids)
        for place in range(at, end):
            self._other[place] = shared  # kept alive as long as the batch points to it
            self._counts[place] = len(segment.ids)
            self._rows[place] = ctypes.cast(shared, ctypes.POINTER(ctypes.c_int32))

    def _restore(self, at: int, end: int) -> None:
        """Let places point to their own ids again."""
        for place in range(at, end):
            if self._other.pop(place, None) is not None:
                self._counts[place] = self._id_count
                self._rows[place] = self._own_rows[place]
