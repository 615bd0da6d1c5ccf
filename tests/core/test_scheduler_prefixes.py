"""The scheduler and prompts: their cached prefixes, their log-probabilities."""

from __future__ import annotations

import pytest

from tests.core.scheduler_rig import Rig
from tests.fakes import prompt_entry

# Prefix cache


def test_second_equal_prompt_takes_its_full_blocks_from_the_cache() -> None:
    rig = Rig()
    rig.add("a", list(range(10)))
    rig.step()
    rig.add("b", list(range(10)))
    order = rig.step()
    assert order.new_requests[0].num_computed_tokens == 8
    assert (
        order.new_requests[0].block_ids[:2] == rig.executor.orders[0].new_requests[0].block_ids[:2]
    )
    assert order.num_scheduled_tokens["b"] == 2
    rig.run()
    assert [o.num_cached_tokens for o in rig.outputs["b"]] == [8, 0, 0, 0]
    stats = rig.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (20, 8)


def test_equal_prompts_in_one_step_share_nothing_as_nothing_is_computed_yet() -> None:
    rig = Rig()
    rig.add("a", [1] * 9)
    rig.add("b", [1] * 9)
    first, second = rig.step().new_requests
    assert set(first.block_ids).isdisjoint(second.block_ids)


@pytest.mark.parametrize(
    ("first", "second", "num_cached"),
    [("x", "x", 8), ("x", "y", 0), (None, "x", 0), ("x", None, 0), (None, None, 8)],
)
def test_prefixes_are_shared_only_between_equal_salts(
    first: str | None, second: str | None, num_cached: int
) -> None:
    rig = Rig()
    rig.add("a", [1] * 10, cache_salt=first)
    rig.run()
    rig.add("b", [1] * 10, cache_salt=second)
    rig.run()
    assert rig.outputs["b"][0].num_cached_tokens == num_cached


def test_without_prefix_caching_nothing_is_cached() -> None:
    rig = Rig(caching=False)
    for name in "ab":
        rig.add(name, [1] * 10)
        rig.run()
        assert rig.outputs[name][0].num_cached_tokens == 0
    assert rig.scheduler.stats().prefix_cache_queries == 0
    assert rig.scheduler.debug_state()["cached_blocks"] == 0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [2, 5, 64])
def test_same_prompt_gives_one_answer_whatever_the_cache_and_the_chunks(
    caching: bool, budget: int
) -> None:
    plain = Rig()
    plain.add("r", list(range(30)), seed=1, max_tokens=20)
    plain.run()
    rig = Rig(caching=caching, max_num_batched_tokens=budget, max_num_seqs=2)
    for number in range(4):
        rig.add(str(number), list(range(30)), seed=1, max_tokens=20)
    rig.run()
    for number in range(4):
        assert rig.tokens(str(number)) == plain.tokens("r")


# Log-probabilities


@pytest.mark.parametrize("budget", [1, 3, 64])
def test_prompt_logprobs_come_whole_with_the_first_token(budget: int) -> None:
    prompt = list(range(40, 52))
    wanted = [prompt_entry(prompt, position) for position in range(1, 12)]
    rig = Rig(max_num_batched_tokens=budget)
    for name in "ab":
        rig.add(name, prompt, prompt_logprobs=0)
        rig.run()
        assert [o.prompt_logprobs for o in rig.outputs[name]] == [wanted, None, None, None]
        assert rig.outputs[name][0].num_cached_tokens == 0


def test_prompt_logprobs_are_whole_even_when_the_caller_wants_the_cache_read() -> None:
    rig = Rig()
    for name in "ab":
        rig.add(name, [1] * 9, prompt_logprobs=0, skip_reading_prefix_cache=False)
        rig.run()
    assert len(rig.outputs["b"][0].prompt_logprobs or []) == 8


def test_prompt_logprobs_of_a_prompt_of_one_token_are_empty() -> None:
    rig = Rig()
    rig.add("a", [5], prompt_logprobs=0, max_tokens=1)
    rig.run()
    assert rig.outputs["a"][0].prompt_logprobs == []


def test_prompt_logprobs_are_whole_when_a_prefill_was_preempted() -> None:
    rig = Rig(num_blocks=9, block_size=1, max_model_len=9, long_prefill_token_threshold=1)
    prompt = [9, 8, 7, 6, 5, 4]
    rig.add("old", [1, 2], max_tokens=7)
    rig.add("young", prompt, prompt_logprobs=0, max_tokens=3)
    for _ in range(3):
        rig.step()
    assert len(rig.scheduler.roster.requests["young"].prompt_logprobs or []) == 3
    assert rig.step().finished_ids == ["young"]
    rig.run()
    wanted = [prompt_entry(prompt, position) for position in range(1, 6)]
    assert rig.outputs["young"][0].prompt_logprobs == wanted
    assert rig.outputs["young"][0].num_preemptions == 1


def test_prompt_logprobs_are_not_collected_or_sent_again_after_a_preemption() -> None:
    rig = Rig(num_blocks=4, block_size=4, max_model_len=16)
    rig.add("old", [1] * 4, max_tokens=9)
    rig.add("young", [2] * 3, max_tokens=7, prompt_logprobs=0)
    young = rig.scheduler.roster.requests["young"]
    rig.step()
    assert young.prompt_logprobs is None
    rig.run()
    assert young.prompt_logprobs is None
    outputs = rig.outputs["young"]
    assert outputs[-1].num_preemptions == 1
    assert outputs[0].prompt_logprobs == [prompt_entry([2] * 3, position) for position in (1, 2)]
    assert all(o.prompt_logprobs is None for o in outputs[1:])


def test_logprobs_go_with_each_token_only_when_asked_for() -> None:
    rig = Rig()
    rig.add("a", [1], logprobs=0)
    rig.add("b", [2])
    rig.run()
    for output in rig.outputs["a"]:
        assert output.logprobs is not None
        assert [entry.token_ids for entry in output.logprobs] == [output.new_token_ids]
    assert all(output.logprobs is None for output in rig.outputs["b"])
