"""The rules of the scheduler one by one. Random lives are in test_scheduler_oracle.py."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig
from headrace.core.scheduler import Scheduler
from headrace.errors import ConfigError, ValidationError
from headrace.messages.outputs import EngineCoreOutput, FinishReason, RequestLedger
from headrace.messages.step import SchedulerOutput
from tests.fakes import RecordingExecutor, make_core_request, prompt_entry


class Rig:
    """A scheduler with an executor that checks what it is told."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 64,
        caching: bool = True,
        seed: int = 0,
        script: dict[str, list[int]] | None = None,
        **limits: Any,
    ) -> None:
        self.time = 0.0
        self.scheduler = Scheduler(
            SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **limits}),
            CacheConfig(block_size=block_size, enable_prefix_caching=caching),
            num_blocks,
            max_model_len,
            now=lambda: self.time,
            seed=seed,
        )
        self.executor = RecordingExecutor(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            script=script,
        )
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    def add(self, request_id: str, prompt: list[int], **options: Any) -> None:
        self.scheduler.add_request(make_core_request(request_id, prompt, **options))

    def step(self, max_prefill_tokens: int | None = None) -> SchedulerOutput:
        order = self.scheduler.schedule(max_prefill_tokens)
        for output in self.scheduler.update(order, self.executor.execute(order)):
            self.outputs.setdefault(output.request_id, []).append(output)
        return order

    def run(self) -> None:
        for _ in range(1000):
            if not self.scheduler.roster.has_work():
                return
            self.step()
        raise AssertionError("the scheduler does not come to an end")

    def tokens(self, request_id: str) -> list[int]:
        return [t for o in self.outputs[request_id] for t in o.new_token_ids]


# Who waits for outputs


def test_first_and_last_outputs_are_news_and_so_is_each_token_of_a_watched_request() -> None:
    rig = Rig(script={"a": [5, 6, 7, 8], "b": [5] * 9, "c": [5] * 9})
    rig.add("a", [1] * 3, max_tokens=4, is_watched=False)
    news = []
    for step in range(9):
        if step == 5:
            rig.add("b", [2] * 3, max_tokens=9)
            rig.add("c", [3] * 3, max_tokens=9, is_watched=False)
        if rig.scheduler.roster.has_work():
            rig.step()
        news.append(rig.scheduler.has_news)
    #               a: first, ..., last, told     b and c, b is watched
    assert news == [True, False, False, True, False, True, True, True, True]
    rig.scheduler.roster.abort(["b"])
    rig.step()
    assert rig.scheduler.has_news is False


# Prefills held short


def test_limited_prefills_share_the_limit_in_order_and_decodes_take_none_of_it() -> None:
    rig = Rig()
    rig.add("a", [1] * 3, max_tokens=20)
    rig.step()
    rig.add("b", [2] * 9)
    rig.add("c", [3] * 9)
    assert rig.step(max_prefill_tokens=5).num_scheduled_tokens == {"a": 1, "b": 5}
    assert rig.step(max_prefill_tokens=6).num_scheduled_tokens == {"a": 1, "b": 4, "c": 2}
    assert rig.step(max_prefill_tokens=3).num_scheduled_tokens == {"a": 1, "b": 1, "c": 3}
    assert rig.step().num_scheduled_tokens == {"a": 1, "b": 1, "c": 4}


def test_a_limited_prefill_waits_a_step_when_an_earlier_one_takes_all() -> None:
    rig = Rig(max_num_batched_tokens=6)
    rig.add("a", [1] * 5)
    rig.add("b", [2] * 9)
    rig.add("c", [3] * 2, max_tokens=9)
    assert rig.step(max_prefill_tokens=4).num_scheduled_tokens == {"a": 4}
    assert rig.step(max_prefill_tokens=4).num_scheduled_tokens == {"a": 1, "b": 4}
    assert rig.step(max_prefill_tokens=5).num_scheduled_tokens == {"a": 1, "b": 5}
    rig = Rig()
    rig.add("a", [1] * 9)
    rig.add("b", [2] * 9)
    rig.step(max_prefill_tokens=10)
    assert rig.step(max_prefill_tokens=3).num_scheduled_tokens == {"a": 1, "b": 3}
    rig = Rig()
    for name in "ab":
        rig.add(name, [1] * 12, cache_salt=name)
    rig.step(max_prefill_tokens=13)  # 12 of a, 1 of b
    rig.scheduler.roster.preempt_all()
    rig.step(max_prefill_tokens=2)
    assert rig.step(max_prefill_tokens=2).num_scheduled_tokens.keys() == {"a", "b"}


