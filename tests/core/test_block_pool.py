"""The block pool: order of reuse, counts, cached prefixes, and a random run beside plain lists."""

from __future__ import annotations

import random

import pytest

from headrace.core.block_pool import BlockPool
from headrace.errors import ConfigError


def test_new_pool_hands_out_blocks_in_order() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.num_free_blocks == 1
    assert list(pool.iter_free()) == [3]


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_pool_without_blocks_is_refused(num_blocks: int) -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        BlockPool(num_blocks)


def test_pool_of_one_block_is_reused_over_and_over() -> None:
    pool = BlockPool(1)
    for _ in range(3):
        assert pool.allocate(1) == [0]
        assert list(pool.iter_free()) == []
        pool.free([0])


def test_allocating_nothing_gives_nothing() -> None:
    pool = BlockPool(2)
    assert pool.allocate(0) == []
    assert list(pool.iter_free()) == [0, 1]


def test_allocating_more_than_free_raises_and_takes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(RuntimeError, match="asked for 3"):
        pool.allocate(3)
    assert pool.num_free_blocks == 2


def test_freeing_once_too_often_raises() -> None:
    pool = BlockPool(2)
    pool.free(pool.allocate(1))
    with pytest.raises(RuntimeError, match="once too often"):
        pool.free([0])


def test_cached_blocks_are_reused_last_and_tail_first() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.register(block, bytes([block]))
    pool.free(blocks)
    assert list(pool.iter_free()) == [3, 4, 2, 1, 0]
    assert pool.allocate(3) == [3, 4, 2]
    assert [pool.find(bytes([block])) for block in blocks] == [0, 1, None]


def test_blocks_without_a_cached_prefix_are_reused_first() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    pool.register(blocks[0], b"a")
    pool.free(blocks)
    assert list(pool.iter_free()) == [1, 2, 3, 0]


def test_touch_takes_a_cached_block_out_of_the_free_list_and_keeps_it_findable() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.register(block, b"a")
    pool.free([block])
    pool.touch([block])
    assert pool.ref_count(block) == 1
    assert block not in list(pool.iter_free())
    pool.touch([block])
    assert pool.ref_count(block) == 2
    pool.free([block])
    assert pool.num_free_blocks == 2
    assert pool.find(b"a") == block


def test_registering_a_known_prefix_keeps_the_first_block() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"a")
    pool.register(second, b"a")
    assert pool.find(b"a") == first
    assert pool.digest_of(second) is None
    assert pool.num_cached_blocks == 1


def test_reset_forgets_prefixes_only_when_nothing_is_in_use() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.register(blocks[0], b"a")
    assert pool.reset() is False
    assert pool.find(b"a") == blocks[0]
    pool.free(blocks)
    assert pool.reset() is True
    assert pool.find(b"a") is None
    assert pool.digest_of(blocks[0]) is None
    assert sorted(pool.allocate(2)) == [0, 1]


class PlainPool:
    """The same pool as plain lists."""

    def __init__(self, num_blocks: int) -> None:
        self.free_list = list(range(num_blocks))
        self.counts = [0] * num_blocks
        self.digests: dict[int, bytes] = {}

    def allocate(self, num: int) -> list[int]:
        taken, self.free_list = self.free_list[:num], self.free_list[num:]
        for block in taken:
            self.counts[block] = 1
            self.digests.pop(block, None)
        return taken

    def touch(self, block_ids: list[int]) -> None:
        for block in block_ids:
            if self.counts[block] == 0:
                self.free_list.remove(block)
            self.counts[block] += 1

    def free(self, block_ids: list[int]) -> None:
        for block in reversed(block_ids):
            self.counts[block] -= 1
            if self.counts[block] == 0:
                place = len(self.free_list) if block in self.digests else 0
                self.free_list.insert(place, block)

    def register(self, block: int, digest: bytes) -> None:
        if digest not in self.digests.values():
            self.digests[block] = digest


@pytest.mark.parametrize("seed", range(30))
def test_random_operations_equal_those_on_plain_lists(seed: int) -> None:
    rng = random.Random(seed)
    num_blocks = rng.randint(1, 20)
    pool, plain = BlockPool(num_blocks), PlainPool(num_blocks)
    held: list[list[int]] = []
    for _ in range(400):
        action = rng.randrange(4)
        if action == 0:
            num = rng.randint(0, pool.num_free_blocks)
            blocks = pool.allocate(num)
            assert blocks == plain.allocate(num)
            held.append(blocks)
        elif action == 1 and held:
            blocks = held.pop(rng.randrange(len(held)))
            pool.free(blocks)
            plain.free(blocks)
        elif action == 2 and plain.digests:
            blocks = rng.sample(sorted(plain.digests), rng.randint(1, len(plain.digests)))
            pool.touch(blocks)
            plain.touch(blocks)
            held.append(blocks)
        elif action == 3 and held:
            for block in rng.choice(held):
                if block not in plain.digests:
                    digest = bytes([rng.randrange(12)])
                    pool.register(block, digest)
                    plain.register(block, digest)
        assert list(pool.iter_free()) == plain.free_list
        assert pool.num_free_blocks == len(plain.free_list)
        assert [pool.ref_count(b) for b in range(num_blocks)] == plain.counts
        assert pool.num_cached_blocks == len(plain.digests)
        for block in range(num_blocks):
            assert pool.digest_of(block) == plain.digests.get(block)
        for block, digest in plain.digests.items():
            assert pool.find(digest) == block
    for blocks in held:
        pool.free(blocks)
    assert pool.reset()
    assert sorted(pool.iter_free()) == list(range(num_blocks))
