"""Drafts in the scheduler, rule by rule. Random lives are in test_scheduler_oracle.py."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig, SpeculativeConfig
from headrace.core.scheduler import Scheduler
from headrace.messages.outputs import EngineCoreOutput, FinishReason
from headrace.messages.step import SchedulerOutput
from headrace.sampling_params import RepetitionDetectionParams
from tests.fakes import RecordingExecutor, make_core_request

LOOP = [1, 2, 3, 4] * 3
"""A prompt that can be guessed on."""


class Rig:
    """A scheduler that guesses, with an executor that checks what it is told."""

    def __init__(
        self, script: dict[str, list[int]], *, num_tokens: int = 4, batch_size: int = 8,
        num_blocks: int = 64, max_num_batched_tokens: int = 64, max_num_seqs: int = 8,
    ) -> None:  # fmt: skip
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
            ),
            CacheConfig(block_size=4),
            num_blocks,
            64,
            now=lambda: 0.0,
            speculative=SpeculativeConfig(
                num_speculative_tokens=num_tokens,
                prompt_lookup_min=1,
                prompt_lookup_max=3,
                disable_by_batch_size=batch_size,
            ),
        )
        self.executor = RecordingExecutor(num_blocks=num_blocks, script=script)
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    def add(self, request_id: str, prompt: list[int], **options: Any) -> None:
        self.scheduler.add_request(make_core_request(request_id, prompt, **options))

    def step(self) -> SchedulerOutput:
        order = self.scheduler.schedule()
        for output in self.scheduler.update(order, self.executor.execute(order)):
            self.outputs.setdefault(output.request_id, []).append(output)
        return order

    def tokens(self, request_id: str) -> list[list[int]]:
        """By output."""
        return [output.new_token_ids for output in self.outputs[request_id]]

    def answer(self, request_id: str) -> list[int]:
        """Of all outputs."""
        return [token_id for tokens in self.tokens(request_id) for token_id in tokens]


def test_right_tokens_come_at_once_with_one_more() -> None:
    rig = Rig({"a": [1, 2, 3, 4, 1, 2]})
    rig.add("a", LOOP, max_tokens=20, logprobs=0)
    assert rig.step().draft_token_ids == {}
    order = rig.step()
    assert order.draft_token_ids == {"a": [2, 3, 4]}
    assert order.num_scheduled_tokens == {"a": 4}
    assert order.total_num_scheduled_tokens == 4
    assert rig.tokens("a") == [[1], [2, 3, 4, 1]]
    logprobs = rig.outputs["a"][1].logprobs
    assert logprobs is not None
    assert [entry.token_ids for entry in logprobs] == [[2], [3], [4], [1]]
    assert rig.scheduler.roster.requests["a"].num_computed_tokens == len(LOOP) + 4


def test_nothing_behind_a_wrong_token_counts() -> None:
    rig = Rig({"a": [1, 2, 9, 9]})
    rig.add("a", LOOP, max_tokens=20)
    rig.step()
    rig.step()
    assert rig.tokens("a") == [[1], [2, 9]]
    request = rig.scheduler.roster.requests["a"]
    assert request.num_computed_tokens == len(request.token_ids) - 1 == len(LOOP) + 2
    stats = rig.scheduler.stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 1)
    assert stats.num_accepted_tokens_per_pos == [1, 0, 0, 0]
    assert stats.generation_tokens == 3


@pytest.mark.parametrize(
    ("options", "reason", "stop_reason"),
    [
        ({"eos_token_id": 3}, FinishReason.STOP, None),
        ({"stop_token_ids": [3]}, FinishReason.STOP, 3),
    ],
)
def test_a_stop_among_right_tokens_is_the_end(
    options: dict[str, Any], reason: FinishReason, stop_reason: int | None
) -> None:
    rig = Rig({"a": [1, 2, 3, 4, 1, 2]})
    rig.add("a", LOOP, max_tokens=20, logprobs=0, **options)
    rig.step()
    rig.step()
    last = rig.outputs["a"][-1]
    assert last.new_token_ids == [2, 3]
    assert last.logprobs is not None
    assert len(last.logprobs) == 2
    assert (last.finish_reason, last.stop_reason) == (reason, stop_reason)
    assert last.ledger is not None
    assert last.ledger.num_output_tokens == 3
    assert (last.ledger.num_draft_tokens, last.ledger.num_accepted_tokens) == (3, 2)
    assert rig.scheduler.stats().generation_tokens == 3
    assert rig.scheduler.debug_state()["blocks_in_use"] == 0


def test_min_tokens_holds_among_right_tokens() -> None:
    rig = Rig({"a": LOOP})
    rig.add("a", LOOP, max_tokens=20, stop_token_ids=[3], min_tokens=4)
    while rig.scheduler.roster.has_work():
        rig.step()
    assert rig.answer("a") == [1, 2, 3, 4, 1, 2, 3]
    assert rig.outputs["a"][-1].stop_reason == 3


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_a_draft_never_goes_beyond_max_tokens(max_tokens: int) -> None:
    rig = Rig({"a": [1, 2, 3, 4, 1, 2, 3, 4]})
    rig.add("a", LOOP, max_tokens=max_tokens)
    lengths = [0]
    while rig.scheduler.roster.has_work():
        lengths += [len(draft) for draft in rig.step().draft_token_ids.values()]
    assert max(lengths) == min(3, max(0, max_tokens - 2))
    assert rig.answer("a") == [1, 2, 3, 4, 1, 2, 3, 4][:max_tokens]
    assert rig.outputs["a"][-1].finish_reason is FinishReason.LENGTH


def test_repetition_is_seen_among_right_tokens() -> None:
    rig = Rig({"a": [9] * 9}, num_tokens=6)
    wanted = RepetitionDetectionParams(max_pattern_size=1, min_pattern_size=1, min_count=4)
    rig.add("a", [9, 9, 9], max_tokens=20, repetition_detection=wanted)
    rig.step()
    rig.step()
    assert rig.tokens("a") == [[9], [9, 9, 9]]
    assert rig.outputs["a"][-1].finish_reason is FinishReason.REPETITION


def test_with_more_requests_than_said_nothing_is_guessed() -> None:
    script = dict.fromkeys("abc", LOOP)
    rig = Rig(script, batch_size=2)
    for name in "abc":
        rig.add(name, LOOP, max_tokens=3 if name == "c" else 12)
    assert not any(rig.step().draft_token_ids for _ in range(3))
    assert set(rig.step().draft_token_ids) == {"a", "b"}


def test_drafts_get_what_is_left_of_the_budget() -> None:
    rig = Rig(dict.fromkeys("ab", LOOP), max_num_batched_tokens=5, max_num_seqs=2)
    rig.add("a", [1, 2, 1], max_tokens=12)
    rig.add("b", [1, 2], max_tokens=12)
    rig.step()
    order = rig.step()
    # Three are left by the two requests, and the first may have four.
    assert order.num_scheduled_tokens["b"] == 1
    assert order.total_num_scheduled_tokens <= 5


def test_a_waiting_prompt_comes_before_drafts() -> None:
    rig = Rig(dict.fromkeys("ab", LOOP), max_num_batched_tokens=5)
    rig.add("a", [1, 2, 1], max_tokens=12)
    rig.step()
    rig.add("b", [7] * 20, max_tokens=4)
    order = rig.step()
    assert order.num_scheduled_tokens == {"a": 1, "b": 4}
    assert order.draft_token_ids == {}


def test_drafts_take_no_block_that_another_request_may_need() -> None:
    # Prompts of 3 tokens: the second block of each comes with its fifth token.
    rig = Rig({name: [1, 2, 1, 2, 1, 2] for name in "ab"}, num_blocks=4, num_tokens=6)
    for name in "ab":
        rig.add(name, [2, 1, 2], max_tokens=5)
    while rig.scheduler.roster.has_work():
        order = rig.step()
        for name, draft in order.draft_token_ids.items():
            assert len(draft) <= 6
            assert name in rig.executor.known_ids
    assert rig.scheduler.stats().num_preemptions == 0
    assert rig.scheduler.stats().num_accepted_tokens > 0


def test_a_block_with_guessed_tokens_is_found_by_nobody() -> None:
    rig = Rig({"a": [1, 9, 9, 9], "b": [5]})
    rig.add("a", LOOP, max_tokens=20)
    rig.step()
    rig.step()  # guesses 2, 3, 4, which would fill a block; 9 is right
    rig.add("b", [*LOOP, 1, 2, 3, 4, 1], max_tokens=1)
    order = rig.step()
    [new] = order.new_requests
    assert new.num_computed_tokens == len(LOOP)


def test_an_aborted_request_leaves_nothing() -> None:
    rig = Rig({"a": LOOP})
    rig.add("a", LOOP, max_tokens=20)
    rig.step()
    order = rig.scheduler.schedule()
    assert order.draft_token_ids
    rig.scheduler.roster.abort(["a"])
    assert rig.scheduler.update(order, rig.executor.execute(order)) == []
    assert rig.scheduler.stats().num_draft_tokens == 0
    assert rig.scheduler.debug_state()["blocks_in_use"] == 0


def test_a_preempted_request_guesses_on() -> None:
    rig = Rig({"a": [1, 2, 3, 4] * 4})
    rig.add("a", LOOP, max_tokens=16)
    rig.step()
    rig.step()
    rig.scheduler.roster.preempt_all()
    assert rig.step().draft_token_ids == {}
    assert rig.step().draft_token_ids != {}
    while rig.scheduler.roster.has_work():
        rig.step()
    assert rig.answer("a") == [1, 2, 3, 4] * 4