def test_watched_decodes_are_counted_only_while_there_is_something_to_prefill() -> None:
    rig = Rig(max_num_batched_tokens=12)
    rig.add("a", [1] * 3, max_tokens=20)
    rig.add("b", [2] * 3, max_tokens=20, is_watched=False)
    assert rig.scheduler.num_watched_decodes() == 0
    rig.step()
    assert rig.scheduler.num_watched_decodes() == 0
    rig.add("c", [3] * 30)
    assert rig.scheduler.num_watched_decodes() == 1
    rig.step()
    assert rig.scheduler.num_watched_decodes() == 1
    rig = Rig(enable_chunked_prefill=False)
    rig.add("a", [1] * 3, max_tokens=20)
    rig.step()
    rig.add("c", [3] * 30)
    assert rig.scheduler.num_watched_decodes() == 0


# Filling a step


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    rig = Rig(max_num_batched_tokens=10)
    rig.add("a", [1] * 6)
    rig.add("b", [2] * 6)
    rig.add("c", [3] * 6)
    assert rig.step().num_scheduled_tokens == {"a": 6, "b": 4}
    assert rig.step().num_scheduled_tokens == {"a": 1, "b": 2, "c": 6}
    assert rig.step().num_scheduled_tokens == {"a": 1, "b": 1, "c": 1}


def test_long_prompt_is_computed_in_chunks_and_samples_only_at_its_end() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.add("a", [1] * 10, max_tokens=2)
    assert [rig.step().num_scheduled_tokens for _ in range(2)] == [{"a": 4}, {"a": 4}]
    assert rig.outputs == {}
    assert rig.step().num_scheduled_tokens == {"a": 2}
    assert len(rig.outputs["a"]) == 1
    assert rig.step().num_scheduled_tokens == {"a": 1}
    assert rig.outputs["a"][-1].finish_reason is FinishReason.LENGTH


def test_threshold_limits_the_chunks_of_each_prompt() -> None:
    rig = Rig(long_prefill_token_threshold=3, max_num_batched_tokens=8)
    rig.add("a", [1] * 7)
    rig.add("b", [2] * 2)
    assert rig.step().num_scheduled_tokens == {"a": 3, "b": 2}
    assert rig.step().num_scheduled_tokens == {"a": 3, "b": 1}
    assert rig.step().num_scheduled_tokens == {"a": 1, "b": 1}


def test_prefill_leaves_a_token_for_every_running_request_after_it() -> None:
    rig = Rig(policy="priority", max_num_batched_tokens=8)
    rig.add("decodes", [1] * 2, max_tokens=20, priority=1)
    rig.step()
    rig.add("prefills", [2] * 30, priority=0)
    assert rig.step().num_scheduled_tokens == {"decodes": 1, "prefills": 7}
    assert rig.step().num_scheduled_tokens == {"prefills": 7, "decodes": 1}
    assert len(rig.outputs["decodes"]) == 3


def test_max_num_seqs_limits_the_running_requests() -> None:
    rig = Rig(max_num_seqs=2)
    for name in "abc":
        rig.add(name, [1], max_tokens=2)
    assert set(rig.step().num_scheduled_tokens) == {"a", "b"}
    assert set(rig.step().num_scheduled_tokens) == {"a", "b"}
    assert set(rig.step().num_scheduled_tokens) == {"c"}


def test_budget_below_max_num_seqs_limits_the_running_requests_too() -> None:
    rig = Rig(max_num_seqs=8, max_num_batched_tokens=2)
    for name in "abc":
        rig.add(name, [1], max_tokens=3)
    assert rig.step().num_scheduled_tokens == {"a": 1, "b": 1}
    assert rig.step().num_scheduled_tokens == {"a": 1, "b": 1}


