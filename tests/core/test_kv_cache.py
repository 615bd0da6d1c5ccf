"""The KV cache manager: longest prefix, all-or-nothing allocation, what becomes findable when."""

from __future__ import annotations

from headrace.core.kv_cache import KVCacheManager, max_tokens_that_fit
from headrace.core.request import Request
from tests.fakes import make_core_request


def make(
    cache: KVCacheManager, tokens: list[int], salt: str | None = None, **params: int
) -> Request:
    return Request(
        make_core_request("r", tokens, cache_salt=salt, **params),
        max_model_len=64,
        seed=0,
        order=(0, 0.0, 0),
        queued_at=0.0,
        chain=cache.make_chain(salt),
    )


def compute(cache: KVCacheManager, request: Request) -> None:
    """Give it blocks for all its tokens and count them as computed."""
    prefix = cache.find_prefix(request)
    assert cache.allocate(request, len(request.token_ids), prefix) is not None
    request.num_computed_tokens = len(request.token_ids)
    cache.cache_computed(request)


def test_max_tokens_that_fit_is_the_number_of_slots() -> None:
    assert max_tokens_that_fit(10, 16) == 160


def test_blocks_are_allocated_only_when_tokens_pass_those_held() -> None:
    cache = KVCacheManager(4, 4, True)
    request = make(cache, [1] * 5)
    assert cache.allocate(request, 5) == [0, 1]
    assert cache.allocate(request, 8) == []
    assert cache.allocate(request, 9) == [2]
    assert request.block_ids == [0, 1, 2]


def test_allocation_that_does_not_fit_changes_nothing() -> None:
    cache = KVCacheManager(3, 4, True)
    first = make(cache, [1] * 8)
    compute(cache, first)
    cache.free(first)
    second = make(cache, [1] * 8 + [2] * 8)
    prefix = cache.find_prefix(second)
    assert len(prefix) == 2
    free = list(cache.pool.iter_free())
    assert cache.allocate(second, 16, prefix) is None
    assert second.block_ids == []
    assert list(cache.pool.iter_free()) == free
    assert cache.find_prefix(second) == prefix


def test_free_blocks_of_the_prefix_do_not_count_as_room() -> None:
    cache = KVCacheManager(3, 4, True)
    first = make(cache, [1] * 8)
    compute(cache, first)
    cache.free(first)
    second = make(cache, [1] * 8 + [2] * 4)
    prefix = cache.find_prefix(second)
    assert cache.allocate(second, 12, prefix, keep_free=1) is None
    assert cache.allocate(second, 12, prefix) == [2]
    assert cache.pool.num_free_blocks == 0


def test_last_token_of_a_prompt_is_never_taken_from_the_cache() -> None:
    cache = KVCacheManager(8, 4, True)
    compute(cache, make(cache, [1] * 8))
    assert len(cache.find_prefix(make(cache, [1] * 8))) == 1
    assert len(cache.find_prefix(make(cache, [1] * 9))) == 2
    assert len(cache.find_prefix(make(cache, [1] * 4))) == 0


def test_prefix_ends_at_the_first_block_that_differs() -> None:
    cache = KVCacheManager(8, 2, True)
    compute(cache, make(cache, [1, 2, 3, 4, 5, 6, 7]))
    found = cache.find_prefix(make(cache, [1, 2, 3, 9, 5, 6, 7]))
    assert found == [0]


def test_blocks_are_findable_only_once_full_and_computed() -> None:
    cache = KVCacheManager(8, 4, True)
    request = make(cache, [1] * 10)
    cache.allocate(request, 10)
    probe = make(cache, [1] * 12)
    for num_computed, num_found in [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (10, 2)]:
        request.num_computed_tokens = num_computed
        cache.cache_computed(request)
        assert len(cache.find_prefix(probe)) == num_found


def test_generated_tokens_extend_the_cached_prefix() -> None:
    cache = KVCacheManager(8, 4, True)
    request = make(cache, [1, 2, 3])
    compute(cache, request)
    request.append_token(4)
    request.num_computed_tokens = 4
    cache.cache_computed(request)
    assert cache.find_prefix(make(cache, [1, 2, 3, 4, 5])) == [0]


def test_different_salts_share_nothing_and_equal_ones_do() -> None:
    cache = KVCacheManager(8, 4, True)
    compute(cache, make(cache, [1] * 5, "a"))
    assert cache.find_prefix(make(cache, [1] * 5, "b")) == []
    assert cache.find_prefix(make(cache, [1] * 5)) == []
    assert cache.find_prefix(make(cache, [1] * 5, "a")) == [0]


def test_evicted_tail_leaves_the_beginning_findable() -> None:
    cache = KVCacheManager(4, 2, True)
    request = make(cache, [1, 2, 3, 4, 5, 6])
    compute(cache, request)
    cache.free(request)
    other = make(cache, [9, 9, 9])
    assert cache.allocate(other, 4) == [3, 2]
    assert cache.find_prefix(make(cache, [1, 2, 3, 4, 5, 6, 7])) == [0, 1]


def test_requests_that_want_prompt_logprobs_do_not_read_but_fill_the_cache() -> None:
    cache = KVCacheManager(8, 4, True)
    request = make(cache, [1] * 9, prompt_logprobs=0)
    compute(cache, request)
    assert cache.find_prefix(make(cache, [1] * 9, prompt_logprobs=0)) == []
    assert len(cache.find_prefix(make(cache, [1] * 9))) == 2


def test_without_prefix_caching_nothing_is_hashed_or_found() -> None:
    cache = KVCacheManager(8, 4, False)
    request = make(cache, [1] * 9)
    assert request.chain is None
    compute(cache, request)
    assert cache.find_prefix(make(cache, [1] * 9)) == []
    assert cache.pool.num_cached_blocks == 0
