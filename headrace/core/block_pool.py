"""The KV blocks of one cache: who uses them, which hold a known prefix, which is reused next.

Holds only numbers; never touches the memory behind a block. Every operation costs the same in a
pool of a thousand blocks and of a million: links and counts live in flat arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.core.block_times import BlockSampler
from headrace.errors import ConfigError


class BlockPool:
    """Reference-counted blocks 0 .. num_blocks - 1.

    A block without users is in the free list, a doubly linked ring through `_next` and `_prev`
    with the entry `num_blocks` as its fixed point. Its front is reused first. A free block may
    still hold a cached prefix: it stays findable until it is handed out for something else.

    Args:
        sampler: told what happens to blocks; None: nobody is.
    """

    def __init__(self, num_blocks: int, sampler: BlockSampler | None = None) -> None:
        if num_blocks < 1:
            raise ConfigError(f"the KV cache needs at least one block, got {num_blocks}")
        self._sampler = sampler
        self.num_blocks = num_blocks
        self.num_free_blocks = num_blocks
        numbers = np.arange(-1, num_blocks + 2, dtype=np.intc)
        self._next = array("i", numbers[2:].tobytes())
        self._next[num_blocks] = 0
        self._prev = array("i", numbers[:-2].tobytes())
        self._prev[0] = num_blocks
        self._ref_counts = array("i", bytes(4 * num_blocks))
        self._digests: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that can be found by their digest, in use or free."""
        return len(self._block_of)

    def allocate(self, num: int) -> list[int]:
        """Take `num` free blocks, each with one user; what they held cached is forgotten.

        Raises RuntimeError, taking nothing, when fewer are free: the caller checks first.
        """
        if num > self.num_free_blocks:
            raise RuntimeError(f"asked for {num} KV blocks, {self.num_free_blocks} are free")
        links, counts, digests = self._next, self._ref_counts, self._digests
        sampler = self._sampler
        block_ids: list[int] = []
        block = links[self.num_blocks]
        for _ in range(num):
            block_ids.append(block)
            counts[block] = 1
            digest = digests[block]
            if digest is not None:
                digests[block] = None
                del self._block_of[digest]
                if sampler is not None:
                    sampler.evict(block)
            block = links[block]
        links[self.num_blocks] = block
        self._prev[block] = self.num_blocks
        self.num_free_blocks -= num
        if sampler is not None:
            sampler.give_out(block_ids)
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """Add one user to each of these blocks; free ones leave the free list."""
        links, backs, counts = self._next, self._prev, self._ref_counts
        for block in block_ids:
            if counts[block] == 0:
                after, before = links[block], backs[block]
                links[before] = after
                backs[after] = before
                self.num_free_blocks -= 1
            counts[block] += 1
        if self._sampler is not None:
            self._sampler.take(block_ids)

    def free(self, block_ids: Sequence[int]) -> None:
        """Take one user from each of these blocks, the blocks of one sequence in its order.

        Blocks left without users go to the back of the free list last block first, so that the
        end of a prefix is evicted before its beginning. One that holds no cached prefix goes to
        the front: nothing is lost when it is reused.
        """
        counts, digests, ring = self._ref_counts, self._digests, self.num_blocks
        for block in reversed(block_ids):
            count = counts[block] - 1
            if count < 0:
                raise RuntimeError(f"KV block {block} freed once too often")
            counts[block] = count
            if count == 0:
                if digests[block] is None:
                    self._link(block, ring, self._next[ring])
                else:
                    self._link(block, self._prev[ring], ring)
                self.num_free_blocks += 1
        if self._sampler is not None:
            self._sampler.let_go(block_ids)

    def _link(self, block: int, before: int, after: int) -> None:
        self._next[before] = self._prev[after] = block
        self._prev[block] = before
        self._next[block] = after

    def find(self, digest: bytes) -> int | None:
        """The block that holds this prefix, or None."""
        return self._block_of.get(digest)

    def register(self, block: int, digest: bytes) -> None:
        """Make a block in use findable. When another already holds the same, that one stays it."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._digests[block] = digest

    def num_free_among(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks have no user."""
        counts = self._ref_counts
        return sum(1 for block in block_ids if counts[block] == 0)

    def reset(self) -> bool:
        """Forget every cached prefix. Does nothing and returns False while a block is in use."""
        if self.num_free_blocks != self.num_blocks:
            return False
        for block in self._block_of.values():
            self._digests[block] = None
        self._block_of.clear()
        if self._sampler is not None:
            self._sampler.clear()
        return True

    def ref_count(self, block: int) -> int:
        """How many users a block has."""
        return self._ref_counts[block]

    def digest_of(self, block: int) -> bytes | None:
        """The prefix a block can be found by, or None."""
        return self._digests[block]

    def iter_free(self) -> Iterator[int]:
        """The free blocks in the order they will be reused. Walks the list: for checks only."""
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            yield block
            block = self._next[block]