def test_prompt_is_whole_or_not_at_all_without_chunked_prefill() -> None:
    rig = Rig(enable_chunked_prefill=False, max_num_batched_tokens=16, max_model_len=16)
    rig.add("a", [1] * 10)
    rig.add("b", [2] * 10)
    rig.add("c", [3] * 2)
    assert rig.step().num_scheduled_tokens == {"a": 10}
    assert rig.step().num_scheduled_tokens == {"a": 1, "b": 10, "c": 2}


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 63}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"num_blocks": 0}, "at least one block"),
    ],
)
def test_limits_that_cannot_work_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Rig(**limits)


def test_nothing_to_do_gives_an_empty_order() -> None:
    rig = Rig()
    assert not rig.scheduler.roster.has_work()
    order = rig.step()
    assert (order.new_requests, order.num_scheduled_tokens) == ([], {})
    assert order.total_num_scheduled_tokens == 0


def test_priority_decides_then_arrival_then_sequence() -> None:
    rig = Rig(policy="priority", max_num_seqs=1)
    rig.add("late", [1], max_tokens=1, priority=0, arrival_time=2.0)
    rig.add("low", [1], max_tokens=1, priority=1, arrival_time=0.0)
    rig.add("early", [1], max_tokens=1, priority=0, arrival_time=1.0)
    rig.add("early too", [1], max_tokens=1, priority=0, arrival_time=1.0)
    rig.add("high", [1], max_tokens=1, priority=-5, arrival_time=9.0)
    assert [next(iter(rig.step().num_scheduled_tokens)) for _ in range(5)] == [
        "high", "early", "early too", "late", "low",
    ]  # fmt: skip


# What the worker is told


def test_new_request_is_told_whole_and_later_only_what_changed() -> None:
    rig = Rig()
    rig.add("a", [5, 6, 7], seed=9, eos_token_id=2, stop_token_ids=[4, 3])
    (new,) = rig.step().new_requests
    assert (new.token_ids, new.num_prompt_tokens) == ([5, 6, 7], 3)
    assert (new.seed, new.block_ids, new.num_computed_tokens) == (9, [0], 0)
    assert new.stop_token_ids == [2, 3, 4]
    (cached,) = rig.step().cached_requests
    assert (cached.new_block_ids, cached.num_computed_tokens) == ([], 3)
    (cached,) = rig.step().cached_requests
    assert (cached.new_block_ids, cached.num_computed_tokens) == ([1], 4)


def test_orders_do_not_change_after_they_were_given() -> None:
    rig = Rig()
    rig.add("a", [5, 6, 7])
    order = rig.step()
    rig.run()
    assert order.new_requests[0].token_ids == [5, 6, 7]
    assert order.new_requests[0].block_ids == [0]


def test_eos_is_no_stop_id_for_the_worker_when_ignored() -> None:
    rig = Rig()
    rig.add("a", [5], eos_token_id=2, ignore_eos=True, stop_token_ids=[3])
    assert rig.step().new_requests[0].stop_token_ids == [3]


def test_finished_requests_are_told_once_in_the_next_order() -> None:
    rig = Rig()
    rig.add("a", [1], max_tokens=1)
    assert rig.step().finished_ids == []
    assert rig.scheduler.roster.has_work()
    assert rig.step().finished_ids == ["a"]
    assert not rig.scheduler.roster.has_work()
    assert rig.step().finished_ids == []


# Ends


