"""Which blocks hold the keys and values of which request, and which prefixes can be shared.

Bookkeeping only: the memory itself belongs to the worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headrace.core.block_hash import BlockHashChain, ExtraValue
from headrace.core.block_pool import BlockPool
from headrace.core.block_times import BlockSampler
from headrace.core.request import Request
from headrace.inputs import PromptEmbeds


def max_tokens_that_fit(num_blocks: int, block_size: int) -> int:
    """Most tokens, prompt and answer together, that one request may ask of this cache."""
    return num_blocks * block_size


class KVCacheManager:
    """Gives blocks to requests and shares full, computed ones between equal prefixes.

    The blocks of a request are listed in the request itself; nothing is kept per request here.

    Args:
        sampler: see `BlockPool`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool,
        sampler: BlockSampler | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks, sampler)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching

    def make_chain(
        self, cache_salt: str | None, embeds: PromptEmbeds | None = None
    ) -> BlockHashChain | None:
        """The digests of a new request; None without prefix caching.

        A prompt of embeddings shares blocks only with one whose embeddings are all the same.
        """
        if not self.enable_prefix_caching:
            return None
        keys: dict[str, ExtraValue] = {"cache_salt": cache_salt}
        if embeds is not None:
            keys["prompt_embeds"] = hashlib.sha256(embeds.data).digest()
        return BlockHashChain(self.block_size, keys)

    def find_prefix(self, request: Request) -> list[int]:
        """The blocks that hold the longest cached prefix of a waiting request.

        Never all of its tokens: the last one is left to compute, as it gives the logits. The
        blocks are not claimed yet, `allocate` does that.
        """
        if request.chain is None or request.skips_prefix_cache:
            return []
        num_blocks = (len(request.token_ids) - 1) // self.block_size
        block_ids: list[int] = []
        for digest in request.chain.extend(request.token_ids, num_blocks)[:num_blocks]:
            block = self.pool.find(digest)
            if block is None:
                break
            block_ids.append(block)
        return block_ids

    def allocate(
        self,
        request: Request,
        num_tokens: int,
        prefix_block_ids: Sequence[int] = (),
        keep_free: int = 0,
    ) -> list[int] | None:
        """Make room for the first `num_tokens` tokens of a request.

        Args:
            prefix_block_ids: from `find_prefix`, for a request without blocks; claimed for it.
            keep_free: blocks that must be left free.

        Returns:
            The blocks added behind those it had (and behind the prefix), often none; or None,
            with nothing changed, when too few are free.
        """
        pool, held = self.pool, request.block_ids
        num_new = -(-num_tokens // self.block_size) - len(held) - len(prefix_block_ids)
        if num_new <= 0 and not prefix_block_ids:
            return []
        num_needed = num_new + keep_free
        if prefix_block_ids:
            num_needed += pool.num_free_among(prefix_block_ids)
        if num_needed > pool.num_free_blocks:
            return None
        if prefix_block_ids:
            pool.touch(prefix_block_ids)
            held.extend(prefix_block_ids)
            request.num_registered_blocks = len(held)
        block_ids = pool.allocate(num_new)
        held.extend(block_ids)
        return block_ids

    def cache_computed(self, request: Request) -> None:
        """Make the request's full blocks findable, up to what has been computed."""
        num_full = request.num_computed_tokens // self.block_size
        first = request.num_registered_blocks
        if num_full <= first or request.chain is None:
            return
        digests = request.chain.extend(request.token_ids, num_full)
        for idx in range(first, num_full):
            self.pool.register(request.block_ids[idx], digests[idx])
        request.num_registered_blocks = num_full

    def free(self, request: Request) -> None:
        """Give back all blocks of a request. What is cached in them stays until they are reused."""
        self.pool.free(request.block_ids)
        request.block_ids = []
