"""From what the front process sent to a request that can be scheduled: its order and its seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.core.kv_cache import KVCacheManager, max_tokens_that_fit
from headrace.core.request import Request, longest_length
from headrace.core.speculator import Speculator
from headrace.errors import ValidationError
from headrace.messages.requests import EngineCoreRequest


class RequestMaker:
    """Makes the requests of one engine, in the order in which they are to be sorted.

    Args:
        kv_cache: what they have to fit.
        max_model_len: most tokens of a request, prompt and answer together.
        by_priority: whether priority and time of arrival come before the order in which they are
            made.
        now: monotonic clock, seconds.
        seed: of the generator that seeds requests without a seed of their own.
        speculator: gives them what guesses their tokens; None without speculative decoding.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        max_model_len: int,
        *,
        by_priority: bool,
        now: Callable[[], float],
        seed: int,
        speculator: Speculator | None = None,
    ) -> None:
        self._kv_cache = kv_cache
        self._max_model_len = max_model_len
        self._by_priority = by_priority
        self._now = now
        self._speculator = speculator
        self._seeds = random.Random(seed)
        self._num_made = 0

    def draw_seed(self) -> int:
        """A seed for a request, whether or not it brings its own; see `make`."""
        return self._seeds.getrandbits(63)

    def make(self, source: EngineCoreRequest, age: float, drawn_seed: int | None) -> Request:
        """A request that waits.

        Args:
            age: how long ago it arrived in the front process, in seconds.
            drawn_seed: what was drawn for it when it came, if that was earlier.

        Raises:
            ValidationError: it could never run: at its longest it does not fit the KV cache.
        """
        cache = self._kv_cache
        longest = longest_length(source, self._max_model_len)
        limit = max_tokens_that_fit(cache.pool.num_blocks, cache.block_size)
        if longest > limit:
            raise ValidationError(
                f"prompt and max_tokens come to {longest} tokens, the KV cache holds {limit}; "
                "ask for fewer tokens or give the cache more memory",
                param="max_tokens",
                value=source.sampling_params.max_tokens,
            )
        # Drawn for every request, so that seeds given to some do not change those of the others.
        if drawn_seed is None:
            drawn_seed = self.draw_seed()
        given = source.sampling_params.seed
        rank = (source.priority, source.arrival_time) if self._by_priority else (0, 0.0)
        self._num_made += 1
        return Request(
            source,
            max_model_len=self._max_model_len,
            seed=drawn_seed if given is None else given,
            order=(*rank, self._num_made),
            queued_at=self._now(),
            chain=cache.make_chain(source.cache_salt, source.prompt_embeds),
            age=age,
            drafter=None if self._speculator is None else self._speculator.make_drafter(),
        )