@pytest.mark.parametrize(
    ("options", "script", "answer", "reason", "stop_reason"),
    [
        ({"eos_token_id": 2}, [7, 2, 7, 7], [7, 2], FinishReason.STOP, None),
        ({"eos_token_id": 2, "stop_token_ids": [2]}, [7, 2], [7, 2], FinishReason.STOP, None),
        ({"stop_token_ids": [3]}, [7, 3, 7, 7], [7, 3], FinishReason.STOP, 3),
        ({"stop_token_ids": [0]}, [7, 0, 7, 7], [7, 0], FinishReason.STOP, 0),
        ({"eos_token_id": 2, "ignore_eos": True}, [2, 2, 2, 2], [2] * 4, FinishReason.LENGTH, None),
        (
            {"eos_token_id": 2, "ignore_eos": True, "stop_token_ids": [2]},
            [2], [2], FinishReason.STOP, 2,
        ),
        ({"eos_token_id": 2}, [7, 7, 7, 2], [7, 7, 7, 2], FinishReason.STOP, None),
        ({"stop_token_ids": [3]}, [7, 7, 7, 3], [7, 7, 7, 3], FinishReason.STOP, 3),
        (
            {"eos_token_id": 2, "stop_token_ids": [3], "min_tokens": 3},
            [2, 3, 2, 7], [2, 3, 2], FinishReason.STOP, None,
        ),
        (
            {"eos_token_id": 2, "min_tokens": 4},
            [2, 2, 2, 7], [2, 2, 2, 7], FinishReason.LENGTH, None,
        ),
        ({"max_tokens": 1}, [7], [7], FinishReason.LENGTH, None),
    ],
)  # fmt: skip
def test_request_ends_by_the_first_rule_that_holds(
    options: dict[str, Any],
    script: list[int],
    answer: list[int],
    reason: FinishReason,
    stop_reason: int | None,
) -> None:
    rig = Rig(script={"r": script})
    rig.add("r", [5, 5], **options)
    rig.run()
    last = rig.outputs["r"][-1]
    assert rig.tokens("r") == answer
    assert (last.finish_reason, last.stop_reason) == (reason, stop_reason)
    assert all(o.finish_reason is None for o in rig.outputs["r"][:-1])


def test_context_length_ends_a_request_even_before_min_tokens() -> None:
    rig = Rig(max_model_len=8)
    rig.add("r", [1] * 5, max_tokens=100, min_tokens=50)
    rig.run()
    assert len(rig.tokens("r")) == 3
    assert rig.outputs["r"][-1].finish_reason is FinishReason.LENGTH


def test_failed_request_ends_alone_and_its_blocks_are_not_shared() -> None:
    rig = Rig()
    rig.executor.errors["bad"] = "broken"
    rig.add("bad", [1] * 9)
    rig.add("good", [2] * 9)
    rig.step()
    (output,) = rig.outputs["bad"]
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "broken")
    assert output.new_token_ids == []
    rig.add("next", [1] * 9)
    rig.run()
    assert rig.outputs["next"][0].num_cached_tokens == 0
    assert len(rig.tokens("good")) == 4


# Abort


def test_abort_of_waiting_requests_is_not_told_to_the_worker() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("a", [1])
    rig.add("b", [2])
    rig.step()
    rig.scheduler.roster.abort(["b", "unknown"])
    assert rig.step().finished_ids == []
    rig.run()
    assert set(rig.outputs) == {"a"}


@pytest.mark.parametrize("num_steps", [1, 3, 6])
def test_abort_of_a_running_request_frees_it_within_the_call(num_steps: int) -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.add("a", [1] * 10, max_tokens=20)
    for _ in range(num_steps):
        rig.step()
    rig.scheduler.roster.abort(["a", "a"])
    stats = rig.scheduler.stats()
    assert (stats.num_running, stats.num_free_blocks, stats.num_queued_tokens) == (0, 64, 0)
    assert rig.step().finished_ids == ["a"]


def test_abort_while_a_step_runs_gives_no_output() -> None:
    rig = Rig()
    rig.add("a", [1])
    rig.add("b", [2])
    order = rig.scheduler.schedule()
    result = rig.executor.execute(order)
    rig.scheduler.roster.abort(["a"])
    assert [o.request_id for o in rig.scheduler.update(order, result)] == ["b"]
    rig.run()


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_many_aborted_requests_leave_nothing_behind(policy: str) -> None:
    rig = Rig(policy=policy, num_blocks=16)
    for number in range(5000):
        rig.add(str(number), [number % 1000] * (1 + number % 20), priority=number % 5)
        if number % 50 == 0:
            rig.step()
        if number % 3:
            rig.scheduler.roster.abort([str(number - number % 7)])
    rig.scheduler.roster.abort([str(number) for number in range(5000)])
    rig.step()
    state = rig.scheduler.debug_state()
    assert state.pop("cached_blocks") <= 16
    assert set(state.values()) == {0}
    assert rig.executor.known_ids == set()


# Preemption


