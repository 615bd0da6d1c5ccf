"""The rules of the scheduler one by one. Random lives are in test_scheduler_oracle.py."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.pace import StepPace
from headrace.errors import ConfigError
from headrace.messages.outputs import FinishReason
from tests.core.scheduler_rig import Rig

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


def test_prefills_are_held_only_beside_watched_tokens() -> None:
    pace = StepPace()

    def held_beside(num_decodes: int) -> int:
        return pace.prefill_tokens(num_decodes, num_decodes + 1, 0)

    rig = Rig(max_num_batched_tokens=50)
    rig.add("a", [1] * 3, max_tokens=20, is_watched=False)
    assert rig.scheduler.prefill_limit(pace) is None
    rig.step()
    assert rig.scheduler.prefill_limit(pace) is None
    rig.add("b", [2] * 30, eos_token_id=0)
    assert rig.scheduler.prefill_limit(pace) is None
    rig.add("c", [3] * 3, max_tokens=20, eos_token_id=0)
    rig.step()
    rig.add("d", [4] * 300, max_tokens=3)
    assert rig.scheduler.prefill_limit(pace) == held_beside(3)  # though only one is watched
    rig.step(max_prefill_tokens=10)
    assert rig.scheduler.prefill_limit(pace) == held_beside(3)
    rig = Rig(enable_chunked_prefill=False)
    rig.add("a", [1] * 3, max_tokens=20)
    rig.step()
    rig.add("c", [3] * 30)
    assert rig.scheduler.prefill_limit(pace) is None


def test_answers_computed_again_are_held_to_their_last_token() -> None:
    pace = StepPace()
    rig = Rig(max_num_batched_tokens=50, caching=False)
    rig.add("a", [1] * 3, max_tokens=60)
    rig.add("b", [2] * 3, max_tokens=60)
    for _ in range(30):
        rig.step()
    rig.scheduler.roster.preempt_last()
    num_limited = 0
    while rig.scheduler.prefill_limit(pace) is not None:
        rig.step(max_prefill_tokens=10)
        num_limited += 1
    assert num_limited == 4  # 33 tokens


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
