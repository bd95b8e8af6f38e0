"""A paged key-value cache: memory in blocks of tokens, which sequences own or share.

OpenVINO's paged attention reads and writes tensors that the caller owns. A sequence is a list of
block numbers; a fork shares them, and whoever writes into a shared one takes a copy first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.engines.openvino.library import ov

BLOCK = 32
"""Tokens in a block; the CPU plugin knows no other number."""

_AS_NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


class Blocks:
    """Which blocks are free, and by how many sequences each of the others is held."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count

    @property
    def used(self) -> int:
        """How many blocks are held."""
        return len(self._holders) - len(self._free)

    def take(self) -> int:
        """Hold a free block."""
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Count one more holder of each."""
        for block in blocks:
            self._holders[block] += 1

    def shared(self, block: int) -> bool:
        """Whether a block has several holders."""
        return self._holders[block] > 1

    def release(self, blocks: Iterable[int]) -> None:
        """Count one holder less of each; blocks without any are free."""
        for block in blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)


@dataclass(frozen=True, slots=True)
class Layout:
    """The key and value tensors of one layer, as the compiled model asks for them.

    names     of the model's inputs: keys, values
    shapes    of one block of each: (heads, BLOCK, head size)
    types     of each, as OpenVINO names them: f32, bf16 or f16
    """

    names: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    types: tuple[str, str]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, over all tensors."""
        return sum(
            math.prod(shape) * np.dtype(_AS_NUMPY[kind]).itemsize
            for shape, kind in zip(self.shapes, self.types, strict=True)
        )


class PagedCache:
    """Room for `count` blocks in every layer. Memory that was never written is not taken from the
    system, so that a long context costs nothing before it is used."""

    def __init__(self, layers: AbstractSequence[Layout], count: int) -> None:
        self.blocks = Blocks(count)
        self.block_bytes = sum(layer.block_bytes for layer in layers)
        self._arrays: list[Any] = []
        self.tensors: dict[str, ov.Tensor] = {}
        for layer in layers:
            for name, shape, kind in zip(layer.names, layer.shapes, layer.types, strict=True):
                array = np.zeros((count, *shape), _AS_NUMPY[kind])
                self._arrays.append(array)
                self.tensors[name] = ov.Tensor(array, ov.Shape(array.shape), getattr(ov.Type, kind))

    def own(self, held: list[int], begin: int, end: int) -> None:
        """Make the places of tokens `begin` to `end` a sequence's own: new blocks at its end, a
        copy of a block that others hold too."""
        for index in range(begin // BLOCK, -(-end // BLOCK)):
            if index == len(held):
                held.append(self.blocks.take())
            elif self.blocks.shared(held[index]):
                fresh = self.blocks.take()
                if index * BLOCK < begin:
                    for array in self._arrays:
                        array[fresh] = array[held[index]]
                self.blocks.release([held[index]])
                held[index] = fresh

    def cut(self, held: list[int], length: int) -> None:
        """Give back the blocks behind a sequence's first `length` tokens."""
        kept = -(-length // BLOCK)
        self.blocks.release(held[kept:])
        del held[kept:]

    def gather(self, held: AbstractSequence[int], base: int, path: AbstractSequence[int]) -> None:
        """Move the tokens at `base + path[i]` to `base + i`. The places are the sequence's own."""
        moves = [(base + index, base + at) for at, index in enumerate(path) if index != at]
        if not moves:
            return
        table = np.asarray(held)
        source, target = np.array(moves).T
        read, write = table[source // BLOCK], table[target // BLOCK]
        for array in self._arrays:
            array[write, :, target % BLOCK] = array[read, :, source % BLOCK]

    def close(self) -> None:
        """Free the tensors."""
        self.tensors, self._arrays = {}, []
