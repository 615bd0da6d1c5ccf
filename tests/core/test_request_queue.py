"""Waiting queues: order, removal anywhere, memory of what was removed."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from headrace.core.request import Request
from headrace.core.request_queue import FCFSQueue, PriorityQueue, make_request_queue
from headrace.messages.requests import EngineCoreRequest
from headrace.sampling_params import SamplingParams


def make_request(number: int, priority: int = 0, arrival: float = 0.0) -> Request:
    source = EngineCoreRequest(str(number), [1], SamplingParams(), None, [], arrival, priority)
    return Request(
        source,
        max_model_len=8,
        seed=0,
        order=(priority, arrival, number),
        queued_at=0.0,
        chain=None,
    )


def drain(queue: FCFSQueue | PriorityQueue) -> list[str]:
    return [queue.pop().request_id for _ in range(len(queue))]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_empty_queue_has_nothing_to_give(policy: Literal["fcfs", "priority"]) -> None:
    queue = make_request_queue(policy)
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.peek()
    with pytest.raises(IndexError):
        queue.pop()
    with pytest.raises(KeyError):
        queue.remove(make_request(0))


def test_fcfs_gives_in_order_of_arrival_and_returned_ones_first() -> None:
    queue = FCFSQueue()
    requests = [make_request(number) for number in range(5)]
    for request in requests:
        queue.push(request)
    assert [queue.pop(), queue.pop()] == requests[:2]
    queue.put_back(requests[1])
    queue.put_back(requests[0])
    queue.remove(requests[3])
    assert queue.peek() is requests[0]
    assert drain(queue) == ["0", "1", "2", "4"]


def test_priority_gives_by_priority_then_arrival_then_sequence() -> None:
    queue = PriorityQueue()
    for number, priority, arrival in [
        (0, 1, 0.0),
        (1, 0, 5.0),
        (2, 0, 1.0),
        (3, -1, 9.0),
        (4, 0, 1.0),
    ]:
        queue.push(make_request(number, priority, arrival))
    assert drain(queue) == ["3", "2", "4", "1", "0"]


def test_priority_keeps_no_more_entries_than_twice_the_live_requests() -> None:
    queue = PriorityQueue()
    requests = [make_request(number, number % 7) for number in range(1000)]
    for request in requests:
        queue.push(request)
    random.Random(0).shuffle(requests)
    for left, request in zip(range(999, -1, -1), requests, strict=True):
        queue.remove(request)
        assert len(queue) == left
        assert queue.num_entries <= 2 * left


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", range(10))
def test_random_operations_equal_a_sorted_list(
    policy: Literal["fcfs", "priority"], seed: int
) -> None:
    rng = random.Random(seed)
    queue = make_request_queue(policy)
    plain: list[Request] = []
    popped: list[Request] = []
    for number in range(300):
        action = rng.randrange(5)
        if action < 2:
            priority = rng.randint(0, 2) if policy == "priority" else 0
            request = make_request(number, priority)
            queue.push(request)
            plain.append(request)
        elif action == 2 and plain:
            popped.append(plain.pop(0))
            assert queue.pop() is popped[-1]
        elif action == 3 and plain:
            request = plain.pop(rng.randrange(len(plain)))
            queue.remove(request)
        elif action == 4 and popped:
            request = max(popped, key=lambda r: r.order)
            popped.remove(request)
            if policy == "fcfs" and plain and plain[0].order < request.order:
                continue  # cannot happen: requests go back worst first
            queue.put_back(request)
            plain.append(request)
        plain.sort(key=lambda r: r.order)
        assert len(queue) == len(plain)
        assert queue.num_entries <= 2 * len(plain)
        if plain:
            assert queue.peek() is plain[0]
    assert [queue.pop() for _ in range(len(queue))] == plain
