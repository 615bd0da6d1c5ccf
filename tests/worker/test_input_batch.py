"""A step's arrays against a slow reading of the same order, over random histories."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace._native import StepBatch
from headrace.messages.step import CachedRequest, NewRequest, SchedulerOutput
from headrace.sampling_params import SamplingParams
from headrace.worker.input_batch import InputBatch

BLOCK = 8


class Known:
    """What the oracle remembers of one request."""

    def __init__(self, tokens: list[int], num_prompt_tokens: int) -> None:
        self.tokens = tokens
        self.num_prompt_tokens = num_prompt_tokens
        self.blocks: list[int] = []
        self.computed = 0


def _make_batch(max_num_seqs: int, max_model_len: int) -> InputBatch:
    return InputBatch(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_num_tokens=max_num_seqs * max_model_len,
        block_size=BLOCK,
        vocab_size=50,
    )


@pytest.mark.parametrize("seed", range(20))
def test_inputs_equal_a_slow_oracle_over_random_histories(seed: int) -> None:
    rng = random.Random(seed)
    batch = _make_batch(4, 64)
    known: dict[str, Known] = {}
    free_blocks = list(range(32))
    rng.shuffle(free_blocks)
    next_id = 0
    for _ in range(60):
        finished = [i for i in known if rng.random() < 0.15 or len(known[i].tokens) >= 63]
        for request_id in finished:
            free_blocks += known.pop(request_id).blocks
        new, cached, counts = [], [], {}
        for request_id, state in known.items():
            count = rng.randint(1, len(state.tokens) - state.computed)
            added = _grow(state, state.computed + count, free_blocks)
            cached.append(CachedRequest(request_id, added, state.computed))
            counts[request_id] = count
        while len(known) + len(new) < 4 and rng.random() < 0.6:
            length = rng.randint(1, 20)
            state = Known([rng.randrange(50) for _ in range(length)], rng.randint(1, length))
            count = rng.randint(1, length)
            _grow(state, count, free_blocks)
            request_id = f"r{next_id}"
            next_id += 1
            new.append((request_id, state))
            counts[request_id] = count
        order = SchedulerOutput(
            [
                NewRequest(i, list(s.tokens), s.num_prompt_tokens, SamplingParams(), [], 1,
                           list(s.blocks), s.computed)
                for i, s in new
            ],
            cached, counts, sum(counts.values()), finished,
        )  # fmt: skip
        known |= dict(new)
        batch.apply(order)
        assert set(batch.rows) == set(known)
        if not counts:
            continue
        step = batch.prepare(counts)
        _assert_equal_to_oracle(step, known, counts)
        for request in step.sampling_requests:
            token = rng.randrange(50)
            batch.append_token(request, token)
            known[request.request_id].tokens.append(token)
        for request_id, count in counts.items():
            known[request_id].computed += count


def _grow(state: Known, num_tokens: int, free_blocks: list[int]) -> list[int]:
    added = [free_blocks.pop() for _ in range(-(-num_tokens // BLOCK) - len(state.blocks))]
    state.blocks += added
    return added


def _assert_equal_to_oracle(step, known: dict[str, Known], counts: dict[str, int]) -> None:
    ids, positions, slots, starts, lens, samples = [], [], [], [0], [], []
    for request_id, count in counts.items():
        state = known[request_id]
        for position in range(state.computed, state.computed + count):
            ids.append(state.tokens[position])
            positions.append(position)
            slots.append(state.blocks[position // BLOCK] * BLOCK + position % BLOCK)
        starts.append(len(ids))
        lens.append(state.computed + count)
        if lens[-1] == len(state.tokens):
            samples.append((request_id, len(ids) - 1))
    inputs = step.inputs
    for array in (inputs.input_ids, inputs.positions, inputs.slot_mapping, inputs.query_start_loc,
                  inputs.seq_lens, inputs.block_table, step.logits_rows):  # fmt: skip
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    assert inputs.input_ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    assert inputs.slot_mapping.tolist() == slots
    assert inputs.query_start_loc.tolist() == starts
    assert inputs.seq_lens.tolist() == lens
    for row, request_id in zip(inputs.block_table.tolist(), counts, strict=True):
        needed = -(-(known[request_id].computed + counts[request_id]) // BLOCK)
        assert row[:needed] == known[request_id].blocks[:needed]
    assert [r.request_id for r in step.sampling_requests] == [i for i, _ in samples]
    assert step.logits_rows.tolist() == [row for _, row in samples]


def test_the_last_token_of_a_full_context_needs_no_place() -> None:
    batch = _make_batch(1, 4)
    new = NewRequest("a", [1, 2, 3, 4], 4, SamplingParams(), [], 1, [0], 0)
    order = SchedulerOutput([new], [], {"a": 4}, 4, [])
    batch.apply(order)
    [request] = batch.prepare({"a": 4}).sampling_requests
    batch.append_token(request, 9)
    assert batch.tokens(request, 0, 4) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="0 to 5 of 4"):
        batch.tokens(request, 0, 5)
    assert request.sampling.num_output_tokens == 1


def test_steps_of_one_size_share_their_arrays_and_others_do_not() -> None:
    batch = _make_batch(2, 16)
    new = NewRequest("a", [1, 2, 3, 4], 4, SamplingParams(), [], 1, [0], 0)
    batch.apply(SchedulerOutput([new], [], {"a": 2}, 2, []))
    first = batch.prepare({"a": 2})
    assert first.inputs.input_ids.tolist() == [1, 2]
    assert first.sampling_requests == []
    batch.apply(SchedulerOutput([], [CachedRequest("a", [], 2)], {"a": 2}, 2, []))
    second = batch.prepare({"a": 2})
    assert second.inputs is first.inputs
    assert second.inputs.input_ids.tolist() == [3, 4]
    assert second.logits_rows.tolist() == [1]
    batch.apply(SchedulerOutput([], [CachedRequest("a", [], 3)], {"a": 1}, 1, []))
    assert batch.prepare({"a": 1}).inputs.positions.tolist() == [3]


@pytest.mark.parametrize(
    ("rows", "counts", "text"),
    [
        ([2], [1], "row 2 is not in"),
        ([-1], [1], "row -1 is not in"),
        ([0], [4], "tokens 0 to 4 of a request with 3 tokens"),
        ([0], [0], "tokens 0 to 0"),
        ([0], [-1], "tokens 0 to -1"),
        ([1], [3], "in 1 blocks"),
        ([0, 1], [1], "2 requests and 1 counts"),
        ([0, 1, 0], [1, 1, 1], "3 requests"),
        ([0, 1], [3, 1], "4 tokens, at most 3"),
    ],
)
def test_numbers_that_would_reach_foreign_memory_are_refused(
    rows: list[int], counts: list[int], text: str
) -> None:
    batch = StepBatch(max_num_seqs=2, max_model_len=4, block_size=2, max_num_tokens=3)
    batch.set(0, [1, 2, 3], [0, 1], 0)
    batch.set(1, [1, 2, 3], [2], 0)
    with pytest.raises(ValueError, match=text):
        batch.gather(rows, counts)
    assert batch.gather([0], [3]) == [0]


def test_a_batch_refuses_what_its_rows_cannot_hold() -> None:
    batch = StepBatch(max_num_seqs=1, max_model_len=4, block_size=2, max_num_tokens=4)
    with pytest.raises(ValueError, match="5 tokens"):
        batch.set(0, [1] * 5, [], 0)
    with pytest.raises(ValueError, match="3 blocks beside 0"):
        batch.set(0, [1], [0, 1, 2], 0)
    batch.set(0, [1, 2], [0], 0)
    with pytest.raises(ValueError, match="2 blocks beside 1"):
        batch.extend(0, [1, 2], 1)
    with pytest.raises(ValueError, match="num_computed is -1"):
        batch.extend(0, [], -1)
    with pytest.raises(ValueError, match="row 1 is not in"):
        batch.append(1, 0)
    assert batch.gather([0], [2]) == [0]
    assert batch.tokens(0, 0, 2) == [1, 2]
    for sizes in ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        with pytest.raises(ValueError, match="is 0"):
            StepBatch(*sizes)


def test_a_request_that_cannot_be_taken_is_told_and_the_others_are() -> None:
    batch = _make_batch(2, 8)
    bad = NewRequest("bad", [1], 1, SamplingParams(logit_bias={60: 1.0}), [], 1, [0], 0)
    good = NewRequest("good", [1, 2], 2, SamplingParams(), [], 1, [1], 0)
    errors = batch.apply(SchedulerOutput([bad, good], [], {"bad": 1, "good": 2}, 3, []))
    assert list(errors) == ["bad"]
    assert "60" in errors["bad"]
    assert list(batch.rows) == ["good"]