def test_last_running_request_gives_way_and_resumes_with_its_tokens() -> None:
    rig = Rig(num_blocks=4, max_model_len=16, caching=False)
    rig.add("old", [1] * 4, max_tokens=9, seed=3)
    rig.add("young", [2] * 3, max_tokens=7)
    orders = []
    while "old" not in rig.outputs or rig.outputs["old"][-1].finish_reason is None:
        orders.append(rig.step())
    preempting = [o for o in orders if o.finished_ids == ["young"]]
    assert len(preempting) == 1
    assert "young" not in preempting[0].num_scheduled_tokens
    rig.run()
    seen = [n for o in rig.executor.orders for n in o.new_requests if n.request_id == "young"]
    first, again = seen
    assert again.token_ids == [2] * 3 + rig.tokens("young")[: len(again.token_ids) - 3]
    assert len(again.token_ids) > 3
    assert (again.num_prompt_tokens, again.seed) == (3, first.seed)
    assert len(rig.tokens("young")) == 7
    assert [o.num_preemptions for o in rig.outputs["young"]][-1] == 1
    assert rig.scheduler.stats().num_preemptions == 1


def test_tokens_of_a_preempted_request_equal_those_of_one_alone() -> None:
    answers = []
    for num_blocks in (5, 64):
        rig = Rig(num_blocks=num_blocks, block_size=2, max_model_len=10)
        for name in "abc":
            rig.add(name, [1, 2, 3], max_tokens=6)
        rig.run()
        answers.append({name: rig.tokens(name) for name in "abc"})
        assert (rig.scheduler.stats().num_preemptions > 0) == (num_blocks == 5)
    assert answers[0] == answers[1]


def test_worst_priority_gives_way_even_if_it_came_first() -> None:
    rig = Rig(num_blocks=4, block_size=4, max_model_len=16, policy="priority", caching=False)
    rig.add("low", [1] * 4, max_tokens=8, priority=1)
    rig.step()
    rig.add("high", [2] * 4, max_tokens=8, priority=0)
    preempted: list[str] = []
    while rig.scheduler.roster.requests:
        order = rig.step()
        preempted += [i for i in order.finished_ids if i in rig.scheduler.roster.requests]
    assert preempted == ["low"]
    assert len(rig.tokens("low")) == len(rig.tokens("high")) == 8


def test_request_that_fills_the_cache_runs_to_its_end() -> None:
    rig = Rig(num_blocks=4, block_size=4, max_model_len=16)
    for name in "abc":
        rig.add(name, [1] * 8, max_tokens=8)
    rig.run()
    assert [len(rig.tokens(name)) for name in "abc"] == [8, 8, 8]


def test_request_that_can_never_fit_is_refused_with_both_numbers() -> None:
    rig = Rig(num_blocks=4, block_size=4, max_model_len=64)
    with pytest.raises(ValidationError, match="come to 17 tokens, the KV cache holds 16"):
        rig.add("r", [1] * 8, max_tokens=9)
    assert not rig.scheduler.roster.has_work()


def test_prefills_under_way_hold_all_their_blocks_and_end_in_turn() -> None:
    rig = Rig(num_blocks=8, block_size=4, max_model_len=32, max_num_batched_tokens=8,
              long_prefill_token_threshold=4)  # fmt: skip
    for name in "abc":
        rig.add(name, list(range(ord(name), ord(name) + 20)), max_tokens=4)
    rig.run()
    assert [len(rig.tokens(name)) for name in "abc"] == [4, 4, 4]
    assert rig.scheduler.stats().num_preemptions == 0


def test_admission_keeps_a_block_free_for_each_request_that_may_grow() -> None:
    rig = Rig(num_blocks=3, block_size=4, max_model_len=12)
    rig.add("grows", [1] * 4, max_tokens=8)
    rig.add("large", [2] * 8, max_tokens=1)
    assert set(rig.step().num_scheduled_tokens) == {"grows"}
    rig.run()
    assert rig.scheduler.stats().num_preemptions == 0
    rig.add("ends", [3] * 4, max_tokens=1)
    rig.add("large too", [4] * 8, max_tokens=1)
    assert set(rig.step().num_scheduled_tokens) == {"ends", "large too"}


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


# Seeds, times, counters


