"""The scheduler when requests are aborted, and when they give way to others."""

from __future__ import annotations

import pytest

from headrace.errors import ValidationError
from tests.core.scheduler_rig import Rig

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
