"""How long KV blocks live, lie idle and wait to be used again, of a random share of them."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable

from headrace.messages.outputs import KV_BLOCK_SECONDS, Durations, KVBlockTimes


class BlockSampler:
    """Told what a `BlockPool` does; keeps account of the blocks it has picked.

    A block lives from being given out until the cached prefix in it makes way for another; one
    that held none when it was given back has not lived.

    Args:
        share: of the blocks given out that are picked, above 0, at most 1.
        now: a monotonic clock, seconds.
        seed: of the picks.

    Attributes:
        times: totals so far.
    """

    def __init__(self, share: float, now: Callable[[], float], seed: int = 0) -> None:
        self._share = share
        self._now = now
        self._random = random.Random(seed).random
        self._born: dict[int, float] = {}
        self._taken: dict[int, float] = {}
        self._let_go: dict[int, float] = {}
        self.times = KVBlockTimes(*(Durations([0] * (len(KV_BLOCK_SECONDS) + 1)) for _ in range(3)))

    def evict(self, block: int) -> None:
        """The prefix cached in a block is lost."""
        born = self._born.get(block)
        if born is not None:
            now = self._now()
            _add(self.times.lifetimes, now - born)
            _add(self.times.idle_times, now - self._let_go[block])

    def give_out(self, blocks: Iterable[int]) -> None:
        """These blocks have a first user; what they were before is over."""
        now, share, pick = self._now(), self._share, self._random
        born = self._born
        for block in blocks:
            if pick() < share:
                born[block] = self._taken[block] = self._let_go[block] = now
            elif block in born:
                del born[block], self._taken[block], self._let_go[block]

    def take(self, blocks: Iterable[int]) -> None:
        """These blocks have one user more."""
        now, taken = self._now(), self._taken
        for block in blocks:
            if block in taken:
                _add(self.times.reuse_gaps, now - taken[block])
                taken[block] = now

    def let_go(self, blocks: Iterable[int]) -> None:
        """These blocks have one user less."""
        now, let_go = self._now(), self._let_go
        for block in blocks:
            if block in let_go:
                let_go[block] = now

    def clear(self) -> None:
        """No block holds a prefix any more, without having been evicted."""
        self._born.clear()
        self._taken.clear()
        self._let_go.clear()


def _add(durations: Durations, seconds: float) -> None:
    durations.counts[bisect_left(KV_BLOCK_SECONDS, seconds)] += 1
    durations.sum += seconds
