"""The paged cache: blocks that sequences own or share, and tokens that move between places."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openvino")

from paceline.engines.openvino.cache import BLOCK, Blocks, Layout, PagedCache

PLAIN = Layout(("key_cache.0", "value_cache.0"), ((2, BLOCK, 4), (2, BLOCK, 3)), ("f32", "bf16"))


def write(cache: PagedCache, held: list[int], position: int, value: float) -> None:
    for array in cache._arrays:
        array[held[position // BLOCK], :, position % BLOCK] = value


def read(cache: PagedCache, held: list[int], position: int) -> list[float]:
    return [float(a[held[position // BLOCK], 0, position % BLOCK, 0]) for a in cache._arrays]


class TestBlocks:
    def test_one_is_free_again_when_nobody_holds_it(self) -> None:
        blocks = Blocks(2)
        first, second = blocks.take(), blocks.take()
        assert {first, second} == {0, 1}
        assert blocks.used == 2
        blocks.share([first])
        assert blocks.shared(first)
        assert not blocks.shared(second)
        blocks.release([first])
        assert blocks.used == 2
        blocks.release([first, second])
        assert blocks.used == 0


class TestPagedCache:
    def test_it_counts_bytes_by_type(self) -> None:
        cache = PagedCache([PLAIN, PLAIN], 3)
        assert cache.block_bytes == 2 * (2 * BLOCK * 4 * 4 + 2 * BLOCK * 3 * 2)

    def test_tensors_share_its_memory(self) -> None:
        cache = PagedCache([PLAIN], 3)
        cache._arrays[0][1, 0, 2, 3] = 5
        assert cache.tensors["key_cache.0"].data[1, 0, 2, 3] == 5
        assert list(cache.tensors["value_cache.0"].shape) == [3, 2, BLOCK, 3]

    def test_a_sequence_grows_by_whole_blocks_and_gives_back_what_it_leaves(self) -> None:
        cache, held = PagedCache([PLAIN], 4), list[int]()
        cache.own(held, 0, 1)
        cache.own(held, 1, BLOCK)
        assert len(held) == 1
        cache.own(held, BLOCK, 2 * BLOCK + 1)
        assert len(held) == cache.blocks.used == 3
        cache.cut(held, BLOCK + 1)
        assert len(held) == cache.blocks.used == 2
        cache.cut(held, 0)
        assert cache.blocks.used == 0

    def test_who_writes_into_a_shared_block_takes_a_copy(self) -> None:
        cache, held = PagedCache([PLAIN], 4), list[int]()
        cache.own(held, 0, BLOCK + 5)
        for position in (0, BLOCK + 4):
            write(cache, held, position, position + 1)
        fork = list(held)
        cache.blocks.share(fork)
        cache.own(fork, BLOCK + 5, BLOCK + 6)
        assert fork[0] == held[0]
        assert fork[1] != held[1]
        assert read(cache, fork, BLOCK + 4) == read(cache, held, BLOCK + 4)
        write(cache, fork, BLOCK + 4, 9)
        assert read(cache, held, BLOCK + 4)[0] == BLOCK + 5
        assert cache.blocks.used == 3
        cache.own(held, BLOCK + 5, BLOCK + 6)  # alone with it again: no copy
        assert cache.blocks.used == 3

    def test_a_shared_block_that_is_written_from_its_start_isnt_copied(self) -> None:
        cache, held = PagedCache([PLAIN], 4), list[int]()
        cache.own(held, 0, BLOCK)
        write(cache, held, 3, 7)
        fork = list(held)
        cache.blocks.share(fork)
        cache.own(fork, 0, 1)
        assert fork != held
        assert read(cache, fork, 3) == [0, 0]

    @pytest.mark.parametrize("base", [3, BLOCK - 2])
    def test_an_accepted_path_moves_to_the_front(self, base: int) -> None:
        cache, held = PagedCache([PLAIN], 3), list[int]()
        cache.own(held, 0, base + 7)
        for index in range(7):
            write(cache, held, base + index, 10 + index)
        cache.gather(held, base, (0, 3, 4, 6))
        kept = [read(cache, held, base + at)[0] for at in range(4)]
        assert kept == [10, 13, 14, 16]
        assert np.all(cache._arrays[1][held[0], :, 0] == 0)  # nothing else