def test_seeds_are_the_callers_or_drawn_from_the_engines() -> None:
    def seeds(engine_seed: int) -> list[int]:
        rig = Rig(seed=engine_seed)
        rig.add("a", [1])
        rig.add("b", [1], seed=5)
        rig.add("c", [1])
        return [new.seed for new in rig.step().new_requests]

    first = seeds(0)
    assert first == seeds(0)
    assert first[1] == 5
    assert len(set(first)) == 3
    assert first != seeds(1)


def test_seed_given_to_one_request_leaves_those_of_the_others_alone() -> None:
    drawn = []
    for given in (None, 5):
        rig = Rig()
        rig.add("a", [1], seed=given)
        rig.add("b", [1])
        drawn.append(rig.step().new_requests[1].seed)
    assert drawn[0] == drawn[1]


def test_ledger_comes_with_the_first_and_the_last_output() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.time = 1.0
    rig.add("a", [1] * 8, max_tokens=3)
    for rig.time in (2.0, 3.0, 4.0, 5.0):
        rig.step()
    first, between, last = rig.outputs["a"]
    assert first.ledger == RequestLedger(1.0, 2.0, 3.0, 3.0, 8, 0, 1, 0)
    assert between.ledger is None
    assert last.ledger == RequestLedger(1.0, 2.0, 3.0, 5.0, 8, 0, 3, 0)


def test_times_that_never_came_are_those_of_the_end() -> None:
    rig = Rig()
    rig.executor.errors["a"] = "broken"
    rig.add("a", [1])
    rig.time = 7.0
    rig.step()
    times = rig.outputs["a"][0].ledger
    assert times is not None
    assert (times.queued, times.first_token, times.last_token) == (0.0, 7.0, 7.0)


def test_counters_follow_the_work() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.add("a", [1] * 6, max_tokens=2)
    rig.add("b", [2] * 5, max_tokens=2)
    assert rig.scheduler.stats().num_queued_tokens == 11
    rig.step()
    stats = rig.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_queued_tokens) == (1, 1, 7)
    assert (stats.num_blocks, stats.num_free_blocks) == (64, 62)
    rig.run()
    stats = rig.scheduler.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (11, 4)
    assert (stats.num_running, stats.num_queued_tokens, stats.num_free_blocks) == (0, 0, 64)
    assert stats.num_steps == len(rig.executor.orders)


def test_cached_prompt_tokens_count_as_neither_queued_nor_computed() -> None:
    rig = Rig()
    rig.add("a", [1] * 9, max_tokens=1)
    rig.run()
    rig.add("b", [1] * 9, max_tokens=1)
    rig.run()
    assert rig.scheduler.stats().prompt_tokens == 9 + 1
    assert rig.scheduler.stats().num_queued_tokens == 0


def test_reset_prefix_cache_is_refused_while_requests_run() -> None:
    rig = Rig()
    rig.add("a", [1] * 9)
    rig.step()
    assert rig.scheduler.reset_prefix_cache() is False
    rig.run()
    assert rig.scheduler.reset_prefix_cache() is True
    rig.add("b", [1] * 9)
    rig.run()
    assert rig.outputs["b"][0].num_cached_tokens == 0


def test_progress_tells_stage_place_and_tokens_of_live_requests() -> None:
    rig = Rig(max_num_seqs=2, max_num_batched_tokens=6)
    rig.add("decodes", [1, 2])
    rig.step()
    rig.add("prefills", list(range(20)))
    rig.step()
    for name in ("first", "second"):
        rig.add(name, [1])
    found = rig.scheduler.roster.progress(["decodes", "prefills", "second", "first", "gone"])
    assert {name: (one.stage, one.position) for name, one in found.items()} == {
        "decodes": ("decode", 0),
        "prefills": ("prefill", 0),
        "first": ("waiting", 1),
        "second": ("waiting", 2),
    }
    assert found["decodes"].num_output_tokens == 2
    assert 0 < found["prefills"].num_computed_tokens < 20 == found["prefills"].num_prompt_tokens


def test_progress_tells_the_place_of_those_behind_a_closing_gate() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("runs", [1])
    rig.step()
    rig.add("waits", [1])
    rig.scheduler.roster.gate.close()
    rig.add("held", [1])
    found = rig.scheduler.roster.progress(["held", "waits"])
    assert (found["waits"].position, found["held"].position) == (1, 2)
