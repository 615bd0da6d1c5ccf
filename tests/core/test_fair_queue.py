"""Fair turns of tenants in the waiting queue: shares, debts, what is free, and what it costs."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from headrace.core.fair_queue import QUANTUM, FairQueue
from headrace.core.request import Request
from headrace.messages.requests import EngineCoreRequest
from headrace.sampling_params import SamplingParams


def make_request(
    number: int, tenant: str | None, num_tokens: int = QUANTUM, priority: int = 0
) -> Request:
    source = EngineCoreRequest(
        str(number), [1] * num_tokens, SamplingParams(), None, [], 0.0, tenant=tenant
    )
    order = (priority, 0.0, number)
    return Request(source, max_model_len=10**6, seed=0, order=order, queued_at=0.0, chain=None)


def fill(queue: FairQueue, *requests: Request) -> None:
    for request in requests:
        queue.join(request)
        queue.push(request)


def tenants(requests: list[Request]) -> str:
    return "".join(request.tenant or "-" for request in requests)


def drain(queue: FairQueue) -> list[Request]:
    return [queue.pop() for _ in range(len(queue))]


def test_one_tenant_is_served_in_order_of_arrival_whatever_it_takes() -> None:
    queue = FairQueue("fcfs")
    fill(queue, *(make_request(number, None, 1 + 997 * number) for number in range(20)))
    assert [request.request_id for request in drain(queue)] == [str(i) for i in range(20)]


def test_a_late_tenant_does_not_wait_behind_the_queue_of_another() -> None:
    queue = FairQueue("fcfs")
    fill(queue, *(make_request(number, "a") for number in range(1000)))
    drained = [queue.pop() for _ in range(10)]
    fill(queue, make_request(1000, "b"))
    drained = [queue.pop() for _ in range(3)]
    assert "b" in tenants(drained)


def test_tenants_get_equal_tokens_however_their_requests_are_cut() -> None:
    queue = FairQueue("fcfs")
    fill(queue, *(make_request(n, "a", 1000) for n in range(20)))
    fill(queue, *(make_request(n, "b", 10) for n in range(20, 2020)))
    tokens: Counter[str | None] = Counter()
    while len(queue) > 1000 and {"a", "b"} <= set(queue._num_waiting):
        request = queue.pop()
        tokens[request.tenant] += len(request.token_ids)
        assert abs(tokens["a"] - tokens["b"]) <= 1000 + 2 * QUANTUM


def test_answers_are_charged_at_their_end() -> None:
    queue = FairQueue("fcfs")
    fill(queue, *(make_request(n, "a", 1) for n in range(1000)))
    fill(queue, *(make_request(n, "b", 1) for n in range(1000, 2000)))
    first = queue.pop()
    first.token_ids += [1] * (10 * QUANTUM)
    queue.leave(first)
    others = "b" if first.tenant == "a" else "a"
    served = tenants([queue.pop() for _ in range(10 * QUANTUM)])
    assert served[: 9 * QUANTUM].count(others) > 900


def test_what_nobody_else_waits_for_is_free() -> None:
    queue = FairQueue("fcfs")
    fill(queue, *(make_request(n, "a", 100 * QUANTUM) for n in range(5)))
    for request in [queue.pop() for _ in range(3)]:
        queue.leave(request)
    fill(queue, make_request(9, "b"), make_request(10, "b"))
    assert tenants(drain(queue)) == "abba"


def test_priority_stands_above_tenants() -> None:
    queue = FairQueue("priority")
    fill(
        queue,
        make_request(0, "a", priority=1),
        make_request(1, "b", priority=1),
        make_request(2, "a", 1000, priority=0),
        make_request(3, "a", 1000, priority=0),
    )
    assert [request.request_id for request in drain(queue)] == ["2", "3", "1", "0"]


def test_a_preempted_request_is_next_and_gets_its_charge_back() -> None:
    queue = FairQueue("fcfs")
    fill(queue, make_request(0, "a", 5000), make_request(1, "b"), make_request(2, "a"))
    first = queue.pop()
    assert first.num_charged == 5000
    queue.put_back(first)
    assert first.num_charged == 0
    assert queue.pop() is first


@pytest.mark.parametrize("seed", range(20))
def test_the_order_foretold_is_the_order_that_comes(seed: int) -> None:
    rng = random.Random(seed)
    queue = FairQueue(rng.choice(["fcfs", "priority"]))
    for number in range(200):
        priority = rng.randint(0, 2) if queue._policy == "priority" else 0
        tenant = rng.choice([None, "a", "b", "c"])
        fill(queue, make_request(number, tenant, rng.randint(1, 400), priority))
        if rng.random() < 0.4:
            queue.leave(queue.pop())
    foretold = list(queue.in_order())
    assert len(foretold) == len(queue)
    assert drain(queue) == foretold


def test_nothing_is_kept_of_requests_that_are_gone() -> None:
    queue = FairQueue("priority")
    keeper = make_request(10**6, "keeper", priority=-1)
    fill(queue, keeper)
    for number in range(2000):  # at ever new priorities, behind one that stays
        request = make_request(number, f"tenant {number}", priority=number)
        fill(queue, request)
        queue.remove(request)
        queue.leave(request)
    assert (len(queue), queue.num_entries, queue.num_tenants) == (1, 1, 1)
    assert len(queue._priorities) <= 3
    queue.leave(queue.pop())
    assert (len(queue), queue.num_entries, queue.num_tenants) == (0, 0, 0)
    with pytest.raises(IndexError):
        queue.peek()


def test_a_deep_debt_is_passed_over_without_walking_through_its_rounds() -> None:
    queue = FairQueue("fcfs")
    fill(queue, *(make_request(n, f"t{n % 500}", 1) for n in range(1000)))
    for tenant in queue._balances:
        queue._balances[tenant] = -(10**12)
    begin = time.process_time()
    queue.peek()
    assert time.process_time() - begin < 1  # walking would take days


def test_what_answers_will_be_charged_is_foretold_when_it_is_known() -> None:
    queue = FairQueue("fcfs")
    for number in range(100):  # answers of late have 200 tokens
        ended = make_request(number, "a", 1)
        fill(queue, ended)
        queue.pop().token_ids += [1] * 200
        queue.leave(ended)
    assert 190 < queue.mean_answer < 200
    fill(queue, *(make_request(n, "a", 1) for n in range(1000, 1010)), make_request(2000, "b", 1))
    assert tenants(list(queue.in_order(round(queue.mean_answer)))).index("b") == 1
    assert tenants(list(queue.in_order())).index("b") == 10
