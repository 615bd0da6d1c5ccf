"""The requests that wait to be scheduled, in the order of a policy. No operation scans them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal, Protocol

from headrace.core.request import Request


class RequestQueue(Protocol):
    """Waiting requests; `peek` and `pop` give the one that runs next."""

    def __len__(self) -> int: ...

    def push(self, request: Request) -> None:
        """Add a request that is new."""
        ...

    def put_back(self, request: Request) -> None:
        """Return a request that was popped before: it goes ahead of all that came after it."""
        ...

    def peek(self) -> Request:
        """The next request. Raises IndexError when empty."""
        ...

    def pop(self) -> Request:
        """Take out the next request. Raises IndexError when empty."""
        ...

    def remove(self, request: Request) -> None:
        """Take out this request, wherever it is. Raises KeyError when it is not here."""
        ...

    def in_order(self) -> Iterable[Request]:
        """All of them, the next one first."""
        ...

    @property
    def num_entries(self) -> int:
        """Entries held in memory, those of removed requests included."""
        ...


def make_request_queue(policy: Literal["fcfs", "priority"]) -> RequestQueue:
    """An empty queue for a scheduling policy."""
    return FCFSQueue() if policy == "fcfs" else PriorityQueue()


class FCFSQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def push(self, request: Request) -> None:
        self._requests[request.order[-1]] = request

    def put_back(self, request: Request) -> None:
        key = request.order[-1]
        self._requests[key] = request
        self._requests.move_to_end(key, last=False)

    def peek(self) -> Request:
        for request in self._requests.values():
            return request
        raise IndexError("no request is waiting")

    def pop(self) -> Request:
        request = self.peek()
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        del self._requests[request.order[-1]]

    def in_order(self) -> Iterable[Request]:
        return self._requests.values()

    @property
    def num_entries(self) -> int:
        return len(self._requests)


class PriorityQueue:
    """Best `order` first: a heap in which removed requests stay as entries without a request.

    They are swept when they outnumber the live ones, so that removal costs O(1) on average and
    memory stays within twice of what lives.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int]] = []
        self._requests: dict[tuple[int, float, int], Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def push(self, request: Request) -> None:
        self._requests[request.order] = request
        heapq.heappush(self._heap, request.order)

    put_back = push

    def peek(self) -> Request:
        while True:
            request = self._requests.get(self._heap[0])
            if request is not None:
                return request
            heapq.heappop(self._heap)

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        del self._requests[request.order]
        if len(self._heap) > 2 * len(self._requests):
            self._heap = list(self._requests)
            heapq.heapify(self._heap)

    def in_order(self) -> Iterable[Request]:
        return [self._requests[order] for order in sorted(self._requests)]

    @property
    def num_entries(self) -> int:
        return len(self._heap)
